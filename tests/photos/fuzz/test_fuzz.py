"""Damaged and hostile files are read, or refused with one of the project's own sentences.

Anything else is a failure: another exception, more than 5 s of CPU time, more than 1 GB, a change
outside the given folder, a process started, a connection, an object unpickled. Inputs are numbered:
FUZZ_EXAMPLES=5000 reads that many of every kind.
"""

import csv
import functools
import io
import json
import os
import pathlib
import random
import re
import sys
import time
import unicodedata
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from cls_jax import config
from cls_jax.data import label_split
from cls_jax.data.resize import DecodeOptions, ImageError
from cls_jax.data.sources.benchmarks import read_single_file
from cls_jax.errors import UserError
from cls_jax.io import make_printable, to_csv
from cls_jax.photos.images import decode
from cls_jax.photos.report import outcome
from cls_jax.photos.report.data import RunData, clean_rows
from cls_jax.photos.report.page import render_page
from cls_jax.runs import folder as run_folder
from cls_jax.runs import metrics, result, sessions
from tests.photos.helpers import make_folder, read_layout
from tests.photos.images.test_decode import create_photo, encode, pack_png

pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="reads memory as Linux reports it"
)
# Images have the most code behind them. Pages cost the most.
COUNTS = {"image.jpg": 200, "bomb.jpg": 5, "metrics.jsonl": 20}
MAX_SECONDS, MAX_BYTES = 5.0, 10**9
FORBIDDEN = {"os.exec", "os.posix_spawn", "os.system", "os.fork", "subprocess.Popen"}
FORBIDDEN |= {"pickle.find_class", "socket.connect"}
FORBIDDEN |= {"os.chmod", "os.link", "os.remove", "os.rename", "os.rmdir", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Fails if the block reaches beyond a folder, or takes too much time or memory."""

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
    options = DecodeOptions(bit_depth=12 if len(content) % 3 else 16)
    with decode.open_file(path) as file:
        image = decode.decode_image(file, shape, options)
    assert (image.shape, image.dtype) == (shape, np.uint8)


def read_labels_csv(path, content):
    """A folder of images with a table."""
    layout = read_layout(make_folder(path.parent, ("a.png", "b.png", "sub/c.png")))
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
    names, shape = run_folder.read_dataset_description(path.parent)
    assert shape.num_classes == len(names)
    mean, std = run_folder.read_mean_and_std(path.parent)
    assert len(mean) == len(std)


def read_labeled_indices(path, content):
    labels = np.repeat([0, 1], [4, 96])
    indices = label_split.find_labeled_rows(path, ("cat", "dog"), labels, np.arange(100), 100)
    assert 0 <= indices.min() <= indices.max() < 100


def read_run(path, content):
    """Result, curves and commands of a run, in the terminal and on its page."""
    run = RunData(pathlib.Path("runs/x"), config.create_config("40"))
    run.sessions = sessions.read_sessions(path.parent)
    run.rows = clean_rows(metrics.read_metrics(path.parent))
    run.result = run_folder.read_result(path.parent)
    for read in (run.result, result.create_result(run.config, path.parent, 40, 1.0)):
        if read:
            assert f"{read['step']:,}"
            outcome.describe_accuracies(read)
            outcome.describe_monitors(read.get("monitors", {}))
    assert render_page(run).count("<script") == 1


def read_npz(path, content):
    arrays = read_single_file(str(path))
    for split in ("train", "test"):
        images, labels = getattr(arrays, split).images, getattr(arrays, split).labels
        assert (images.dtype, images.ndim, len(images)) == (np.uint8, 4, len(labels))
        assert labels.max(initial=0) < len(arrays.class_names)


READERS = {
    "bomb.jpg": read_image,
    "image.jpg": read_image,
    "labels.csv": read_labels_csv,
    "config.json": read_config,
    "dataset.json": read_dataset_description,
    "labeled_indices.json": read_labeled_indices,
    "result.json": read_run,
    "metrics.jsonl": read_run,
    "sessions.jsonl": read_run,
    "set.npz": read_npz,
}


def try_to_read(name, content, folder):
    """Reads an input, which may be refused with the project's own sentence."""
    (folder / name).write_bytes(content)
    try:
        READERS[name](folder / name, content)
    except (ImageError, UserError) as error:
        text = make_printable(str(error))  # As the program prints it.
        assert 0 < len(text) < 5000
        assert not {unicodedata.category(character) for character in text} & {"Cc", "Cs"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "bomb.jpg" else [])
        for name in sorted(READERS)
    ],
)
def test_damaged_input_is_read_or_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    guard = Guard(tmp_path.resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata.
        try_to_read(name, b"", tmp_path)  # Imports do not count.
        for seed in range(int(os.environ.get("FUZZ_EXAMPLES", COUNTS.get(name, 40)))):
            rng = random.Random(seed)
            seeds = create_seeds(name)
            if name == "bomb.jpg":
                content = seeds[seed % len(seeds)]()
            elif ".json" in name and rng.random() < 0.5:
                content = change_json(rng, rng.choice(seeds))
            else:
                content = damage(rng, seeds)
            (tmp_path / "seed").write_text(f"{seed}")  # For whoever sees a failure.
            with guard:
                try_to_read(name, content, tmp_path)


def test_what_must_not_happen_is_noticed(tmp_path):
    guard = Guard(tmp_path / "inside")
    with pytest.raises(AssertionError, match=r"open .*/b"), guard:
        (tmp_path / "b").write_text("x")
    with pytest.raises(AssertionError, match="bytes"), guard:
        assert len(b"x" * 15 * 10**8)


LONG = 100_000
# fmt: off
# Widths, heights and counts as files have them.
_SIZES = tuple(
    (number % 256**length).to_bytes(length, order)
    for number in (0, 1, 255, 256, 9999, 16383, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
    for length in (1, 2, 4) for order in ("big", "little")
)
# fmt: on
_VALUES = (b"null", b"true", b"-1", b"0.5", b"1e400", b"NaN", b"[]", b"{}", b'""', b'"</script>"')
_VALUES += (b'"\\ud800"', b'"\\u0000"', b"[[]]", b'{"a": 1}', b"9" * 400, b"[" * LONG)


def change_json(rng: random.Random, content: bytes) -> bytes:
    """A JSON document, or lines of several, with other values in up to three places."""
    for _ in range(rng.randint(1, 3)):
        places = list(re.finditer(rb'"[^"]*"|-?[\d.]+|\[[^][]*\]', content))
        start, end = rng.choice(places).span()
        content = content[:start] + rng.choice(_VALUES) + content[end:]
    return content


def damage(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A file in which one to four slices are removed, replaced or repeated."""
    content = rng.choice(seeds)
    for _ in range(rng.randint(1, 4)):
        # Half of the time in the header.
        start = rng.randint(0, min(rng.choice((64, LONG)), len(content)))
        part, other = content[start : start + 300], rng.choice(seeds)
        size, length = rng.choice(_SIZES), rng.choice((1, 2, 4, 8, 16, 32))
        noise = rng.randbytes(length)
        removed, new = rng.choice(
            [
                *((LONG, b""), (length, b""), (len(size), size), (length, noise), (0, noise)),
                *((0, part), (0, 100 * part)),
                *((LONG, other[length:]), (length, other[:length])),  # Of other formats.
            ]
        )
        content = content[:start] + new + content[start + removed :]
    return content


_ROW = {"step": 0, "train/loss": 1.5, "monitors/exchange_ratio": 0.5, "test/accuracy": 90.0}
_SESSION = {"command": "python main.py", "first_step": 0, "started": "2026-11-20T10:00:00+00:00"}
_SESSION |= {"hardware": "2 cores", "num_processes": 1, "versions": {"jax": "0.10.2"}}
_ACCURACIES = ("", "_network_1", "_network_2", "_ensemble", "_best")
_DOCUMENTS = {
    "metrics.jsonl": [_ROW | {"step": 10 * i} for i in range(8)],
    "sessions.jsonl": [_SESSION, _SESSION | {"first_step": 100}],
    "dataset.json": {"class_names": ["cat", "dog"], "image_shape": [8, 8, 3], "num_classes": 2}
    | {"num_images": 20, "mean": [0.5] * 3, "std": [0.2] * 3, "fingerprint": "0" * 32},
    "labeled_indices.json": {"cat": [0, 1, 2], "dog": [5, 6, 7]},
    "result.json": {f"test_accuracy{name}": 97.5 for name in _ACCURACIES}
    | {"step": 500, "monitors": {"exchange_ratio": 0.5}, "train_seconds": 49.0},
}


@functools.cache
def create_seeds(kind: str):
    """Files of a kind as they should be, or what creates them."""
    if kind.endswith(".jpg"):
        return BOMBS if kind == "bomb.jpg" else _create_images()
    if kind == "set.npz":
        return [_create_npz(save) for save in (np.savez, np.savez_compressed)]
    if kind == "labels.csv":
        text = b"\xef\xbb\xbffile;label\r\nsub/c.png;cat\r\n"
        return [text, b"file,label\na.png,cat\nb.png,dog\n"]
    if kind == "config.json":
        names = ("cls", "fixmatch", "ups")
        return [json.dumps(config.create_config(f"40,{name}").to_dict()).encode() for name in names]
    if kind.endswith("l"):
        return ["".join(json.dumps(row) + "\n" for row in _DOCUMENTS[kind]).encode()]
    return [json.dumps(_DOCUMENTS[kind]).encode()]


def _create_images() -> list[bytes]:
    from tests.photos.images.test_tiff import write as write_tiff  # Skips without tifffile.

    smooth = create_photo(60, 40)
    photo = Image.fromarray(smooth)
    gray, clear, palette = photo.convert("L"), photo.convert("RGBA"), photo.quantize(16)
    clear.putalpha(gray)
    others = {"append_images": [photo.rotate(90)], "save_all": True}
    exif = Image.Exif()
    exif[0x0112] = 6
    chosen = [
        *((photo, "JPEG", {"exif": exif}), (photo.convert("CMYK"), "JPEG", {"progressive": True})),
        *((clear, "PNG", {}), (palette, "PNG", {"transparency": 3}), (photo, "PNG", others)),
        *((photo, "GIF", others), (clear, "WEBP", {"lossless": True}), (palette, "BMP", {})),
        *((photo, "WEBP", others), (photo, "TIFF", {"compression": "jpeg"}), (photo, "PPM", {})),
        *((photo, "TIFF", {"compression": "tiff_lzw"}), (photo, "MPO", others)),
    ]
    files = [encode(image, format_, **options) for image, format_, options in chosen]
    deep = 256 * smooth.astype(np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    files.append(io.BytesIO(pack_png(deep.shape[1::-1], 16, 2, zlib.compress(rows))))
    files += [write_tiff(deep, "rgb", **how) for how in ({}, {"order": ">"}, {"is_planar": True})]
    files += [encode(Image.fromarray(deep[..., 0]), format_) for format_ in ("PNG", "TIFF")]
    return [file.getvalue() for file in files]


def _create_npz(save_arrays) -> bytes:
    file, arrays = io.BytesIO(), {"class_names": np.array(["a", "b"])}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
        arrays[f"{split}_labels"] = np.arange(2)
    save_arrays(file, **arrays)
    return file.getvalue()


def _create_flat(mode: str, format_: str, size=(9_999, 9_999), **options) -> bytes:
    return encode(Image.new(mode, size), format_, **options).getvalue()


# Images that decode to far more than they take.
BOMBS = (
    lambda: _create_flat("RGBA", "PNG", compress_level=1),
    lambda: _create_flat("I;16", "PNG", compress_level=1),
    lambda: _create_flat("P", "GIF", transparency=0),
    lambda: _create_flat("RGB", "TIFF", compression="tiff_lzw"),
    lambda: _create_flat("RGBA", "WEBP", (7_000, 7_000), lossless=True, quality=0, method=0),
)
