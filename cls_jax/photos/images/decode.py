"""Decodes image files to upright uint8 arrays of one size, gray or in color."""

import contextlib
import functools
import io
import math
import os
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError, features

from cls_jax.data.resize import (
    CENTER_CROP,
    LARGE_PIXELS,
    REDUCING_GAP,
    DecodeOptions,
    ImageError,
    draft,
    has_deep_colors,
    is_jpeg,
    iterate_levels,
    scale_deep_colors,
    to_plain_mode,
    to_square,
    turn_upright,
)
from cls_jax.extras import is_installed, write_install
from cls_jax.io import describe_error, open_regular, write_count
from cls_jax.photos.images import dicom, repair, tiff
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
    "DICOM": (".dcm", ".dicom"),  # Not by Pillow.
}
# First brand of a file of the last two formats → its reader, and how to install that.
_AVIF_READER = "AVIF, which needs a newer Pillow: pip install --upgrade pillow"
_HEIF_READER = f"HEIC, which needs the extra heif: {write_install('heif')}"
_BRANDS = {b"avif": _AVIF_READER, b"avis": _AVIF_READER}
_BRANDS |= dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1"), _HEIF_READER)
SUFFIXES = tuple(suffix for suffixes in _FORMATS.values() for suffix in suffixes)

# Checked in the header before decoding: a few bytes can claim gigabytes.
MAX_PIXELS = 100_000_000
MAX_FILE_BYTES = 2**29  # Some decoders read the whole file first.
# Pillow's WebP reader holds four copies of the pixels, 17 bytes per pixel in all.
_MAX_WEBP_PIXELS = 50_000_000
# Between two blocks of a JPEG, Pillow starts over with what it has not decoded. With its own blocks
# of 64 KB, 32 MB that only separate two parts take 11 s, with these 0.1 s.
_JPEG_BLOCK = 2**26
# A progressive JPEG may have any number of scans of 140 bytes.
_MAX_SCANNED_PIXELS = 32 * MAX_PIXELS
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # Pillow's own limit.
# Warnings about metadata would break the progress bar. Errors raise.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

# Larger images are decoded one at a time, to bound memory. Baseline JPEGs do not count: they are
# decoded at a fraction of their size, a few rows at a time.
_LARGE_IMAGES = threading.Lock()
# An image in memory may be a file that is not loaded yet, and may be given more than once.
_IMAGE_LOCKS = [threading.Lock() for _ in range(64)]

# A path, the content of an image file, or an image in memory. Bytes are never a path.
ImageLike = str | os.PathLike | bytes | Image.Image | np.ndarray


def read_header(path: str | os.PathLike) -> tuple[int, int, int]:
    """Width and height of an image file in pixels, and its channels, 1 if it is gray or 3.

    A gray image has 1 channel. Others have 3, with transparency on white. Raises
    an ImageError if it cannot be read or is not an image.
    """
    with open_file(path) as file, _decoding(file, bit_depth=16) as image:
        is_gray = image.mode in ("1", "L") or image.mode.startswith("I")
        return *image.size, 1 if is_gray and not image.has_transparency_data else 3


def describe_unread(paths: Sequence[str | os.PathLike]) -> Iterator[str]:
    """Sentences about what is not read of some TIFFs: pages after the first, and a fourth band."""
    stacks = dict[str, int]()
    banded = list[str]()
    for path in [os.fspath(path) for path in paths]:
        if not path.lower().endswith(_FORMATS["TIFF"]):
            continue
        with contextlib.suppress(Exception), open_file(path) as file:  # Reading it says why.
            if (count := tiff.count_pages(file)) > 1:
                stacks[path] = count
            if tiff.read_form(file).alpha:
                banded.append(path)
    if stacks:
        first = next(iter(stacks))
        yield (
            f"{write_count(len(stacks), 'file has', 'files have')} several pages, such as "
            f"{os.path.basename(first)!r:.100} with {stacks[first]:,}: the first is read. If "
            "another one shows what you look for, save it as a file of its own."
        )
    if banded:
        yield (
            f"{write_count(len(banded), 'TIFF says', 'TIFFs say')} that the last band is "
            f"transparency, such as {os.path.basename(banded[0])!r:.100}: what is transparent is "
            "read as white. If the band is something else, such as infrared, save without it."
        )


