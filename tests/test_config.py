"""Every configuration builds, every wrong value gets its sentence, and folders get defaults."""

import json

import numpy as np
import pytest

from cls_jax import config as config_lib
from cls_jax.config import OPTIONS, to_json, validate_config
from cls_jax.errors import UserError
from cls_jax.methods import METHODS
from cls_jax.models import MODELS
from cls_jax.photos.folder.dataset import FolderSummary
from cls_jax.photos.folder.layout import Layout
from cls_jax.photos.plan import rules as from_folder
from cls_jax.photos.plan.rules import Plan, Resources, apply_settings, create_folder_config
from cls_jax.training.setup import create_model
from tests.conftest import ROOT, create_tiny_config, load_config

# Every file of configs/, with its budgets, and the argument for a method.
ARGUMENTS = [("cifar10", budget, f"{budget},{{}}") for budget in (40, 250, 4000)]
ARGUMENTS += [("cifar100", budget, f"{budget},{{}}") for budget in (400, 2500, 10_000)]
ARGUMENTS += [("digits", budget, f"{budget},{{}}") for budget in (20, 40)]
ARGUMENTS += [("cifar10", 250, "250,{},small"), ("folder", 0, "/data/a, b,{}")]
ARGUMENTS += [("imagenet", 0, "1%,{}"), ("imagenet", 0, "10%,{},vit_small")]


@pytest.mark.parametrize("method", METHODS)
def test_every_configuration_builds_for_every_method_and_every_key_is_explained(method):
    assert {path.stem for path in (ROOT / "configs").glob("*.py")} == {a[0] for a in ARGUMENTS}
    for name, budget, argument in ARGUMENTS:
        config = load_config(name, argument.format(method))
        validate_config(config)
        assert config.is_locked
        assert (config.num_labels, config.method.name) == (budget, method)
        assert set(config.method) == {"name", *METHODS[method].hyperparameters}
        if argument.endswith(",small"):
            # Running means must forget their start long before the end.
            assert (config.num_steps, config.data.pipeline) == (8000, "device")
            assert config.method.get("statistics_decay", 0.995) == 0.995
    for resources in (CPU, GPU, PRETRAINED):  # And what is chosen for a folder.
        assert fit(method=method, resources=resources).is_locked
    assert all(OPTIONS["model.name"].rule.accepts(name) for name in MODELS)
    for key, row in config_lib.get_options(method).items():
        assert row.rule.accepts(row.default), key
        assert row.source or (row.help and key in OPTIONS), key


@pytest.mark.parametrize("path", ["/data", "/data,fixmatsch", "/da,ta", "", "/data,"])
def test_folder_path_may_contain_commas_and_sizes_follow_the_image_size(path):
    config = load_config("folder", path)
    assert (config.data.data_dir, config.method.name) == (path, "cls")
    assert load_config("folder", f"{path},uda").data.data_dir == path
    assert (config.data.image_size, config.data.shift, config.data.cutout) == (64, 8, 32)
    config.data.image_size = 224
    assert (config.data.shift, config.data.cutout) == (28, 112)
    config.data.shift = 5
    assert (config.data.image_size, config.data.shift) == (224, 5)


