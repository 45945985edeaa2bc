"""Damaged and hostile inputs, as strategies of Hypothesis."""

import copy
import csv
import functools
import io
import json
import os
import pathlib
import shutil
import struct
import tempfile
import unittest.mock
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from cls_jax.config import create_config, flatten
from cls_jax.data.images import cache, files, store
from tests.data.images.test_bands import save
from tests.data.images.test_decode import DEEP, encode, pack_png

LONG = 100_000
# fmt: off
VALUES = (
    -1, 0, 1, 7, 2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, 0.5, True, None, "", [], {},
    float("nan"), float("inf"), -float("inf"), "0", "nan", "x" * LONG, [0] * 1000, [[]], {"a": 1},
    "</script><script>alert(1)</script>", "\u2028\u2029", "\x00\x1b[2J\r\n", "\ud800", "\u202ex",
    "../../../etc/passwd", "__import__('os').system('true')", "=1+1", '"', "'", "a,b;c", "猫",
)
_SIZES = (0, 1, 255, 256, 9999, 16383, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_NAMES = (
    "cat", "dog", "test", "labeled", "unlabeled", "train", "labels.csv", "\n", "\r", "\x1b[31m",
    "\udcff", "\u202e", '"', "a,b", "'", "猫", "</td>", " ", "-rf", "$(x)", "%s", "..",
)
_GOOD_NAMES = (
    "cat/0.png", "dog/0.png", "labels.csv", "train/cat/1.png", "train/dog/1.png", "test/cat/2.png",
    "test/bird/2.png", "labeled/cat/3.png", "labeled/dog/3.png", "unlabeled/4.png",
)
# fmt: on
_JPEG_SCAN = b"\xff\xda"
_SIDE = 9_999
_TREES = st.recursive(
    st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=20),
    lambda nodes: st.lists(nodes, max_size=4) | st.dictionaries(st.text(max_size=5), nodes),
    max_leaves=5,
)


def create_inputs(kind: str) -> st.SearchStrategy[bytes]:
    """The strategy for the content of the files of a kind."""
    if kind == "bomb":
        return st.sampled_from(BOMBS).map(lambda create: create())
    if kind == "override":
        return create_overrides()
    if kind == "names":
        return create_names()
    seeds = create_seeds(kind)
    if kind == "labels.csv":
        return damage(seeds) | create_tables()
    if kind.endswith((".json", ".jsonl")):
        return damage(seeds) | change_json(seeds, kind.endswith("l"))
    return damage(seeds)


