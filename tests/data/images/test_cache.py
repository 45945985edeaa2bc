"""Images are decoded once, and again when anything about them changes."""

import os
import types

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.images import cache
from cls_jax.data.images.cache import DecodedImages, get_cache_folder, load_decoded
from cls_jax.data.images.decode import read_image
from cls_jax.data.images.index import list_images
from cls_jax.errors import UserError

SIZE = 8
NUM_FILES = 70  # More than two chunks.


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(NUM_FILES):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "5.png").write_text("damaged")
    return folder


@pytest.fixture
def decoded_files(monkeypatch):
    """Counts what is decoded."""
    seen = []
    decode_image = cache.decode_image
    monkeypatch.setattr(
        cache,
        "decode_image",
        lambda file, size: (seen.append(1), decode_image(file, size))[1],
    )
    return seen


def load(root, size=SIZE):
    files = list_images(root).files
    return files, load_decoded(root, files, size, is_silent=True)


def test_rows_are_the_files_and_failures_are_named(root):
    files, decoded = load(root)
    assert len(decoded.images) == NUM_FILES
    bad = [file.name for file in files].index("5.png")
    assert decoded.failures == {bad: "not an image of a known format"}
    for i, file in enumerate(files):
        expected = (
            np.zeros((SIZE, SIZE, 3)) if i == bad else read_image(root / file.name, (SIZE, SIZE, 3))
        )
        np.testing.assert_array_equal(decoded.images[i : i + 1][0], expected)
    digests = {digest.tobytes() for i, digest in enumerate(decoded.digests) if i != bad}
    assert len(digests) == NUM_FILES - 1


def test_cache_is_used_again(root, decoded_files):
    _, first = load(root)
    num_decoded = len(decoded_files)
    assert num_decoded == NUM_FILES
    _, again = load(root)
    assert len(decoded_files) == num_decoded
    np.testing.assert_array_equal(first.images[:], again.images[:])
    np.testing.assert_array_equal(first.digests, again.digests)
    assert first.failures == again.failures


@pytest.mark.parametrize("change", ["content", "time", "name", "permission", "size", "more"])
def test_any_change_decodes_again(root, decoded_files, change):
    load(root)
    decoded_files.clear()
    path, size = root / "1.png", SIZE
    if change == "content":
        Image.new("RGB", (9, 9), "red").save(path)
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "name":
        path.rename(root / "renamed.png")
    elif change == "permission":
        path.chmod(0o640 if path.stat().st_mode & 0o777 != 0o640 else 0o600)
    elif change == "size":
        size = 2 * SIZE
    else:
        Image.new("RGB", (9, 9), "red").save(root / "new.png")
    files, decoded = load(root, size)
    assert len(decoded_files) == len(files)
    row = [file.name for file in files].index("renamed.png" if change == "name" else "1.png")
    expected = read_image(root / files[row].name, (size, size, 3))
    np.testing.assert_array_equal(decoded.images[np.array([row])][0], expected)


@pytest.mark.parametrize("damage", ["cut", "empty", "missing"])
def test_damaged_cache_is_made_again(root, damage):
    _, first = load(root)
    (folder,) = get_cache_folder().iterdir()
    path = folder / ("digests.npy" if damage == "missing" else "images.npy")
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    _, again = load(root)
    np.testing.assert_array_equal(first.images[:], again.images[:])


def test_interrupted_decoding_leaves_nothing_behind(root, monkeypatch):
    def interrupt(file, size):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "decode_image", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(root)
    assert list(get_cache_folder().iterdir()) == []


def test_full_or_read_only_disk_names_the_remedy(root, tmp_path, monkeypatch):
    usage = types.SimpleNamespace(free=100)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        UserError, match=r"No space left .* XDG_CACHE_HOME to a folder with enough space"
    ):
        load(root)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"Not a directory.*XDG_CACHE_HOME"):
        load(root)


def test_reads_by_index_like_an_array(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    images = DecodedImages(tmp_path / "a.npy")
    chosen = images.select(np.array([9, 3, 4, 5, 40]))
    assert (len(images), len(chosen)) == (50, 5)
    for indices in (
        slice(None),
        slice(3, 20),
        slice(20, 3, -2),
        slice(5, 5),
        np.array([4, 4, 0, 49, -1]),
        np.array([], int),
        [1, 2, 7],
    ):
        np.testing.assert_array_equal(images[indices], array[indices])
    np.testing.assert_array_equal(chosen[:], array[[9, 3, 4, 5, 40]])
    np.testing.assert_array_equal(chosen[np.array([4, 0])], array[[40, 9]])
    del images
    np.testing.assert_array_equal(chosen[1:3], array[[3, 4]])
    with pytest.raises(IndexError):
        chosen[np.array([5])]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("images.npy", np.zeros((NUM_FILES, SIZE, SIZE, 3), np.float64)),
        ("images.npy", np.asfortranarray(np.zeros((NUM_FILES, SIZE, SIZE, 3), np.uint8))),
        ("digests.npy", np.zeros((NUM_FILES, 3), np.uint8)),
        ("digests.npy", np.array([{}], object)),
        ("failures.json", b'{"-1": "x"}'),
        ("failures.json", b"[" * 100_000),
        ("images.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '''   "),
    ],
)
def test_cache_that_is_not_ours_is_made_again(root, decoded_files, name, array):
    load(root)
    (folder,) = get_cache_folder().iterdir()
    if isinstance(array, bytes):
        (folder / name).write_bytes(array)
    else:
        np.save(folder / name, array, allow_pickle=True)
    decoded_files.clear()
    _, decoded = load(root)
    assert len(decoded_files) == NUM_FILES
    assert len(decoded.failures) == 1
