"""What is chosen for a folder of images and a machine, and the defaults for any folder."""

import functools
import pathlib

import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from cls_jax.config import flatten, validate_config
from cls_jax.methods import METHODS
from cls_jax.models import MODELS
from cls_jax.models.efficientnet import LITE0, EfficientNetLite
from cls_jax.photos.folder.catalog import Layout, Rows
from cls_jax.photos.folder.dataset import FolderSummary
from cls_jax.photos.images.files import ImageFiles
from cls_jax.photos.plan import rules
from cls_jax.photos.plan.rules import Plan, Resources, apply_settings, create_folder_config
from cls_jax.training.prepare import resolve_model
from cls_jax.training.setup import create_model
from tests.conftest import load_config
from tests.core.training.test_schedule import lower_step

GIB = 2**30
CPU = Resources(has_accelerator=False, memory=16 * GIB, has_tensorflow=True)
GPU = Resources(has_accelerator=True, memory=80 * GIB, has_tensorflow=True)
PRETRAINED = CPU._replace(has_pretrained=True)


def create_summary(side=500, num_images=10_000, root=pathlib.Path("photos")):
    counts = {"cat": 20, "dog": 20}
    sizes = np.asarray([[side, 2 * side]] * 9)
    empty = Rows(ImageFiles(), np.zeros(0, int), np.zeros(0, np.int32), ("cat", "dog"))
    layout = Layout(("cat", "dog"), empty, empty, empty, [], [])
    return FolderSummary(root, layout, counts, 40, num_images - 40, 0, sizes)


def create_plan(summary=None, resources=CPU, method="cls", **settings):
    return Plan(
        method=method,
        settings=settings,
        set_by_user=frozenset(settings),
        summary=summary or create_summary(),
        resources=resources,
    )


def fit(summary=None, resources=CPU, method="cls", **settings):
    config = rules.fit(create_plan(summary, resources, method, **settings)).config
    validate_config(config)
    return config


@pytest.mark.parametrize("method", METHODS)
def test_what_is_chosen_for_a_folder_is_valid_and_frozen(method):
    for resources in (CPU, GPU, PRETRAINED):
        assert isinstance(fit(method=method, resources=resources), FrozenConfigDict)


@pytest.mark.parametrize(
    ("side", "resources", "settings", "method"),
    [
        (500, PRETRAINED, {"model.final_head": "inferred", "method.inferred": 0.5}, "fixmatch"),
        (500, PRETRAINED, {"method.lambda_co": 1.0}, "cls"),  # FixMatch has no such option.
        (500, PRETRAINED, {"mesh.network": 2}, "cls"),
        (500, PRETRAINED, {"model.init": ""}, "cls"),
        (500, PRETRAINED, {"model.init": "w.safetensors"}, "cls"),  # Not measured.
        (20, PRETRAINED, {}, "cls"),
        (500, CPU, {}, "cls"),
    ],
)
def test_the_method_follows_images_weights_and_options(side, resources, settings, method):
    assert rules.choose_method(create_plan(create_summary(side), resources, **settings)) == method


def test_fitted_keys_keep_what_the_user_has_set():
    default = flatten(create_folder_config("photos", "cls").to_dict())
    settings = {key: default[key] for key in rules.RULES.keys() & default.keys()}
    config = flatten(fit(**settings).to_dict())
    assert {key: config[key] for key in settings} == settings


@pytest.mark.parametrize(
    ("side", "resources", "image_size"),
    [
        *((8, CPU, 16), (27, CPU, 24), (500, CPU, 32), (27, GPU, 24), (500, GPU, 64)),
        *((32, PRETRAINED, 96), (500, PRETRAINED, 128)),
    ],
)
def test_image_size_and_channels_are_those_of_the_images(side, resources, image_size):
    summary = create_summary(side)
    assert fit(summary, resources).data.image_size == image_size
    # Weights that were trained on images as small need no larger ones.
    own = {"model.init": "runs/other", "model.name": "wide_resnet"}
    assert fit(summary, resources, **own).data.image_size <= max(side, 16)
    gray = fit(summary._replace(channels=1), resources).data.channels
    assert gray == (3 if resources is PRETRAINED else 1)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.patch > 1])
def test_transformers_divide_the_chosen_size_into_their_patches(name):
    for side in (20, 110, 500):
        for init in ("", "w.safetensors"):
            config = fit(create_summary(side), **{"model.name": name, "model.init": init})
            create_model(config, METHODS["cls"], 2)
            assert not init or 96 <= config.data.image_size <= 128


def test_a_cpu_gets_less_work_and_steps_grow_with_the_number_of_images_within_bounds():
    cpu, gpu = fit(resources=CPU), fit(resources=GPU)
    assert (gpu.model.depth, gpu.model.width, gpu.batch_size, gpu.mu) == (28, 2, 32, 8)
    assert (cpu.model.depth, cpu.model.width, cpu.batch_size, cpu.mu) == (10, 1, 16, 4)
    assert (cpu.data.pipeline, gpu.data.pipeline) == ("tfdata", "device")
    assert fit(resources=CPU._replace(has_tensorflow=False)).data.pipeline == "device"
    for num_images, resources, num_steps in (
        *((100, CPU, 1000), (2000, CPU, 2000), (10**6, CPU, 5000), (10**6, GPU, 20_000)),
        (10**7, GPU, 39_100),  # An accelerator sees every image once.
    ):
        assert fit(create_summary(num_images=num_images), resources).num_steps == num_steps
    # Sixteen, eight for each network, share a larger batch that is not a large part of all images.
    sixteen = GPU._replace(num_devices=16)
    sizes = [fit(create_summary(num_images=n), sixteen).batch_size for n in (2000, 20_500, 10**6)]
    assert sizes == [32, 128, 256]