@st.composite
def damage(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A file in which one to four slices are removed or replaced."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        # Half of the time in the header.
        start = draw(st.integers(0, min(64, len(content))) | st.integers(0, len(content)))
        removed, new = draw(_replacements(content[start : start + 300], seeds))
        content = content[:start] + new + content[start + removed :]
    return content


def _replacements(part: bytes, seeds: Sequence[bytes]) -> st.SearchStrategy[tuple[int, bytes]]:
    """How many bytes go, and which take their place."""
    sizes = st.tuples(
        st.sampled_from(_SIZES), st.sampled_from((1, 2, 4)), st.sampled_from(("big", "little"))
    ).map(lambda size: (size[0] % 256 ** size[1]).to_bytes(size[1], size[2]))
    tails = st.sampled_from(seeds).flatmap(
        lambda seed: st.integers(0, len(seed)).map(lambda start: seed[start:])
    )
    # Signatures and headers of other formats.
    heads = st.tuples(st.sampled_from(seeds), st.sampled_from((2, 4, 8, 16, 32)))
    return st.one_of(
        st.tuples(st.just(LONG), st.just(b"")),  # Cut short.
        st.tuples(st.integers(1, 100), st.just(b"")),
        (sizes | st.binary(min_size=1, max_size=4)).map(lambda new: (len(new), new)),
        st.tuples(st.just(0), st.binary(min_size=1, max_size=40)),
        st.tuples(st.just(0), st.sampled_from((1, 2, 100)).map(lambda times: times * part)),
        st.tuples(st.just(LONG), tails),
        heads.map(lambda head: (head[1], head[0][: head[1]])),
    )


@st.composite
def change_json(draw: st.DrawFn, seeds: Sequence[bytes], has_lines: bool) -> bytes:
    """A JSON document, or lines of several, with values replaced, added or removed anywhere."""
    content = draw(st.sampled_from(seeds))
    if draw(st.integers(0, 19)) == 0:
        return b"[" * draw(st.sampled_from((10, 2000, LONG))) + content
    lines = [json.loads(line) for line in content.splitlines()] if has_lines else None
    root = [lines if has_lines else json.loads(content)]
    for _ in range(draw(st.integers(1, 3))):
        node, key = root, 0
        while isinstance(node[key], list | dict) and node[key] and draw(st.integers(0, 4)):
            node = node[key]
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = draw(st.sampled_from(keys))
        action = draw(st.sampled_from(("replace", "replace", "replace", "add", "remove")))
        if action == "remove" and node is not root:
            del node[key]
            continue
        if action == "add" and isinstance(node, dict):
            key = draw(st.text(max_size=5))
        node[key] = copy.deepcopy(draw(_TREES))
    if has_lines and isinstance(root[0], list):
        return "\n".join(map(json.dumps, root[0])).encode()
    return json.dumps(root[0], ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


@st.composite
def create_tables(draw: st.DrawFn) -> bytes:
    """Rows of strange cells."""
    text = io.StringIO()
    delimiter, end = draw(st.sampled_from(",;\t")), draw(st.sampled_from(("\n", "\r\n", "\r")))
    rows = csv.writer(text, delimiter=delimiter, lineterminator=end)
    good, others = ("file", "label"), (("label", "file", "file"), ("file",), ("a", "b"))
    rows.writerow(draw(st.just(good) | st.sampled_from((good, *others))))
    if draw(st.booleans()):
        rows.writerows((("a.png", "cat"), ("b.png", "dog")))
    names = ("a.png", "b.png", "sub/c.png", "cat", "dog", "./a.png", "/a.png")
    cells = st.sampled_from(names) | st.sampled_from(VALUES)
    rows.writerows(draw(st.lists(st.lists(cells, min_size=1, max_size=3), max_size=12)))
    return text.getvalue().encode("utf-8", "surrogatepass")


@st.composite
def create_overrides(draw: st.DrawFn) -> bytes:
    """`--config.KEY=VALUE`."""
    keys = (*flatten(json.loads(create_seeds("config.json")[0])), "method.nothing")
    key = draw(st.sampled_from((*keys, "data", "model", "", "__class__", "seed.seed")))
    known = (*map(str, VALUES), "(1,2)", "('a',)", "(" * 500, "1_0", "1e3", "[1]", "(0.5,)", "cls")
    value = draw(st.sampled_from(known) | st.text(max_size=20))
    text = f"--config.{key}={value}".replace("\0", "\1")  # An argument cannot contain a zero.
    return text.encode("utf-8", "surrogatepass")


@st.composite
def create_names(draw: st.DrawFn) -> bytes:
    """Names of a folder's files, each followed by a zero. One that starts with @ is a link."""
    names = draw(st.lists(st.sampled_from(_GOOD_NAMES), max_size=5, unique=True))
    parts = st.sampled_from(_NAMES)
    for folders in draw(st.lists(st.lists(parts, max_size=3), min_size=1, max_size=8)):
        ending = draw(st.sampled_from((".png", ".PNG", ".jpg", "", ".csv", ".png\n")))
        link = draw(st.sampled_from(("", "", "", "@")))
        names.append(link + "/".join([*folders, draw(parts) + ending]))
    return b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in names)


@functools.cache
def create_seeds(kind: str) -> tuple[bytes, ...]:
    """Files of a kind as they should be."""
    if kind == "image":
        return tuple(_create_images())
    if kind == "npz":
        return tuple(_create_npz(save) for save in (np.savez, np.savez_compressed))
    if kind == "labels.csv":
        return (
            b"file,label\na.png,cat\nb.png,dog\n",
            b"\xef\xbb\xbffile;label\r\nsub/c.png;cat\r\n",
        )
    if kind == "cache":
        with tempfile.TemporaryDirectory() as folder:
            *_, made = create_cache(pathlib.Path(folder))
            return (made.read_bytes(),)
    return tuple(_encode_json(kind, value) for value in _create_documents(kind))


def _create_images() -> list[bytes]:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:40, 0:60]
    smooth = np.stack([4 * x, 6 * y, 2 * (x + y)], axis=-1).astype(np.uint8)
    photo = Image.fromarray(smooth)
    gray, noise = photo.convert("L"), Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8))
    clear = photo.convert("RGBA")
    clear.putalpha(gray)
    deep = Image.fromarray(257 * np.asarray(gray, np.uint16))
    palette = photo.quantize(16)
    others = {"append_images": [photo.rotate(90), photo.rotate(180)], "save_all": True}
    exif = Image.Exif()
    exif[0x0112] = 6
    chosen = [
        *((photo, "JPEG", {"quality": 80, "exif": exif}), (photo, "JPEG", {"progressive": True})),
        *((gray, "JPEG", {}), (photo.convert("CMYK"), "JPEG", {}), (noise, "JPEG", {})),
        *((photo, "PNG", {}), (clear, "PNG", {}), (deep, "PNG", {}), (noise, "PNG", {})),
        *((palette, "PNG", {"transparency": 3}), (gray.convert("1"), "PNG", {})),
        *((photo, "PNG", others), (palette, "GIF", {"transparency": 1}), (photo, "GIF", others)),
        *((photo, "WEBP", {}), (clear, "WEBP", {"lossless": True}), (photo, "WEBP", others)),
        *((photo, "BMP", {}), (palette, "BMP", {}), (gray.convert("1"), "BMP", {})),
        *((photo, "TIFF", {}), (deep, "TIFF", {}), (photo, "TIFF", {"compression": "tiff_lzw"})),
        *((photo, "TIFF", {"compression": "jpeg"}), (photo, "MPO", others), (photo, "PPM", {})),
    ]
    files = [encode(image, format_, **options) for image, format_, options in chosen]
    files += [encode_deep(256 * smooth.astype(np.uint16)) for encode_deep in DEEP.values()]
    files += map(save, (smooth, 257 * np.asfortranarray(smooth, np.uint16), np.asarray(gray)))
    return [file.getvalue() for file in files]


