"""What holds for every method: its hyperparameters, its documentation, its name."""

import ast
import pathlib

import numpy as np
import pytest

from cls_jax import methods
from cls_jax.config import create_config, validate_config
from cls_jax.errors import UserError
from cls_jax.methods import METHODS

FOLDER = pathlib.Path(methods.__file__).parent


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameter_out_of_range_names_the_range(name):
    for key, hyperparameter in METHODS[name].hyperparameters.items():
        config = create_config(f"40,{name}")
        validate_config(config)
        if isinstance(hyperparameter.default, bool):
            continue  # A ConfigDict refuses all but its two values.
        if hyperparameter.choices:
            config.method[key] = "sometimes"
        else:
            config.method[key] = type(hyperparameter.default)(hyperparameter.low - 1)
        with pytest.raises(UserError, match=f"method.{key}=.* choose"):
            validate_config(config)


@pytest.mark.parametrize("name", METHODS)
def test_every_default_has_a_source_and_every_number_a_range(name):
    for key, hyperparameter in METHODS[name].hyperparameters.items():
        assert hyperparameter.source, key
        if not hyperparameter.choices:
            assert np.isfinite([hyperparameter.low, hyperparameter.high]).all(), key


def test_the_mix_of_views_is_the_papers():
    assert [METHODS[name].mu for name in ("cls", "fixmatch", "mixmatch")] == [8, 7, 1]
    assert METHODS["supervised"].labeled_view == METHODS["ups"].labeled_view == "strong"
    assert METHODS["mean_teacher"].unlabeled_views == ("weak", "weak")


def test_no_code_outside_the_folder_asks_for_a_method_by_name():
    root = FOLDER.parent
    others = [path for path in root.rglob("*.py") if path.parent != FOLDER]
    others += [root.parent / "main.py", *(root.parent / "configs").glob("*.py")]
    for path in others:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                constants = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                assert not set(METHODS) & set(map(str, constants)), path