def read_origin(path: str | os.PathLike) -> tuple[str, str]:
    """The "patient" of a DICOM, or the "camera" by its serial number in EXIF, and which one.

    That is "" if it is not known.
    """
    try:
        with open_file(path) as file, _decoding(file, bit_depth=16) as image:
            if image.format == "DICOM":
                return "patient", image.info["patient"]
            exif = image.getexif().get_ifd(ExifTags.IFD.Exif)
            number = exif.get(ExifTags.Base.BodySerialNumber) or ""
            return "camera", " ".join(str(number).split())
    except ImageError:
        return "", ""


def find_bit_depth(paths: Sequence[str | os.PathLike]) -> int:
    """Bits used by the 16-bit images among some files, 8 to 16. 16 if there are none."""
    largest = 0
    # With fewer than 16 bits, TIFFs whose low bytes Pillow drops are read by tifffile.
    for path in paths:
        with contextlib.suppress(ImageError), open_file(path) as file, _decoding(file, 8) as image:
            largest = max(largest, image.info.get("largest_level", 0))
            if image.mode.startswith("I"):
                largest = max(largest, int(np.asarray(image).max()))
            elif has_deep_colors(image):
                for _, levels in iterate_levels(image):
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
        if file.seek(0, os.SEEK_END) > MAX_FILE_BYTES:
            raise ImageError(f"more than {MAX_FILE_BYTES:,} bytes")
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
    with _decoding(file, options.bit_depth) as image, _bound_memory(image):
        return to_square(image, image_shape, options)


def find_suffix(file: BinaryIO) -> str:
    """The extension for an image file, by its content. Raises as `decode_image` does."""
    decode_image(file, (32, 32, 3))
    with _decoding(file, bit_depth=16) as image:
        return ".jpg" if is_jpeg(image) else _FORMATS[str(image.format)][0]


@functools.cache
def _get_formats() -> tuple[str, ...]:
    """Pillow's names of the formats besides TIFF that the installed packages read."""
    missing = {"TIFF", "DICOM"} | (set() if features.check("avif") else {"AVIF"})
    if is_installed("heif"):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
    else:
        missing.add("HEIF")
    return tuple(name for name in _FORMATS if name not in missing)


def read_upright(file: str | os.PathLike | BinaryIO, max_side: int) -> np.ndarray:
    """Reads a whole image for display: upright, with transparency on white, scaled down to fit.

    Returns uint8 [H, W, 3], at most `max_side`. Raises an ImageError if it cannot be read or is
    not an image.
    """
    opened = (
        open_file(file) if isinstance(file, str | os.PathLike) else contextlib.nullcontext(file)
    )
    with opened as content, _decoding(content, 16) as image, _bound_memory(image):
        draft(image, REDUCING_GAP * max_side / max(image.size))
        scale_deep_colors(image, bit_depth=16)
        whole = to_plain_mode(image, bit_depth=16)
        whole.thumbnail((max_side, max_side), Image.Resampling.BICUBIC, REDUCING_GAP)
        return np.asarray(turn_upright(whole, image).convert("RGB"))


@contextlib.contextmanager
def _decoding(file: Any, bit_depth: int) -> Iterator[Image.Image]:
    """Opens an image within the limits. Turns every error in the block into an ImageError."""
    try:
        with _open(file, bit_depth) as image:
            yield image
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        file.seek(0)
        brand = file.read(12)
        known = None
        if brand[4:8] == b"ftyp" and (known := _BRANDS.get(brand[8:])):
            needed = "AVIF" if known == _AVIF_READER else "HEIF"
            if needed in _get_formats():  # It is installed.
                known = "damaged: truncated, or not an image of its format"
        known = tiff.OTHER if brand.startswith(tiff.SIGNATURES) else known
        raise ImageError(known or "not an image of a known format") from error
    except Exception as error:  # Decoders raise any kind of exception for damaged files.
        raise ImageError(f"damaged: {describe_error(error)}") from error