def _create_progressive(num_scans: int) -> bytes:
    """A JPEG whose last scan comes again and again."""
    whole = _create_flat("L", "JPEG", progressive=True, quality=10)
    last = whole[whole.rindex(_JPEG_SCAN) : -2]
    return whole[:-2] + num_scans * last + whole[-2:]


@functools.cache
def _create_flat(
    mode: str, format_: str, size: tuple[int, int] = (_SIDE, _SIDE), **options
) -> bytes:
    return encode(Image.new(mode, size), format_, **options).getvalue()


def _create_png(color_type: int, depth: int, row_bytes: int, size: tuple[int, int]) -> bytes:
    """A black PNG. Compressing one row and repeating it is a tenth of the work of Pillow."""
    row = bytes(1 + row_bytes)
    compressor = zlib.compressobj(1, wbits=-15)
    block = compressor.compress(row) + compressor.flush(zlib.Z_FULL_FLUSH)
    checksum = functools.reduce(lambda value, _: zlib.adler32(row, value), range(size[1]), 1)
    data = b"\x78\x01" + size[1] * block + b"\x03\x00" + struct.pack(">I", checksum)
    return pack_png(size, depth, color_type, data)


# Images that decode to far more than they take.
BOMBS: tuple[Callable[[], bytes], ...] = (
    lambda: _create_png(6, 8, 4 * _SIDE, (_SIDE, _SIDE)),
    lambda: _create_png(0, 16, 2 * _SIDE, (_SIDE, _SIDE)),
    lambda: _create_png(2, 8, 75_000_000, (25_000_000, 4)),
    lambda: _create_progressive(5_000),
    lambda: _create_flat("P", "GIF", transparency=0),
    lambda: _create_flat("RGB", "TIFF", compression="tiff_lzw"),
    lambda: _create_flat("RGBA", "WEBP", (7_000, 7_000), lossless=True, quality=0, method=0),
)


def _create_npz(save_arrays: Callable) -> bytes:
    file, labels = io.BytesIO(), np.arange(2)
    images = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    arrays = {"train_images": images, "train_labels": labels, "class_names": np.array(["a", "b"])}
    save_arrays(file, **arrays, test_images=images, test_labels=labels)
    return file.getvalue()


def create_cache(folder: pathlib.Path) -> tuple[pathlib.Path, list, pathlib.Path]:
    """Decodes two images of 8 x 8 in a folder that holds the cache as well.

    Returns:
        The folder of images, their files, and the file of the store.
    """
    root = folder / "images"
    root.mkdir(exist_ok=True)
    for i in range(2):
        (root / f"{i}.png").write_bytes(create_seeds("image")[5 + i])
    listed = files.list_images(root).files
    with unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        shutil.rmtree(store.get_cache_folder(), ignore_errors=True)
        cache.load_decoded(root, listed, (8, 8, 3), is_silent=True)
        (made,) = store.get_cache_folder().glob("*.sqlite")
    return root, listed, made


def _create_documents(kind: str) -> list:
    """Contents of the files of a run's folder."""
    if kind == "config.json":
        return [create_config(f"40,{name}").to_dict() for name in ("cls", "fixmatch", "ups")]
    accuracies = dict.fromkeys(("", "_network_1", "_network_2", "_ensemble", "_best"), 97.5)
    row = {"step": 0, "train/loss": 1.5, "monitors/exchange_ratio": 0.5, "test/accuracy": 90.0}
    session = {"command": "python main.py", "first_step": 0, "started": "2026-11-20T10:00:00+00:00"}
    session |= {"hardware": "2 cores", "num_processes": 1, "versions": {"jax": "0.10.2"}}
    return {
        "dataset.json": [
            {"class_names": ["cat", "dog"], "image_shape": [8, 8, 3], "num_classes": 2}
            | {"num_images": 20, "mean": [0.5] * 3, "std": [0.2] * 3, "fingerprint": "0" * 32}
        ],
        "labeled_indices.json": [{"cat": [0, 1, 2], "dog": [5, 6, 7]}],
        "result.json": [
            {f"test_accuracy{name}": value for name, value in accuracies.items()}
            | {"step": 500, "monitors": {"exchange_ratio": 0.5}, "train_seconds": 49.0}
        ],
        "metrics.jsonl": [[row | {"step": 10 * i} for i in range(8)]],
        "sessions.jsonl": [[session, session | {"first_step": 100}]],
    }[kind]


def _encode_json(kind: str, value) -> bytes:
    if kind.endswith("l"):
        return "".join(json.dumps(line) + "\n" for line in value).encode()
    return json.dumps(value, indent=1).encode()
