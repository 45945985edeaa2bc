"""An image file as a person sees it, at the size a network wants."""

import os
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 100_000_000  # What a file's header may announce; decoded, 300 MB.
_MODES = {1: "L", 3: "RGB"}

# Pillow warns from 89 million pixels on; our own limit speaks for itself. Once and for all threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class ImageError(ValueError):
    """A file that cannot be read as an image; the message says why, and may lack the name."""


def read_image(path: str | os.PathLike, image_shape: tuple[int, int, int]) -> np.ndarray:
    """Decodes a file upright, on white, and scales and crops it around its centre.

    The short side is scaled to fit and what the long side has too much is cut off on both ends. Of
    an animation the first frame counts.

    Args:
        path: of a file in any format Pillow reads.
        image_shape: (H, W, C); C is 1 (grey) or 3 (RGB).

    Returns:
        uint8 [H, W, C].

    Raises:
        ImageError: if the file cannot be read, is no image, is damaged or truncated, or announces
            more than `MAX_PIXELS`.
    """
    height, width, channels = image_shape
    try:
        with Image.open(path) as image:
            _check_size(image)
            # A JPEG decodes to 1/2, 1/4 or 1/8 many times faster. Twice the size wanted keeps the
            # difference to scaling in one go below what JPEG itself loses.
            image.draft(None, (2 * max(height, width),) * 2)
            image.load()
            image = _convert(ImageOps.exif_transpose(image), _MODES[channels])
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise ImageError("not an image, or of an unknown format") from error
    # On damaged files Pillow's decoders raise whatever their parsing runs into.
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ImageError(reason) from error
    return np.asarray(image).reshape(image_shape)


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(f"{image.width} x {image.height} is more than {MAX_PIXELS:,} pixels")


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """To 8 bits in "L" or "RGB", with what is transparent on white."""
    if image.mode.startswith("I"):  # 16 bits; the high byte, as Pillow does with 16-bit colour.
        values = np.clip(np.asarray(image), 0, 65_535)
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise ImageError("floating-point pixels, whose range is unknown")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