def test_settings_are_those_of_the_papers_and_datasets_set_those_of_the_method_they_name_only():
    config = load_config("cifar10", "250")
    assert (config.batch_size, config.mu, config.num_steps) == (64, 8, 307_200)
    assert (config.method.lambda_self, config.method.lambda_co, config.method.tau) == (2, 1, 0.85)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (0.03, 5e-4)
    assert (config.model.depth, config.model.width, config.ema_decay) == (28, 2, 0.999)
    assert load_config("cifar10", "250,fixmatch").mu == 7
    assert load_config("cifar100", "2500").optimizer.weight_decay == 1e-3
    for name, argument, value in (("cifar100", "2500", 150), ("cifar10", "250", 75)):
        assert load_config(name, f"{argument},mixmatch").method.lambda_u == value
        assert load_config(name, f"{argument},uda").method.lambda_u == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps=0 would leave the last layers random: set model.init_head"),
        ({"mu": 0}, "mu=0 is invalid: choose an integer from 1 to 1,048,576"),
        ({"ema_decay": float("nan")}, "ema_decay=nan"),
        ({"accumulate_steps": 3}, "does not divide batch_size=8: choose one of its divisors"),
        ({"data__pipeline": "torch"}, "choose tfdata or device"),
        ({"data__shift": 8}, "choose a smaller shift"),
        ({"data__data_dir": "a\0b"}, r"data\.data_dir"),
        ({"data__mean": ()}, "set both, or set both to"),
        ({"data__randaugment_pool": ("identity", "invert")}, "choose some of autocontrast"),
        ({"data__randaugment_pool": ("identity",) * 1000}, r"data\.randaugment_pool=.{100}… is"),
        ({"model__depth": 12}, "choose 6n \\+ 4"),
        ({"model__init_head": "probe"}, "needs the features of a pretrained network"),
        ({"method__tau": 1.5}, "method.tau=1.5 is invalid: choose a number from 0 to 1"),
        ({"method__lambda_self": -1.0}, "lambda_self=-1.0 is invalid: choose a number from 0 to 1"),
        ({"data__image_size": 7}, "choose an integer from 8 to 1,024"),
        ({"method__name": "fixmatch"}, "configs/cifar10.py:250,fixmatch"),
        ({"profile": "9:8"}, "choose FIRST:LAST"),
        ({"optimizer__learning_rate": 0.0}, "choose a number above 0 and at most 100"),
        ({"optimizer__momentum": 1.0}, "choose a number of at least 0 and below 1"),
        ({"optimizer__name": "adamw"}, "choose at most 0.01"),
        ({"optimizer__warmup_steps": 6}, "choose fewer, or a larger num_steps"),
    ],
)
def test_invalid_value_names_the_remedy(changes, message):
    with pytest.raises(UserError, match=message):
        validate_config(create_tiny_config(**changes))


@pytest.mark.parametrize("argument", ["", "many", "40.5", "-40", ",cls", "40,fixmatsch"])
def test_argument_of_another_form_is_refused(argument):
    with pytest.raises(UserError, match=r"write the number of labels|choose one of .*fixmatch"):
        config_lib.create_config(argument)


@pytest.fixture
def read_changed(tmp_path):
    """Reads the config.json of a configuration after a change to its sections."""

    def read(config, change):
        stored = json.loads(to_json(config))
        change(stored)
        (tmp_path / "config.json").write_text(json.dumps(stored))
        return config_lib.read_config(tmp_path / "config.json")

    return read


def test_config_comes_back_from_json_also_an_older_one(read_changed):
    config, tiny = load_config("folder", "__import__('os').abort(),fixmatch"), create_tiny_config()
    restored = read_changed(config, lambda stored: None)
    assert to_json(restored) == to_json(config)
    assert restored.is_locked

    def add(stored):  # With the values in use.
        stored["optimizer"] |= {"beta1": 0.9, "clip_norm": 0.0}
        stored["model"]["lowering"] = "unrolled"

    assert to_json(read_changed(tiny, add)) == to_json(tiny)
    with pytest.raises(UserError, match=r"optimizer\.beta1 is not a key"):
        read_changed(tiny, lambda stored: stored["optimizer"].update(beta1=0.8))

    def age(stored):
        del stored["model"]["matmul_precision"], stored["method"]["tau"], stored["mesh"]
        stored["method"]["lambda_co"] = 2  # Edited by hand: it gets the key's type.

    expected = create_tiny_config(mesh__network=0, mesh__data=0, method__lambda_co=2.0)
    assert to_json(read_changed(tiny, age)) == to_json(expected)


def test_differences_name_the_keys_that_change_results():
    ours = create_tiny_config(method__tau=0.5, data__data_dir="elsewhere", mesh__data=2)
    assert config_lib.describe_differences(ours, create_tiny_config()) == ["method.tau: 0.85 → 0.5"]
    other = config_lib.describe_differences(create_tiny_config("20,fixmatch"), create_tiny_config())
    assert "method.name: cls → fixmatch" in other


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.pop("method"),
        lambda stored: stored.update(num_labels="x"),
        lambda stored: stored.update(learning_rate=1),
        lambda stored: stored["method"].update(threshold=0.5),  # Of another method.
        lambda stored: stored.update(mesh=1),
    ],
)
def test_foreign_config_is_refused(read_changed, change):
    with pytest.raises(UserError, match=r"not the configuration of a run .*pass the folder of an"):
        read_changed(create_tiny_config(), change)


