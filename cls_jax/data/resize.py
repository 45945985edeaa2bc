"""Squares of bytes, gray or in color, from images of any size and mode.

Images are Pillow's, opened by someone else, who has checked that they may be trusted.
"""

import contextlib
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

_MODES = {1: "L", 3: "RGB"}

# Larger images are converted and reduced strip by strip, since converting a whole one would need
# several times its memory.
LARGE_PIXELS = 16e6
_STRIP_PIXELS = 2**20

# Images are first reduced cheaply to at least this many times the final size. According to Pillow's
# documentation of `resize`, the result with 3 is almost the same as without reducing.
REDUCING_GAP = 3.0
# Pillow's unpackers of 16-bit colors take the high byte of each. Their names end with the byte
# order. With the other order they take the low byte. For gray with transparency there is no other
# order: its four bytes are read as four colors.
_DEEP_COLORS = re.compile(r"(RGB[AX]?;16)([BLN])")
_DEEP_GRAY = "LA;16B"
_LOW_BYTES = (1, 1, 1, 3)  # Places of the low bytes of gray, gray, gray and alpha in four bytes.
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_PADDING = 127  # Mid-gray, as in cutout.
_EXIF_ORIENTATION = 0x0112
# ImageOps.exif_transpose also rewrites the metadata, which fails if they are damaged, and
# transposes the whole image, where transposing the small square is enough.
TRANSPOSITIONS = {
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


def get_decode_options(data_config: ConfigDict) -> DecodeOptions:
    """The options of a configuration's section "data"."""
    # Runs on other datasets decode images, too, to predict them.
    return DecodeOptions(data_config.get("resize", "crop"), data_config.get("bit_depth", 16))


def get_image_shape(data_config: ConfigDict) -> tuple[int, int, int]:
    """(H, W, C) of images of files, by a configuration's section "data"."""
    return data_config.image_size, data_config.image_size, data_config.channels


def to_square(
    image: Image.Image, image_shape: tuple[int, int, int], options: DecodeOptions = CENTER_CROP
) -> np.ndarray:
    """An image as an upright square, uint8 [H, W, C], with transparency on white.

    In the shape (H, W, C), H must equal W, and C is 1 (gray) or 3 (RGB), regardless of the image.
    Raises an ImageError if its pixels have no known range, and Pillow's errors if it is damaged.
    """
    size, _, channels = image_shape
    square = _scale_to_square(image, size, options)
    return np.asarray(square.convert(_MODES[channels])).reshape(image_shape)


def _scale_to_square(image: Image.Image, size: int, options: DecodeOptions) -> Image.Image:
    """An upright square in L or RGB, with transparency on white."""
    file = image
    shape = (size, size)
    scale_deep_colors(image, options.bit_depth)
    if options.resize == "pad":
        width, height = (max(round(size * side / max(image.size)), 1) for side in image.size)
        shape = (width, height)
    left, top, right, bottom = _choose_box(image, options)
    shrink = max(REDUCING_GAP * shape[0] / (right - left), REDUCING_GAP * shape[1] / (bottom - top))
    draft(image, shrink)
    if math.prod(image.size) > LARGE_PIXELS:
        image = _reduce_large(image, shape, options)
    else:
        image = to_plain_mode(image, options.bit_depth)
    square = image.resize(
        shape, Image.Resampling.BICUBIC, box=_choose_box(image, options), reducing_gap=REDUCING_GAP
    )
    square = turn_upright(square, file)
    if square.size == (size, size):
        return square
    whole = Image.new(square.mode, (size, size), (_PADDING,) * len(square.getbands()))
    whole.paste(square, ((size - square.width) // 2, (size - square.height) // 2))
    return whole


def is_jpeg(image: Image.Image) -> bool:
    """Whether an image comes from a JPEG, which can be decoded at a fraction of its size."""
    return image.format in ("JPEG", "MPO")


def draft(image: Image.Image, shrink: float) -> None:
    """Lets a JPEG decode at 1/2, 1/4 or 1/8 of its size, but at least this share of its sides."""
    if is_jpeg(image) and shrink < 1:
        image.draft(None, (int(image.width * shrink), int(image.height * shrink)))


def turn_upright(image: Image.Image, file: Image.Image) -> Image.Image:
    """An image turned upright as its file says, in L or RGB, with transparency on white.

    The file must be loaded: Pillow transposes TIFFs while loading, and then resets the orientation.
    """
    turn = None
    # The image may be intact even if its metadata are damaged.
    with contextlib.suppress(Exception):
        turn = TRANSPOSITIONS.get(file.getexif().get(_EXIF_ORIENTATION, 1))
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
    factor = max(int(scale / REDUCING_GAP), 1)
    rows = max(_STRIP_PIXELS // ((right - left) * factor), 1) * factor
    strips = []
    for start in range(top, bottom, rows):
        strip = image.crop((left, start, right, min(start + rows, bottom)))
        strips.append(to_plain_mode(strip, options.bit_depth).reduce(factor))
    reduced = Image.new(strips[0].mode, (strips[0].width, sum(strip.height for strip in strips)))
    for i, strip in enumerate(strips):
        reduced.paste(strip, (0, i * (rows // factor)))
    return reduced


def to_plain_mode(image: Image.Image, bit_depth: int) -> Image.Image:
    """Converts to L, RGB or RGBA, which can be scaled."""
    if image.mode.startswith("I"):  # 16 bits. `convert` would clip them to 8.
        levels = np.asarray(image)
        if image.mode == "I" and not ((levels >= 0) & (levels < 2**16)).all():
            raise ImageError("32-bit integer pixels, whose range is unknown")
        gray = Image.fromarray(scale_levels(levels, bit_depth))
        if isinstance(transparent := image.info.get("transparency"), int):
            is_opaque = np.where(levels != transparent, 255, 0).astype(np.uint8)
            gray.putalpha(Image.fromarray(is_opaque))
            return gray.convert("RGBA")
        return gray
    if image.mode == "F":
        raise ImageError("floating-point pixels, whose range is unknown")
    if image.mode == "La":  # Gray multiplied by its alpha.
        image = image.convert("LA")
    if image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def scale_levels(levels: np.ndarray, bit_depth: int) -> np.ndarray:
    """Scales integer levels of `bit_depth` bits to uint8. Larger levels become white."""
    scaled = levels.astype(np.float64) * (255 / (2**bit_depth - 1))
    levels_8bit: np.ndarray = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    return levels_8bit


def has_deep_colors(image: Image.Image) -> bool:
    """Whether an unloaded image has 16-bit colors, as PNG and TIFF may."""
    arguments = [tile.args for tile in getattr(image, "tile", [])]
    unpackers = [found if isinstance(found, str) else str(found[0]) for found in arguments]
    return bool(unpackers) and all(
        name == _DEEP_GRAY or _DEEP_COLORS.fullmatch(name) for name in unpackers
    )


def scale_deep_colors(image: Image.Image, bit_depth: int) -> None:
    """Loads 16-bit colors with all their bits, in place: Pillow would keep their high bytes.

    Does nothing where these suffice: if colors use 16 bits and none stands for transparency.
    """
    transparent = image.info.get("transparency")
    if not has_deep_colors(image) or (bit_depth == 16 and transparent is None):
        return
    alpha = Image.new("L", image.size, 255) if transparent is not None else None
    for box, levels in iterate_levels(image):
        scaled = scale_levels(levels, bit_depth)
        if levels.shape[2] == 4:  # Alpha has all bits, whatever the colors have.
            scaled[..., 3] = levels[..., 3] >> 8
        image.paste(Image.fromarray(scaled), box)
        if alpha is not None:
            is_opaque = (levels != np.array(transparent, np.uint16)).any(axis=-1)
            alpha.paste(Image.fromarray(np.where(is_opaque, 255, 0).astype(np.uint8)), box)
    if alpha is not None:
        del image.info["transparency"]
        image.putalpha(alpha)


def iterate_levels(image: Any) -> Iterator[tuple[tuple[int, int, int, int], np.ndarray]]:
    """Boxes of an image with 16-bit colors, from the top, and their levels uint16 [h, w, C]."""
    file = image.fp
    is_gray = image.tile[0].args == _DEEP_GRAY
    image.load()  # One byte of each color. The others take a second pass.
    file.seek(0)
    with Image.open(file, formats=(image.format,)) as low:
        low.tile = [tile._replace(args=_take_other_byte(tile.args)) for tile in low.tile]
        rows = max(_STRIP_PIXELS // image.width, 1)
        for top in range(0, image.height, rows):
            box = (0, top, image.width, min(top + rows, image.height))
            high_bytes, low_bytes = (np.asarray(part.crop(box)) for part in (image, low))
            if is_gray:
                low_bytes = low_bytes[..., _LOW_BYTES]
            yield box, high_bytes * np.uint16(256) + low_bytes


def _take_other_byte(arguments: Any) -> Any:
    """The arguments with which a tile's decoder takes the other byte of each color."""
    if not isinstance(arguments, str):
        return _take_other_byte(arguments[0]), *arguments[1:]
    if arguments == _DEEP_GRAY:
        return "RGBA"
    return _DEEP_COLORS.sub(lambda found: found[1] + _OTHER_BYTE[found[2]], arguments)
