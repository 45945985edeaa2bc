"""Every configuration builds, and every wrong value gets its sentence."""

import json

import pytest

from cls_jax.config import (
    create_config,
    describe_differences,
    parse_argument,
    read_config,
    to_json,
    validate_config,
)
from cls_jax.errors import UserError
from cls_jax.methods import METHODS
from tests.conftest import ROOT, create_tiny_config, load_config

BUDGETS = {"cifar10": (40, 250, 4000), "cifar100": (400, 2500, 10_000), "digits": (20, 40)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "budget"), [(name, budget) for name, budgets in BUDGETS.items() for budget in budgets]
)
def test_every_config_builds_for_every_method(name, budget, method):
    config = load_config(name, f"{budget},{method}")
    validate_config(config)
    assert config.is_locked
    assert (config.num_labels, config.method.name) == (budget, method)
    assert set(config.method) == {"name", *METHODS[method].hyperparameters}


def test_every_file_of_configs_is_tested():
    assert {path.stem for path in (ROOT / "configs").glob("*.py")} == {*BUDGETS, "folder"}


@pytest.mark.parametrize("method", METHODS)
def test_folder_config_builds_for_every_method(method):
    config = load_config("folder", f"/data/a, b,{method}")
    validate_config(config)
    assert config.is_locked
    assert (config.data.data_dir, config.method.name) == ("/data/a, b", method)
    assert config.num_labels == 0


@pytest.mark.parametrize("path", ["/data", "/data,fixmatsch", "/da,ta", "", "/data,"])
def test_folder_path_may_contain_commas(path):
    config = load_config("folder", path)
    assert (config.data.data_dir, config.method.name) == (path, "cls")


def test_folder_sizes_follow_the_image_size():
    config = load_config("folder", "/data")
    assert (config.data.image_size, config.data.shift, config.data.cutout) == (64, 8, 32)
    config.data.image_size = 224
    assert (config.data.shift, config.data.cutout) == (28, 112)
    config.data.shift = 5
    assert (config.data.image_size, config.data.shift) == (224, 5)


def test_cls_on_cifar10_has_the_papers_settings():
    config = load_config("cifar10", "250")
    assert (config.batch_size, config.mu, config.num_steps) == (64, 8, 307_200)
    assert (config.method.lambda_self, config.method.lambda_co, config.method.tau) == (2, 1, 0.85)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (0.03, 5e-4)
    assert (config.model.depth, config.model.width, config.ema_decay) == (28, 2, 0.999)
    assert load_config("cifar10", "250,fixmatch").mu == 7
    assert load_config("cifar100", "2500").optimizer.weight_decay == 1e-3


def test_datasets_set_hyperparameters_of_the_method_they_name_only():
    assert load_config("cifar100", "2500,mixmatch").method.lambda_u == 150
    assert load_config("cifar10", "250,mixmatch").method.lambda_u == 75
    assert load_config("cifar100", "2500,uda").method.lambda_u == 1
    assert load_config("digits", "40,ups").method.rounds == 2


@pytest.mark.parametrize("argument", ["", "many", "40.5", "-40", "40,fixmatch,cls", ",cls"])
def test_argument_of_another_form_is_refused(argument):
    with pytest.raises(UserError, match="write the number of labels"):
        parse_argument(argument, "cls")


def test_unknown_method_lists_the_known_ones():
    with pytest.raises(UserError, match=r"Unknown method 'fixmatsch': choose one of .*fixmatch"):
        create_config("40,fixmatsch")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps=0 is out of range: choose a positive number"),
        ({"seed": -1}, "seed=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"mu": 0}, "mu=0"),
        ({"ema_decay": 1.0}, "ema_decay=1.0"),
        ({"data__pipeline": "torch"}, "choose tfdata or device"),
        ({"data__unlabeled": "some"}, "choose all or rest"),
        ({"data__randaugment_pool": ("identity", "invert")}, "choose some of autocontrast"),
        ({"data__shift": 8}, "choose a smaller shift"),
        ({"model__depth": 12}, "choose 6n \\+ 4"),
        ({"model__dtype": "float16"}, "choose float32 or bfloat16"),
        ({"method__tau": 1.5}, "method.tau=1.5 is out of range: choose from 0 to 1"),
        ({"method__lambda_co": -1.0}, "method.lambda_co=-1.0 is out of range"),
        ({"method__name": "fixmatch"}, "configs/cifar10.py:250,fixmatch"),
        ({"optimizer__learning_rate": 0.0}, "optimizer.learning_rate=0.0"),
        ({"mesh__data": -1}, "mesh.data=-1"),
        ({"num_labels": 0}, "num_labels=0 is out of range: choose a positive number"),
        ({"num_labels": -1}, "num_labels=-1"),
        ({"data__mean": ()}, "give both, or neither"),
        ({"model__name": "vgg"}, "choose wide_resnet or resnet18"),
        ({"model__stem": "big"}, "choose auto, cifar, small or imagenet"),
    ],
)
def test_value_out_of_range_names_the_remedy(changes, message):
    with pytest.raises(UserError, match=message):
        validate_config(create_tiny_config(**changes))


@pytest.mark.parametrize(
    "config",
    [
        create_tiny_config(method__tau=0.5, data__data_dir="somewhere"),
        load_config("folder", "/data,fixmatch"),
    ],
)
def test_config_comes_back_from_json(tmp_path, config):
    (tmp_path / "config.json").write_text(to_json(config))
    restored = read_config(tmp_path / "config.json")
    assert restored.to_dict() == config.to_dict()
    assert restored.is_locked


def test_differences_name_the_keys_that_change_results():
    ours = create_tiny_config(method__tau=0.5, data__data_dir="elsewhere", mesh__data=2)
    assert describe_differences(ours, create_tiny_config()) == ["method.tau: 0.85 → 0.5"]
    other_method = create_tiny_config("20,fixmatch")
    assert "method.name: cls → fixmatch" in describe_differences(other_method, create_tiny_config())


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.pop("method"),
        lambda stored: stored.update(num_labels="x"),
        lambda stored: stored.update(learning_rate=1),
        lambda stored: stored["model"].update(depth="deep"),
        lambda stored: stored["model"].update(depth=11),
    ],
)
def test_foreign_config_is_refused(tmp_path, change):
    stored = json.loads(to_json(create_tiny_config()))
    change(stored)
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\x00"])
def test_file_that_is_no_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="give --workdir another folder"):
        read_config(tmp_path / "config.json")
