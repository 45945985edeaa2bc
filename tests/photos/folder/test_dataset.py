"""The dataset of a folder: loaded, summed up, and recognized by its content.

`test_odd_folders.py` has all kinds of layouts.
"""

import builtins
import os
import shutil
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.datasets import compute_mean_and_std
from cls_jax.errors import UserError
from cls_jax.photos.folder import compare
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.dataset import (
    hash_names,
    list_layout,
    load_sample,
    open_dataset,
    pack_layout,
    summarize_folder,
    unpack_layout,
)
from cls_jax.photos.images import decode
from cls_jax.photos.images.files import ImageBatch, ImageFile, ImageFiles, Listing
from cls_jax.photos.plan.describe import describe_folder, describe_imbalance
from cls_jax.runs.folder import check_dataset, create_run_folder
from tests.conftest import load_config
from tests.photos.folder.test_odd_folders import put
from tests.photos.helpers import read_image, write_image

SIZE = 8


@pytest.fixture
def root(tmp_path):
    return tmp_path / "my images"


LABELED = [f"labeled/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)]


def load(root, **changes):
    config = load_config("folder", str(root))
    config.data.image_size = SIZE
    config.data.update(changes)
    return open_dataset(config)


def check_images(images, root, names, channels=3):
    expected = np.stack([read_image(root / name, (SIZE, SIZE, channels)) for name in names])
    np.testing.assert_array_equal(images[:], expected)


def test_a_listing_takes_few_bytes_a_file_and_travels_to_other_processes(root):
    names = [f"labeled/{'ab'[i >= 200]}/photo_{i:05}.jpg" for i in range(400)]
    names += [f"unlabeled/part{i // 1000:02}/photo_{i:05}.jpg" for i in range(400, 20_000)]
    folders = ["unlabeled", *(f"unlabeled/part{i:02}" for i in range(20))]
    names[-2:] = "unlabeled/ä.png", "unlabeled/\udcff.png"  # The last one is not Unicode.
    files = ImageFiles(ImageFile(name, i, 2**60 + i, 2**60, i) for i, name in enumerate(names))
    assert files[-1] == files[[-1]][0] == (names[-1], 19_999, 2**60 + 19_999, 2**60, 19_999)
    assert [file.name for file in files] == list(files.names()) == names
    tracemalloc.start()
    layout = read_catalog(
        root, Listing(files, ["labeled", "labeled/a", "labeled/b", *folders], [], [])
    ).train()
    assert tracemalloc.get_traced_memory()[1] / len(names) < 80  # Beside the files.
    tracemalloc.stop()
    content = pack_layout(layout)
    assert len(content) / len(names) < 150
    theirs = unpack_layout(content)
    assert list(theirs.train) == list(layout.train)
    assert [len(theirs.train), theirs.class_names, theirs.skipped] == [20_000, ("a", "b"), []]
    files = ImageFiles(files[::-1])
    files.sort()
    assert [file.name for file in files] == sorted(names)


def test_folders_of_splits(root):
    # Sorted by code points, as the indices of stored runs are.
    files = ("Labeled/Dog/B.png", "Labeled/Dog/a/2.png", "Labeled/Dog/b.png", "Labeled/cat/1.png")
    files += ("unlabelled/4.png", "unlabelled/from/5.png")
    validation, test = ("valid/DOG/3.png", "valid/cat/4.png"), ("Testing/Cat/9.png",)
    put(root, *files, *test, *validation)
    dataset = load(root)
    assert (dataset.name, dataset.class_names) == ("my images", ("Dog", "cat"))
    assert dataset.image_shape == (SIZE, SIZE, 3)
    for part, names, labels in (
        ("train", files, [0, 0, 0, 1, -1, -1]),
        ("test", test, [1]),
        ("validation", validation, [0, 1]),
    ):
        assert getattr(dataset, part).files == names
        assert getattr(dataset, part).labels.tolist() == labels
        check_images(getattr(dataset, part).images, root, names)
    assert dataset.train.labels.dtype == np.int32
    assert dataset.warnings == dataset.skipped_files == ()
    # Mean and deviation are computed unless they are given.
    images = dataset.train.images[:] / 255
    np.testing.assert_allclose(dataset.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(dataset.std, images.std((0, 1, 2)), rtol=1e-6)
    assert load(root, mean=(0.5,), std=(0.25,)).mean == (0.5,)
    # Those of a single color can be divided by.
    mean, std = compute_mean_and_std(np.full((3, 4, 4, 1), 255, np.uint8))
    assert (mean, std) == ((1.0,), pytest.approx((1 / 255,)))


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        ("0.png", "2 files were skipped, such as 'labeled/cat/0.png' ("),
        ("unlabeled", "1 file was skipped, such as 'unlabeled' (a folder that cannot be read: "),
    ],
)
def test_what_may_not_be_read_is_skipped(root, monkeypatch, refused, sentence):
    put(root, *LABELED, "unlabeled/9.png")

    def refuse(function):
        def refuse_some(path, *args, **kwargs):
            if str(path).endswith((f"cat/{refused}", f"/{refused}")):
                raise PermissionError(13, "Permission denied")
            return function(path, *args, **kwargs)

        return refuse_some

    monkeypatch.setattr(builtins, "open", refuse(open))
    monkeypatch.setattr(os, "scandir", refuse(os.scandir))
    dataset = load(root)
    assert len(dataset.train.images) < 7
    assert {why.split(": ")[-1] for _, why in dataset.skipped_files} == {"Permission denied"}
    assert dataset.warnings == (f"{sentence}Permission denied): see skipped_files.csv.",)


