"""Decodes image files to upright uint8 arrays of one size, gray or in color."""

import contextlib
import functools
import importlib.util
import io
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from PIL import Image, UnidentifiedImageError, features

from cls_jax.io import describe_error, open_regular
from cls_jax.photos.images.packed import find_packed

# Pillow's names of the supported formats, and their extensions. Pillow's other formats are left
# out: vector graphics, and decoders that are not hardened against hostile files.
_FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "DIB": (".dib",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "HEIF": (".heic", ".heif"),
    "AVIF": (".avif",),
}
# First brand of a file of the last two formats → its reader, and how to install that.
_AVIF_READER = "AVIF, which needs a newer Pillow: pip install --upgrade pillow"
_HEIF_READER = "HEIC, which needs pillow-heif: pip install '.[heif]'"
_BRANDS = {b"avif": _AVIF_READER, b"avis": _AVIF_READER}
_BRANDS |= dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1"), _HEIF_READER)
TIFFS = (b"II*\0", b"MM\0*")  # First bytes of a file.
_MAX_SAMPLES = 4  # Of TIFFs with more, Pillow reads the first three or fails.
_SAMPLES_PER_PIXEL = 277  # A tag of TIFF.
_OTHER_TIFF = (
    "a TIFF that is neither gray nor in color, or packed in an unusual way: save it as PNG"
)
SUFFIXES = tuple(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
_MODES = {1: "L", 3: "RGB"}
RESIZE_MODES = ("crop", "pad", "stretch")

# Checked in the header before decoding: a few bytes can claim gigabytes.
MAX_PIXELS = 100_000_000
_MAX_FILE_BYTES = 2**29  # Some decoders read the whole file first.
# Pillow's WebP reader holds four copies of the pixels, 17 bytes per pixel in all.
_MAX_WEBP_PIXELS = 50_000_000
# A progressive JPEG may have any number of scans of 140 bytes.
_MAX_SCANNED_PIXELS = 32 * MAX_PIXELS
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # Pillow's own limit.
# Warnings about metadata would break the progress bar. Errors raise.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

# Larger images are decoded one at a time, to bound memory. Baseline JPEGs do not count: they are
# decoded at a fraction of their size, a few rows at a time.
_LARGE_PIXELS = 16e6
_LARGE_IMAGES = threading.Lock()
_STRIP_PIXELS = 2**20

# Images are first reduced cheaply to at least this many times the final size. According to Pillow's
# documentation of `resize`, the result with 3 is almost the same as without reducing.
_REDUCING_GAP = 3.0
# Pillow's unpackers of 16-bit colors take the high byte of each. Their names end with the byte
# order. With the other order they take the low byte.
_DEEP_COLORS = re.compile(r"(RGB[AX]?;16)([BLN])")
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_PADDING = 127  # Mid-gray, as in cutout.
_EXIF_ORIENTATION = 0x0112
# ImageOps.exif_transpose also rewrites the metadata, which fails if they are damaged, and
# transposes the whole image, where transposing the small square is enough.
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(ValueError):
    """An image that cannot be read. The message is the reason, without the file's name."""


class DecodeOptions(NamedTuple):
    """How an image becomes a square of bytes."""

    # "crop" keeps the center square, "pad" keeps everything and adds gray borders, "stretch" keeps
    # everything and changes the aspect ratio.
    resize: str = "crop"
    bit_depth: int = 16  # Bits used by 16-bit images: 12 maps 4,095 to white.


CENTER_CROP = DecodeOptions()
ImageLike = str | os.PathLike | Image.Image | np.ndarray  # A file, or an image in memory.


def get_decode_options(data_config: ConfigDict) -> DecodeOptions:
    """The options of a configuration's section "data"."""
    return DecodeOptions(data_config.resize, data_config.bit_depth)


def get_image_shape(data_config: ConfigDict) -> tuple[int, int, int]:
    """(H, W, C) of a folder's images, by a configuration's section "data"."""
    return data_config.image_size, data_config.image_size, data_config.channels


def read_header(path: str | os.PathLike) -> tuple[int, int, int]:
    """Width and height of an image file in pixels, and its channels, 1 if it is gray or 3.

    A gray image has 1 channel. Others have 3, with transparency on white. Raises
    an ImageError if it cannot be read or is not an image.
    """
    with open_file(path) as file, _decoding(file) as image:
        is_gray = image.mode in ("1", "L") or image.mode.startswith("I")
        return *image.size, 1 if is_gray and not image.has_transparency_data else 3


def find_bit_depth(paths: Sequence[str | os.PathLike]) -> int:
    """Bits used by the 16-bit images among some files, 8 to 16. 16 if there are none."""
    largest = 0
    for path in paths:
        with contextlib.suppress(ImageError), open_file(path) as file, _decoding(file) as image:
            if image.mode.startswith("I"):
                largest = max(largest, int(np.asarray(image).max()))
            elif _has_deep_colors(image):
                for _, levels in _iterate_levels(image):
                    largest = max(largest, int(levels[..., :3].max()))
    return min(max(largest.bit_length(), 8), 16) if largest else 16


@contextlib.contextmanager
def open_file(path: str | os.PathLike) -> Generator[BinaryIO, None, None]:
    """Opens a file for reading, also a packed one. Raises an ImageError if the system refuses."""
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:  # A name with a zero byte is a ValueError.
        if (found := find_packed(path)) is None:
            raise ImageError(str(getattr(error, "strerror", error))) from error
        try:
            file = io.BytesIO(found[0].read(found[1]))
        except RuntimeError as damage:
            raise ImageError("its packed folder is damaged") from damage
    with file:
        if file.seek(0, os.SEEK_END) > _MAX_FILE_BYTES:
            raise ImageError(f"more than {_MAX_FILE_BYTES:,} bytes")
        file.seek(0)
        yield file


def decode_image(
    file: BinaryIO | Image.Image | np.ndarray,
    image_shape: tuple[int, int, int],
    options: DecodeOptions = CENTER_CROP,
) -> np.ndarray:
    """Decodes an image to a square, uint8 [H, W, C]: upright, with transparency on white.

    An image in memory is treated like a file with its pixels. Takes the first frame of an
    animation. In the shape (H, W, C), H must equal W, and C is 1 (gray) or 3 (RGB), regardless of
    the file. Raises an ImageError if it is not an image, damaged, or so large that it would fill
    memory.
    """
    size, _, channels = image_shape
    with _decoding(file) as image, _bound_memory(image):
        square = _to_square(image, size, options)
        return np.asarray(square.convert(_MODES[channels])).reshape(image_shape)


def find_suffix(file: BinaryIO) -> str:
    """The extension for an image file, by its content. Raises as `decode_image` does."""
    decode_image(file, (32, 32, 3))
    with _decoding(file) as image:
        return ".jpg" if _is_jpeg(image) else _FORMATS[str(image.format)][0]


@functools.cache
def _get_formats() -> tuple[str, ...]:
    """Pillow's names of the formats that the installed packages read."""
    missing = set() if features.check("avif") else {"AVIF"}
    if importlib.util.find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
    else:
        missing.add("HEIF")
    return tuple(name for name in _FORMATS if name not in missing)


def read_upright(path: str | os.PathLike, max_side: int) -> np.ndarray:
    """Reads a whole image for display: upright, with transparency on white, scaled down to fit.

    Returns uint8 [H, W, 3], at most `max_side`. Raises an ImageError if it cannot be read or is
    not an image.
    """
    with open_file(path) as file, _decoding(file) as image, _bound_memory(image):
        _draft(image, _REDUCING_GAP * max_side / max(image.size))
        whole = _to_plain_mode(image, bit_depth=16)
        whole.thumbnail((max_side, max_side), Image.Resampling.BICUBIC, _REDUCING_GAP)
        return np.asarray(_turn_upright(whole, image).convert("RGB"))


@contextlib.contextmanager
def _decoding(file: Any) -> Iterator[Image.Image]:
    """Opens an image within the limits. Turns every error in the block into an ImageError."""
    try:
        with _open(file) as image:
            yield image
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        file.seek(0)
        brand = file.read(12)
        known = _BRANDS.get(brand[8:]) if brand[4:8] == b"ftyp" else None
        known = _OTHER_TIFF if brand.startswith(TIFFS) else known
        raise ImageError(known or "not an image of a known format") from error
    except Exception as error:  # Decoders raise any kind of exception for damaged files.
        raise ImageError(f"damaged: {describe_error(error)}") from error


def _open(file: Any) -> Image.Image:
    """Opens a file, or takes an image in memory, within the limits."""
    if isinstance(file, np.ndarray):
        if file.dtype not in (np.uint8, np.uint16):
            raise ImageError(f"{file.dtype} values instead of uint8 or uint16")
        file = Image.fromarray(file[..., 0] if file.shape[2:] == (1,) else file)
    if isinstance(file, Image.Image):
        if math.prod(file.size) > MAX_PIXELS:
            raise ImageError(f"more than {MAX_PIXELS:,} pixels")
        return file.copy()
    image = Image.open(file, formats=_get_formats())
    num_samples = getattr(image, "tag_v2", {}).get(_SAMPLES_PER_PIXEL, 1)
    if num_samples > _MAX_SAMPLES and image.mode != "CMYK":
        raise ImageError(_OTHER_TIFF)
    _check_size(image, file)
    return image


def _check_size(image: Image.Image, file: BinaryIO) -> None:
    """Raises an ImageError if decoding would take too long or too much memory."""
    num_pixels = image.width * image.height
    largest = _MAX_WEBP_PIXELS if image.format == "WEBP" else MAX_PIXELS
    if num_pixels > largest:
        raise ImageError(f"more than {largest:,} pixels")
    if _is_jpeg(image):
        num_scans = _count_scans(file)
        if num_scans * num_pixels > _MAX_SCANNED_PIXELS:
            raise ImageError(f"{num_scans:,} scans")


def _count_scans(file: BinaryIO) -> int:
    """The number of scans in a JPEG. Restores the file position."""
    position, count, last = file.tell(), 0, b""
    file.seek(0)
    while block := file.read(2**20):
        count += (last + block).count(b"\xff\xda")  # Within a scan, 00 follows ff.
        last = block[-1:]
    file.seek(position)
    return count


def _bound_memory(image: Image.Image) -> contextlib.AbstractContextManager:
    """Waits for other threads if decoding needs memory for all of a large image at once."""
    is_baseline = _is_jpeg(image) and not image.info.get("progressive")
    is_bounded = is_baseline or math.prod(image.size) <= _LARGE_PIXELS
    return contextlib.nullcontext() if is_bounded else _LARGE_IMAGES


def _is_jpeg(image: Image.Image) -> bool:
    return image.format in ("JPEG", "MPO")


def _to_square(image: Image.Image, size: int, options: DecodeOptions) -> Image.Image:
    """An upright square in L or RGB, with transparency on white."""
    file, shape = image, (size, size)
    _scale_deep_colors(image, options.bit_depth)
    if options.resize == "pad":
        width, height = (max(round(size * side / max(image.size)), 1) for side in image.size)
        shape = (width, height)
    left, top, right, bottom = _choose_box(image, options)
    shrink = max(
        _REDUCING_GAP * shape[0] / (right - left), _REDUCING_GAP * shape[1] / (bottom - top)
    )
    _draft(image, shrink)
    if math.prod(image.size) > _LARGE_PIXELS:
        image = _reduce_large(image, shape, options)
    else:
        image = _to_plain_mode(image, options.bit_depth)
    square = image.resize(
        shape, Image.Resampling.BICUBIC, box=_choose_box(image, options), reducing_gap=_REDUCING_GAP
    )
    square = _turn_upright(square, file)
    if square.size == (size, size):
        return square
    whole = Image.new(square.mode, (size, size), (_PADDING,) * len(square.getbands()))
    whole.paste(square, ((size - square.width) // 2, (size - square.height) // 2))
    return whole


def _draft(image: Image.Image, shrink: float) -> None:
    """Lets a JPEG decode at 1/2, 1/4 or 1/8 of its size, but at least this share of its sides."""
    if _is_jpeg(image) and shrink < 1:
        image.draft(None, (int(image.width * shrink), int(image.height * shrink)))


def _turn_upright(image: Image.Image, file: Image.Image) -> Image.Image:
    """An image turned upright as its file says, in L or RGB, with transparency on white.

    The file must be loaded: Pillow transposes TIFFs while loading, and then resets the orientation.
    """
    turn = None
    # The image may be intact even if its metadata are damaged.
    with contextlib.suppress(Exception):
        turn = _TRANSPOSITIONS.get(file.getexif().get(_EXIF_ORIENTATION, 1))
    if turn is not None:
        image = image.transpose(turn)
    if image.mode == "RGBA":
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    return image


def _choose_box(image: Image.Image, options: DecodeOptions) -> tuple[float, float, float, float]:
    """The part to keep: left, top, right and bottom."""
    if options.resize != "crop":
        return 0, 0, *image.size
    short = min(image.size)
    left, top = ((side - short) / 2 for side in image.size)
    return left, top, left + short, top + short


def _reduce_large(
    image: Image.Image, shape: tuple[int, int], options: DecodeOptions
) -> Image.Image:
    """The part to keep, converted and reduced strip by strip to at least `shape`.

    Converting the whole image at once would need several times its memory.
    """
    left, top, right, bottom = map(int, _choose_box(image, options))
    scale = min((right - left) / shape[0], (bottom - top) / shape[1])
    factor = max(int(scale / _REDUCING_GAP), 1)
    rows = max(_STRIP_PIXELS // ((right - left) * factor), 1) * factor
    strips = []
    for start in range(top, bottom, rows):
        strip = image.crop((left, start, right, min(start + rows, bottom)))
        strips.append(_to_plain_mode(strip, options.bit_depth).reduce(factor))
    reduced = Image.new(strips[0].mode, (strips[0].width, sum(strip.height for strip in strips)))
    for i, strip in enumerate(strips):
        reduced.paste(strip, (0, i * (rows // factor)))
    return reduced


def _to_plain_mode(image: Image.Image, bit_depth: int) -> Image.Image:
    """Converts to L, RGB or RGBA, which can be scaled."""
    if image.mode.startswith("I"):  # 16 bits. `convert` would clip them to 8.
        return Image.fromarray(_scale_levels(np.asarray(image), bit_depth))
    if image.mode == "F":
        raise ImageError("floating-point pixels, whose range is unknown")
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _scale_levels(levels: np.ndarray, bit_depth: int) -> np.ndarray:
    """Scales levels of `bit_depth` bits to bytes. Larger levels become white."""
    scaled = levels.astype(np.float64) * (255 / (2**bit_depth - 1))
    return np.rint(scaled.clip(0, 255)).astype(np.uint8)


def _has_deep_colors(image: Image.Image) -> bool:
    """Whether an unloaded image has 16-bit colors, as PNG and TIFF may."""
    arguments = [tile.args for tile in getattr(image, "tile", [])]
    unpackers = [found if isinstance(found, str) else str(found[0]) for found in arguments]
    return bool(unpackers) and all(map(_DEEP_COLORS.fullmatch, unpackers))


def _scale_deep_colors(image: Image.Image, bit_depth: int) -> None:
    """Loads 16-bit colors that use fewer bits, in place: Pillow would keep their high bytes."""
    if bit_depth < 16 and _has_deep_colors(image):
        for box, levels in _iterate_levels(image):
            image.paste(Image.fromarray(_scale_levels(levels, bit_depth)), box)


def _iterate_levels(image: Any) -> Iterator[tuple[tuple[int, int, int, int], np.ndarray]]:
    """Boxes of an image with 16-bit colors, from the top, and their levels uint16 [h, w, C]."""
    file = image.fp
    image.load()  # One byte of each color. The others take a second pass.
    file.seek(0)
    with Image.open(file, formats=_get_formats()) as low:
        low.tile = [tile._replace(args=_take_other_byte(tile.args)) for tile in low.tile]
        rows = max(_STRIP_PIXELS // image.width, 1)
        for top in range(0, image.height, rows):
            box = (0, top, image.width, min(top + rows, image.height))
            high_bytes, low_bytes = (np.asarray(part.crop(box)) for part in (image, low))
            yield box, high_bytes * np.uint16(256) + low_bytes


def _take_other_byte(arguments: Any) -> Any:
    """The arguments with which a tile's decoder takes the other byte of each color."""
    if not isinstance(arguments, str):
        return _take_other_byte(arguments[0]), *arguments[1:]
    return _DEEP_COLORS.sub(lambda found: found[1] + _OTHER_BYTE[found[2]], arguments)
