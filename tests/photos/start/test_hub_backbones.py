"""Everything that works with the built-in networks works with those of the hub, without it.

The cache has random weights of networks with few blocks, in the hub's layout.
"""

import functools
import pathlib

import jax
import numpy as np
import pytest

from cls_jax import models
from cls_jax.models import MODELS
from cls_jax.models.mobilenetv4 import Block
from cls_jax.models.weights.backbones import BACKBONES, HUB, Download
from cls_jax.models.weights.hub import WEIGHTS_FILE
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.models.weights.sources import to_safetensors
from cls_jax.photos.features.backbones import Backbones, format_backbones
from cls_jax.photos.inference import export
from cls_jax.photos.inference.run import load
from cls_jax.photos.inference.suggest import suggest_files
from cls_jax.photos.labeling.classifier import read_photo
from cls_jax.photos.labeling.photos import load_all
from cls_jax.photos.plan.describe import describe_training
from cls_jax.photos.plan.measure import gather_facts
from cls_jax.photos.plan.plan import Request, plan_run, start_run
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.runs.folder import read_result
from cls_jax.training.prepare import resolve_model
from tests.core.models.make_fixtures import draw_parameter
from tests.photos.helpers import HUB_COMMIT, cache_hub, write_colors

# Fewer blocks, and as few pixels as they accept: (arguments of the network, size).
SMALL = {
    "dinov2_small": ({"depth": 1, "width": 48, "num_heads": 3}, 28),
    "mobilenetv4_conv_medium": ({"table": ((16, (Block(3, 5, 2, 2),)),)}, 32),
    "convnext_nano": ({"depths": (1, 1), "widths": (8, 16)}, 32),
}


@pytest.fixture(params=[init for init in BACKBONES if init.startswith(HUB)])
def init(request, tmp_path, monkeypatch):
    """A name of the table whose weights are in the cache of a machine without a connection."""
    init, row = request.param, BACKBONES[request.param]
    settings, size = SMALL[row.name]
    spec = MODELS[row.name]
    spec = spec._replace(create=functools.partial(spec.create, **settings), image_size=size)
    monkeypatch.setitem(models.MODELS, row.name, spec)
    origin = Download(HUB_COMMIT if len(row.origin.revision) == 40 else "main")
    monkeypatch.setitem(BACKBONES, init, row._replace(origin=origin))

    # DINOv2's file is for larger images, and has no head.
    image = jax.ShapeDtypeStruct((1, 2 * size, 2 * size, 3), np.float32)
    variables = jax.eval_shape(spec.create(num_classes=7).init, jax.random.key(0), image)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), variables)
    names = to_torch(zeros, spec.layout)
    if row.name == "dinov2_small":
        names = {key: value for key, value in names.items() if not key.startswith("head")}
        names["mask_token"] = np.zeros((1, 48), np.float32)
    content = to_safetensors(
        Weights({key: draw_parameter(key, value.shape) for key, value in names.items()})
    )
    cache_hub(monkeypatch, tmp_path / "hub", init, {WEIGHTS_FILE: content})
    return init


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Three kinds of colors: two labels of each, others without, and test images."""
    monkeypatch.chdir(tmp_path)
    return write_colors(tmp_path / "photos", labeled=2, unlabeled=2, test=2, size=40)


@pytest.mark.slow
def test_networks_of_the_hub_do_what_the_built_in_ones_do(init, photos, monkeypatch):
    size = MODELS[BACKBONES[init].name].image_size
    settings = {
        "model.init": init,
        "data.image_size": size,
        "data.pipeline": "device",
        "num_steps": 2,
        "batch_size": 2,
        "mu": 1,
        "mesh.data": 1,
        "model.final_head": "trained",
        "eval_every": 2,
        "optimizer.frozen_stages": 1,  # The networks have few blocks.
    }
    plan = plan_run(Request(photos, method="fixmatch", workdir="run", settings=settings))
    assert f"{init} (license Apache-2.0)" in str(describe_training(plan, gather_facts(plan)))
    (line,) = (line for line in format_backbones().splitlines() if line.startswith(init))
    assert line.endswith("  downloaded")
    # Begins with an instant classifier, whose folder is in the run's.
    dataset = start_run(plan).dataset
    train_with_stages(resolve_model(plan.config), plan.workdir, lambda _: dataset)
    run = plan.workdir
    expected = {"init": init, "license": "Apache-2.0", "commit": HUB_COMMIT}
    files = sorted(map(str, photos.rglob("*.png")))
    for workdir in (run, run / "instant"):
        assert read_result(workdir)["weights"] == [expected]
        assert set(load(workdir).predict(files).label) <= {"red", "green", "blue"}
    assert len(suggest_files(run, 2)) == 2
    assert len(suggest_files(photos, 2, init=init)) == 2
    # The labeling page: its photos, and one to try.
    seen = load_all([pathlib.Path(file) for file in files], backbones=Backbones(init))
    with open(files[0], "rb") as file:
        tried = read_photo(file, Backbones(init))
    assert not seen.reasons
    np.testing.assert_allclose(tried.pooled, seen.frozen.pooled[:1], atol=0.1)
    # That of ONNX takes seconds.
    monkeypatch.setattr(export, "convert_to_onnx", lambda *_: (None, None))
    export.export_run(run, photos.parent / "exported")
    readme = (photos.parent / "exported" / "README.md").read_text()
    assert f"`{init}`: license Apache-2.0; commit {HUB_COMMIT}" in readme
    images = np.random.default_rng(0).integers(0, 256, (2, size, size, 3), dtype=np.uint8)
    networks = load(run, step="2").networks
    maps = networks.compute_heat_maps(images, np.zeros(2, np.int32))
    assert maps.max() > 0
    assert np.isfinite(maps).all()
