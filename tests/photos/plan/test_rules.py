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
from tests.core.training.test_step import lower_step

GIB = 2**30
CPU = Resources(has_accelerator=False, memory=16 * GIB, has_tensorflow=True)
GPU = Resources(has_accelerator=True, memory=80 * GIB, has_tensorflow=True)
PRETRAINED, PRETRAINED_GPU = (each._replace(has_pretrained=True) for each in (CPU, GPU))


def create_summary(side=500, num_images=10_000, root=pathlib.Path("photos")):
    counts = {"cat": 20, "dog": 20}
    sizes = np.asarray([[side, 2 * side]] * 9)
    empty = Rows(ImageFiles(), np.zeros(0, int), np.zeros(0, np.int32), ("cat", "dog"))
    layout = Layout(("cat", "dog"), empty, empty, empty, [], [])
    return FolderSummary(root, layout, counts, 40, num_images - 40, sizes)


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


# What is chosen from what is known, besides the folder of `create_summary`.
WORK = "model.depth", "model.width", "batch_size", "mu", "data.pipeline"
DECAYS = "ema_decay", "model.bn_momentum", "eval_every", "checkpoint_every"
START = "model.init", "model.init_head", "method.inferred", "model.final_head", "model.bn_frozen"
FEW = {"resources": PRETRAINED, "num_steps": 10}
LITE0_START = "builtin:efficientnet_lite0", "inferred", 1.0, "inferred", True
CHOSEN = [
    ({}, WORK, (10, 1, 16, 4, "tfdata")),
    ({"resources": GPU}, WORK, (28, 2, 32, 8, "device")),
    ({"resources": CPU._replace(has_tensorflow=False)}, ("data.pipeline",), ("device",)),
    # Means and evaluations follow the number of steps.
    ({"num_steps": 300}, DECAYS, (0.99, 0.99, 30, 30)),
    ({"num_steps": 20_000}, DECAYS, (0.999, 0.999, 500, 500)),
    ({"method": "freematch", "num_steps": 300}, ("method.statistics_decay",), (0.99,)),
    ({"method": "remixmatch", "num_steps": 300}, ("method.class_mean_decay",), (0.99,)),
    # A round has 30 steps, and its average must forget the networks that it started from.
    ({"method": "ups", "num_steps": 300}, ("ema_decay",), pytest.approx((0.9,))),
    # Photos start from pretrained weights where they are installed, but not small ones, nor a
    # network that the user chose.
    ({"resources": PRETRAINED}, START, LITE0_START),
    ({}, START, ("", "random", 0.0, "trained", False)),
    ({"resources": PRETRAINED, "summary": create_summary(side=31)}, ("model.init",), ("",)),
    ({"resources": PRETRAINED, "model.name": "resnet18"}, ("model.init",), ("",)),
    ({"resources": PRETRAINED, "model.init": ""}, ("model.init",), ("",)),
    # Half of the network learns slowly, also from the labels that its heads start from.
    (FEW, ("optimizer.name", "optimizer.frozen_stages", "optimizer.warmup_steps"), ("adamw", 4, 1)),
    ({}, ("optimizer.name", "optimizer.frozen_stages"), ("sgd", 0)),
    ({"resources": PRETRAINED, "model.init_head": "probe"}, ("method.inferred",), (0.0,)),
    # A single label per class is too few for heads that are fitted again at the end.
    ({"resources": PRETRAINED, "num_labels": 4}, ("model.final_head",), ("inferred",)),
    ({"resources": PRETRAINED, "num_labels": 2}, ("model.final_head",), ("trained",)),
    ({"resources": PRETRAINED}, ("method.weak_pass",), ("fast",)),
    ({"resources": PRETRAINED, "model.bn_frozen": False}, ("method.weak_pass",), ("joint",)),
    ({"resources": PRETRAINED, "method.weak_pass": "joint"}, ("method.weak_pass",), ("joint",)),
    # Only an accelerator trains pretrained networks in bfloat16.
    ({"resources": PRETRAINED_GPU}, ("model.dtype",), ("bfloat16",)),
    ({"resources": PRETRAINED_GPU, "model.dtype": "float32"}, ("model.dtype",), ("float32",)),
    ({"resources": GPU}, ("model.dtype",), ("float32",)),
    ({"resources": PRETRAINED}, ("model.dtype",), ("float32",)),
]


@pytest.mark.parametrize(("known", "keys", "values"), CHOSEN)
def test_each_key_has_the_value_of_its_rule(known, keys, values):
    config = flatten(fit(**known).to_dict())
    assert tuple(config[key] for key in keys) == values


@pytest.mark.parametrize(
    ("num_images", "resources", "num_steps"),
    [
        *((100, CPU, 1000), (2000, CPU, 2000), (10**6, CPU, 5000), (10**6, GPU, 20_000)),
        (10**7, GPU, 39_100),  # An accelerator sees every image once.
        (10_000, PRETRAINED, 2_000),
    ],
)
def test_steps_grow_with_the_number_of_images_within_bounds(num_images, resources, num_steps):
    assert fit(create_summary(num_images=num_images), resources).num_steps == num_steps


def test_several_devices_share_a_larger_batch_that_is_no_large_part_of_all_images():
    sixteen = GPU._replace(num_devices=16)  # Eight for each network.
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
