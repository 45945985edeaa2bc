"""TIFFs: which ones Pillow reads rightly, which ones need tifffile, and which ones are refused.

The tags decide, and not the mode that Pillow chooses: it takes signed and 32-bit integers for 16
bits, ignores that 0 is white in 16 bits, and mixes up separate planes of 16 bits.
"""

import io
import logging
import math
import zlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImagePalette, TiffImagePlugin

from cls_jax.data.resize import TRANSPOSITIONS, ImageError, scale_levels
from cls_jax.extras import is_installed, write_install
from cls_jax.photos.images.repair import BoundedFile

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # First bytes of a file.
_BIG = 43  # The version of BigTIFF.
OTHER = "a TIFF that is neither gray nor in color, or packed in an unusual way: save it as PNG"
_UNKNOWN_RANGE = "whose range is unknown: save it with 8 or 16 bits per value"
# Decoded bytes of a TIFF that tifffile reads, all at once.
_MAX_BYTES = 2**28
_MAX_SEGMENTS = 2**18
_STRIP_VALUES = 2**20

# The tag New Subfile Type, and its bit for a smaller version of another image.
_SUBFILE_TYPE, _REDUCED = 254, 1
_MAX_PAGES = 10_000
# Values of the tag Photometric Interpretation.
_WHITE_IS_ZERO = 0
_BLACK_IS_ZERO = 1
_RGB = 2
_PALETTE = 3
_CMYK = 5
_YCBCR = 6
_LAB = 8
_NUM_COLORS = {
    _WHITE_IS_ZERO: 1,
    _BLACK_IS_ZERO: 1,
    _RGB: 3,
    _PALETTE: 1,
    _CMYK: 4,
    _YCBCR: 3,
    _LAB: 3,
}
# Photometric interpretation and bits of gray values whose levels Pillow reads, but does not scale.
_SCALED = ((_WHITE_IS_ZERO, 12), (_BLACK_IS_ZERO, 12), (_WHITE_IS_ZERO, 16))
# Values of the tag Compression.
_UNCOMPRESSED = 1
_OLD_JPEG = 6
_DEFLATE = (8, 32946)
# Values of the tag Sample Format.
_UNSIGNED = 1
_SIGNED = 2
_FLOATING = 3
# Values of the tag Extra Samples.
_PREMULTIPLIED = 1
_ALPHA = 2


class Layout(NamedTuple):
    """How the first image of a TIFF is stored, by its tags."""

    is_little: bool  # Whether the first byte of a value is the low one.
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
    orientation: int

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

    `bit_depth` is the number of bits used by 16-bit values that Pillow does not read. Raises an
    ImageError if nothing reads the file rightly, and any error if it is damaged.
    """
    layout = read_layout(file)
    reader = choose_reader(layout, bit_depth)
    file.seek(0)
    if reader == "pillow":
        image = Image.open(file, formats=("TIFF",))
        _widen_palette(image)
        return image
    return PlainTiff(file, layout, reader, bit_depth)


def _widen_palette(image: Any) -> None:
    """Takes a color map of 8-bit values for one, as libtiff does. It should have 16 bits."""
    levels = image.tag_v2.get(TiffImagePlugin.COLORMAP) if image.mode == "P" else None
    if levels and max(levels) < 256:
        image.palette = ImagePalette.raw("RGB;L", bytes(levels))


def read_layout(file: BinaryIO) -> Layout:
    """Reads the tags of the first image. Raises an ImageError for values that nothing reads."""
    return create_layout(_read_tags(file)[0])


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


def create_layout(tags: Any) -> Layout:
    """The layout that tags describe, Pillow's `tag_v2`. Raises an ImageError as `read_layout`."""
    (compression,) = _get(tags, TiffImagePlugin.COMPRESSION, 1)
    (photometric,) = _get(tags, TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, 0)
    if compression == _OLD_JPEG:
        photometric = _YCBCR
    (num_samples,) = _get(
        tags, TiffImagePlugin.SAMPLESPERPIXEL, 3 if compression == _OLD_JPEG else 1
    )
    formats = {*_get(tags, TiffImagePlugin.SAMPLEFORMAT, _UNSIGNED)}
    bits = {*_get(tags, TiffImagePlugin.BITSPERSAMPLE, 1)}
    extra = _get(tags, TiffImagePlugin.EXTRASAMPLES)
    (planar,) = _get(tags, TiffImagePlugin.PLANAR_CONFIGURATION, 1)
    if _FLOATING in formats:
        raise ImageError("floating-point pixels, whose range is unknown")
    if _SIGNED in formats:
        raise ImageError(f"a TIFF of signed integers, {_UNKNOWN_RANGE}")
    if formats != {_UNSIGNED} or len(bits) != 1 or photometric not in _NUM_COLORS:
        raise ImageError(OTHER)
    if max(bits) > 16:
        raise ImageError(f"a TIFF of {max(bits)}-bit integers, {_UNKNOWN_RANGE}")
    num_colors = _NUM_COLORS[photometric]
    is_gray_jpeg = photometric == _YCBCR and num_samples == 1
    if num_samples < num_colors and not is_gray_jpeg:
        raise ImageError(OTHER)
    # Of images with many bands, Pillow would take the first ones for colors.
    if num_samples > num_colors + (2 if photometric == _CMYK else 1):
        raise ImageError(OTHER)
    return Layout(
        is_little=tags.prefix == b"II",
        width=_get(tags, TiffImagePlugin.IMAGEWIDTH)[0],
        height=_get(tags, TiffImagePlugin.IMAGELENGTH)[0],
        photometric=photometric,
        bits=bits.pop(),
        num_samples=num_samples,
        extra=extra,
        is_planar=planar == 2 and num_samples > 1,
        compression=compression,
        subsampling=_get(tags, TiffImagePlugin.YCBCRSUBSAMPLING, 2, 2),
        fill_order=_get(tags, TiffImagePlugin.FILLORDER, 1)[0],
        orientation=_get_orientation(tags),
    )


