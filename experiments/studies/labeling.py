"""Labeling in the browser with a simulated person: accuracy over the number of answers.

python -m experiments.studies.labeling --data FOLDER [--parts orders,delay,accuracy]

FOLDER has one folder per class. The person answers with the true class of each suggested photo. For
"orders", 300 photos (with all of their near-copies) are kept for testing for each seed, and three
orders of the others with the same number of answers are compared. For "accuracy", 400 photos are
drawn for each seed: how often the interval of the expected accuracy holds the truth, and what is
reached by looking at the photos that the page asks for.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from cls_jax.photos.features.accuracy import (
    MIN_CHECKS,
    Estimate,
    choose_to_check,
    correct_estimate,
)
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.graph import NUM_NEIGHBORS, build_graph
from cls_jax.photos.features.heads import INSTANT_C, fit_head
from cls_jax.photos.features.labels import label_images
from cls_jax.photos.features.near_copies import group_near_copies
from cls_jax.photos.features.neighbors import find_neighbors, normalize_rows
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.propagation import Propagation
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import Answers
from cls_jax.photos.labeling.session import NUM_ANSWERS, Change, Features, Session
from experiments.paper import grid
from experiments.studies.instant import Photos, open_photos

_NUM_TEST = 300
_BUDGETS = (10, 30, 50, 100)
_NUM_LARGE, _NUM_TIMED = 5000, 50
_TARGETS = (90, 95, 98)  # Percent.
_NUM_DRAWN, _INTERVAL_BUDGETS = 400, (20, 40, 80)


class Pool(NamedTuple):
    """The photos of one start."""

    features: np.ndarray  # float32 [B, C], unit-length descriptors of those without a label.
    labels: np.ndarray  # int [B], their true classes.
    frozen: FrozenFeatures  # Input of the instant classifier.
    test_inputs: np.ndarray  # float16 [T, C], inputs of its head for the test photos.
    test_labels: np.ndarray  # int [T].
    seed: int  # Of the start.


def main() -> None:
    """Writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of class folders")
    parser.add_argument("--seeds", default="100,101,102,103", help="comma-separated seeds")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--output", help="a .md to write (default: print)")
    arguments = parser.parse_args()
    photos = open_photos(arguments.data)
    photos = photos._replace(frozen=photos.frozen._replace(others=()))  # As the page has them.
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    parts = [PARTS[name](photos, seeds) for name in arguments.parts.split(",")]
    text = "\n\n".join([grid.describe_provenance(), *parts]) + "\n"
    if arguments.output:
        grid.write_output(arguments.output, text)
    else:
        print(text)


def compare_orders(photos: Photos, seeds: Sequence[int]) -> str:
    """A table of what three orders of the photos are worth."""
    pools = [draw_pool(photos, seed) for seed in seeds]
    rows = []
    for name, choose in ORDERS.items():
        # Start × budget × (held-out, proposals, estimate, classes seen).
        outcomes = np.array([measure(pool, choose) for pool in pools])
        for column, what in enumerate(("held-out", "proposals", "estimated", "classes")):
            cells = [grid.describe_mean(outcomes[:, i, column]) for i in range(len(_BUDGETS))]
            rows.append([name, what, *cells])
    return grid.format_table(["order", "figure", *(f"{n} answers" for n in _BUDGETS)], rows)


def describe_delay(photos: Photos, seeds: Sequence[int]) -> str:
    """A sentence about the time from an answer to the next suggestions."""
    return measure_delay(normalize_rows(photos.frozen.descriptors), photos.truth)


def describe_accuracy(photos: Photos, seeds: Sequence[int]) -> str:
    """Tables of the expected accuracy and its interval, and of the photos to look at.

    After answers in the page's order, and after 20 random photos were checked as well. For the
    photos to look at, their number, and the mean and the lowest share that is right then.
    """
    drawn = [list(_answer(photos, seed)) for seed in seeds]
    intervals, lists = [], []
    for part, num_checks in enumerate((0, MIN_CHECKS)):
        for i, budget in enumerate(_INTERVAL_BUDGETS):
            learned = [answered[i][part] for answered in drawn]
            ends = np.array([measure_interval(one) for one in learned])
            estimated, right, low, high = ends[~np.isnan(ends[:, 0])].T
            error, is_held = estimated - right, (low <= right) & (right <= high)
            means = (right.mean(), error.mean(), np.abs(error).mean(), (high - low).mean())
            answers, held = f"{budget} + {num_checks}", f"{is_held.sum()} of {len(is_held)}"
            intervals.append([answers, *(f"{mean:.1f}" for mean in means), held])
            reached = np.array([measure_lists(one) for one in learned])
            cells = [
                f"{numbers.mean():.0f}: {shares.mean():.1f}%, {shares.min():.1f}%"
                for numbers, shares in np.moveaxis(reached, 0, 2)
            ]
            lists.append([answers, *cells])
    header = ["answers", "accuracy", "error", "absolute error", "width", "interval holds"]
    targets = [f"for {target}%" for target in _TARGETS]
    tables = [grid.format_table(header, intervals), grid.format_table(["answers", *targets], lists)]
    return "\n\n".join(tables)


