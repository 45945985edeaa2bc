"""The functions that read files, by the kind of file, and what must hold for what they return."""

import contextlib
import csv
import io
import pathlib
import types
import unicodedata
from collections.abc import Callable

import numpy as np

from cls_jax import config
from cls_jax.data import label_split
from cls_jax.data.images import decode
from cls_jax.data.images.files import list_images
from cls_jax.data.sources.benchmarks import read_single_file
from cls_jax.data.sources.folder_layout import read_layout
from cls_jax.errors import UserError
from cls_jax.io import make_printable, to_csv
from cls_jax.report.data import RunData, clean_rows
from cls_jax.report.page import render_page
from cls_jax.runs import folder as run_folder
from cls_jax.runs import metrics, result, sessions


def read_image(path: pathlib.Path, content: bytes) -> None:
    """As predict and the decoding of folders read it. The suffix does not tell the format."""
    shape = (32, 32, 3) if len(content) % 2 else (16, 16, 1)
    options = decode.DecodeOptions(bit_depth=12 if len(content) % 3 else 16)
    image = decode.read_image(path, shape, options)
    assert image.shape == shape
    assert image.dtype == np.uint8


def read_labels_csv(path: pathlib.Path, content: bytes) -> None:
    """A folder of images with a table."""
    (path.parent / "sub").mkdir(exist_ok=True)
    for name in ("a.png", "b.png", "sub/c.png"):
        (path.parent / name).touch()
    layout = read_layout(path.parent, list_images(path.parent))
    assert len(layout.train) == 3
    back = csv.reader(io.StringIO(to_csv(layout.skipped), newline=""))
    assert [tuple(row) for row in back] == [tuple(row) for row in layout.skipped]


def read_config(path: pathlib.Path, content: bytes) -> None:
    """The configuration of a run."""
    read = config.read_config(path)
    path.write_text(config.to_json(read))
    config.validate_config(config.read_config(path))
    config.describe_differences(read, config.create_config("40"))


def read_dataset_description(path: pathlib.Path, content: bytes) -> None:
    """Classes, sizes, mean and deviation of a run's dataset."""
    dataset = types.SimpleNamespace(name="x", fingerprint="0" * 32)
    with contextlib.suppress(UserError):
        run_folder.check_dataset(path.parent, dataset)
    names, shape = run_folder.read_dataset_description(path.parent)
    assert shape.num_classes == len(names)
    mean, std = run_folder.read_mean_and_std(path.parent)
    assert len(mean) == len(std)


def read_labeled_indices(path: pathlib.Path, content: bytes) -> None:
    """The label budget of a run."""
    indices = label_split.read_labeled_indices(path, ("cat", "dog"))
    label_split.check_labeled_indices(path, indices, 0, 100)
    assert 0 <= indices.min() <= indices.max() < 100


def read_result(path: pathlib.Path, content: bytes) -> None:
    """The outcome of a run, in the terminal and on its page."""
    read = run_folder.read_result(path.parent)
    assert f"{read['step']:,}"
    result.describe_accuracies(read)
    result.describe_monitors(read.get("monitors", {}))
    _check_page(result=read)


def read_metrics(path: pathlib.Path, content: bytes) -> None:
    """Curves, and the result made of them."""
    rows = metrics.read_metrics(path.parent)
    result.create_result(config.create_config("40"), path.parent, 40, 1.0)
    _check_page(rows=clean_rows(rows))


def _check_page(**contents) -> None:
    page = render_page(RunData(pathlib.Path("runs/x"), config.create_config("40"), **contents))
    assert page.count("<script") == 1


def read_npz(path: pathlib.Path, content: bytes) -> None:
    """A dataset in one file."""
    arrays = read_single_file(str(path))
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        assert images.dtype == np.uint8
        assert images.ndim == 4
        assert len(images) == len(labels)
        assert labels.max(initial=0) < len(arrays["class_names"])


READERS: dict[str, Callable[[pathlib.Path, bytes], None]] = {
    "bomb": read_image,
    "image": read_image,
    "labels.csv": read_labels_csv,
    "config.json": read_config,
    "dataset.json": read_dataset_description,
    "labeled_indices.json": read_labeled_indices,
    "result.json": read_result,
    "metrics.jsonl": read_metrics,
    "sessions.jsonl": lambda path, _: _check_page(sessions=sessions.read_sessions(path.parent)),
    "npz": read_npz,
}


def try_to_read(kind: str, content: bytes, folder: pathlib.Path) -> None:
    """Reads an input, which may be refused with the project's own sentence.

    Raises:
        Exception: whatever else it leads to, which is a failure.
    """
    path = folder / (kind if "." in kind else f"{kind}.{'npz' if kind == 'npz' else 'jpg'}")
    path.write_bytes(content)
    try:
        READERS[kind](path, content)
    except (decode.ImageError, UserError) as error:
        text = make_printable(str(error))  # As the program prints it.
        assert 0 < len(text) < 5000
        assert not {unicodedata.category(character) for character in text} & {"Cc", "Cs"}