def test_share_of_the_labeled_images_is_held_out_for_validation(root):
    put(root, *LABELED, "unlabeled/1.png")
    whole, split = load(root), load(root, validation=0.34)
    assert split.train.labels.tolist() == [0, 0, 1, 1, -1]
    assert split.validation.labels.tolist() == [0, 1]
    assert sorted(split.train.files + split.validation.files) == sorted(whole.train.files)
    check_images(split.train.images, root, split.train.files)
    check_images(split.validation.images, root, split.validation.files)
    # What was held out is the same data: a finished run is found without opening a file.
    assert whole.fingerprint == split.fingerprint
    assert whole.fingerprint.startswith(hash_names(list_layout(root), []))
    put(root, "val/cat/1.png")
    with pytest.raises(UserError, match=r"has 1 validation images already: remove --config"):
        load(root, validation=0.34)


GRAYS = {"labeled/ant": (10, 3), "labeled/bee": (20, 6), "unlabeled": (30, 7), "test/ant": (40, 2)}


@pytest.fixture
def folder(tmp_path):
    """Images of a gray level per subfolder, 20 x 30 pixels, and one damaged file."""
    for name, (gray, count) in GRAYS.items():
        (tmp_path / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (20, 30), gray).save(tmp_path / name / f"{i}.png")
    (tmp_path / "labeled/bee/broken.png").write_text("no image")
    return tmp_path


def test_counts_and_sizes(folder):
    summary = summarize_folder(folder)
    assert summary.class_counts == {"ant": 3, "bee": 7}
    assert (summary.num_labeled, summary.num_unlabeled, len(summary.layout.test)) == (10, 7, 2)
    assert "Classes are unequal: 7 labels of 'bee' and 3 of 'ant'" in describe_imbalance(summary)
    np.testing.assert_array_equal(summary.sizes, [[20, 30]] * 16)  # Not of the damaged file.
    assert summary.channels == 1
    # One colored image makes a folder colored.
    Image.new("RGB", (20, 30), "red").save(folder / "unlabeled" / "0.png")
    assert summarize_folder(folder).channels == 3


def test_readable_images_of_both_kinds_stand_for_all_images_of_a_folder(folder):
    for limit, grays in ((100, [10] * 3 + [20] * 6 + [30] * 7), (2, [10, 30, 30])):
        sample = load_sample(summarize_folder(folder), (8, 8, 3), limit)
        assert sample.train.labels.tolist() == [0] * 3 + [1] * 7 + [-1] * 7
        assert sample.train.images[:].shape == (17, 8, 8, 3)  # One of them is damaged.
        found = sample.train.images[:].reshape(17, -1).mean(axis=1)
        np.testing.assert_array_equal(found, np.resize(grays, 17))


def test_a_plan_tells_which_images_cannot_be_read(folder, monkeypatch):
    monkeypatch.setattr(decode, "_get_formats", lambda: ("JPEG", "PNG"))
    assert summarize_folder(folder).unreadable.endswith(
        "sampled images cannot be read, such as 'labeled/bee/broken.png': not an image of a known "
        "format."
    )
    for i in range(2):
        (folder / f"unlabeled/{i}.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    summary = summarize_folder(folder)
    said = "cannot be read, such as 'unlabeled/0.heic': HEIC, which needs the extra heif"
    assert said in summary.unreadable
    assert summary.unreadable in describe_folder(summary)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    with pytest.raises(UserError, match=r"None of .* HEIC, which needs the extra heif: [^:]*$"):
        summarize_folder(folder)


def test_a_folder_that_cannot_be_used_is_named(folder):
    for path in folder.rglob("*.png"):
        path.write_text("no image")
    with pytest.raises(UserError, match=r"can be read \(.*0.png.*\): convert them"):
        summarize_folder(folder)
    (folder / "labels.csv").write_text(f"file,label\n0.png,{'x' * 300}\n")
    with pytest.raises(UserError, match="more than 255 characters"):
        load(folder)
    with pytest.raises(UserError, match=r"Pass a folder of images, as in --config configs/folder"):
        load("")


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
    create_run_folder(workdir, config, np.arange(4), dataset)
    make, is_same = CHANGES[change]
    if make:
        make(root)
    else:  # As after pip install '.[heif]'.
        batch = ImageBatch([], [None], np.zeros((1, 8, 8, 3)))
        monkeypatch.setattr(compare, "read_ahead", lambda *args: [batch])
    difference = compare.describe_other_data(workdir, config, list_layout(root))
    assert (difference is None) == is_same
    if make and is_same:
        check_dataset(workdir, open_dataset(config))
    elif make:
        with pytest.raises(UserError, match="are not those with which the run"):
            check_dataset(workdir, open_dataset(config))
