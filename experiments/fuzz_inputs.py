"""Damaged and hostile inputs for `experiments.fuzz`: each a function of (kind, seed, number)."""

import copy
import csv
import functools
import io
import json
import random
import tarfile
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

LONG = 100_000
VALUES = (
    *(-1, 0, 1, 7, 2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, 0.5, True, None, "", [], {}),
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        "0",
        "nan",
        "x" * LONG,
        [0] * 1000,
        [[]],
        {"a": 1},
    ),
    *("</script><script>alert(1)</script>", "\u2028\u2029", "\x00\x1b[2J\r\n", "\ud800", "\u202ex"),
    *("../../../etc/passwd", "__import__('os').system('true')", "=1+1", '"', "'", "a,b;c", "猫"),
)
_SIZES = (0, 1, 255, 256, 9999, 16383, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_JPEG_SCAN = b"\xff\xda"


def create_input(kind: str, seed: int, number: int) -> bytes:
    """The content of one input."""
    rng = random.Random(f"{seed}/{kind}/{number}")
    if kind == "bomb":
        return BOMBS[number]()
    seeds = create_seeds(kind)
    if kind == "override":
        return create_override(rng)
    if kind == "names":
        return create_names(rng)
    is_text = kind.endswith((".json", ".jsonl"))
    if is_text and rng.random() < 0.6:
        return change_json(rng.choice(seeds), kind.endswith("l"), rng)
    if kind == "labels.csv" and rng.random() < 0.6:
        return create_csv(rng)
    return mutate(rng.choice(seeds), seeds, rng)


def mutate(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Damages a file once to four times."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        changed = rng.choice(_CHANGES)(changed, others, rng)
    return bytes(changed)


def _truncate(content: bytearray, _, rng: random.Random) -> bytearray:
    return content[: rng.randrange(len(content) + 1)]


def _flip(content: bytearray, _, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 4, 32)) if content else 0):
        content[_choose_place(content, rng)] ^= 1 << rng.randrange(8)
    return content


def _set_size(content: bytearray, _, rng: random.Random) -> bytearray:
    """Writes a number where there may be a width, a length or an offset."""
    width, order = rng.choice((1, 2, 4)), rng.choice(("big", "little"))
    size = rng.choice(_SIZES) % 256**width
    place = _choose_place(content, rng)
    content[place : place + width] = size.to_bytes(width, order)
    return content


def _splice(content: bytearray, others: Sequence[bytes], rng: random.Random) -> bytearray:
    other = rng.choice(others)
    start, stop = rng.randrange(len(content) + 1), rng.randrange(len(other) + 1)
    return content[:start] + other[stop:]


def _change_header(content: bytearray, others: Sequence[bytes], rng: random.Random) -> bytearray:
    length = rng.choice((2, 4, 8, 16, 32))
    return bytearray(rng.choice(others)[:length]) + content[length:]


def _repeat(content: bytearray, _, rng: random.Random) -> bytearray:
    start = rng.randrange(len(content) + 1)
    part = content[start : start + rng.randrange(1, 300)]
    return content[:start] + part * rng.choice((2, 3, 100)) + content[start:]


def _remove(content: bytearray, _, rng: random.Random) -> bytearray:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.randrange(1, 100) :]


def _insert(content: bytearray, _, rng: random.Random) -> bytearray:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.randrange(1, 40)) + content[start:]


def _choose_place(content: bytearray, rng: random.Random) -> int:
    """A place, half of the time in the header."""
    limit = min(len(content), 64) if rng.random() < 0.5 else len(content)
    return rng.randrange(max(limit, 1))


_CHANGES: tuple[Callable, ...] = (
    *(_truncate, _flip, _flip, _set_size, _set_size, _splice, _change_header, _repeat),
    *(_remove, _insert),
)


