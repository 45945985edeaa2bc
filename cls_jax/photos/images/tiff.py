"""TIFFs: which ones Pillow reads rightly, which ones need tifffile, and which ones are refused.

The tags decide, and not the mode that Pillow chooses: it takes signed and 32-bit integers for 16
bits, ignores that 0 is white in 16 bits, and mixes up separate planes of 16 bits.
"""

import io
import logging
import math
import threading
import zlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImagePalette, TiffImagePlugin

from cls_jax.data.resize import TRANSPOSITIONS, ImageError, scale_levels
from cls_jax.extras import is_installed, write_install
from cls_jax.photos.images.repair import BoundedFile

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # First bytes of a file.
_BIG = 43  # The version of BigTIFF.
OTHER = "a TIFF that is neither gray nor in color, or packed in an unusual way: save it as PNG"
# Decoded bytes of a TIFF that tifffile reads, all at once, and one file after the other.
_MAX_BYTES = 2**28
_READING = threading.Lock()
_MAX_SEGMENTS = 2**18
_STRIP_VALUES = 2**20

# The tag New Subfile Type, and its bit for a smaller version of another image.
_SUBFILE_TYPE, _REDUCED = 254, 1
_MAX_PAGES = 10_000
# Values of the tag Photometric Interpretation.
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _CMYK, _YCBCR, _LAB = 0, 1, 2, 3, 5, 6, 8
_NUM_COLORS = {
    _WHITE_IS_ZERO: 1,
    _BLACK_IS_ZERO: 1,
    _RGB: 3,
    _PALETTE: 1,
    _CMYK: 4,
    _YCBCR: 3,
    _LAB: 3,
}
# Values of the tag Compression.
_UNCOMPRESSED, _OLD_JPEG, _DEFLATE = 1, 6, (8, 32946)
# Values of the tags Sample Format and Extra Samples.
_UNSIGNED, _SIGNED, _FLOATING = 1, 2, 3
_PREMULTIPLIED, _ALPHA = 1, 2


class Form(NamedTuple):
    """How the first image of a TIFF is stored, by its tags."""

    width: int  # As stored, before the orientation.
    height: int
    photometric: int
    bits: int  # Per value.
    num_samples: int
    extra: tuple[int, ...]  # The meaning of each sample after the colors.
    is_planar: bool  # Whether each sample is stored on its own.
    compression: int
    subsampling: tuple[int, ...]
    fill_order: int  # 2 if the first pixel of a byte is in its low bits.
    orientation: Any  # An integer, unless it is damaged.

    @property
    def num_colors(self) -> int:
        """Samples per pixel without transparency and others."""
        return min(_NUM_COLORS[self.photometric], self.num_samples)

    @property
    def alpha(self) -> int:
        """What the first sample after the colors says of transparency, 0 for nothing."""
        if self.num_samples == self.num_colors:
            return 0
        if not self.extra:  # As other programs read it.
            return _ALPHA if self.photometric == _RGB else 0
        return self.extra[0] if self.extra[0] in (_PREMULTIPLIED, _ALPHA) else 0


def open_tiff(file: BinaryIO, bit_depth: int) -> Image.Image:
    """Opens the first image of a TIFF, by Pillow where it reads the file rightly.

    Otherwise it is read at once: upright, with 8 bits per value, and the `largest_level` of its
    colors in its `info` if they have 16. `bit_depth` is the number of bits that 16-bit values use.
    Raises an ImageError if nothing reads the file rightly, and any error if it is damaged.
    """
    form = read_form(file)
    if not suits_pillow(form, bit_depth):
        with _READING:
            return _show(_read_levels(file, form), form, bit_depth)
    file.seek(0)
    image: Any = Image.open(file, formats=("TIFF",))
    # A color map should have 16 bits. As libtiff does, take one of 8-bit values as such.
    levels = image.tag_v2.get(TiffImagePlugin.COLORMAP) if image.mode == "P" else None
    if levels and max(levels) < 256:
        image.palette = ImagePalette.raw("RGB;L", bytes(levels))
    return image


