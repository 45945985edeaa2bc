"""`configs/folder.py`, which `test_rules.py` builds for every method."""

import pytest

from tests.conftest import load_config


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
