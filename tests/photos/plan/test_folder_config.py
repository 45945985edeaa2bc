"""`configs/folder.py`: builds for every method, and its sizes follow the image size."""

import pytest

from cls_jax.config import validate_config
from cls_jax.methods import METHODS
from tests.conftest import load_config


@pytest.mark.parametrize("method", METHODS)
def test_it_builds_for_every_method(method):
    config = load_config("folder", f"/data/a, b,{method}")
    validate_config(config)
    assert config.is_locked
    assert (config.num_labels, config.data.data_dir) == (0, "/data/a, b")
    assert set(config.method) == {"name", *METHODS[method].hyperparameters}
    assert config.method.name == method


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
