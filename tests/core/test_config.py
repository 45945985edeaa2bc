"""Every configuration builds, and every wrong value gets its sentence."""

import json

import pytest

from cls_jax import config as config_lib
from cls_jax.config import (
    OPTIONS,
    list_options,
    to_json,
    validate_config,
    with_values,
)
from cls_jax.errors import UserError
from cls_jax.methods import METHODS
from cls_jax.models import MODELS
from tests.conftest import ROOT, create_tiny_config, load_config

# Every file of configs/, with its budgets, and the argument for a method.
ARGUMENTS = [("cifar10", budget, f"{budget},{{}}") for budget in (40, 250, 4000)]
ARGUMENTS += [("cifar100", budget, f"{budget},{{}}") for budget in (400, 2500, 10_000)]
ARGUMENTS += [("digits", budget, f"{budget},{{}}") for budget in (20, 40)]
ARGUMENTS += [("cifar10", 250, "250,{},small"), ("cifar10", 0, "all,{}")]
ARGUMENTS += [("svhn", 250, "250,{}"), ("svhn", 40, "40,{},small"), ("stl10", 1000, "1000,{}")]
ARGUMENTS += [("imagenet", 0, "1%,{}"), ("imagenet", 0, "10%,{},vit_small")]


@pytest.mark.parametrize("method", METHODS)
def test_every_configuration_builds_for_every_method_and_every_key_is_explained(method):
    names = {path.stem for path in (ROOT / "configs").glob("*.py")}
    names -= {"folder", "npz"}  # Of the user's own images.
    assert names == {name for name, _, _ in ARGUMENTS}
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
    assert all(OPTIONS["model.name"].rule.accepts(name) for name in MODELS)
    for key, row in config_lib.get_options(method).items():
        assert row.rule.accepts(row.default), key
        assert row.source or (row.help and key in list_options()), key


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
        ({"num_steps": 0}, "num_steps=0 is invalid: choose an integer of at least 1"),
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


@pytest.mark.parametrize("key", ["labeled_subset", "channels", "resize", "labels", "layout"])
def test_a_key_that_the_dataset_does_not_read_is_refused(key):
    config = create_tiny_config()
    with pytest.raises((AttributeError, KeyError)):  # As the parser of flags does.
        config.data[key] = list_options()[f"data.{key}"].default
    config = with_values(config, {f"data.{key}": list_options()[f"data.{key}"].default})
    with pytest.raises(UserError, match=f"data.{key} is not a key of a run on digits"):
        validate_config(config)


@pytest.mark.parametrize(
    ("key", "other", "remedy"),
    [
        ("model.depth", "efficientnet_lite0", "remove it, or choose model.name=wide_resnet."),
        ("model.width", "resnet18", "choose model.name=wide_resnet."),
        ("model.stem", "vit_tiny", "choose model.name=wide_resnet or resnet18 or resnet50."),
        ("model.bn_frozen", "convnext_nano", "or mobilenetv4_conv_medium."),
        ("model.bn_momentum", "dinov2_small", "or mobilenetv4_conv_medium."),
        ("optimizer.momentum", "adamw", "choose optimizer.name=sgd."),
        ("data.randaugment_ops", "torchssl", "choose data.randaugment=authors."),
    ],
)
def test_a_key_that_nothing_reads_is_refused_where_a_user_gives_it(key, other, remedy):
    section = key.partition(".")[0]
    selector = f"{section}.randaugment" if section == "data" else f"{section}.name"
    config = create_tiny_config()
    config_lib.check_given(config, ["seed", key])
    changed = with_values(config, {selector: other})
    with pytest.raises(UserError, match=f"{key} does nothing with {selector}=.*{remedy}"):
        config_lib.check_given(changed, ["seed", key])


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
    path = "__import__('os').abort()"  # Only text.
    config, tiny = create_tiny_config("20,fixmatch", data__data_dir=path), create_tiny_config()
    restored = read_changed(config, lambda stored: None)
    assert to_json(restored) == to_json(config)
    assert restored.is_locked

    with pytest.raises(UserError, match=r"optimizer\.beta1 is not a key"):
        read_changed(tiny, lambda stored: stored["optimizer"].update(beta1=0.8))

    def age(stored):
        del stored["model"]["matmul_precision"], stored["method"]["tau"], stored["mesh"]
        stored["data"]["resize"] = "pad"  # Older runs have keys that their dataset does not read.
        stored["method"]["lambda_co"] = 2  # Edited by hand: it gets the key's type.

    expected = create_tiny_config(mesh__network=0, mesh__data=0, method__lambda_co=2.0)
    assert to_json(read_changed(tiny, age)) == to_json(expected)


def test_differences_name_the_keys_that_change_results():
    ours = create_tiny_config(method__tau=0.5, data__data_dir="elsewhere", mesh__data=2)
    assert config_lib.describe_differences(ours, create_tiny_config()) == ["method.tau: 0.85 → 0.5"]
    other = config_lib.describe_differences(create_tiny_config("20,fixmatch"), create_tiny_config())
    assert "method.name: cls → fixmatch" in other
    unread, network = {"model__depth": 16}, {"model__name": "vit_tiny"}  # A run of before.
    ours, theirs = create_tiny_config(**network), create_tiny_config(**network, **unread)
    assert config_lib.describe_differences(ours, theirs) == []
    # These change nothing that is trained, except for a method that predicts in its rounds.
    for argument, expected in (("20", []), ("20,ups", ["eval_batch_size: 450 → 100"])):
        config = create_tiny_config(argument)
        other = with_values(config, {"eval_batch_size": 100, "log_every": 2, "keep_checkpoints": 9})
        assert config_lib.describe_differences(other, config) == expected


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
    with pytest.raises(UserError, match=r"cannot read .*use the version that wrote it"):
        read_changed(create_tiny_config(), change)
