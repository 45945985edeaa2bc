"""The accuracy that is stated for photos of known and of new sources, and how often it holds.

    python -m experiments.studies.sources FOLDER [LABELS …] [--pattern REGEX] [--seeds FIRST END]

Photos of a folder with a subfolder for each class get 16 made sources: each has a color cast,
brightness, blur and noise of its own. In each draw, 8 of them, with random class mixtures, make up
a folder with some labels per class, and the other 8 are new. For both kinds, the accuracy that is
stated is compared with the accuracy on all other photos. No photo is in the folder and in a new
source.

With a pattern, names say the source of each photo, as with `--source-pattern`. Photos stay as they
are. Each draw puts a random half of the sources into the folder.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from cls_jax.data.resize import to_square
from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.extract import extract_features, read_backbone
from cls_jax.photos.features.infer import Inferred, infer
from cls_jax.photos.features.instant import fit_classifier
from cls_jax.photos.features.network import FrozenFeatures, open_network
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.sources import search_names
from cls_jax.process import prepare_process
from experiments.studies.instant import draw_labels

_NUM_SOURCES, _NUM_KNOWN = 16, 8
_MAX_PHOTOS = 480  # The same number of each class. Each is computed once for each source.
_SHARE_KNOWN = 2 / 3  # Of the photos of each class, for the folder.
_SEEDS = 900, 940


def make_source(image: Image.Image, source: int) -> np.ndarray:
    """An image as a source would have taken it, uint8 [H, W, 3]."""
    rng = np.random.default_rng((source, 5))
    cast, gain = rng.normal(1, 0.15, 3), np.exp(rng.normal(0, 0.25))
    blur, noise = abs(rng.normal(0, 1.2)), abs(rng.normal(0, 10))
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(blur)), np.float32)
    pixels = pixels * gain * cast + rng.normal(0, noise, pixels.shape)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)


def list_photos(folder: str) -> tuple[list[pathlib.Path], np.ndarray]:
    """The files of a folder, sorted, and their classes, int [B]: the folders they are in."""
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return files, np.unique([file.parent.name for file in files], return_inverse=True)[1]


def compute_sources(folder: str) -> tuple[list[FrozenFeatures], np.ndarray]:
    """Features of all photos as taken by each source, and their classes, int [B]."""
    files, classes = list_photos(folder)
    num_classes = classes.max() + 1
    number = _MAX_PHOTOS // num_classes
    rows = [take_rows(np.flatnonzero(classes == k), number) for k in range(num_classes)]
    files, truth = [files[i] for i in np.concatenate(rows)], classes[np.concatenate(rows)]
    backbone = read_backbone()
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


class Draw(NamedTuple):
    """Photos of known sources, which make up a folder, and of new ones."""

    train: FrozenFeatures
    truth: np.ndarray  # Their classes, int [B].
    sources: np.ndarray  # int [B]
    test: FrozenFeatures
    truth_new: np.ndarray


def draw_made(rng: np.random.Generator, found: Sequence[FrozenFeatures], truth: np.ndarray) -> Draw:
    """Photos with made sources, see `compute_sources`."""
    order = rng.permutation(len(truth))
    parts = [order[truth[order] == k] for k in range(truth.max() + 1)]
    known = np.sort(np.concatenate([part[: int(_SHARE_KNOWN * len(part))] for part in parts]))
    new = np.setdiff1d(order, known)
    chosen = rng.permutation(_NUM_SOURCES)
    of_known = draw_sources(rng, truth[known], chosen[:_NUM_KNOWN])
    of_new = draw_sources(rng, truth[new], chosen[_NUM_KNOWN:])
    train, test = take(found, known, of_known), take(found, new, of_new)
    return Draw(train, truth[known], of_known, test, truth[new])


def draw_real(
    rng: np.random.Generator, features: FrozenFeatures, truth: np.ndarray, sources: np.ndarray
) -> Draw:
    """Photos with their own sources, int [B] from 0, half of which are known."""
    num_sources = sources.max() + 1
    is_known = np.isin(sources, rng.permutation(num_sources)[: num_sources // 2])
    train, test = (
        features.convert(lambda rows, part=part: rows[part]) for part in (is_known, ~is_known)
    )
    return Draw(train, truth[is_known], sources[is_known], test, truth[~is_known])


def prepare_draws(folder: str, pattern: str | None) -> Callable[[np.random.Generator], Draw]:
    """Computes features. What is returned draws from them."""
    if pattern is None:
        found, truth = compute_sources(folder)
        return lambda rng: draw_made(rng, found, truth)
    files, truth = list_photos(folder)
    names = [file.relative_to(folder).as_posix() for file in files]
    by_name = search_names(names, pattern)
    sources = np.unique([by_name[name] for name in names], return_inverse=True)[1]
    features = extract_features(files, read_backbone())
    return lambda rng: draw_real(rng, features, truth, sources)


def measure(
    draw: Callable[[np.random.Generator], Draw], num_labels: int, seed: int
) -> Outcome | None:
    """One draw. None if it is too early to say something about either kind of photos."""
    rng = np.random.default_rng(seed)
    train, truth, of_known, test, truth_new = draw(rng)
    labels = draw_labels(rng, truth, num_labels)
    is_open, num_classes = labels < 0, int(truth.max()) + 1
    relations = Relations(train)

    def predict(sources: np.ndarray | None) -> tuple[Inferred, float]:
        inferred = infer(relations, labels, num_classes, sources)
        p_BK = fit_classifier(None, relations, inferred).predict_with_features(test)[0][0]
        return inferred, 100 * float(np.mean(p_BK.argmax(axis=1) == truth_new))

    inferred, right_new = predict(of_known)
    estimate, figures = inferred.estimate, inferred.figures
    names = [f"accuracy_new_sources{end}" for end in ("", "_low", "_high")]
    if estimate is None or estimate.accuracy is None or names[0] not in figures:
        return None
    return Outcome(
        100 * float(np.mean((inferred.labels == truth)[is_open])),
        (estimate.accuracy, estimate.accuracy_low, estimate.accuracy_high),
        right_new,
        tuple(figures[name] for name in names),
        predict(None)[1],
    )


def mean(values: Iterable[float]) -> str:
    """The mean, written with a decimal."""
    return f"{np.mean(list(values)):.1f}"


def count_held(truth: list[float], stated: list[tuple[float, float, float]]) -> str:
    """The share of the draws in which the interval holds the truth."""
    pairs = zip(truth, stated, strict=True)
    return f"{mean(100 * (low <= value <= high) for value, (_, low, high) in pairs)}%"


def describe(truth: list[float], stated: list[tuple[float, float, float]]) -> str:
    """The means of the truth and of what was stated, how often it held, and the mean width."""
    width = mean(high - low for _, low, high in stated)
    means = mean(truth), mean(each[0] for each in stated)
    return ", ".join([*means, count_held(truth, stated), width])


def main() -> None:
    """Prints a row for each number of labels per class."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("labels", type=int, nargs="*", default=[5, 25])
    parser.add_argument("--pattern")
    parser.add_argument("--seeds", type=int, nargs=2, default=_SEEDS, metavar=("FIRST", "END"))
    arguments = parser.parse_args()
    prepare_process()
    draw = prepare_draws(arguments.folder, arguments.pattern)
    print(
        "labels, draws: known, stated, held, width | new, stated, held, width, held by the figure "
        "for known | new without sources"
    )
    for number in arguments.labels:
        outcomes = [measure(draw, number, seed) for seed in range(*arguments.seeds)]
        told = [outcome for outcome in outcomes if outcome is not None]
        stated, new = [o.stated for o in told], [o.new for o in told]
        print(
            f"{number}, {len(told)} of {len(outcomes)}: "
            f"{describe([o.known for o in told], stated)} | "
            f"{describe(new, [o.stated_new for o in told])}, {count_held(new, stated)} | "
            f"{mean(o.without for o in told)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
