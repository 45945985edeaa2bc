"""The functions that read files, by the kind of file, and what must hold for what they return."""

import contextlib
import csv
import io
import os
import pathlib
import shutil
import sys
import types
import unicodedata
from collections.abc import Callable

import numpy as np
from absl import flags
from ml_collections import config_flags

from cls_jax import config
from cls_jax.cli import process
from cls_jax.data import label_split
from cls_jax.data.images import cache, decode
from cls_jax.data.images.files import find_images, list_images
from cls_jax.data.sources.benchmarks import read_single_file
from cls_jax.data.sources.folder_layout import read_layout
from cls_jax.errors import UserError
from cls_jax.io import make_printable, write_rows
from cls_jax.report.data import RunData, clean_rows
from cls_jax.report.page import render_page
from cls_jax.runs import folder as run_folder
from cls_jax.runs import metrics, result, sessions
from tests.fuzz.inputs import create_cache

Reader = Callable[[bytes, pathlib.Path], None]


def read_image(content: bytes, folder: pathlib.Path) -> None:
    """As predict and the decoding of folders read it. The suffix does not tell the format."""
    (folder / "a.jpg").write_bytes(content)
    shape = (32, 32, 3) if len(content) % 2 else (16, 16, 1)
    options = decode.DecodeOptions(bit_depth=12 if len(content) % 3 else 16)
    image = decode.read_image(folder / "a.jpg", shape, options)
    assert image.shape == shape
    assert image.dtype == np.uint8