def read_form(file: BinaryIO) -> Form:
    """Reads the tags of the first image. Raises an ImageError for values that nothing reads."""
    tags, _ = _read_tags(file)
    (compression,) = _get(tags, TiffImagePlugin.COMPRESSION, 1)
    (photometric,) = _get(tags, TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0)
    is_old_jpeg = compression == _OLD_JPEG
    photometric = _YCBCR if is_old_jpeg else photometric
    (num_samples,) = _get(tags, TiffImagePlugin.SAMPLESPERPIXEL, 3 if is_old_jpeg else 1)
    formats = {*_get(tags, TiffImagePlugin.SAMPLEFORMAT, _UNSIGNED)}
    bits = {*_get(tags, TiffImagePlugin.BITSPERSAMPLE, 1)}
    if formats & {_SIGNED, _FLOATING} or max(bits, default=1) > 16:
        raise ImageError(
            "a TIFF of signed, floating-point or 32-bit numbers, whose range is unknown: save it "
            "with 8 or 16 bits per value"
        )
    num_colors = _NUM_COLORS.get(photometric, math.inf)
    is_gray_jpeg = photometric == _YCBCR and num_samples == 1
    # Of images with many bands, Pillow would take the first ones for colors.
    most = num_colors + (2 if photometric == _CMYK else 1)
    is_known = is_gray_jpeg or num_colors <= num_samples <= most
    if formats != {_UNSIGNED} or len(bits) != 1 or not is_known:
        raise ImageError(OTHER)
    return Form(
        width=_get(tags, TiffImagePlugin.IMAGEWIDTH)[0],
        height=_get(tags, TiffImagePlugin.IMAGELENGTH)[0],
        photometric=photometric,
        bits=bits.pop(),
        num_samples=num_samples,
        extra=_get(tags, TiffImagePlugin.EXTRASAMPLES),
        is_planar=_get(tags, TiffImagePlugin.PLANAR_CONFIGURATION, 1) == (2,) and num_samples > 1,
        compression=compression,
        subsampling=_get(tags, TiffImagePlugin.YCBCRSUBSAMPLING, 2, 2),
        fill_order=_get(tags, TiffImagePlugin.FILLORDER, 1)[0],
        orientation=tags.get(TiffImagePlugin.ExifTags.Base.Orientation),
    )


def count_pages(file: BinaryIO) -> int:
    """The images of a TIFF that are as large as the first one. Thumbnails of it are not.

    Raises any error if the file is damaged.
    """
    tags, bounded = _read_tags(file)

    def get_size() -> tuple[Any, Any]:
        return tags.get(TiffImagePlugin.IMAGEWIDTH), tags.get(TiffImagePlugin.IMAGELENGTH)

    size, count, seen = get_size(), 1, {0}
    while tags.next not in seen and len(seen) < _MAX_PAGES:  # Links may form a circle.
        seen.add(tags.next)
        bounded.seek(tags.next)
        tags.load(bounded)
        count += get_size() == size and not tags.get(_SUBFILE_TYPE, 0) & _REDUCED
    return count


def _read_tags(file: BinaryIO) -> tuple[Any, Any]:
    """The tags of the first image, Pillow's `tag_v2`, and the file for those of the next ones."""
    file.seek(0)
    bounded: Any = BoundedFile(file)
    header = bounded.read(8)
    if header[2] == _BIG:
        header += bounded.read(8)
    elif header[3] == _BIG:  # Pillow cannot read its tags.
        raise ImageError("a BigTIFF in big-endian order: save it as PNG")
    tags = TiffImagePlugin.ImageFileDirectory_v2(header)
    bounded.seek(tags.next)
    tags.load(bounded)
    return tags, bounded


def _get(tags: Any, tag: int, *default: int) -> tuple[int, ...]:
    """The values of a tag. Raises an ImageError if they are no integers."""
    values = tags.get(tag, default)
    values = values if isinstance(values, tuple) else (values,)
    if not all(isinstance(value, int) for value in values):
        raise ImageError(OTHER)
    return values


def suits_pillow(form: Form, bit_depth: int) -> bool:
    """Whether Pillow reads a TIFF rightly, given how many bits 16-bit values use."""
    kind, samples = (form.photometric, form.bits), form.num_samples
    is_raw, has_all_bits = form.compression == _UNCOMPRESSED, bit_depth == 16
    if samples == 1:
        return form.bits in (1, 2, 4, 8) or kind == (_BLACK_IS_ZERO, 16)
    if form.is_planar:  # It mixes up uncompressed planes.
        is_mixed = is_raw and samples > form.num_colors and form.alpha != _ALPHA
        is_deep = has_all_bits and not is_raw and kind in ((_RGB, 16), (_CMYK, 16))
        return is_deep or (not is_mixed and kind in ((_RGB, 8), (_CMYK, 8)))
    if kind == (_YCBCR, 8):
        return not is_raw or form.subsampling == (1, 1)
    if kind == (_CMYK, 16):
        return samples == 4 and has_all_bits
    return kind in (
        (_BLACK_IS_ZERO, 8),
        (_RGB, 8),
        (_RGB, 16),
        (_PALETTE, 8),
        (_CMYK, 8),
        (_LAB, 8),
    )