def draw_pool(photos: Photos, seed: int) -> Pool:
    """Draws the test photos of a start."""
    frozen, labels = photos.frozen, photos.truth
    order = np.random.default_rng(seed).permutation(len(labels))
    is_test = np.isin(photos.groups[order], photos.groups[order[:_NUM_TEST]])
    test, rest = order[is_test], np.sort(order[~is_test])
    kept = frozen.convert(lambda rows: rows[rest])
    features = normalize_rows(kept.descriptors)
    return Pool(features, labels[rest], kept, frozen.pooled[test], labels[test], seed)


def measure(pool: Pool, choose: Callable[[Pool, int], np.ndarray]) -> list[tuple[float, ...]]:
    """For each budget: accuracies on test images, of proposals, and estimated, and classes seen."""
    graph = build_graph(pool.features)
    num_classes = int(pool.labels.max()) + 1
    outcomes = []
    for budget in _BUDGETS:
        chosen = choose(pool, budget)
        propagation = Propagation(graph, group_near_copies(pool.frozen))
        propagation.add_classes(num_classes)
        propagation.update({int(i): int(pool.labels[i]) for i in chosen})
        probabilities = propagation.compute_probabilities()
        is_right = (probabilities.argmax(axis=1) == pool.labels)[propagation.labels < 0]
        held_out, estimated = fit_and_score(pool, propagation.labels)
        num_seen = len(np.unique(pool.labels[chosen]))
        outcomes.append((held_out, 100 * is_right.mean(), estimated, num_seen))
    return outcomes


def fit_and_score(pool: Pool, labels: np.ndarray) -> tuple[float, float]:
    """Accuracy in percent of a classifier with these labels, -1 where there is none.

    Also the page's estimate for the photos without a label, NaN while it is too early to say.
    """
    num_classes = int(pool.labels.max()) + 1
    inferred, inputs = label_images(pool.frozen, labels, num_classes), pool.frozen.pooled
    head = fit_head(inputs, inferred.labels, num_classes, INSTANT_C, inferred.sample_weights)
    right = 100 * float(np.mean(head.predict(pool.test_inputs) == pool.test_labels))
    estimated = inferred.estimate.accuracy if inferred.estimate else None
    return right, float("nan") if estimated is None else estimated


def _draw(
    photos: Photos, rng: np.random.Generator
) -> tuple[FrozenFeatures, np.ndarray, np.ndarray]:
    """400 random photos: features, classes, and the order in which the page asks for them."""
    rows = np.sort(rng.permutation(len(photos.truth))[:_NUM_DRAWN])
    frozen = photos.frozen.convert(lambda array: array[rows])
    coverage = Coverage(build_graph(frozen.descriptors))
    order, _ = coverage.choose(np.ones(len(rows), bool), max(_INTERVAL_BUDGETS))
    return frozen, photos.truth[rows], order


class _Learned(NamedTuple):
    """What a session knows after some answers about B photos."""

    probabilities: np.ndarray  # float32 [B, K].
    is_right: np.ndarray  # Whether the most probable class is the true one, bool [B].
    is_open: np.ndarray  # Whether it has no answer, bool [B].
    estimate: Estimate


def _learn(frozen: FrozenFeatures, truth: np.ndarray, known: np.ndarray) -> _Learned:
    """Infers labels from the true classes of the known photos."""
    labels = np.full(len(truth), -1)
    names, labels[known] = np.unique(truth[known], return_inverse=True)
    inferred = label_images(frozen, labels, len(names))
    assert inferred.estimate is not None, "there are other photos"
    is_right = names[inferred.probabilities.argmax(axis=1)] == truth
    return _Learned(inferred.probabilities, is_right, labels < 0, inferred.estimate)


