"""Images are decoded once per content, and read back as decoded."""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import types
import unittest.mock

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.resize import CENTER_CROP, DecodeOptions, ImageError
from cls_jax.data.types import Selection
from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.images import cache, files, store
from cls_jax.photos.images.cache import load_decoded
from cls_jax.photos.images.files import list_images
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.photos.report.data import leave_out_folders
from tests.conftest import ROOT
from tests.photos.helpers import read_image, write_images

SIZE = 8
SHAPE = (SIZE, SIZE, 3)
NUM_FILES = 70


def open_store(max_gigabytes=None):
    return Store(get_cache_folder(), max_gigabytes)


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_SETTLED_NS", 0)
    monkeypatch.setattr(cache, "_MAX_BATCH", 20)


@pytest.fixture
def root(tmp_path):
    folder = write_images(tmp_path / "images", {"": NUM_FILES}, (9, 9, 3))
    (folder / "5.png").write_text("damaged")
    return folder


@pytest.fixture
def decoded_files(monkeypatch):
    """The contents that are decoded, damaged ones left out."""
    seen, decode_image = [], files.decode_image

    def decode(file, *args):
        image = decode_image(file, *args)
        seen.append(file.getvalue())
        return image

    monkeypatch.setattr(files, "decode_image", decode)
    return seen


def load(root, size=SIZE, **options):
    files = list_images(root).files
    return files, load_decoded(root, files, (size, size, 3), is_silent=True, **options)


def check(root, size=SIZE, options=CENTER_CROP, decoded=None):
    """Every image is what its file decodes to."""
    files, loaded = load(root, size, options=options)
    decoded = decoded or loaded
    expected = [read_image(root / files[i].name, (size, size, 3), options) for i in decoded.rows]
    np.testing.assert_array_equal(decoded.images[:], expected)
    return decoded


def execute(*statement):
    """Changes the store behind its back."""
    with sqlite3.connect(open_store()._path) as db:
        rows = db.execute(*statement).fetchall()
    db.close()
    return rows


def test_only_new_content_is_decoded_and_failures_are_named(root, tmp_path, decoded_files):
    decoded = check(root)
    bad = [file.name for file in list_images(root).files].index("5.png")
    assert decoded.failures == {bad: "not an image of a known format"}
    assert len(set(decoded.digests)) == NUM_FILES
    assert len(decoded_files) == NUM_FILES - 1
    assert store.get_cache_folder().stat().st_mode & 0o777 == 0o700
    assert os.stat(open_store()._path).st_mode & 0o777 == 0o600
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
    Image.new("RGB", (19, 9), "red").save(root / "new.png")
    check(root)
    assert decoded_files == [(root / "new.png").read_bytes()]
    # Another size and other options have images of their own.
    for arguments in ((2 * SIZE,), (SIZE, DecodeOptions("pad")), ()):
        check(root, *arguments)


def test_files_are_read_again_only_if_they_may_have_changed(root, monkeypatch):
    open_file = files.open_file

    def refuse(path):
        if os.path.basename(path) == "7.png":
            raise ImageError("Input/output error")
        return open_file(path)

    (root / "5.png").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(files, "open_file", refuse)
        assert "Input/output error" in load(root)[1].failures.values()
    assert not check(root).failures  # It is read the next time.
    _, first = load(root)
    with monkeypatch.context() as patch:
        patch.setattr(files, "open_file", None)
        assert load(root)[1].digests == first.digests
    # Those that changed a moment ago may have changed since.
    monkeypatch.setattr(files, "_SETTLED_NS", 10**12)
    Image.new("RGB", (9, 9), "red").save(root / "0.png")
    load(root)
    monkeypatch.setattr(files, "open_file", None)
    with pytest.raises(TypeError):
        load(root)


def _overwrite(content):
    path = pathlib.Path(open_store()._path)
    path.write_bytes(content(path.read_bytes()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda: _overwrite(lambda content: content[: len(content) // 2]),
        lambda: _overwrite(lambda content: b""),
        lambda: _overwrite(lambda content: content[::-1]),
        lambda: os.unlink(open_store()._path),
        lambda: execute("DROP TABLE blobs"),
        lambda: execute("DELETE FROM blobs WHERE id % 2"),
        lambda: execute("UPDATE blobs SET blob = zeroblob(192) WHERE id % 2"),
        lambda: execute("UPDATE rows SET options = options || 'x', checksum = NULL, used = 'x'"),
        lambda: execute("UPDATE OR REPLACE rows SET digest = (SELECT max(digest) FROM rows)"),
        lambda: execute("UPDATE contents SET digest = (SELECT min(digest) FROM rows)"),
    ],
)
def test_damaged_store_gives_the_right_images(root, damage):
    _, before = load(root)
    damage()
    check(root)
    check(root, decoded=before)  # While it is in use.


@pytest.mark.parametrize(
    "clear", [lambda rows: rows.delete(), lambda rows: shutil.rmtree(rows.folder)]
)
def test_a_store_that_another_process_clears_starts_over(root, monkeypatch, clear):
    """While files are decoded, and in use afterwards. Nothing is wrong or ends."""
    write, cleared = Store.write, []

    def clear_and_write(self, *args):
        if len(cleared) < 3:
            cleared.append(clear(open_store()))
        write(self, *args)

    monkeypatch.setattr(Store, "write", clear_and_write)
    decoded = check(root)
    assert len(cleared) == 3
    clear(open_store())
    check(root, decoded=decoded)
    assert len(open_store().find_contents([bytes(16)])) == 1
    rows = open_store()
    rows.write("images/a", {bytes(16): b"x"}, {})
    clear(open_store())
    rows.write("images/a", {bytes([1] * 16): b"y"}, {})
    assert open_store().find("images/a", [bytes(16), bytes([1] * 16)]) == {bytes([1] * 16)}


def test_lost_image_is_decoded_again_only_from_the_same_content(root):
    files, decoded = load(root)
    execute("DELETE FROM rows")
    np.testing.assert_array_equal(decoded.images[:], check(root).images[:])
    execute("DELETE FROM rows")
    (root / files[-1].name).unlink()
    Image.new("RGB", (9, 9), "red").save(root / files[-2].name)
    for row, reason in ((-1, "No such file"), (-2, "its file has changed")):
        with pytest.raises(UserError, match=f"not in the cache, and cannot be read .{reason}"):
            decoded.images[[row]]


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        ("shutil.disk_usage", lambda _: types.SimpleNamespace(free=9), "No space.* free disk"),
        (
            "cls_jax.photos.images.store._SCHEMA",
            *(store._SCHEMA + "PRAGMA max_page_count = 9;", "is full.* free disk"),
        ),
        ("fcntl.flock", unittest.mock.Mock(side_effect=OSError(errno.ENOLCK, "No")), "No;"),
    ],
)
def test_store_that_cannot_be_written_names_the_remedy(root, monkeypatch, target, value, message):
    with monkeypatch.context() as patch:
        patch.setattr(target, value)
        with pytest.raises(UserError, match=rf"{message}.* set .*XDG_CACHE_HOME"):
            load(root, 64)
    check(root)


