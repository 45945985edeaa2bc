"""What is said about photos of known and of new sources, and how well it holds.

    python -m experiments.studies.sources FOLDER [LABELS …]

Photos of a folder with a subfolder for each class get 16 made sources: each has a color cast,
brightness, blur and noise of its own. In each draw, 8 of them, with random class mixtures, make up
a folder with some labels per class, and the other 8 are new. For both kinds, the accuracy that is
stated is compared with the accuracy on all other photos. No photo is in the folder and in a new
source.
"""

import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from cls_jax.data.resize import to_square
from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.extract import open_backbone
from cls_jax.photos.features.instant import fit_classifier
from cls_jax.photos.features.labels import InferredLabels, label_images
from cls_jax.photos.features.network import FrozenFeatures, open_network
from cls_jax.process import prepare_process
from experiments.studies.instant import draw_labels

_NUM_SOURCES, _NUM_KNOWN = 16, 8
_MAX_PHOTOS = 480  # The same number of each class. Each is computed once for each source.
_SHARE_KNOWN = 2 / 3  # Of the photos of each class, for the folder.
_SEEDS = range(900, 940)


def make_source(image: Image.Image, source: int) -> np.ndarray:
    """An image as a source would have taken it, uint8 [H, W, 3]."""
    rng = np.random.default_rng((source, 5))
    cast, gain = rng.normal(1, 0.15, 3), np.exp(rng.normal(0, 0.25))
    blur, noise = abs(rng.normal(0, 1.2)), abs(rng.normal(0, 10))
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(blur)), np.float32)
    pixels = pixels * gain * cast + rng.normal(0, noise, pixels.shape)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)


def compute_sources(folder: str) -> tuple[list[FrozenFeatures], np.ndarray]:
    """Features of all photos as taken by each source, and their classes, int [B]."""
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    names, classes = np.unique([file.parent.name for file in files], return_inverse=True)
    number = _MAX_PHOTOS // len(names)
    rows = [take_rows(np.flatnonzero(classes == k), number) for k in range(len(names))]
    files, truth = [files[i] for i in np.concatenate(rows)], classes[np.concatenate(rows)]
    backbone = open_backbone()
    images = [Image.fromarray(to_square(Image.open(file), backbone.image_shape)) for file in files]
    found = []
    for source in range(_NUM_SOURCES):
        pixels = np.stack([make_source(image, source) for image in images])
        found.append(open_network(backbone).extract(pixels, lambda *_: None))
        print(f"source {source + 1} of {_NUM_SOURCES}", file=sys.stderr, flush=True)
    return found, truth


def draw_sources(rng: np.random.Generator, truth: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """One of some sources for each photo, int [B]: each has a class mixture (Dirichlet 1)."""
    mixtures_SK = rng.dirichlet(np.ones(truth.max() + 1), len(sources))
    shares_SK = mixtures_SK / mixtures_SK.sum(axis=0)
    return np.array([sources[rng.choice(len(sources), p=shares_SK[:, k])] for k in truth])


def take(
    found: Sequence[FrozenFeatures], photos: np.ndarray, sources: np.ndarray
) -> FrozenFeatures:
    """Features of photos, int [n], each as its source has taken it."""
    arrays = zip(*(each.arrays for each in found), strict=True)
    stacked = [np.stack(array) for array in arrays]
    return FrozenFeatures(*(array[sources, photos] for array in stacked))


class Outcome(NamedTuple):
    """What a draw stated and what is true, in percent."""

    known: float  # The truth on other photos of the folder.
    stated: tuple[float, float, float]  # For these, with the ends of the interval.
    new: float  # The truth on photos of new sources.
    stated_new: tuple[float, float, float]
    without: float  # The truth on these where nothing was known of sources.


def measure(
    found: Sequence[FrozenFeatures], truth: np.ndarray, num_labels: int, seed: int
) -> Outcome | None:
    """One draw. None if it is too early to say something about either kind of photos."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(truth))
    parts = [order[truth[order] == k] for k in range(truth.max() + 1)]
    known = np.sort(np.concatenate([part[: int(_SHARE_KNOWN * len(part))] for part in parts]))
    new = np.setdiff1d(order, known)
    chosen = rng.permutation(_NUM_SOURCES)
    of_known = draw_sources(rng, truth[known], chosen[:_NUM_KNOWN])
    of_new = draw_sources(rng, truth[new], chosen[_NUM_KNOWN:])
    labels = draw_labels(rng, truth[known], num_labels)
    is_open, num_classes = labels < 0, int(truth.max()) + 1
    train, test = take(found, known, of_known), take(found, new, of_new)

    def predict(sources: np.ndarray | None) -> tuple[InferredLabels, float]:
        inferred = label_images(train, labels, num_classes, sources)
        p_BK = fit_classifier(None, train, inferred).predict_with_features(test)[0][0]
        return inferred, 100 * float(np.mean(p_BK.argmax(axis=1) == truth[new]))

    inferred, right_new = predict(of_known)
    estimate, figures = inferred.estimate, inferred.figures
    names = [f"accuracy_new_sources{end}" for end in ("", "_low", "_high")]
    if estimate is None or estimate.accuracy is None or names[0] not in figures:
        return None
    return Outcome(
        100 * float(np.mean((inferred.labels == truth[known])[is_open])),
        (estimate.accuracy, estimate.accuracy_low, estimate.accuracy_high),
        right_new,
        tuple(figures[name] for name in names),
        predict(None)[1],
    )


def main() -> None:
    """Prints a row for each number of labels per class."""
    prepare_process()
    found, truth = compute_sources(sys.argv[1])
    print("labels, draws: known, stated, held | new, stated, held, width | new without sources")
    for number in map(int, sys.argv[2:] or ["5", "25"]):
        outcomes = [measure(found, truth, number, seed) for seed in _SEEDS]
        told = [outcome for outcome in outcomes if outcome is not None]

        def mean(values: Iterable[float]) -> str:
            return f"{np.mean(list(values)):.1f}"

        print(
            f"{number}, {len(told)} of {len(outcomes)}: {mean(o.known for o in told)}, "
            f"{mean(o.stated[0] for o in told)}, "
            f"{mean(100 * (o.stated[1] <= o.known <= o.stated[2]) for o in told)}% | "
            f"{mean(o.new for o in told)}, {mean(o.stated_new[0] for o in told)}, "
            f"{mean(100 * (o.stated_new[1] <= o.new <= o.stated_new[2]) for o in told)}%, "
            f"{mean(o.stated_new[2] - o.stated_new[1] for o in told)} | "
            f"{mean(o.without for o in told)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