def _get(tags: Any, tag: int, *default: int) -> tuple[int, ...]:
    """The values of a tag. Raises an ImageError if they are no integers."""
    values = tags.get(tag, default)
    values = values if isinstance(values, tuple) else (values,)
    if not all(isinstance(value, int) for value in values):
        raise ImageError(OTHER)
    return values


def _get_orientation(tags: Any) -> int:
    """The orientation, 1 if it is damaged: the pixels may be intact."""
    value = tags.get(TiffImagePlugin.ExifTags.Base.Orientation, 1)
    return value if isinstance(value, int) else 1


def choose_reader(layout: Layout, bit_depth: int) -> str:
    """What reads a TIFF rightly: "pillow", "scale" its levels, or "tifffile".

    `bit_depth` is the number of bits that 16-bit values use. Raises an ImageError if nothing does,
    or tifffile is not installed.
    """
    photometric = layout.photometric
    if layout.num_samples == 1 and layout.is_little and (photometric, layout.bits) in _SCALED:
        return "scale"
    if _suits_pillow(layout, bit_depth):
        return "pillow"
    is_plain = photometric in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB) or (
        photometric == _CMYK and not layout.alpha
    )
    is_open = layout.compression in (_UNCOMPRESSED, *_DEFLATE) and layout.fill_order == 1
    if not is_plain or not is_open or layout.bits not in (8, 16):
        raise ImageError(OTHER)
    if not is_installed("tiff"):
        raise ImageError(
            f"a TIFF in a rare form, which needs the extra tiff: {write_install('tiff')}, or save "
            "it as PNG"
        )
    return "tifffile"


def _suits_pillow(layout: Layout, bit_depth: int) -> bool:
    """Whether Pillow reads a TIFF rightly, for `bit_depth` see `choose_reader`."""
    photometric, bits = layout.photometric, layout.bits
    is_raw = layout.compression == _UNCOMPRESSED
    if layout.num_samples == 1:
        return bits in (1, 2, 4, 8) or (photometric, bits) == (_BLACK_IS_ZERO, 16)
    if layout.is_planar:
        has_depth = bits == 8 or (bits, bit_depth) == (16, 16)
        return photometric in (_RGB, _CMYK) and has_depth and not (is_raw and _mixes_planes(layout))
    if photometric == _YCBCR:
        return bits == 8 and (not is_raw or layout.subsampling == (1, 1))
    if bits == 16:
        is_plain_cmyk = (photometric, layout.num_samples) == (_CMYK, 4)
        return photometric == _RGB or (is_plain_cmyk and bit_depth == 16)
    return bits == 8 and photometric != _WHITE_IS_ZERO


def _mixes_planes(layout: Layout) -> bool:
    """Whether Pillow takes uncompressed planes for others."""
    is_known = layout.alpha == _ALPHA or layout.num_samples == layout.num_colors
    return layout.bits != 8 or not is_known


