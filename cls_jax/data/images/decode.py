"""Image files as uint8 arrays of one size, as a person sees them."""

import contextlib
import os
import threading
import warnings
from collections.abc import Generator, Iterator
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from cls_jax.io import describe_error, open_regular

# Pillow's names of the formats that are read, and how their files' names end. Others that Pillow
# knows are left out: vector graphics, or decoders that are rarely fed with hostile files.
_FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "DIB": (".dib",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
}
SUFFIXES = tuple(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
_MODES = {1: "L", 3: "RGB"}

# By the header alone, before anything is decoded: a few bytes can ask for gigabytes.
MAX_PIXELS = 100_000_000
_MAX_FILE_BYTES = 2**29  # Some decoders read the whole file first.
# Pillow's reader of WebP holds four copies of the pixels, 17 bytes per pixel in all.
_MAX_WEBP_PIXELS = 50_000_000
# A progressive JPEG may go over its pixels any number of times, for 140 bytes each.
_MAX_SCANNED_PIXELS = 32 * MAX_PIXELS
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # Pillow's own limit.
# Warnings about odd metadata would break the progress bar; real faults raise.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

# One image above this at a time, so that threads together stay within bounded memory.
_LARGE_PIXELS = 16e6
_LARGE_IMAGES = threading.Lock()
_STRIP_PIXELS = 2**20

# Images are first reduced, cheaply, to no less than this many times the wanted size. Pillow's
# documentation of `resize`: with 3, the result is all but that of fair resampling.
_REDUCING_GAP = 3.0
_EXIF_ORIENTATION = 0x0112
# ImageOps.exif_transpose would do, but it also rewrites the metadata, which fails where they are
# damaged, and it takes the whole image where turning the small square is enough.
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
    """An image that cannot be read; the message is the reason, without the file's name."""


def read_image(path: str | os.PathLike, image_shape: tuple[int, int, int]) -> np.ndarray:
    """Reads an image file.

    Args:
        path: a JPEG, PNG, WebP, BMP, GIF (its first frame) or TIFF of any size and color.
        image_shape: (H, W, C) wanted; C is 1 (gray) or 3 (RGB).

    Returns:
        uint8 [H, W, C], see `decode_image`.

    Raises:
        ImageError: if it cannot be read or is not an image.
    """
    with open_file(path) as file:
        return decode_image(file, image_shape)


def read_size(path: str | os.PathLike) -> tuple[int, int]:
    """Width and height of an image file in pixels, from its header alone.

    Raises:
        ImageError: if it cannot be read or is not an image.
    """
    with open_file(path) as file, _decoding(file) as image:
        return image.size


@contextlib.contextmanager
def open_file(path: str | os.PathLike) -> Generator[BinaryIO, None, None]:
    """Opens a file for reading bytes.

    Raises:
        ImageError: if the system refuses.
    """
    try:
        file = open_regular(path)
    except (OSError, ValueError) as error:  # A name with a zero byte is a ValueError.
        raise ImageError(str(getattr(error, "strerror", error))) from error
    with file:
        if os.fstat(file.fileno()).st_size > _MAX_FILE_BYTES:
            raise ImageError(f"more than {_MAX_FILE_BYTES:,} bytes")
        yield file


def decode_image(file: BinaryIO, image_shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes an image: turned upright, put on white, scaled and center-cropped to one size.

    Args:
        file: an open image file.
        image_shape: (H, W, C) wanted, with H = W; C is 1 (gray) or 3 (RGB).

    Returns:
        uint8 [H, W, C].

    Raises:
        ImageError: if it is not an image, damaged, or so large that it would fill memory.
    """
    size, _, channels = image_shape
    with _decoding(file) as image, _LARGE_IMAGES if _is_large(image) else contextlib.nullcontext():
        square = _to_square(image, size).convert(_MODES[channels])
        return np.asarray(square).reshape(image_shape)


def decode_pixels(file: BinaryIO, max_side: int) -> np.ndarray:
    """Decodes an image as it is, uint8 [H, W, 3].

    Raises:
        ImageError: as of `decode_image`, and if a side has more than `max_side` pixels.
    """
    with _decoding(file) as image:
        if max(image.size) > max_side:
            raise ImageError(f"more than {max_side:,} pixels wide or high")
        return np.asarray(image.convert("RGB"))


@contextlib.contextmanager
def _decoding(file: BinaryIO) -> Iterator[Image.Image]:
    """Opens an image within the limits; whatever goes wrong until the end is an ImageError."""
    try:
        with Image.open(file, formats=tuple(_FORMATS)) as image:
            _check_size(image, file)
            yield image
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise ImageError("not an image of a known format") from error
    except Exception as error:  # Decoders raise whatever a damaged file leads them to.
        raise ImageError(f"damaged: {describe_error(error)}") from error


def _check_size(image: Image.Image, file: BinaryIO) -> None:
    """Raises an ImageError if decoding would take too long or too much memory."""
    num_pixels = image.width * image.height
    largest = _MAX_WEBP_PIXELS if image.format == "WEBP" else MAX_PIXELS
    if num_pixels > largest:
        raise ImageError(f"more than {largest:,} pixels")
    if image.format in ("JPEG", "MPO"):
        num_scans = _count_scans(file)
        if num_scans * num_pixels > _MAX_SCANNED_PIXELS:
            raise ImageError(f"{num_scans:,} scans")


def _count_scans(file: BinaryIO) -> int:
    """How often a JPEG begins to go over its pixels; leaves the file where it was."""
    position, count, last = file.tell(), 0, b""
    file.seek(0)
    while block := file.read(2**20):
        count += (last + block).count(b"\xff\xda")  # Among a scan's own bytes 00 follows ff.
        last = block[-1:]
    file.seek(position)
    return count


def _is_large(image: Image.Image) -> bool:
    return image.width * image.height > _LARGE_PIXELS


def _to_square(image: Image.Image, size: int) -> Image.Image:
    """The center square, upright, in L, RGB or RGBA; what is transparent turns white."""
    file = image
    shrink = _REDUCING_GAP * size / min(image.size)
    if image.format in ("JPEG", "MPO") and shrink < 1:  # Decodes 1/2, 1/4 or 1/8 of the pixels.
        image.draft(None, (int(image.width * shrink), int(image.height * shrink)))
    image = _reduce_large(image, size) if _is_large(image) else _to_plain_mode(image)
    short = min(image.size)
    left, top = ((side - short) / 2 for side in image.size)
    square = image.resize(
        (size, size),
        Image.Resampling.BICUBIC,
        box=(left, top, left + short, top + short),
        reducing_gap=_REDUCING_GAP,
    )
    # Only now that it is loaded: Pillow turns TIFF upright while loading, and then says so.
    orientation = _read_orientation(file)
    if orientation in _TRANSPOSITIONS:
        square = square.transpose(_TRANSPOSITIONS[orientation])
    if square.mode == "RGBA":
        white = Image.new("RGBA", square.size, "white")
        square = Image.alpha_composite(white, square)
    return square


def _reduce_large(image: Image.Image, size: int) -> Image.Image:
    """The center square, converted and reduced strip by strip.

    A conversion of the whole would need several times the memory that the image itself takes.
    """
    short = min(image.size)
    left, top = ((side - short) // 2 for side in image.size)
    factor = max(int(short / size / _REDUCING_GAP), 1)
    rows = max(_STRIP_PIXELS // (short * factor), 1) * factor
    strips = []
    for start in range(0, short, rows):
        box = (left, top + start, left + short, top + min(start + rows, short))
        strips.append(_to_plain_mode(image.crop(box)).reduce(factor))
    reduced = Image.new(strips[0].mode, (strips[0].width, sum(strip.height for strip in strips)))
    for i, strip in enumerate(strips):
        reduced.paste(strip, (0, i * (rows // factor)))
    return reduced


def _to_plain_mode(image: Image.Image) -> Image.Image:
    """Decodes to L, RGB or RGBA, which can be scaled."""
    if image.mode.startswith("I"):  # 16 bits; `convert` would clip them to 8.
        levels = np.asarray(image).astype(np.float64) * (255 / 65535)
        return Image.fromarray(np.rint(levels.clip(0, 255)).astype(np.uint8))
    if image.mode == "F":
        raise ImageError("floating-point pixels, whose range is unknown")
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _read_orientation(image: Image.Image) -> int:
    """How the camera was held, as EXIF numbers it; 1 is upright."""
    try:
        return image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # Damaged metadata do not make a damaged image.
        return 1