def _show(levels: np.ndarray, form: Form, bit_depth: int) -> Image.Image:
    """The image that levels show, uint8 or uint16 [h, w, samples], which may be changed."""
    num_colors, mode = form.num_colors, {1: "L", 3: "RGB", 4: "CMYK"}[form.num_colors]
    colors, alpha = levels[..., :num_colors], levels[..., num_colors : num_colors + 1]
    largest = int(colors.max())
    if form.bits == 16:  # Transparency has all bits, whatever the colors have.
        colors, alpha = _scale(colors, bit_depth), _scale(alpha, 16)
    is_premultiplied = form.alpha == _PREMULTIPLIED
    if form.photometric == _WHITE_IS_ZERO:
        white: Any = alpha if is_premultiplied else 255
        colors = white - np.minimum(colors, white)
    if form.alpha:
        colors = np.concatenate([colors, alpha], axis=-1)
    whole = mode + "A" * (form.alpha > 0)
    stored = mode + "a" if is_premultiplied else whole
    size = form.width, form.height
    image = Image.frombytes(stored, size, np.ascontiguousarray(colors, np.uint8).tobytes())
    image = image.convert(whole)
    if (turn := TRANSPOSITIONS.get(form.orientation)) is not None:
        image = image.transpose(turn)
    image.format = "TIFF"
    image.info["largest_level"] = largest if form.bits == 16 else 0
    return image


def _scale(levels: np.ndarray, bit_depth: int) -> np.ndarray:
    """Levels of `bit_depth` bits, uint16 [h, w, C], as uint8."""
    table = scale_levels(np.arange(2**16), bit_depth)
    scaled = np.empty(levels.shape, np.uint8)
    # In strips, since NumPy's indices have eight bytes each.
    rows = max(_STRIP_VALUES // max(math.prod(levels.shape[1:]), 1), 1)
    for top in range(0, len(levels), rows):
        scaled[top : top + rows] = table[levels[top : top + rows]]
    return scaled


def _read_levels(file: Any, form: Form) -> np.ndarray:
    """The values as they are stored, uint8 or uint16 [h, w, samples], by tifffile.

    Raises an ImageError if it does not read such a file rightly, or is not installed.
    """
    has_plain_colors = form.photometric in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB) or (
        form.photometric == _CMYK and not form.alpha
    )
    is_open = form.compression in (_UNCOMPRESSED, *_DEFLATE) and form.fill_order == 1
    if not has_plain_colors or not is_open or form.bits not in (8, 16):
        raise ImageError(OTHER)
    if not is_installed("tiff"):
        raise ImageError(
            f"a TIFF in a rare form, which needs the extra tiff: {write_install('tiff')}, or save "
            "it as PNG"
        )
    import tifffile

    # It logs what it also raises, or what does not matter.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        page: Any = tiff.pages.first
        planes = form.num_samples if form.is_planar else 1
        shape = (planes, 1, form.height, form.width, form.num_samples // planes)
        if page.nbytes > _MAX_BYTES:
            raise ImageError(f"more than {_MAX_BYTES:,} bytes of pixels")
        if page.shaped != shape:
            raise ImageError(OTHER)
        _check_segments(file, page)
        levels = page.asarray(maxworkers=1).reshape(shape)
    # Either planes or samples have length 1.
    return np.moveaxis(levels, 0, -1).reshape(form.height, form.width, form.num_samples)


def _check_segments(file: Any, page: Any) -> None:
    """Raises an ImageError unless all strips or tiles of a page are there, and none is too large.

    tifffile replaces those that are missing by zeros, and decompresses each as far as it goes.
    """
    size = file.seek(0, io.SEEK_END)
    segments = list(zip(page.dataoffsets, page.databytecounts, strict=True))
    if len(segments) != math.prod(page.chunked) or len(segments) > _MAX_SEGMENTS:
        raise ImageError(OTHER)
    num_bytes = math.prod(page.chunks) * page.dtype.itemsize
    total = 0
    for offset, count in segments:
        if not 0 < count <= size - offset:
            raise ImageError("damaged: truncated")
        length = count
        if page.compression in _DEFLATE:
            file.seek(offset)
            content = zlib.decompressobj().decompress(file.read(count), num_bytes + 1)
            length = len(content)
            if length > num_bytes:
                raise ImageError("damaged: a strip or tile with too many bytes")
        total += length
    if total < page.nbytes:
        raise ImageError("damaged: truncated")
