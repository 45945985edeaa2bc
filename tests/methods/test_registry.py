"""What holds for every method: its files, its hyperparameters, its name."""

import ast
import pathlib

import pytest

from cls_jax import methods
from cls_jax.config import create_config, validate_config
from cls_jax.errors import UserError
from cls_jax.methods import METHODS

FOLDER = pathlib.Path(methods.__file__).parent


def get_method_files():
    """Names of the modules that define methods; the others are helpers."""
    trees = {path.stem: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}
    return [
        name
        for name, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "METHODS"
    ]


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameter_out_of_range_names_the_range(name):
    for key, hyperparameter in METHODS[name].hyperparameters.items():
        config = create_config(f"40,{name}")
        validate_config(config)
        if hyperparameter.choices:
            config.method[key] = "sometimes"
        else:
            config.method[key] = type(hyperparameter.default)(hyperparameter.low - 1)
        with pytest.raises(UserError, match=f"method.{key}=.* choose"):
            validate_config(config)


def test_a_method_is_one_short_file_that_knows_no_other():
    names = get_method_files()
    assert {"cls", "remixmatch"} <= set(names)
    for name in names:
        text = (FOLDER / f"{name}.py").read_text()
        nodes = ast.walk(ast.parse(text))
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not imported & {f"cls_jax.methods.{other}" for other in names}, name
        assert len(text.splitlines()) <= 120, name


def test_no_code_outside_the_folder_asks_for_a_method_by_name():
    root = FOLDER.parent
    others = [path for path in root.rglob("*.py") if path.parent != FOLDER]
    others += [root.parent / "main.py", *(root.parent / "configs").glob("*.py")]
    for path in others:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                constants = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                assert not set(METHODS) & set(map(str, constants)), path