GIB = 2**30
CPU = Resources(has_accelerator=False, memory=16 * GIB, has_tensorflow=True)
GPU = Resources(has_accelerator=True, memory=80 * GIB, has_tensorflow=True)
PRETRAINED = CPU._replace(has_pretrained=True)


def create_summary(side=500, num_images=10_000, root="photos"):
    counts = {"cat": 20, "dog": 20}
    sizes = np.asarray([[side, 2 * side]] * 9)
    layout = Layout(("cat", "dog"), [], [], [], [], [])
    return FolderSummary(root, layout, counts, num_images - 40, 0, sizes)


def fit(summary=None, resources=CPU, method="cls", **settings):
    config = create_folder_config("photos", method)
    apply_settings(config, settings)
    from_folder.fit_to_folder(Plan(config, summary or create_summary(), resources, settings))
    validate_config(config)
    return config


@pytest.mark.parametrize(
    ("side", "resources", "settings", "method"),
    [
        (500, PRETRAINED, {"model.final_head": "graph", "method.graph": 0.5}, "fixmatch"),
        (500, PRETRAINED, {"method.lambda_co": 1.0}, "cls"),  # FixMatch has no such option.
        (500, PRETRAINED, {"mesh.network": 2}, "cls"),
        (500, PRETRAINED, {"model.init": ""}, "cls"),
        (500, PRETRAINED, {"model.init": "w.safetensors"}, "cls"),  # Not measured.
        (20, PRETRAINED, {}, "cls"),
        (500, CPU, {}, "cls"),
    ],
)
def test_the_method_follows_images_weights_and_options(side, resources, settings, method):
    config = create_folder_config("photos", "cls")
    apply_settings(config, settings)
    plan = Plan(config, create_summary(side), resources, settings)
    assert from_folder.choose_method(plan) == method


def test_fitted_keys_keep_what_the_user_has_set():
    default = config_lib.flatten(create_folder_config("photos", "cls").to_dict())
    settings = {key: default[key] for key in from_folder.RULES.keys() & default.keys()}
    config = config_lib.flatten(fit(**settings).to_dict())
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
        needed = config.batch_size * from_folder.estimate_memory_per_labeled_image(config)
        assert needed <= gib * GIB / 2 or config.batch_size == 1
        assert 2 * needed > gib * GIB / 2 or config.batch_size == 32
    for num_parts, batch_size in ((1, 16), (3, 15), (32, 32)):
        assert fit(accumulate_steps=num_parts).batch_size == batch_size
    # The estimate for the paper's setting is what was measured.
    config = create_folder_config("photos", "cls")
    apply_settings(config, {"data.image_size": 32, "mu": 7})
    estimate = 64 * from_folder.estimate_memory_per_labeled_image(config)
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


def test_photographs_start_from_pretrained_weights_where_they_are_installed():
    config, other = fit(resources=PRETRAINED), fit()
    assert config.model.init == "builtin:efficientnet_lite0"
    assert config.model.bn_frozen
    assert (config.optimizer.name, other.optimizer.name) == ("adamw", "sgd")
    assert (config.method.weak_pass, other.method.weak_pass) == ("fast", "joint")
    for key, value in {"model.bn_frozen": False, "method.weak_pass": "joint"}.items():
        assert fit(resources=PRETRAINED, **{key: value}).method.weak_pass == "joint"
    assert config.num_steps < other.num_steps
    # Half of the network learns slowly, also from the labels that its heads start from.
    assert config.model.init_head == "graph"
    assert (config.optimizer.frozen_stages, config.method.graph) == (4, 1.0)
    assert (other.optimizer.frozen_stages, other.method.graph) == (0, 0.0)
    assert fit(resources=PRETRAINED, **{"model.init_head": "probe"}).method.graph == 0.0
    # A single label per class is too few for heads that are fitted again at the end.
    heads = [fit(resources=PRETRAINED, num_labels=n).model.final_head for n in (0, 4, 2)]
    assert heads == ["graph", "graph", "trained"]
    assert other.model.final_head == "trained"
    assert fit(resources=PRETRAINED, num_steps=10).optimizer.warmup_steps == 1
    # Small images do not, nor does a network that the user chose.
    assert other.model.init == fit(create_summary(side=31), PRETRAINED).model.init == ""
    for choice in ({"model.name": "resnet18"}, {"model.init": ""}):
        assert fit(resources=PRETRAINED, **choice).model.init == ""
