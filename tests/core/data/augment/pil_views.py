"""The views as the released PyTorch code computes them: one image at a time, with Pillow.

Written from that code, not from ours: `authors` from the CLS release, `torchssl` from TorchSSL.
Random numbers are decoded from the same uniforms as in `cls_jax.data.augment.views`.
"""

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from cls_jax.data.augment.randaugment import OPS

POOL = tuple(OPS)


def to_pil(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def to_array(image: Image.Image) -> np.ndarray:
    return np.asarray(image).reshape(image.height, image.width, -1)


def apply_authors_op(name: str, image: Image.Image, level: int, sign: int) -> Image.Image:
    """One operation at a level from 1 to 10, by whole degrees and pixels."""
    strength, (width, height) = level * 0.3 / 10, image.size
    amounts = {
        "posterize": 4 + int(level * 4 / 10),
        "rotate": sign * int(level * 30 / 10),
        "shear_x": sign * strength,
        "shear_y": sign * strength,
        "solarize": 256 - int(level * 256 / 10),
        "translate_x": sign * int(strength * width),
        "translate_y": sign * int(strength * height),
    }
    return _apply(name, image, amounts.get(name, level * 0.9 / 10 + 0.05))


def apply_torchssl_op(name: str, image: Image.Image, step: int, sign: int) -> Image.Image:
    """One operation in the middle of a step, from 1 to 256, of half its interval."""
    share = (step - 0.5) / 256
    intervals = {  # From the least change to the greatest.
        "posterize": (4, 8),
        "rotate": (0, 30),
        "shear_x": (0, 0.3),
        "shear_y": (0, 0.3),
        "solarize": (256, 0),
        "translate_x": (0, 0.3 * image.width),
        "translate_y": (0, 0.3 * image.height),
    }
    low, high = intervals.get(name, (0.05, 0.95))
    amount = low + (high - low) * share
    has_sign = low == 0
    return _apply(name, image, sign * amount if has_sign else amount)


def _apply(name: str, image: Image.Image, amount: float) -> Image.Image:
    matrices = {
        "shear_x": (1, amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, amount, 1, 0),
        "translate_x": (1, 0, amount, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, amount),
    }
    if name in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[name])
    others = {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(amount),
        "color": lambda: ImageEnhance.Color(image).enhance(amount),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(amount),
        "equalize": lambda: ImageOps.equalize(image),
        "identity": lambda: image,
        "posterize": lambda: ImageOps.posterize(image, int(amount)),
        "rotate": lambda: image.rotate(amount),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(amount),
        "solarize": lambda: ImageOps.solarize(image, amount),
    }
    return others[name]()


def flip_and_shift(image: np.ndarray, uniforms: np.ndarray, flip: bool, shift: int) -> np.ndarray:
    """The weak view by padding and cropping."""
    height, width = image.shape[:2]
    if flip and uniforms[0] < 0.5:
        image = image[:, ::-1]
    top, left = (int(u * (2 * shift + 1)) for u in uniforms[1:])
    padded = np.pad(image, [(shift, shift), (shift, shift), (0, 0)], mode="reflect")
    return padded[top : top + height, left : left + width]


def cut_out(image: Image.Image, uniforms: np.ndarray, side: float, color: tuple) -> Image.Image:
    """A copy with a rectangle around a center."""
    width, height = image.size
    y0, x0 = (
        int(max(0, float(u) * n - side / 2)) for u, n in zip(uniforms, (height, width), strict=True)
    )
    image = image.copy()
    corners = (x0, y0, min(width, x0 + side), min(height, y0 + side))
    # Pillow does not take a color for gray images, and converts one as it converts images.
    fill = Image.new("RGB", (1, 1), color).convert(image.mode).getpixel((0, 0))
    ImageDraw.Draw(image).rectangle(corners, fill)
    return image


def make_authors_view(image: np.ndarray, uniforms: np.ndarray, shift: int, side: int, pool=POOL):
    """Flip, shift, two operations with probability one half each, a gray square."""
    result = to_pil(flip_and_shift(image, uniforms[:3], True, shift))
    for op, level, application, sign in uniforms[3:11].reshape(2, 4):
        if application < 0.5:
            name, sign = pool[int(op * len(pool))], -1 if sign < 0.5 else 1
            result = apply_authors_op(name, result, 1 + int(level * 9), sign)
    return to_array(cut_out(result, uniforms[11:], side, (127, 127, 127)))


def make_torchssl_view(image: np.ndarray, uniforms: np.ndarray, shift: int, side: int, pool=POOL):
    """Three operations, a square of random side and TorchSSL's color, then flip and shift."""
    result = to_pil(image)
    for op, level, _, sign in uniforms[3:15].reshape(3, 4):
        name, sign = pool[int(op * len(pool))], -1 if sign < 0.5 else 1
        result = apply_torchssl_op(name, result, 1 + int(level * 256), sign)
    side = float(uniforms[17]) * 0.5 * result.width
    result = cut_out(result, uniforms[15:17], side, (125, 123, 114))
    return flip_and_shift(to_array(result), uniforms[:3], True, shift)
