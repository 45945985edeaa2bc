"""A run belongs to its images and labels, by content."""

import os
import shutil

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder import compare
from cls_jax.photos.folder.dataset import list_layout, open_dataset
from cls_jax.photos.images.files import ImageBatch
from cls_jax.runs import folder
from tests.conftest import load_config
from tests.photos.helpers import write_image

TIME = "2026-11-22T13:25:40.190940Z"


def fill(root, *names):
    """Uncompressed images, which all have the same size."""
    for name in names:
        write_image(root / name, np.random.default_rng(int(name[-5])).integers(0, 256, (9, 9, 3)))


def relabel(old, new):
    def change(root):
        text = (root / "labels.csv").read_text()
        assert old in text
        (root / "labels.csv").write_text(text.replace(old, new))

    return change


def swap(root):
    first, second = (root / name for name in ("0.bmp", "2.bmp"))
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


# What happens to a run's images → whether they are still the run's.
CHANGES = {
    "nothing": (lambda root: None, True),
    "another time": (lambda root: os.utime(root / "0.bmp", (1, 1)), True),
    "a test image": (lambda root: fill(root, "test/cat/9.bmp"), True),
    "a new image": (lambda root: fill(root, "9.bmp"), False),
    "two images of the same size swapped": (swap, False),
    "a corrected label": (relabel("0.bmp,cat", "0.bmp,dog"), False),
    "a class of another name": (relabel("cat", "cow"), False),
    "no class for a labeled image": (relabel("1.bmp,cat", f"1.bmp,,none,{TIME}"), False),
    "a damaged image that can be read now": (None, False),
    "a missing image that is there now": (lambda root: fill(root, "7.bmp"), False),
    "a copy of a labeled image replaced": (lambda root: fill(root, "6.bmp"), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_belongs_to_its_images_and_labels_by_content(tmp_path, monkeypatch, change):
    root, workdir = tmp_path / "photos", tmp_path / "run"
    fill(root, *(f"{i}.bmp" for i in range(5)))
    (root / "5.bmp").write_bytes(b"no image")
    shutil.copy(root / "0.bmp", root / "6.bmp")
    rows = ["file,label,decision,time", "0.bmp,cat", "1.bmp,cat", "2.bmp,dog", "3.bmp,dog"]
    (root / "labels.csv").write_text("\n".join([*rows, f"4.bmp,,none,{TIME}", "7.bmp,cat", ""]))
    config = load_config("folder", str(root))
    config.data.image_size = 8
    workdir.mkdir()
    dataset = open_dataset(config)
    assert len(dataset.skipped_files) == 4
    folder.create_run_folder(workdir, config, np.arange(4), dataset)
    make, is_same = CHANGES[change]
    if make:
        make(root)
    else:  # As after pip install '.[heif]'.
        batch = ImageBatch([], [None], np.zeros((1, 8, 8, 3)))
        monkeypatch.setattr(compare, "read_ahead", lambda *args: [batch])
    difference = compare.describe_other_data(workdir, config, list_layout(root))
    assert (difference is None) == is_same
    if make and is_same:
        folder.check_dataset(workdir, open_dataset(config))
    elif make:
        with pytest.raises(UserError, match="are not those with which the run"):
            folder.check_dataset(workdir, open_dataset(config))
