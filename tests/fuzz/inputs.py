"""Damaged and hostile inputs, as strategies of Hypothesis."""

import copy
import functools
import io
import json
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from cls_jax.config import create_config
from tests.data.images.test_decode import DEEP, encode

LONG = 100_000
# fmt: off
VALUES = (
    -1, 0, 1, 7, 2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, 0.5, True, None, "", [], {},
    float("nan"), float("inf"), -float("inf"), "0", "nan", "x" * LONG, [0] * 1000, [[]], {"a": 1},
    "</script><script>alert(1)</script>", "\u2028\u2029", "\x00\x1b[2J\r\n", "\ud800", "\u202ex",
    "../../../etc/passwd", "__import__('os').system('true')", "=1+1", '"', "'", "a,b;c", "猫",
)
# Widths, heights and counts as files have them.
_SIZES = tuple(
    (number % 256**length).to_bytes(length, order)
    for number in (0, 1, 255, 256, 9999, 16383, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
    for length in (1, 2, 4) for order in ("big", "little")
)
# fmt: on
_TREES = st.recursive(
    st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=20),
    lambda nodes: st.lists(nodes, max_size=4) | st.dictionaries(st.text(max_size=5), nodes),
    max_leaves=5,
)


def create_inputs(kind: str) -> st.SearchStrategy[bytes]:
    """The strategy for the content of the files of a kind."""
    if kind == "bomb":
        return st.sampled_from(BOMBS).map(lambda create: create())
    seeds = create_seeds(kind)
    if kind.endswith((".json", ".jsonl")):
        return damage(seeds) | change_json(seeds, kind.endswith("l"))
    return damage(seeds)


@st.composite
def damage(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A file in which one to four slices are removed, replaced or repeated."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        # Half of the time in the header.
        start = draw(st.integers(0, min(64, len(content))) | st.integers(0, len(content)))
        part = content[start : start + 300]
        other, length = draw(st.sampled_from(seeds)), draw(st.sampled_from((2, 4, 8, 16, 32)))
        size = draw(st.sampled_from(_SIZES) | st.binary(min_size=1, max_size=4))
        inserted = draw(st.binary(max_size=40))
        removed, new = draw(
            st.sampled_from(
                [
                    *((LONG, b""), (length, b""), (len(size), size), (length, inserted)),
                    *((0, part), (0, 100 * part)),
                    *((LONG, other[length:]), (length, other[:length])),  # Of other formats.
                ]
            )
        )
        content = content[:start] + new + content[start + removed :]
    return content


@st.composite
def change_json(draw: st.DrawFn, seeds: Sequence[bytes], has_lines: bool) -> bytes:
    """A JSON document, or lines of several, with values replaced, added or removed anywhere."""
    content = draw(st.sampled_from(seeds))
    if draw(st.integers(0, 19)) == 0:
        return b"[" * draw(st.sampled_from((10, 2000, LONG))) + content
    root = [[*map(json.loads, content.splitlines())] if has_lines else json.loads(content)]
    for _ in range(draw(st.integers(1, 3))):
        node, key = root, 0
        while isinstance(node[key], list | dict) and node[key] and draw(st.integers(0, 4)):
            node = node[key]
            key = draw(
                st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node)))
            )
        if isinstance(node, dict) and draw(st.integers(0, 3)) == 0:
            del node[key]
            key = draw(st.text(max_size=5))
        node[key] = copy.deepcopy(draw(_TREES))
    if has_lines and isinstance(root[0], list):
        return "\n".join(map(json.dumps, root[0])).encode()
    return json.dumps(root[0], ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


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
def create_seeds(kind: str) -> list[bytes]:
    """Files of a kind as they should be."""
    if kind == "image":
        return _create_images()
    if kind == "npz":
        return [_create_npz(save) for save in (np.savez, np.savez_compressed)]
    if kind == "labels.csv":
        text = b"\xef\xbb\xbffile;label\r\nsub/c.png;cat\r\n"
        return [text, b"file,label\na.png,cat\nb.png,dog\n"]
    if kind == "config.json":
        names = ("cls", "fixmatch", "ups")
        return [json.dumps(create_config(f"40,{name}").to_dict()).encode() for name in names]
    if kind.endswith("l"):
        return ["".join(json.dumps(row) + "\n" for row in _DOCUMENTS[kind]).encode()]
    return [json.dumps(_DOCUMENTS[kind]).encode()]


def _create_images() -> list[bytes]:
    y, x = np.mgrid[0:40, 0:60]
    smooth = np.stack([4 * x, 6 * y, 2 * (x + y)], axis=-1).astype(np.uint8)
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
    files += [encode_deep(256 * smooth.astype(np.uint16)) for encode_deep in DEEP.values()]
    return [file.getvalue() for file in files]


def _create_npz(save_arrays: Callable) -> bytes:
    file, labels = io.BytesIO(), np.arange(2)
    images = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    arrays = {"train_images": images, "train_labels": labels, "class_names": np.array(["a", "b"])}
    save_arrays(file, **arrays, test_images=images, test_labels=labels)
    return file.getvalue()


def _create_flat(mode: str, format_: str, size=(9_999, 9_999), **options) -> bytes:
    return encode(Image.new(mode, size), format_, **options).getvalue()


def _create_progressive(num_scans: int) -> bytes:
    """A JPEG whose last scan comes again and again."""
    whole = _create_flat("L", "JPEG", progressive=True, quality=10)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + num_scans * last + whole[-2:]


# Images that decode to far more than they take.
BOMBS: tuple[Callable[[], bytes], ...] = (
    lambda: _create_flat("RGBA", "PNG", compress_level=1),
    lambda: _create_flat("I;16", "PNG", compress_level=1),
    lambda: _create_progressive(5_000),
    lambda: _create_flat("P", "GIF", transparency=0),
    lambda: _create_flat("RGB", "TIFF", compression="tiff_lzw"),
    lambda: _create_flat("RGBA", "WEBP", (7_000, 7_000), lossless=True, quality=0, method=0),
)