def test_batch_shrinks_until_half_of_the_memory_holds_it_and_its_parts():
    for gib in (1, 2, 4, 80):
        resources = GPU._replace(memory=gib * GIB)
        config = fit(resources=resources, **{"data.image_size": 224})
        needed = config.batch_size * rules.estimate_memory_per_labeled_image(config)
        assert needed <= gib * GIB / 2 or config.batch_size == 1
        assert 2 * needed > gib * GIB / 2 or config.batch_size == 32
    for num_parts, batch_size in ((1, 16), (3, 15), (32, 32)):
        assert fit(accumulate_steps=num_parts).batch_size == batch_size
    # The estimate for the paper's setting is what was measured.
    config = create_folder_config("photos", "cls")
    apply_settings(config, {"data.image_size": 32, "mu": 7})
    estimate = 64 * rules.estimate_memory_per_labeled_image(config)
    assert estimate == pytest.approx(6.98e9, rel=0.2)


def test_means_and_evaluations_follow_the_number_of_steps():
    short, long = fit(num_steps=300), fit(num_steps=20_000)
    assert short.ema_decay == short.model.bn_momentum == 0.99
    assert long.ema_decay == long.model.bn_momentum == 0.999
    assert fit(method="freematch", num_steps=300).method.statistics_decay == 0.99
    assert fit(method="remixmatch", num_steps=300).method.class_mean_decay == 0.99
    # A round has 30 steps, and its average must forget the networks that it started from.
    assert fit(method="ups", num_steps=300).ema_decay == pytest.approx(0.9)
    assert (short.eval_every, long.eval_every) == (30, 500)
    assert short.checkpoint_every == short.eval_every


def test_photos_start_from_pretrained_weights_where_they_are_installed():
    config, other = fit(resources=PRETRAINED), fit()
    assert config.model.init == "builtin:efficientnet_lite0"
    assert config.model.bn_frozen
    assert (config.optimizer.name, other.optimizer.name) == ("adamw", "sgd")
    assert (config.method.weak_pass, other.method.weak_pass) == ("fast", "joint")
    for key, value in {"model.bn_frozen": False, "method.weak_pass": "joint"}.items():
        assert fit(resources=PRETRAINED, **{key: value}).method.weak_pass == "joint"
    assert config.num_steps < other.num_steps
    # Half of the network learns slowly, also from the labels that its heads start from.
    assert config.model.init_head == "inferred"
    assert (config.optimizer.frozen_stages, config.method.inferred) == (4, 1.0)
    assert (other.optimizer.frozen_stages, other.method.inferred) == (0, 0.0)
    assert fit(resources=PRETRAINED, **{"model.init_head": "probe"}).method.inferred == 0.0
    # A single label per class is too few for heads that are fitted again at the end.
    heads = [fit(resources=PRETRAINED, num_labels=n).model.final_head for n in (0, 4, 2)]
    assert heads == ["inferred", "inferred", "trained"]
    assert other.model.final_head == "trained"
    assert fit(resources=PRETRAINED, num_steps=10).optimizer.warmup_steps == 1
    # Small images do not, nor does a network that the user chose.
    assert other.model.init == fit(create_summary(side=31), PRETRAINED).model.init == ""
    for choice in ({"model.name": "resnet18"}, {"model.init": ""}):
        assert fit(resources=PRETRAINED, **choice).model.init == ""


def test_only_an_accelerator_trains_pretrained_networks_in_bfloat16():
    pretrained_gpu = GPU._replace(has_pretrained=True)
    chosen = [fit(resources=each).model.dtype for each in (pretrained_gpu, GPU, PRETRAINED)]
    assert chosen == ["bfloat16", "float32", "float32"]
    assert fit(resources=pretrained_gpu, **{"model.dtype": "float32"}).model.dtype == "float32"


@pytest.mark.parametrize(
    ("resources", "method", "settings"),
    [
        pytest.param(PRETRAINED, "fixmatch", {"data.image_size": 96}, marks=pytest.mark.slow),
        (CPU, "freematch", {}),
    ],
)
def test_nothing_that_follows_from_the_number_of_steps_changes_the_step(
    monkeypatch, resources, method, settings
):
    """Else what was compiled to measure would be compiled again to train."""
    table = tuple(stage._replace(blocks=1) for stage in LITE0)
    short = functools.partial(EfficientNetLite, table=table)
    spec = MODELS["efficientnet_lite0"]._replace(create=short)
    monkeypatch.setitem(MODELS, "efficientnet_lite0", spec)
    common = {"mesh.network": 1, "mesh.data": 1, "data.mean": (0.5,), "data.std": (0.2,)}
    configs = [
        resolve_model(fit(None, resources, method, num_steps=num_steps, **common, **settings))
        for num_steps in (8, 40, 4_000)
    ]
    assert len({config.ema_decay for config in configs}) == 3
    assert len({lower_step(config, channels=3) for config in configs[::2]}) == 1


@pytest.mark.parametrize("path", ["/data", "/data,fixmatsch", "/da,ta", "", "/data,"])
def test_folder_path_may_contain_commas_and_sizes_follow_the_image_size(path):
    config = load_config("folder", path)
    assert (config.data.data_dir, config.method.name) == (path, "cls")
    other = load_config("folder", f"{path},uda")
    assert (other.data.data_dir, other.method.name, other.num_labels) == (path, "uda", 0)
    assert (config.data.image_size, config.data.shift, config.data.cutout) == (64, 8, 32)
    config.data.image_size = 224
    assert (config.data.shift, config.data.cutout) == (28, 112)
    config.data.shift = 5
    assert (config.data.image_size, config.data.shift) == (224, 5)
