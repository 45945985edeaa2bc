"""Images are decoded once for each content, and what is read is what was decoded."""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import filelock
import numpy as np
import pytest
from PIL import Image

from cls_jax.data.images import cache
from cls_jax.data.images.cache import get_cache_folder, load_decoded, shrink_cache
from cls_jax.data.images.decode import CENTER_CROP, DecodeOptions, ImageError, read_image
from cls_jax.data.images.files import list_images
from cls_jax.data.types import Selection
from cls_jax.errors import UserError
from tests.conftest import ROOT

SIZE = 8
SHAPE = (SIZE, SIZE, 3)
NUM_FILES = 70  # More than two chunks.


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_SETTLED_NS", 0)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(NUM_FILES):
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (folder / "5.png").write_text("damaged")
    return folder


@pytest.fixture
def decoded_files(monkeypatch):
    """The files that are decoded, damaged ones left out."""
    seen = []
    decode_image = cache.decode_image

    def decode(file, *args):
        image = decode_image(file, *args)
        seen.append(os.path.basename(file.name))
        return image

    monkeypatch.setattr(cache, "decode_image", decode)
    return seen


def load(root, size=SIZE, **options):
    files = list_images(root).files
    return files, load_decoded(root, files, (size, size, 3), is_silent=True, **options)


def check(root, size=SIZE, options=CENTER_CROP):
    """Every image is what its file decodes to."""
    files, decoded = load(root, size, options=options)
    expected = [read_image(root / files[i].name, (size, size, 3), options) for i in decoded.rows]
    np.testing.assert_array_equal(decoded.images[:], expected)
    return decoded


def find_packs():
    return sorted(get_cache_folder().rglob("*.pack"))


def test_failures_are_named_and_the_others_are_decoded(root):
    decoded = check(root)
    bad = [file.name for file in list_images(root).files].index("5.png")
    assert decoded.failures == {bad: "not an image of a known format"}
    assert decoded.rows.tolist() == [i for i in range(NUM_FILES) if i != bad]
    assert len(set(decoded.digests)) == NUM_FILES


def test_only_new_content_is_decoded(root, tmp_path, decoded_files):
    check(root)
    assert len(decoded_files) == NUM_FILES - 1
    decoded_files.clear()
    os.utime(root / "0.png", ns=(1, 1))
    (root / "1.png").rename(root / "renamed.png")
    (root / "2.png").chmod(0o600)
    (root / "labeled").mkdir()
    (root / "3.png").rename(root / "labeled/3.png")
    shutil.copy(root / "4.png", root / "copy.png")
    check(root)
    shutil.copytree(root, tmp_path / "elsewhere")
    check(tmp_path / "elsewhere")
    assert decoded_files == []
    Image.new("RGB", (9, 9), "red").save(root / "new.png")
    check(root)
    assert decoded_files == ["new.png"]


def test_size_and_options_have_images_of_their_own(root):
    photo = Image.new("RGB", (40, 10), "red")
    photo.putpixel((0, 0), (0, 255, 0))
    photo.save(root / "wide.png")
    check(root)
    check(root, 2 * SIZE)
    check(root, options=DecodeOptions("pad"))
    check(root)


def test_other_content_of_the_same_name_size_and_time_is_decoded(tmp_path):
    for folder, color in (("a", "red"), ("b", "blue")):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (9, 9), color).save(tmp_path / folder / "1.bmp")
        os.utime(tmp_path / folder / "1.bmp", ns=(1, 1))
        check(tmp_path / folder)
    (tmp_path / "b/1.bmp").write_bytes((tmp_path / "a/1.bmp").read_bytes())
    os.utime(tmp_path / "b/1.bmp", ns=(1, 1))
    check(tmp_path / "b")


def test_files_are_read_again_only_if_they_may_have_changed(root, monkeypatch):
    (root / "5.png").unlink()
    _, first = load(root)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "open_file", None)
        _, again = load(root)
    assert again.digests == first.digests
    # Those that changed a moment ago may have changed since.
    monkeypatch.setattr(cache, "_SETTLED_NS", 10**12)
    Image.new("RGB", (9, 9), "red").save(root / "0.png")
    load(root)
    monkeypatch.setattr(cache, "open_file", None)
    with pytest.raises(TypeError):
        load(root)


def test_file_that_cannot_be_read_now_is_read_next_time(root, monkeypatch):
    open_file = cache.open_file

    def refuse(path):
        if os.path.basename(path) == "7.png":
            raise ImageError("Input/output error")
        return open_file(path)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "open_file", refuse)
        _, decoded = load(root)
        assert "Input/output error" in decoded.failures.values()
    assert len(check(root).failures) == 1