def change_json(content: bytes, has_lines: bool, rng: random.Random) -> bytes:
    """Replaces, adds or removes values anywhere in a JSON document, or in the lines of several."""
    documents = [json.loads(line) for line in content.splitlines()] if has_lines else None
    root = [documents if has_lines else json.loads(content)]
    for _ in range(rng.randint(1, 3)):
        node, key = _choose_node(root, rng)
        action = rng.random()
        if action < 0.7:
            node[key] = copy.deepcopy(rng.choice(VALUES))
        elif action < 0.8 and isinstance(node, dict):
            node[str(rng.choice(VALUES))] = copy.deepcopy(rng.choice(VALUES))
        elif action < 0.9 and node is not root:
            del node[key]
        else:
            return b"[" * rng.choice((10, 2000, LONG)) + content
    if has_lines and isinstance(root[0], list):
        return "\n".join(map(json.dumps, root[0])).encode()
    return json.dumps(root[0], ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _choose_node(root: list, rng: random.Random) -> tuple[list | dict, int | str]:
    """A container and a key of it, at any depth."""
    node, key = root, 0
    while isinstance(node[key], list | dict) and node[key] and rng.random() < 0.8:
        node = node[key]
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
    return node, key


def create_csv(rng: random.Random) -> bytes:
    """Rows of strange cells."""
    text = io.StringIO()
    rows = csv.writer(
        text, delimiter=rng.choice(",;\t"), lineterminator=rng.choice(("\n", "\r\n", "\r"))
    )
    good = ("file", "label")
    rows.writerow(rng.choice((good, good, good, ("label", "file", "file"), ("file",), ("a", "b"))))
    if rng.random() < 0.7:
        rows.writerows((("a.png", "cat"), ("b.png", "dog")))
    cells = (*VALUES, "a.png", "b.png", "sub/c.png", "cat", "dog", "./a.png", "/a.png")
    for _ in range(rng.randrange(12)):
        rows.writerow([rng.choice(cells) for _ in range(rng.choice((1, 2, 2, 2, 3)))])
    return text.getvalue().encode("utf-8", "surrogatepass")


def create_override(rng: random.Random) -> bytes:
    """`--config.KEY=VALUE`."""
    keys = (*_load_flat_config(), "method.nothing", "data", "model", "", "__class__", "seed.seed")
    value = rng.choice((*map(str, VALUES), "(1,2)", "('a',)", "(" * 500, "1_0", "1e3", "[1]"))
    if rng.random() < 0.3:
        value = mutate(value.encode("utf-8", "replace"), [b"(0.5,)", b"cls"], rng).decode("latin-1")
    text = f"--config.{rng.choice(keys)}={value}".replace("\0", "\1")  # No argument holds a zero.
    return text.encode("utf-8", "surrogatepass")


def create_names(rng: random.Random) -> bytes:
    """Names of a folder's files, each followed by a zero; one that begins with @ is a link."""
    parts = (
        "cat",
        "dog",
        "test",
        "labeled",
        "unlabeled",
        "train",
        "labels.csv",
        "\n",
        "\r",
        "\x1b[31m",
    )
    parts += ("\udcff", "\u202e", '"', "a,b", "'", "猫", "</td>", " ", "-rf", "$(x)", "%s", "..")
    endings = (".png", ".PNG", ".jpg", "", ".csv", ".png\n")
    names = ["cat/0.png", "dog/0.png"] if rng.random() < 0.7 else []
    for _ in range(rng.randrange(1, 9)):
        folders = [rng.choice(parts) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        name = "/".join([*folders, rng.choice(parts) + rng.choice(endings)])
        names.append(rng.choice(("", "", "", "@")) + name)
    return b"".join(name.encode("utf-8", "surrogateescape") + b"\0" for name in names)


@functools.cache
def create_seeds(kind: str) -> tuple[bytes, ...]:
    """Files of a kind as they should be."""
    if kind == "image":
        return tuple(_create_images())
    if kind == "npz":
        return tuple(_create_npz(save) for save in (np.savez, np.savez_compressed))
    if kind == "archive":
        return tuple(_create_archive(mode) for mode in ("w", "w:gz", "w:xz"))
    if kind == "labels.csv":
        return (
            b"file,label\na.png,cat\nb.png,dog\n",
            b"\xef\xbb\xbffile;label\r\nsub/c.png;cat\r\n",
        )
    if kind.startswith("cache/"):
        return (_create_cache()[kind.removeprefix("cache/")],)
    if kind in ("override", "names"):
        return ()
    return tuple(_encode_json(kind, value) for value in _create_documents(kind))


def _create_images() -> list[bytes]:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:40, 0:60]
    smooth = np.stack([4 * x, 6 * y, 2 * (x + y)], axis=-1).astype(np.uint8)
    photo = Image.fromarray(smooth)
    grey, noise = photo.convert("L"), Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8))
    clear = photo.convert("RGBA")
    clear.putalpha(grey)
    deep = Image.fromarray(257 * np.asarray(grey, np.uint16))
    palette = photo.quantize(16)
    others = {"append_images": [photo.rotate(90), photo.rotate(180)], "save_all": True}
    exif = Image.Exif()
    exif[0x0112] = 6
    chosen = [
        *((photo, "JPEG", {"quality": 80, "exif": exif}), (photo, "JPEG", {"progressive": True})),
        *((grey, "JPEG", {}), (photo.convert("CMYK"), "JPEG", {}), (noise, "JPEG", {})),
        *((photo, "PNG", {}), (clear, "PNG", {}), (deep, "PNG", {}), (noise, "PNG", {})),
        *((palette, "PNG", {"transparency": 3}), (grey.convert("1"), "PNG", {})),
        *((photo, "PNG", others), (palette, "GIF", {"transparency": 1}), (photo, "GIF", others)),
        *((photo, "WEBP", {}), (clear, "WEBP", {"lossless": True}), (photo, "WEBP", others)),
        *((photo, "BMP", {}), (palette, "BMP", {}), (grey.convert("1"), "BMP", {})),
        *((photo, "TIFF", {}), (deep, "TIFF", {}), (photo, "TIFF", {"compression": "tiff_lzw"})),
        *((photo, "TIFF", {"compression": "jpeg"}), (photo, "MPO", others), (photo, "PPM", {})),
    ]
    return [_encode(image, format_, **options) for image, format_, options in chosen]


