"""Image files as uint8 arrays of one size, as a person sees them."""

import contextlib
import os
import threading
import warnings
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp"),
    *(".bmp", ".dib", ".gif", ".tif", ".tiff"),
)
_MODES = {1: "L", 3: "RGB"}
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF")

# By the header alone, before anything is decoded: a few bytes can ask for gigabytes.
MAX_PIXELS = 100_000_000
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # Pillow's own limit.
# Notes on odd metadata would break the progress bar; what cannot be decoded, Pillow raises.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

# One image above this at a time, so that threads together stay within bounded memory.
_LARGE_PIXELS = 16e6
_LARGE_IMAGES = threading.Lock()

# Images are first reduced, cheaply, to no less than this many times the wanted size. With 3, says
# Pillow, the result is all but that of fair resampling.
_REDUCING_GAP = 3.0
_EXIF_ORIENTATION = 0x0112
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
    """An image that cannot be had; the message is the reason, without the file's name."""


def read_image(path: str | os.PathLike, image_shape: tuple[int, int, int]) -> np.ndarray:
    """Reads an image file.

    Args:
        path: a JPEG, PNG, WebP, BMP, GIF (its first frame) or TIFF of any size and colour.
        image_shape: (H, W, C) wanted; C is 1 (grey) or 3 (RGB).

    Returns:
        uint8 [H, W, C], see `decode_image`.

    Raises:
        ImageError: if it cannot be read or is no image.
    """
    with open_file(path) as file:
        return decode_image(file, image_shape)


@contextlib.contextmanager
def open_file(path: str | os.PathLike):
    """Opens a file for reading bytes.

    Raises:
        ImageError: if the system refuses.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise ImageError(str(error.strerror)) from error
    with file:
        yield file


def decode_image(file: BinaryIO, image_shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes an image, turned upright, on white, its centre scaled to one size.

    Args:
        file: an open image file.
        image_shape: (H, W, C) wanted, with H = W; C is 1 (grey) or 3 (RGB).

    Returns:
        uint8 [H, W, C].

    Raises:
        ImageError: if it is no image, damaged, or of more than `MAX_PIXELS`.
    """
    size, _, channels = image_shape
    try:
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ImageError(f"more than {MAX_PIXELS:,} pixels")
            is_large = image.width * image.height > _LARGE_PIXELS
            with _LARGE_IMAGES if is_large else contextlib.nullcontext():
                square = _to_square(image, size).convert(_MODES[channels])
        return np.asarray(square).reshape(image_shape)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise ImageError("not an image of a known format") from error
    except Exception as error:  # Decoders raise whatever a damaged file leads them to.
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


def _to_square(image: Image.Image, size: int) -> Image.Image:
    orientation = _read_orientation(image)
    shrink = _REDUCING_GAP * size / min(image.size)
    if image.format in ("JPEG", "MPO") and shrink < 1:  # Decodes 1/2, 1/4 or 1/8 of the pixels.
        image.draft(None, tuple(int(side * shrink) for side in image.size))
    image = _to_plain_mode(image)
    short = min(image.size)
    left, top = ((side - short) / 2 for side in image.size)
    square = image.resize(
        (size, size),
        Image.Resampling.BICUBIC,
        box=(left, top, left + short, top + short),
        reducing_gap=_REDUCING_GAP,
    )
    if orientation in _TRANSPOSITIONS:
        square = square.transpose(_TRANSPOSITIONS[orientation])
    if square.mode == "RGBA":
        white = Image.new("RGBA", square.size, "white")
        square = Image.alpha_composite(white, square)
    return square


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
    """How the camera was held, by EXIF; 1 is upright."""
    try:
        return image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # Damaged metadata does not make a damaged image.
        return 1