class PlainTiff(ImageFile.ImageFile):
    """A TIFF that is read when its pixels are needed: upright, with 8 bits per value.

    Its first use turns it into an ordinary image.
    """

    format = "TIFF"

    def __init__(self, file: BinaryIO, layout: Layout, reader: str, bit_depth: int):
        """Reads nothing yet. For `reader` see `choose_reader`."""
        self._layout = layout
        self._reader = reader
        self._bit_depth = layout.bits if reader == "scale" and layout.bits == 12 else bit_depth
        super().__init__(file)

    def _open(self) -> None:
        layout = self._layout
        sides = layout.width, layout.height
        self._size = sides[::-1] if layout.orientation in (5, 6, 7, 8) else sides
        self._mode = {1: "L", 3: "RGB", 4: "CMYK"}[layout.num_colors]
        if layout.alpha:
            self._mode = {"L": "LA", "RGB": "RGBA"}[self._mode]

    def load(self) -> Any:
        """Reads the pixels, and becomes the image that has them."""
        image = self._read()
        # As Pillow's StubImageFile does.
        self.__class__ = image.__class__  # type: ignore[assignment]
        self.__dict__ = image.__dict__
        return image.load()

    def find_largest_level(self) -> int:
        """The largest value of a color if values have 16 bits, otherwise 0."""
        if self._layout.bits != 16:
            return 0
        return int(self._read_levels()[..., : self._layout.num_colors].max())

    def _read(self) -> Image.Image:
        layout = self._layout
        levels = self._read_levels()
        size = levels.shape[1::-1]
        values = levels[..., : layout.num_colors + (layout.alpha > 0)]
        if layout.bits > 8:
            values = _scale(values, self._bit_depth)
        colors = values[..., : layout.num_colors]
        white: Any = 255
        if layout.alpha:
            alpha = levels[..., layout.num_colors, None]
            # It has all bits, whatever the colors have.
            values[..., -1:] = _scale(alpha, 16) if layout.bits > 8 else alpha
            white = values[..., -1:] if layout.alpha == _PREMULTIPLIED else white
        if layout.photometric == _WHITE_IS_ZERO:
            colors[:] = white - np.minimum(colors, white)
        mode = self.mode
        if layout.alpha == _PREMULTIPLIED:
            mode = mode[:-1] + "a"
        image = Image.frombytes(mode, size, np.ascontiguousarray(values).tobytes())
        if mode != self.mode:
            image = image.convert(self.mode)
        turn = TRANSPOSITIONS.get(layout.orientation)
        # Pillow has turned what it has read.
        return image if turn is None or self._reader == "scale" else image.transpose(turn)

    def _read_levels(self) -> np.ndarray:
        """The values as they are stored, uint8 or uint16 [h, w, samples]."""
        assert self.fp is not None
        if self._reader == "tifffile":
            return _read_with_tifffile(self.fp, self._layout)
        self.fp.seek(0)
        with Image.open(self.fp, formats=("TIFF",)) as image:
            return np.asarray(image).astype(np.uint16, copy=False)[..., None]


def _scale(levels: np.ndarray, bit_depth: int) -> np.ndarray:
    """Levels of `bit_depth` bits, uint16 [h, w, C], as uint8."""
    table = scale_levels(np.arange(2**16), bit_depth)
    scaled = np.empty(levels.shape, np.uint8)
    # In strips, since NumPy's indices have eight bytes each.
    rows = max(_STRIP_VALUES // math.prod(levels.shape[1:]), 1)
    for top in range(0, len(levels), rows):
        scaled[top : top + rows] = table[levels[top : top + rows]]
    return scaled


def _read_with_tifffile(file: Any, layout: Layout) -> np.ndarray:
    """The values as they are stored, uint8 or uint16 [h, w, samples], writable."""
    import tifffile

    # It logs what it also raises, or what does not matter.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        page: Any = tiff.pages.first
        planes = layout.num_samples if layout.is_planar else 1
        shape = (planes, 1, layout.height, layout.width, layout.num_samples // planes)
        if page.shaped != shape or page.nbytes > _MAX_BYTES:
            too_large = page.nbytes > _MAX_BYTES
            raise ImageError(f"more than {_MAX_BYTES:,} bytes of pixels" if too_large else OTHER)
        _check_segments(file, page)
        levels = page.asarray(maxworkers=1).reshape(shape)
    # Either planes or samples have length 1.
    return np.moveaxis(levels, 0, -1).reshape(layout.height, layout.width, layout.num_samples)


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
