"""Labeling in the browser with a simulated person: accuracy over the number of answers.

python -m experiments.studies.labeling --data FOLDER

FOLDER has one folder per class. For each start, 300 photos (with all of their near-copies) are kept
for testing and all others have no label. The person answers with the true class of each suggested
photo. Three orders of photos with the same number of answers are compared.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from cls_jax.photos.features.accuracy import MIN_CHECKS, choose_to_check, correct_estimate
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.extract import FrozenFeatures
from cls_jax.photos.features.graph import NUM_NEIGHBORS, build_graph
from cls_jax.photos.features.heads import INSTANT_C, fit_head
from cls_jax.photos.features.labels import InferredLabels, label_images
from cls_jax.photos.features.near_copies import group_near_copies
from cls_jax.photos.features.neighbors import find_neighbors, normalize_rows
from cls_jax.photos.features.propagation import Propagation
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import Answers
from cls_jax.photos.labeling.session import Change, Features, Session
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
    """Writes the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of class folders")
    parser.add_argument("--seeds", default="100,101,102,103", help="comma-separated seeds")
    parser.add_argument("--output", default="experiments/results/labeling.md")
    arguments = parser.parse_args()
    photos = open_photos(arguments.data)
    pools = [draw_pool(photos, int(seed)) for seed in arguments.seeds.split(",")]
    rows = []
    for name, choose in ORDERS.items():
        # Start × budget × (held-out, proposals, estimate, classes seen).
        outcomes = np.array([measure(pool, choose) for pool in pools])
        for column, what in enumerate(("held-out", "proposals", "estimated", "classes")):
            cells = [grid.describe_mean(outcomes[:, i, column]) for i in range(len(_BUDGETS))]
            rows.append([name, what, *cells])
    header = ["order", "figure", *(f"{budget} answers" for budget in _BUDGETS)]
    text = f"{grid.describe_provenance()}\n{grid.format_table(header, rows)}\n"
    descriptors = normalize_rows(photos.frozen.descriptors)
    text += f"\n{measure_delay(descriptors, photos.truth)}\n"
    for measure_one, when in ((measure_interval, ""), (measure_checks, " after 20 checks")):
        found = np.array([measure_one(photos, int(s)) for s in arguments.seeds.split(",")])
        text += f"\nExpected accuracy, truth and ends of the interval{when}:\n\n{found.round(1)}\n"
    outcomes = np.array([measure_checked(photos, int(s)) for s in arguments.seeds.split(",")])
    text += f"\nPhotos to look at, and right ones then:\n\n{outcomes.round(1)}\n"
    grid.write_output(arguments.output, text)


def draw_pool(photos: Photos, seed: int) -> Pool:
    """Draws the test photos of a start."""
    frozen, labels = photos.frozen._replace(others=()), photos.truth  # As the page has them.
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
) -> tuple[np.ndarray, FrozenFeatures, np.ndarray, np.ndarray]:
    """Rows of 400 random photos, their features and classes, and the page's order of asking."""
    rows = np.sort(rng.permutation(len(photos.truth))[:_NUM_DRAWN])
    frozen = photos.frozen.convert(lambda array: array[rows])
    coverage = Coverage(build_graph(frozen.descriptors))
    order, _ = coverage.choose(np.ones(len(rows), bool), max(_INTERVAL_BUDGETS))
    return rows, frozen, photos.truth[rows], order


def measure_interval(photos: Photos, seed: int) -> list[tuple[float, ...]]:
    """The expected accuracy of 400 random photos, the truth, and the ends of the interval.

    In percent, for each of `_INTERVAL_BUDGETS` in the page's order. NaN while it is too early.
    """
    rows, frozen, truth, order = _draw(photos, np.random.default_rng(seed))
    outcomes = []
    for budget in _INTERVAL_BUDGETS:
        labels = np.full(len(rows), -1)
        seen, labels[order[:budget]] = np.unique(truth[order[:budget]], return_inverse=True)
        inferred = label_images(frozen, labels, len(seen))
        right = 100 * float(np.mean((seen[inferred.labels] == truth)[labels < 0]))
        found = inferred.estimate
        assert found is not None, "there are other photos"
        ends = found.accuracy, found.accuracy_low, found.accuracy_high
        estimated, low, high = (float("nan") if end is None else end for end in ends)
        outcomes.append((estimated, right, low, high))
    return outcomes


def measure_checked(photos: Photos, seed: int) -> list[tuple[float, ...]]:
    """What is reached by looking at the photos that the page asks for, among 400 random ones.

    For 40 and 80 answers in the page's order and each of `_TARGETS`: the number of photos to look
    at, and the percentage of all 400 that are right once these are.
    """
    rows = np.sort(np.random.default_rng(seed).permutation(len(photos.truth))[:_NUM_DRAWN])
    frozen = photos.frozen._replace(others=()).convert(lambda array: array[rows])
    truth = photos.truth[rows]
    coverage = Coverage(build_graph(frozen.descriptors))
    order, _ = coverage.choose(np.ones(len(rows), bool), max(_INTERVAL_BUDGETS))
    outcomes: list[tuple[float, ...]] = []
    for budget in _INTERVAL_BUDGETS[1:]:
        labels = np.full(len(rows), -1)
        seen, labels[order[:budget]] = np.unique(truth[order[:budget]], return_inverse=True)
        inferred = label_images(frozen, labels, len(seen))
        is_right = seen[inferred.labels] == truth
        others = np.flatnonzero(labels < 0)
        confidences = inferred.probabilities[others].max(axis=1).astype(np.float64)
        for target in _TARGETS:
            checked = others[choose_to_check(confidences, budget, target / 100)]
            share = 100 * float(np.mean(is_right | np.isin(np.arange(len(rows)), checked)))
            outcomes.append((len(checked), share))
    return outcomes


def measure_checks(photos: Photos, seed: int) -> list[tuple[float, ...]]:
    """The same after 20 of the other photos, drawn at random, were checked and learned as well."""
    rng = np.random.default_rng(seed)
    rows, frozen, truth, order = _draw(photos, rng)
    outcomes = []
    for budget in _INTERVAL_BUDGETS:
        known = order[:budget]
        names, before = _infer(frozen, truth, known)
        checked = rng.choice(np.setdiff1d(np.arange(len(rows)), known), MIN_CHECKS, replace=False)
        guessed = before.probabilities[checked]
        is_right = names[guessed.argmax(axis=1)] == truth[checked]
        names, after = _infer(frozen, truth, np.append(known, checked))
        is_open = np.setdiff1d(np.arange(len(rows)), [*known, *checked])
        right = 100 * float(np.mean((names[after.labels] == truth)[is_open]))
        assert after.estimate is not None, "there are other photos"
        found = correct_estimate(after.estimate, is_right.tolist(), guessed.max(axis=1).tolist())
        ends = found.accuracy, found.accuracy_low, found.accuracy_high
        estimated, low, high = (float("nan") if end is None else end for end in ends)
        outcomes.append((estimated, right, low, high))
    return outcomes


def _infer(
    frozen: FrozenFeatures, truth: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, InferredLabels]:
    """The classes of the known photos, and the labels inferred from these."""
    labels = np.full(len(truth), -1)
    names, labels[known] = np.unique(truth[known], return_inverse=True)
    return names, label_images(frozen, labels, len(names))


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


if __name__ == "__main__":
    grid.run_main(main)