@pytest.mark.parametrize("has_home", [False, True])
def test_a_cache_that_cannot_be_made_is_done_without(root, has_home, monkeypatch, capsys, tmp_path):
    """In a line, and nothing is written elsewhere. A container's user may have no home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    mine = tmp_path / "temporary/mine/a.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", __file__)
    if not has_home:
        for name in ("HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name)
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    before = {path.name for path in tmp_path.iterdir()}
    store._make_writable.cache_clear()
    for _ in range(2):
        check(root)
    reason = "Not a directory" if has_home else "this user has no home"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"There is no cache of images and features ({reason})")
    assert {path.name for path in tmp_path.iterdir()} == before
    assert leave_out_folders("Damaged: /srv/mine/a.jpg", tmp_path) == "Damaged: a.jpg"
    commands.cache(clear=True)
    assert mine.exists()


def test_least_recently_used_rows_of_all_kinds_go_first():
    rows, now = open_store(), int(time.time())
    ages = {"images/a": 7200, "features/b": 9000, "images/c": 8000, "features/d": 0}
    for options, age in ages.items():
        rows.write(options, {bytes([i] * 16): bytes(30_000) for i in range(50)}, {b"k": b"d" * 16})
        execute("UPDATE rows SET used = ? WHERE options = ?", (now - age, options))

    def find_left():
        assert execute("SELECT count(*) FROM blobs") == execute("SELECT count(*) FROM rows")
        return "".join(sorted(name[-1] for (name,) in execute("SELECT DISTINCT options FROM rows")))

    size = os.path.getsize(rows._path)
    assert rows.measure("images") == pytest.approx(size / 2, rel=0.01)
    rows.shrink()
    assert find_left() == "abcd"
    assert len(rows.find("features/b", [bytes(16)])) == 1  # One of them is used now.
    open_store(0.75 * size / 1e9).shrink()
    assert os.path.getsize(rows._path) <= 0.76 * size
    execute("UPDATE rows SET used = used - 3700 WHERE options != 'features/d'")
    open_store(1e-6).shrink()
    assert find_left() == "d"  # Another process may be about to read them.
    execute("UPDATE rows SET used = 0")
    open_store().shrink()  # To the size that was given last.
    assert find_left() == ""
    assert execute("SELECT count(*) FROM contents") == [(0,)]
    assert os.path.getsize(rows._path) < 0.1 * size


def test_reads_by_index_like_an_array_in_many_threads(root):
    (root / "5.png").unlink()
    files, decoded = load(root)
    array = np.stack([read_image(root / file.name, SHAPE) for file in files])
    images = decoded.images
    slices = slice(None), slice(3, 45), slice(45, 3, -2), slice(5, 5)
    for indices in (*slices, np.array([4, 4, 0, 49, -1]), np.array([], int), [1, 2, 7]):
        np.testing.assert_array_equal(images[indices], array[indices])
    order = np.array([9, 3, 4, 5, 40])
    chosen = Selection(images, order)
    assert chosen.digests == [decoded.digests[i] for i in order]
    assert Selection(array, order).digests is None
    with pytest.raises(IndexError):
        chosen[np.array([5])]
    rows = [np.random.default_rng(i).integers(0, 5, 40) for i in range(50)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for part, read in zip(rows, pool.map(chosen.__getitem__, rows), strict=True):
            np.testing.assert_array_equal(read, array[order][part])


_LOAD = """
import pathlib, sys
from cls_jax.photos.images import cache, files
cache._MAX_BATCH, root = 4, pathlib.Path(sys.argv[1])
print("ready", flush=True)
cache.load_decoded(root, files.list_images(root).files, (8, 8, 3), is_silent=True)
"""


@pytest.mark.slow
def test_killed_processes_leave_no_wrong_image_and_what_they_did_stays(root):
    rng, counts = np.random.default_rng(0), []
    for _ in range(2):
        command = [sys.executable, "-c", _LOAD, str(root)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
        for process in processes:
            process.stdout.readline()
        time.sleep(rng.uniform(0.02, 0.1))
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        with contextlib.suppress(sqlite3.OperationalError):  # It has no tables yet.
            counts += execute("SELECT count(*) FROM rows")
    assert counts == sorted(counts)
    check(root)