def _answer(photos: Photos, seed: int) -> Iterator[tuple[_Learned, _Learned]]:
    """Before and after 20 random photos, for each of `_INTERVAL_BUDGETS` in the page's order.

    The classifier learns after every ten answers. It guesses each random photo before.
    """
    rng = np.random.default_rng(seed)
    frozen, truth, order = _draw(photos, rng)
    for budget in _INTERVAL_BUDGETS:
        known = order[:budget]
        before = learned = _learn(frozen, truth, known)
        checked = rng.choice(np.flatnonzero(learned.is_open), MIN_CHECKS, replace=False)
        is_right: list[bool] = []
        confidences: list[float] = []
        for part in np.split(checked, range(NUM_ANSWERS, MIN_CHECKS, NUM_ANSWERS)):
            is_right += learned.is_right[part].tolist()
            confidences += learned.probabilities[part].max(axis=1).tolist()
            known = np.append(known, part)
            learned = _learn(frozen, truth, known)
        estimate = correct_estimate(learned.estimate, is_right, confidences)
        yield before, learned._replace(estimate=estimate)


def measure_interval(learned: _Learned) -> tuple[float, ...]:
    """The expected accuracy, the truth, and the ends of the interval, in percent.

    NaN while it is too early.
    """
    found = learned.estimate
    right = 100 * float(np.mean(learned.is_right[learned.is_open]))
    ends = found.accuracy, found.accuracy_low, found.accuracy_high
    estimated, low, high = (float("nan") if end is None else end for end in ends)
    return estimated, right, low, high


def measure_lists(learned: _Learned) -> list[tuple[float, float]]:
    """What is reached by looking at the photos that the page asks for, for each of `_TARGETS`.

    Their number, and the percentage of all photos that are right once these are.
    """
    others = np.flatnonzero(learned.is_open)
    confidences = learned.probabilities[others].max(axis=1).astype(np.float64)
    num_right = len(learned.is_open) - len(others)
    reached = []
    for target in _TARGETS:
        chosen = choose_to_check(confidences, num_right, target / 100, learned.estimate)
        is_right = learned.is_right.copy()
        is_right[others[chosen]] = True
        reached.append((float(len(chosen)), 100 * float(np.mean(is_right))))
    return reached


def measure_delay(features: np.ndarray, labels: np.ndarray) -> str:
    """A sentence about the time from an answer to the next suggestions with 5,000 images."""
    rng = np.random.default_rng(0)
    rows = rng.integers(len(features), size=_NUM_LARGE)
    noisy = features[rows] + rng.normal(0, 0.005, (_NUM_LARGE, features.shape[1]))
    with tempfile.TemporaryDirectory() as folder:
        root, files = pathlib.Path(folder), [f"{i}.jpg" for i in range(_NUM_LARGE)]
        for name in files:
            (root / name).touch()
        session = Session(root, files, Answers(root / LABELS_CSV, files))
        rows_BC = normalize_rows(noisy)
        frozen = FrozenFeatures(rows_BC, rows_BC, rows_BC[:, :0])
        ready = Features(np.arange(_NUM_LARGE), frozen)
        session.load(lambda on_progress: ready)
        seconds, start_cpu = [], time.process_time()
        for _ in range(_NUM_TIMED):
            image = views.describe(session)["next"][0]["image"]
            label = session.add_class(str(labels[rows[image]]))
            start = time.perf_counter()
            session.decide([Change(image, "label", label, 0)], "study")
            views.describe(session)
            seconds.append(time.perf_counter() - start)
        cpu = (time.process_time() - start_cpu) / _NUM_TIMED
    return (
        f"From an answer to the next suggestions, {_NUM_LARGE:,} images, {_NUM_TIMED} answers: "
        f"median {np.median(seconds):.2f} s, at most {max(seconds):.2f} s, {cpu:.2f} s of "
        "processor time."
    )


def choose_by_coverage(pool: Pool, num_answers: int) -> np.ndarray:
    """The suggestions of the page."""
    coverage = Coverage(build_graph(pool.features))
    return coverage.choose(np.ones(len(pool.labels), bool), num_answers)[0]


def choose_typical(pool: Pool, num_answers: int) -> np.ndarray:
    """From each of as many k-means clusters as answers, the image with the nearest neighbors."""
    clusters = KMeans(num_answers, n_init=1, random_state=pool.seed).fit_predict(pool.features)
    density = find_neighbors(pool.features, NUM_NEIGHBORS)[1].mean(axis=1)
    members = (np.flatnonzero(clusters == k) for k in range(num_answers))
    return np.array([part[density[part].argmax()] for part in members])


def choose_randomly(pool: Pool, num_answers: int) -> np.ndarray:
    """The first photos of a random order."""
    return np.random.default_rng(pool.seed).permutation(len(pool.labels))[:num_answers]


ORDERS = {"suggested": choose_by_coverage, "k-means": choose_typical, "random": choose_randomly}

PARTS: dict[str, Callable[[Photos, Sequence[int]], str]] = {
    "orders": compare_orders,
    "delay": describe_delay,
    "accuracy": describe_accuracy,
}


if __name__ == "__main__":
    grid.run_main(main)