@pytest.mark.parametrize("target", ["pack", "table"])
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "zeroed", "flipped"])
def test_damaged_cache_gives_the_right_images(root, target, damage):
    check(root)
    (path,) = find_packs() if target == "pack" else get_cache_folder().glob("tables/" + "?" * 32)
    content = path.read_bytes()
    path.unlink()
    flipped = bytes(byte ^ (i % 97 == 0) for i, byte in enumerate(content))
    damaged = {"cut": content[: len(content) // 2], "empty": b"", "flipped": flipped}
    if damage != "missing":
        path.write_bytes(damaged.get(damage, bytes(len(content))))
    check(root)
    check(root)


def test_image_damaged_while_it_is_in_use_is_decoded_again(root):
    files, decoded = load(root)
    (pack,) = find_packs()
    with pack.open("r+b") as file:
        file.seek(-500, os.SEEK_END)
        file.write(bytes(500))
    expected = [read_image(root / files[i].name, SHAPE) for i in decoded.rows]
    np.testing.assert_array_equal(decoded.images[:], expected)
    assert find_packs() == []
    (root / files[-1].name).unlink()
    with pytest.raises(OSError, match="damaged in the cache, and No such file"):
        decoded.images[[-1]]


def test_interrupted_decoding_continues(root, monkeypatch, decoded_files):
    monkeypatch.setattr(cache, "_PACK_BYTES", 20 * SIZE * SIZE * 3)
    write_pack, written = cache._write_pack, []

    def interrupt(*args):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(write_pack(*args))

    monkeypatch.setattr(cache, "_write_pack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(root)
    monkeypatch.setattr(cache, "_write_pack", write_pack)
    assert len(find_packs()) == 2
    decoded_files.clear()
    check(root)
    assert len(decoded_files) == NUM_FILES - 1 - 40  # One is damaged.


def test_unfinished_packs_of_dead_processes_are_removed(root):
    load(root)
    folder = find_packs()[0].parent
    tables = get_cache_folder() / "tables"
    for name in ("0" * 32, "1" * 32):
        (folder / f"partial-{name}-1").write_bytes(b"x")
    with filelock.FileLock(tables / f"{'1' * 32}.lock"):
        load(root)
        assert [path.name[8] for path in folder.glob("partial-*")] == ["1"]
    load(root)
    assert list(folder.glob("partial-*")) == []


def test_unfinished_packs_of_live_processes_are_left_alone(root, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(root, other)
    write_file = cache._write_file

    def write_while_another_folder_is_decoded(path, table, parts):
        def interrupt():
            entries, images = parts
            yield entries
            yield images[:10_000]
            monkeypatch.setattr(cache, "_write_file", write_file)
            load(other)
            yield images[10_000:]

        write_file(path, table, interrupt())

    monkeypatch.setattr(cache, "_write_file", write_while_another_folder_is_decoded)
    _, decoded = load(root)
    assert len(find_packs()) == 2
    expected = [read_image(root / path, SHAPE) for path in decoded.images._paths]
    np.testing.assert_array_equal(decoded.images[:], expected)


def test_pack_is_on_the_disk_before_it_gets_its_name(root, monkeypatch):
    events, replace = [], pathlib.Path.replace
    monkeypatch.setattr(cache.os, "fsync", lambda _: events.append("synced"))
    monkeypatch.setattr(pathlib.Path, "replace", lambda *a: events.append("named") or replace(*a))
    load(root)
    assert events == ["synced", "named"] * (len(events) // 2)
    assert len(find_packs()) == 1


def test_full_or_read_only_disk_names_the_remedy(root, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cache.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=100))
        with pytest.raises(UserError, match=r"No space left .* XDG_CACHE_HOME to a folder with"):
            load(root)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"Not a directory.*XDG_CACHE_HOME"):
        load(root)


def test_what_was_used_longest_ago_is_deleted_first(root):
    for size in (8, 16, 32):
        load(root, size)
    num_bytes = sum(pack.stat().st_size for pack in find_packs())
    shrink_cache(0)
    assert len(find_packs()) == 3  # Another process may be about to read them.
    now = time.time()
    for size, age in ((8, 7200), (16, 9000), (32, 8000)):
        (pack,) = (get_cache_folder() / f"v{cache._VERSION}-{size}-3-crop-16").glob("*.pack")
        os.utime(pack, (now - age, now - age))
    load(root, 16, max_gigabytes=num_bytes * 0.6 / 1e9)  # Used now.
    sizes = [pack.parent.name.split("-", 1)[1] for pack in find_packs()]
    assert sizes == ["16-3-crop-16", "8-3-crop-16"]


@pytest.mark.parametrize("has_preadv", [True, False])
def test_reads_by_index_like_an_array(root, monkeypatch, has_preadv):
    if not has_preadv:
        monkeypatch.delattr(os, "preadv")
    monkeypatch.setattr(cache, "_PACK_BYTES", 20 * SIZE * SIZE * 3)
    (root / "5.png").unlink()
    files, decoded = load(root)
    assert len(find_packs()) == 4
    array = np.stack([read_image(root / file.name, SHAPE) for file in files])
    images = decoded.images
    slices = slice(None), slice(3, 45), slice(45, 3, -2), slice(5, 5)
    for indices in (*slices, np.array([4, 4, 0, 49, -1]), np.array([], int), [1, 2, 7]):
        np.testing.assert_array_equal(images[indices], array[indices])
    chosen = Selection(images, np.array([9, 3, 4, 5, 40]))
    del images, decoded
    np.testing.assert_array_equal(chosen[:], array[[9, 3, 4, 5, 40]])
    np.testing.assert_array_equal(chosen[np.array([4, 0])], array[[40, 9]])
    with pytest.raises(IndexError):
        chosen[np.array([5])]
    rows = [np.random.default_rng(i).integers(0, 5, 40) for i in range(50)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for part, read in zip(rows, pool.map(chosen.__getitem__, rows), strict=True):
            np.testing.assert_array_equal(read, array[[9, 3, 4, 5, 40]][part])


_LOAD = """
import pathlib, sys
from cls_jax.data.images import cache
from cls_jax.data.images.files import list_images
cache._PACK_BYTES = 10 * 8 * 8 * 3
root = pathlib.Path(sys.argv[1])
files = list_images(root).files
print("ready", flush=True)
cache.load_decoded(root, files, (8, 8, 3), is_silent=True)
"""


def test_killed_process_leaves_no_wrong_image(root):
    rng = np.random.default_rng(0)
    for _ in range(3):
        command = [sys.executable, "-c", _LOAD, str(root)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    check(root)
    assert list(get_cache_folder().rglob("partial-*")) == []
