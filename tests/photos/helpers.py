"""What tests of the product share."""

import itertools

import numpy as np
from PIL import Image

from cls_jax.photos.images.decode import decode_image, open_file

COLORS = ("red", "green", "blue")


def read_image(path, *shape_and_options):
    """Decodes a file."""
    with open_file(path) as file:
        return decode_image(file, *shape_and_options)


def write_images(root, counts, shape=(8, 8, 3)):
    """Writes so many images of noise, 0.png and so on, into each folder. Returns the root."""
    rng = np.random.default_rng(0)
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i, pixels in enumerate(rng.integers(0, 256, (count, *shape), np.uint8)):
            Image.fromarray(pixels).save(root / folder / f"{i}.png")
    return root


def write_colors(root, labeled, unlabeled, test, size):
    """Writes so many images of each of three colors, red0.png and so on. Returns the root."""
    rng, counts = (
        np.random.default_rng(0),
        {"labeled": labeled, "unlabeled": unlabeled, "test": test},
    )
    for (part, count), (i, name) in itertools.product(counts.items(), enumerate(COLORS)):
        folder = root / part / ("" if part == "unlabeled" else name)
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = rng.integers(0, 60, (size, size, 3)) + 10
            pixels[..., i] += 160
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}{number}.png")
    return root