def _encode(image: Image.Image, format_: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def _create_progressive(num_scans: int) -> bytes:
    """A JPEG whose last scan comes again and again."""
    whole = _encode(Image.new("L", (_SIDE, _SIDE)), "JPEG", progressive=True, quality=10)
    last = whole[whole.rindex(_JPEG_SCAN) : -2]
    return whole[:-2] + num_scans * last + whole[-2:]


def _create_flat(mode: str, format_: str, **options) -> bytes:
    return _encode(Image.new(mode, (_SIDE, _SIDE)), format_, **options)


_SIDE = 9_999
# Images that decode to far more than they take.
BOMBS: tuple[Callable[[], bytes], ...] = (
    *(functools.partial(_create_flat, mode, "PNG") for mode in ("L", "RGB", "RGBA", "I;16")),
    *(functools.partial(_create_flat, "P", kind, transparency=0) for kind in ("PNG", "GIF")),
    *(functools.partial(_create_progressive, num_scans) for num_scans in (0, 5_000)),
    functools.partial(_create_flat, "RGB", "TIFF", compression="tiff_lzw"),
    lambda: _encode(Image.new("RGBA", (7_000, 7_000)), "WEBP", lossless=True, quality=0, method=0),
    lambda: _encode(Image.new("RGB", (7_200, 7_200)), "WEBP", lossless=True, quality=0, method=0),
    lambda: _encode(Image.new("RGB", (25_000_000, 4)), "PNG"),
)


def _create_npz(save: Callable) -> bytes:
    file, images = io.BytesIO(), np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    labels = np.arange(2)
    save(
        file,
        **{"train_images": images, "train_labels": labels, "class_names": np.array(["a", "b"])},
        **{"test_images": images, "test_labels": labels},
    )
    return file.getvalue()


def _create_archive(mode: str) -> bytes:
    file = io.BytesIO()
    images = _create_images()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, image in [
            ("s/train/cat/1.jpg", images[0]),
            ("s/train/dog/1.png", images[5]),
            ("../../train/dog/2.png", images[5]),
            ("/s/test/cat/" + "n" * 120 + ".webp", images[14]),
        ]:
            member = tarfile.TarInfo(name)
            member.size = len(image)
            archive.addfile(member, io.BytesIO(image))
        link = tarfile.TarInfo("s/train/cat/2.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hosts"
        archive.addfile(link)
    return file.getvalue()


def _create_cache() -> dict[str, bytes]:
    """The three files of a cache of two images of 8 x 8, of which one could not be read."""
    files = {"failures.json": b'{"1": "damaged"}'}
    for name, shape in (("images", (2, 8, 8, 3)), ("digests", (2, 16))):
        file = io.BytesIO()
        np.save(file, np.zeros(shape, np.uint8))
        files[f"{name}.npy"] = file.getvalue()
    return files


def _load_flat_config() -> dict:
    from cls_jax.config import flatten

    return flatten(json.loads(create_seeds("config.json")[0]))


def _create_documents(kind: str) -> list:
    """Contents of the files of a run's folder."""
    if kind == "config.json":
        from cls_jax.config import create_config

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