def read_labels_csv(content: bytes, folder: pathlib.Path) -> None:
    """A folder of images with a table."""
    for name in ("a.png", "b.png", "sub/c.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "labels.csv").write_bytes(content)
    layout = read_layout(folder, list_images(folder))
    assert len(layout.train) == 3
    _check_csv(layout.skipped)


def read_names(content: bytes, folder: pathlib.Path) -> None:
    """Folders whose files have strange names."""
    root, outside = folder / "images", folder / "outside"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    outside.mkdir(exist_ok=True)
    for written in content.split(b"\0")[:-1]:
        parts = [part for part in os.fsdecode(written).lstrip("@").split("/") if part != ".."]
        path = root.joinpath(*parts)
        with contextlib.suppress(OSError):  # A file of a folder's name.
            if not path.parent.resolve().is_relative_to(root):
                continue  # Through a link made before: nothing is to be written there.
            path.parent.mkdir(parents=True, exist_ok=True)
            if written.startswith(b"@"):
                path.symlink_to("/dev/zero" if len(written) % 2 else outside)
            else:
                path.touch()
    with contextlib.suppress(UserError):
        find_images(str(root))
    listing = list_images(root)
    _check_csv(listing.skipped)
    layout = read_layout(root, listing)
    assert len(layout.train) + len(layout.test) + len(layout.skipped) >= len(listing.files)
    for warning in layout.warnings:
        _check_message(warning)


def _check_csv(rows) -> None:
    text = io.StringIO()
    write_rows(text, rows)
    back = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
    assert [tuple(row) for row in back] == [tuple(row) for row in rows]


def read_config(content: bytes, folder: pathlib.Path) -> None:
    """The configuration of a run."""
    (folder / "config.json").write_bytes(content)
    read = config.read_config(folder / "config.json")
    (folder / "config.json").write_text(config.to_json(read))
    config.validate_config(config.read_config(folder / "config.json"))
    config.describe_differences(read, config.create_config("40"))


def read_override(content: bytes, folder: pathlib.Path) -> None:
    """An option of main.py."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    original, process.flags.FLAGS = flags.FLAGS, values
    argument = content.decode("utf-8", "surrogateescape")
    # ml_collections looks there for the keys to set.
    before, sys.argv = sys.argv, ["main.py", "--config=configs/digits.py:20", argument]
    try:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            process.parse_flags(sys.argv)
    except SystemExit as end:
        if end.code != 2:
            raise
        raise UserError(printed.getvalue().removesuffix("\n")) from end
    finally:
        process.flags.FLAGS, sys.argv = original, before
    config.validate_config(values.config)
    config.to_json(values.config)


def read_dataset_description(content: bytes, folder: pathlib.Path) -> None:
    """Classes, sizes, mean and deviation of a run's dataset."""
    (folder / "dataset.json").write_bytes(content)
    dataset = types.SimpleNamespace(name="x", fingerprint="0" * 32)
    with contextlib.suppress(UserError):
        run_folder.check_dataset(folder, dataset)
    names, shape = run_folder.read_dataset_description(folder)
    assert shape.num_classes == len(names)
    mean, std = run_folder.read_mean_and_std(folder)
    assert len(mean) == len(std)


def read_labeled_indices(content: bytes, folder: pathlib.Path) -> None:
    """The label budget of a run."""
    path = folder / "labeled_indices.json"
    path.write_bytes(content)
    indices = label_split.read_labeled_indices(path, ("cat", "dog"))
    label_split.check_labeled_indices(path, indices, 0, 100)
    assert 0 <= indices.min() <= indices.max() < 100


def read_result(content: bytes, folder: pathlib.Path) -> None:
    """The outcome of a run, in the terminal and on its page."""
    (folder / "result.json").write_bytes(content)
    read = run_folder.read_result(folder)
    assert f"{read['step']:,}"
    result.describe_accuracies(read)
    result.describe_monitors(read.get("monitors", {}))
    _check_page(result=read)


def read_metrics(content: bytes, folder: pathlib.Path) -> None:
    """Curves, and the result made of them."""
    (folder / "metrics.jsonl").write_bytes(content)
    rows = metrics.read_metrics(folder)
    result.create_result(config.create_config("40"), folder, 40, 1.0)
    _check_page(rows=clean_rows(rows))


def read_sessions(content: bytes, folder: pathlib.Path) -> None:
    """How a run was made."""
    (folder / "sessions.jsonl").write_bytes(content)
    _check_page(sessions=sessions.read_sessions(folder))


def _check_page(**contents) -> None:
    page = render_page(RunData(pathlib.Path("runs/x"), config.create_config("40"), **contents))
    assert page.count("<script") == 1


def read_cache(content: bytes, folder: pathlib.Path) -> None:
    """Decoded images: what is damaged is decoded again. The cache is in the same folder."""
    root, files, made = create_cache(folder)
    made.write_bytes(content)
    decoded = cache.load_decoded(root, files, (8, 8, 3), is_silent=True)
    expected = [decode.read_image(root / files[i].name, (8, 8, 3)) for i in decoded.rows]
    np.testing.assert_array_equal(decoded.images[:], expected)


def read_npz(content: bytes, folder: pathlib.Path) -> None:
    """A dataset in one file."""
    (folder / "set.npz").write_bytes(content)
    arrays = read_single_file(str(folder / "set.npz"))
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        assert images.dtype == np.uint8
        assert images.ndim == 4
        assert len(images) == len(labels)
        assert labels.max(initial=0) < len(arrays["class_names"])


READERS: dict[str, Reader] = {
    "bomb": read_image,
    "image": read_image,
    "labels.csv": read_labels_csv,
    "names": read_names,
    "config.json": read_config,
    "override": read_override,
    "dataset.json": read_dataset_description,
    "labeled_indices.json": read_labeled_indices,
    "result.json": read_result,
    "metrics.jsonl": read_metrics,
    "sessions.jsonl": read_sessions,
    "cache": read_cache,
    "npz": read_npz,
}


def try_to_read(kind: str, content: bytes, folder: pathlib.Path) -> str:
    """Reads an input: "read", or "refused" with the project's own sentence.

    Raises:
        Exception: whatever else it leads to, which is a failure.
    """
    try:
        READERS[kind](content, folder)
    except decode.ImageError as error:
        _check_message(str(error))
        return "refused"
    except UserError as error:
        _check_message(make_printable(str(error)))  # As the program prints it.
        return "refused"
    return "read"


def _check_message(text: str) -> None:
    assert text
    assert len(text) < 5000
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
