"""What tests of the product share."""

import hashlib
import io
import itertools

import jax
import numpy as np
import pytest
from PIL import Image

from cls_jax.data.resize import ImageError
from cls_jax.models import MODELS
from cls_jax.models.weights.backbones import HUB
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.models.weights.sources import to_safetensors
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.images.decode import decode_image, open_file
from cls_jax.photos.images.files import list_images

COLORS = ("red", "green", "blue")
HUB_COMMIT = "c" * 40


def read_image(path, *shape_and_options):
    """Decodes a file."""
    with open_file(path) as file:
        return decode_image(file, *shape_and_options)


def assert_refused(content, reason):
    """The bytes of a file, or an image of Pillow, that cannot be decoded."""
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    with pytest.raises(ImageError, match=reason):
        decode_image(file, (8, 8, 3))


def place(root, name):
    """The path of a file to be written."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    return root / name


def make_folder(root, names, files=()):
    """Writes empty images, and other files by their names. Returns the root."""
    for name in names:
        place(root, name).touch()
    for name, content in dict(files).items():
        place(root, name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def write_images(root, counts, shape=(8, 8, 3)):
    """Writes so many images of noise, 0.png and so on, into each folder. Returns the root."""
    rng = np.random.default_rng(0)
    for folder, count in counts.items():
        for i, pixels in enumerate(rng.integers(0, 256, (count, *shape), np.uint8)):
            write_image(root / folder / f"{i}.png", pixels)
    return root


def write_colors(root, labeled, unlabeled, test, size):
    """Writes so many images of each of three colors, red0.png and so on. Returns the root."""
    rng, counts = (
        np.random.default_rng(0),
        {"labeled": labeled, "unlabeled": unlabeled, "test": test},
    )
    for (part, count), (i, name) in itertools.product(counts.items(), enumerate(COLORS)):
        folder = root / part / ("" if part == "unlabeled" else name)
        for number in range(count):
            pixels = rng.integers(0, 60, (size, size, 3)) + 10
            pixels[..., i] += 160
            write_image(folder / f"{name}{number}.png", pixels)
    return root


def write_weights(path, size):
    """Random weights of a tiny network, WRN-10-2, for images of a size. Returns where."""
    entry, image = MODELS["wide_resnet"], np.zeros((1, size, size, 3), np.float32)
    model = entry.create(num_classes=1, depth=10, width=2)
    variables = jax.jit(model.init)(jax.random.key(0), image)
    path.write_bytes(to_safetensors(Weights(to_torch(variables, entry.layout))))
    return path


def cache_hub(patch, root, init, files):
    """Files, by name, of a repository "hf:…" in a cache of the hub, without a connection."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra pretrained")
    patch.setattr(constants, "HF_HUB_CACHE", str(root))
    patch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = root / f"models--{init.removeprefix(HUB).replace('/', '--')}"
    place(repository, "refs/main").write_text(HUB_COMMIT)
    for name, content in files.items():
        blob = place(repository, f"blobs/{hashlib.sha256(content).hexdigest()}")
        blob.write_bytes(content)
        place(repository, f"snapshots/{HUB_COMMIT}/{name}").symlink_to(blob)


def write_image(path, pixels, format=None):
    """Writes pixels [h, w] or [h, w, 3] from 0 to 255, and returns where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels).astype(np.uint8)).save(path, format)
    return path


def open_catalog(root, options=AUTOMATIC, **named):
    """A folder as all commands see it. No image is opened."""
    return read_catalog(root, list_images(root), options._replace(**named))


def get_labels(part):
    """Image → class of those that have one, in a part of a layout."""
    return {file.name: label for file, label in part if label}


def read_layout(root, options=AUTOMATIC, **named):
    """What is trained on of a folder."""
    return open_catalog(root, options, **named).train()
