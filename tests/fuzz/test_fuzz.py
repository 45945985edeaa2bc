"""Damaged and hostile files are read, or refused with one of the project's own sentences.

Anything else is a failure: another exception, more than 5 s of CPU time, more than 1 GB, a change
outside the given folder, a process started, a connection, an object unpickled. Inputs are numbered:
FUZZ_EXAMPLES=5000 reads that many of every kind.
"""

import contextlib
import csv
import io
import os
import pathlib
import random
import sys
import time
import types
import unicodedata
import warnings

import numpy as np
import pytest

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
from tests.fuzz.inputs import create_input

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="reads memory as Linux reports it"
)
# Images have the most code behind them. Pages cost the most.
COUNTS = {"image.jpg": 200, "bomb.jpg": 8, "metrics.jsonl": 20}
MAX_SECONDS, MAX_BYTES = 5.0, 10**9
FORBIDDEN = {"os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen"}
FORBIDDEN |= {"pickle.find_class", "socket.connect"}
FORBIDDEN |= {"os.chmod", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Fails if what happens while it is entered reaches beyond a folder, or takes too much."""

    def __init__(self, folder):
        self.folder, self.violations, self.is_active = str(folder), [], False
        sys.addaudithook(self._listen)  # For the rest of the process.

    def __enter__(self):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak is counted from now on.
        # CPU time, so that a busy machine makes no difference.
        self.before, self.started, self.is_active = read_peak(), time.process_time(), True

    def __exit__(self, *_):
        self.is_active = False
        violations, self.violations = self.violations, []
        assert not violations
        assert time.process_time() - self.started < MAX_SECONDS
        assert read_peak() - self.before < MAX_BYTES, "bytes"

    def _listen(self, event, arguments):
        if not self.is_active:
            return
        if event in FORBIDDEN:
            self.violations.append(event)
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            path = arguments[0]
            if not isinstance(path, int) and os.fsdecode(path) != os.devnull:
                real = os.path.realpath(os.fsdecode(path))
                if os.path.commonpath([self.folder, real]) != self.folder:
                    self.violations.append(f"{event} {real}")


def read_peak():
    """The most resident memory so far, in bytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def read_image(path, content):
    """As predict and the decoding of folders read it. The suffix does not tell the format."""
    shape = (32, 32, 3) if len(content) % 2 else (16, 16, 1)
    options = decode.DecodeOptions(bit_depth=12 if len(content) % 3 else 16)
    image = decode.read_image(path, shape, options)
    assert (image.shape, image.dtype) == (shape, np.uint8)


def read_labels_csv(path, content):
    """A folder of images with a table."""
    (path.parent / "sub").mkdir(exist_ok=True)
    for name in ("a.png", "b.png", "sub/c.png"):
        (path.parent / name).touch()
    layout = read_layout(path.parent, list_images(path.parent))
    assert len(layout.train) == 3
    back = csv.reader(io.StringIO(to_csv(layout.skipped), newline=""))
    assert [tuple(row) for row in back] == [tuple(row) for row in layout.skipped]


def read_config(path, content):
    read = config.read_config(path)
    path.write_text(config.to_json(read))
    config.validate_config(config.read_config(path))
    config.describe_differences(read, config.create_config("40"))


def read_dataset_description(path, content):
    """Classes, sizes, mean and deviation of a run's dataset."""
    dataset = types.SimpleNamespace(name="x", fingerprint="0" * 32)
    with contextlib.suppress(UserError):
        run_folder.check_dataset(path.parent, dataset)
    names, shape = run_folder.read_dataset_description(path.parent)
    assert shape.num_classes == len(names)
    mean, std = run_folder.read_mean_and_std(path.parent)
    assert len(mean) == len(std)


def read_labeled_indices(path, content):
    indices = label_split.read_labeled_indices(path, ("cat", "dog"))
    label_split.check_labeled_indices(path, indices, 0, 100)
    assert 0 <= indices.min() <= indices.max() < 100


def read_result(path, content):
    """The outcome of a run, in the terminal and on its page."""
    read = run_folder.read_result(path.parent)
    assert f"{read['step']:,}"
    result.describe_accuracies(read)
    result.describe_monitors(read.get("monitors", {}))
    check_page(result=read)


def read_metrics(path, content):
    """Curves, and the result made of them."""
    result.create_result(config.create_config("40"), path.parent, 40, 1.0)
    check_page(rows=clean_rows(metrics.read_metrics(path.parent)))


def check_page(**contents):
    page = render_page(RunData(pathlib.Path("runs/x"), config.create_config("40"), **contents))
    assert page.count("<script") == 1


def read_npz(path, content):
    arrays = read_single_file(str(path))
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        assert (images.dtype, images.ndim, len(images)) == (np.uint8, 4, len(labels))
        assert labels.max(initial=0) < len(arrays["class_names"])


READERS = {
    "bomb.jpg": read_image,
    "image.jpg": read_image,
    "labels.csv": read_labels_csv,
    "config.json": read_config,
    "dataset.json": read_dataset_description,
    "labeled_indices.json": read_labeled_indices,
    "result.json": read_result,
    "metrics.jsonl": read_metrics,
    "sessions.jsonl": lambda path, _: check_page(sessions=sessions.read_sessions(path.parent)),
    "set.npz": read_npz,
}


def try_to_read(name, content, folder):
    """Reads an input, which may be refused with the project's own sentence."""
    (folder / name).write_bytes(content)
    try:
        READERS[name](folder / name, content)
    except (decode.ImageError, UserError) as error:
        text = make_printable(str(error))  # As the program prints it.
        assert 0 < len(text) < 5000
        assert not {unicodedata.category(character) for character in text} & {"Cc", "Cs"}


@pytest.mark.parametrize("name", sorted(READERS))
def test_damaged_input_is_read_or_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    guard = Guard(tmp_path.resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata.
        try_to_read(name, b"", tmp_path)  # Imports do not count.
        for seed in range(int(os.environ.get("FUZZ_EXAMPLES", COUNTS.get(name, 40)))):
            content = create_input(name, random.Random(seed))
            (tmp_path / "seed").write_text(f"{seed}")  # For whoever sees a failure.
            with guard:
                try_to_read(name, content, tmp_path)


def test_what_must_not_happen_is_noticed(tmp_path):
    (tmp_path / "inside").mkdir()
    guard = Guard(tmp_path / "inside")
    with guard:
        (tmp_path / "inside" / "a").write_text("x")
    with pytest.raises(AssertionError, match=r"open .*/b"), guard:
        (tmp_path / "b").write_text("x")
    with pytest.raises(AssertionError, match="bytes"), guard:
        assert len(b"x" * 15 * 10**8)
