"""How many simulated near-copies are found, and how many different photos are taken for some.

    python -m experiments.studies.near_copies FOLDER

For 100 photos of a folder of class folders, it makes variants: compressed, resized, cropped,
noisy, brighter, as the next photo of a burst ("burst"), and as one of a moving camera ("harsh").
For the whole folder with one variant of each, and for few photos with all variants but the harsh
ones, it prints the share of pairs of one photo that are in one group, the share of images in a
group with another photo, and the size of the largest group. Then half of the other photos and all
variants are held out: it prints the share that are taken for near-copies of the rest.
"""

import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from cls_jax.photos.features.copies import find_copies
from cls_jax.photos.features.extract import concatenate_features, extract_features, read_backbone
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.images.files import read_ahead
from cls_jax.process import prepare_process

_NUM_PHOTOS = 100
_FEW = (5, 20, 40, 100)
_SEED = 0
_JPEG_QUALITY = 85
_QUALITIES = {"compressed": 40}
_PIXELS = 64

Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def crop(share: float) -> Change:
    """Cuts out a part with this share of the height and width, anywhere."""

    def change(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        width, height = int(image.width * share), int(image.height * share)
        left = int((image.width - width) * rng.random())
        top = int((image.height - height) * rng.random())
        return image.crop((left, top, left + width, top + height))

    return change


def add_noise(deviation: float) -> Change:
    """Adds normal noise, in gray levels."""

    def change(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        pixels = np.asarray(image) + rng.normal(0, deviation, (*image.size[::-1], 3))
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    return change


def brighten(most: float) -> Change:
    """Makes it brighter or darker by at most this share."""
    return lambda image, rng: ImageEnhance.Brightness(image).enhance(1 + rng.uniform(-most, most))


def rotate(most: float) -> Change:
    """Rotates by at most so many degrees, without the empty corners."""

    def change(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        turned = image.rotate(rng.uniform(-most, most), Image.Resampling.BICUBIC)
        border = int(0.035 * image.width), int(0.035 * image.height)
        return turned.crop((*border, image.width - border[0], image.height - border[1]))

    return change


def resize(share: float) -> Change:
    """Scales height and width."""
    return lambda image, _: image.resize((int(image.width * share), int(image.height * share)))


VARIANTS: dict[str, list[Change]] = {
    "resized": [resize(2 / 3)],
    "cropped": [crop(0.9)],
    "compressed": [],
    "mirrored": [lambda image, _: ImageOps.mirror(image)],
    "turned": [rotate(3)],
    "noisy": [add_noise(10)],
    "brighter": [brighten(0.1)],
    "mild": [crop(0.96), add_noise(3), brighten(0.07)],
    "burst": [crop(0.95), rotate(2), add_noise(4), brighten(0.1)],
    "harsh": [crop(0.85), rotate(5), add_noise(8), brighten(0.25)],
}


def rate(tag: str, features: FrozenFeatures, photos: np.ndarray) -> None:
    """Prints how well the groups are those of `photos`, int [B]."""
    groups = Relations(features).copies
    pairs = {(photo, group) for photo, group in zip(photos, groups, strict=True)}
    together = sum(_count_pairs(groups[photos == photo]) for photo in np.unique(photos))
    all_pairs = _count_pairs(photos)
    is_mixed = np.bincount([group for _, group in pairs], minlength=groups.max() + 1) > 1
    found = f"{together / all_pairs:6.1%}" if all_pairs else "     –"
    print(
        f"{tag:32} {found} {is_mixed[groups].mean():6.1%} {np.bincount(groups).max():4}", flush=True
    )


def read_pictures(paths: Sequence[pathlib.Path]) -> np.ndarray:
    """Small images of files, uint8 [B, 64, 64, 3]."""
    batches = read_ahead([str(path) for path in paths], (_PIXELS, _PIXELS, 3), len(paths))
    return np.concatenate([batch.images for batch in batches])


def rate_held_out(
    originals: FrozenFeatures,
    pictures: np.ndarray,
    chosen: np.ndarray,
    variants: dict[str, FrozenFeatures],
    changed: dict[str, np.ndarray],
) -> None:
    """Prints how many held-out images are taken for near-copies of training images.

    Of the photos that are not `chosen`, half are held out, and have no near-copy in the rest but
    those that the folder has.
    """
    others = np.setdiff1d(np.arange(len(pictures)), chosen)
    held_out = np.random.default_rng(_SEED).permutation(others)[: len(others) // 2]
    train = np.setdiff1d(np.arange(len(pictures)), held_out)
    relations = Relations(originals.convert(lambda table: table[train]))
    rest = originals.convert(lambda table: table[held_out])
    found = find_copies(relations, pictures[train], rest, pictures[held_out].__getitem__)
    print(f"{'held out, alarms':32} {(found >= 0).mean():6.1%}", flush=True)
    for name, features in variants.items():
        found = find_copies(relations, pictures[train], features, changed[name].__getitem__)
        is_found = found == np.searchsorted(train, chosen)
        print(f"{f'held out, {name}':32} {is_found.mean():6.1%}", flush=True)


def _count_pairs(names: np.ndarray) -> int:
    sizes = np.unique(names, return_counts=True)[1]
    return int((sizes * (sizes - 1)).sum())


def main() -> None:
    """Makes the variants, and rates the groups."""
    prepare_process()
    files = sorted(path for path in pathlib.Path(sys.argv[1]).rglob("*") if path.is_file())
    rng, network = np.random.default_rng(_SEED), read_backbone()
    chosen = np.sort(rng.choice(len(files), _NUM_PHOTOS, replace=False))
    originals = extract_features(files, network)
    variants, pictures = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in VARIANTS.items():
            paths = [pathlib.Path(folder, f"{name}{i}.jpg") for i in chosen]
            for i, path in zip(chosen, paths, strict=True):
                image = Image.open(files[i]).convert("RGB")
                for change in changes:
                    image = change(image, rng)
                image.save(path, quality=_QUALITIES.get(name, _JPEG_QUALITY))
            variants[name] = extract_features(paths, network)
            pictures[name] = read_pictures(paths)
    rate_held_out(originals, read_pictures(files), chosen, variants, pictures)
    everything = np.arange(len(files))
    rate("folder", originals, everything)
    for name, features in variants.items():
        both = concatenate_features([originals, features])
        rate(f"folder and {name}", both, np.append(everything, chosen))
    for number in _FEW:
        rows = slice(number)
        parts = [originals.convert(lambda table, rows=rows: table[chosen[rows]])]
        parts += [
            features.convert(lambda table, rows=rows: table[rows])
            for name, features in variants.items()
            if name != "harsh"
        ]
        rate(
            f"{number} photos, all variants",
            concatenate_features(parts),
            np.tile(chosen[rows], len(parts)),
        )


if __name__ == "__main__":
    main()