def _open(file: Any, bit_depth: int) -> Image.Image:
    """Opens a file, or takes an image in memory, within the limits."""
    if isinstance(file, np.ndarray):
        file = Image.fromarray(file[..., 0] if file.shape[2:] == (1,) else file)
    if isinstance(file, Image.Image):
        if not math.prod(file.size):
            raise ImageError("an image without pixels")
        if math.prod(file.size) > MAX_PIXELS:
            raise ImageError(f"more than {MAX_PIXELS:,} pixels")
        with _IMAGE_LOCKS[id(file) % len(_IMAGE_LOCKS)]:
            return _copy(file, bit_depth)
    file.seek(0)
    start = file.read(dicom.START)
    if start[:4] in tiff.SIGNATURES:
        image = tiff.open_tiff(file, bit_depth)
    elif dicom.is_dicom(start):
        image = dicom.open_dicom(file)
    else:
        readable = repair.BoundedFile(repair.strip_png(file))
        image = Image.open(readable, formats=_get_formats())  # type: ignore[arg-type]
        readable.release()
        _scale_transparency(image)
    _check_size(image, file)
    if is_jpeg(image):
        if (repaired := repair.repair_jpeg(image, file)) is not file:
            return Image.open(repaired, formats=("JPEG",))
        image.decodermaxblock = _JPEG_BLOCK  # type: ignore[attr-defined]
    return image


def _copy(image: Image.Image, bit_depth: int) -> Image.Image:
    """A copy of an image in memory, or its file if Pillow might not load that rightly."""
    file: Any = getattr(image, "fp", None)
    is_pending = file is not None and bool(getattr(image, "tile", None)) and image.tell() == 0
    is_lossy = has_deep_colors(image) or (image.mode == "L" and "transparency" in image.info)
    if not is_pending or not (is_lossy or image.format == "TIFF"):
        return image.copy()
    position = file.tell()
    file.seek(0)
    content = io.BytesIO(file.read())
    file.seek(position)
    image.load()  # As `copy` does, which closes its file.
    return _open(content, bit_depth)


def _scale_transparency(image: Image.Image) -> None:
    """Scales the transparent level of a gray PNG of 2 or 4 bits, as Pillow scales its pixels."""
    level = image.info.get("transparency")
    if image.mode == "L" and isinstance(level, int) and isinstance(image, ImageFile.ImageFile):
        unpackers = {str(tile.args) for tile in image.tile}
        for bits in (2, 4):
            if unpackers == {f"L;{bits}"}:
                image.info["transparency"] = level * 255 // (2**bits - 1)


def _check_size(image: Image.Image, file: BinaryIO) -> None:
    """Raises an ImageError if decoding would take too long or too much memory."""
    num_pixels = image.width * image.height
    largest = _MAX_WEBP_PIXELS if image.format == "WEBP" else MAX_PIXELS
    if num_pixels > largest:
        raise ImageError(f"more than {largest:,} pixels")
    if is_jpeg(image):
        position = file.tell()
        file.seek(0)
        num_scans = file.read().count(b"\xff\xda")  # Within a scan, 00 follows ff.
        file.seek(position)
        if num_scans * num_pixels > _MAX_SCANNED_PIXELS:
            raise ImageError(f"{num_scans:,} scans")


def _bound_memory(image: Image.Image) -> contextlib.AbstractContextManager:
    """Waits for other threads if decoding needs memory for all of a large image at once."""
    is_baseline = is_jpeg(image) and not image.info.get("progressive")
    is_bounded = is_baseline or math.prod(image.size) <= LARGE_PIXELS
    return contextlib.nullcontext() if is_bounded else _LARGE_IMAGES
