"""Labeling in the browser with a simulated person: accuracy over the number of answers.

python -m experiments.studies.labeling --data FOLDER [--parts orders,delay,accuracy]

FOLDER has one folder per class. The person answers with the true class of each suggested photo. For
"orders", 300 photos (with all of their near-copies) are kept for testing for each seed, and three
orders of the others with the same number of answers are compared. For "accuracy", 400 photos are
drawn for each seed, with --few-classes of two to five of the classes: how often the interval of the
expected accuracy holds the truth, and what is reached by looking at the photos that the page asks
for. With "made" instead of a folder, features are drawn, too, for each seed of another kind.
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
    find_sure,
)
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.graph import NUM_NEIGHBORS, Propagation, build_graph
from cls_jax.photos.features.heads import INSTANT_C, fit_head
from cls_jax.photos.features.infer import infer
from cls_jax.photos.features.neighbors import find_neighbors, normalize_rows
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import LAST, Relations
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import Answers
from cls_jax.photos.labeling.changes import Change
from cls_jax.photos.labeling.known import Features
from cls_jax.photos.labeling.proposals import NUM_ANSWERS
from cls_jax.photos.labeling.session import Session
from experiments.paper import grid
from experiments.studies.instant import Photos, open_photos

_NUM_TEST = 300
_BUDGETS = (10, 30, 50, 100)
_NUM_LARGE, _NUM_TIMED = 5000, 50
_TARGETS = (90, 95, 98)  # Percent.
_NUM_DRAWN, _INTERVAL_BUDGETS = 400, (20, 40, 80)
_FEW_CLASSES = 2, 6  # At least, and fewer than.
_ACCURACY = "accuracy"
MADE, _NUM_MADE = "made", 500


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
    names = [*PARTS, _ACCURACY]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help='folder of class folders, or "made"')
    parser.add_argument("--few-classes", action="store_true", help="draw two to five classes")
    parser.add_argument("--seeds", default="100,101,102,103", help="comma-separated seeds")
    parser.add_argument("--parts", default=",".join(names), help=f"some of {', '.join(names)}")
    parser.add_argument("--output", help="a .md to write (default: print)")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    if arguments.data == MADE:
        parts = [describe_accuracy([make_photos(seed) for seed in seeds], seeds)]
    else:
        photos = open_photos(arguments.data, has_partner=False)  # As the page has them.
        drawn = [draw_photos(photos, seed, arguments.few_classes) for seed in seeds]
        parts = [
            describe_accuracy(drawn, seeds) if name == _ACCURACY else PARTS[name](photos, seeds)
            for name in arguments.parts.split(",")
        ]
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


def describe_accuracy(drawn: Sequence[Photos], seeds: Sequence[int]) -> str:
    """Tables of the expected accuracy and its interval, and of the photos to look at.

    After answers in the page's order, and after 20 random photos were checked as well. For the
    photos to look at, their number, the mean and the lowest share that is right then, and in how
    many draws that is the target. For photos that are 90% sure, their share of the others, and the
    mean and the lowest share of them that is right.
    """
    answered = [list(_answer(one, seed)) for one, seed in zip(drawn, seeds, strict=True)]
    intervals, lists = [], []
    for part, num_checks in enumerate((0, MIN_CHECKS)):
        for i, budget in enumerate(_INTERVAL_BUDGETS):
            learned = [each[i][part] for each in answered]
            ends = np.array([measure_interval(one) for one in learned])
            estimated, right, low, high = ends[~np.isnan(ends[:, 0])].T
            error, is_held = estimated - right, (low <= right) & (right <= high)
            means = (right.mean(), error.mean(), np.abs(error).mean(), (high - low).mean())
            answers, held = f"{budget} + {num_checks}", f"{is_held.sum()} of {len(is_held)}"
            intervals.append([answers, *(f"{mean:.1f}" for mean in means), held])
            known = [one for one in learned if one.estimate.accuracy is not None]
            reached = np.array([measure_lists(one) for one in known])
            cells = [
                f"{numbers.mean():.0f}: {shares.mean():.1f}%, {shares.min():.1f}%, "
                f"{(shares >= target).sum()} of {len(shares)}"
                for target, (numbers, shares) in zip(
                    _TARGETS, np.moveaxis(reached, 0, 2), strict=True
                )
            ]
            lists.append([answers, *cells, _describe_sure(known)])
    header = ["answers", "accuracy", "error", "absolute error", "width", "interval holds"]
    targets = [f"for {target}%" for target in _TARGETS]
    titles = ["answers", *targets, "90% sure"]
    return "\n\n".join([grid.format_table(header, intervals), grid.format_table(titles, lists)])


def _describe_sure(learned: Sequence["_Learned"]) -> str:
    """How many of the others are 90% sure, and the mean and the lowest share of them right."""
    shares, is_right = [], []
    for one in learned:
        confidences = one.probabilities[one.is_open].max(axis=1)
        is_sure = find_sure(confidences, one.estimate)
        shares.append(is_sure.mean())
        is_right += [one.is_right[one.is_open][is_sure].mean()] if is_sure.any() else []
    mean, lowest = 100 * np.mean(is_right), 100 * np.min(is_right)
    return f"{100 * np.mean(shares):.0f}%: {mean:.1f}%, {lowest:.1f}%"


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
        propagation = Propagation(graph)
        is_chosen = np.isin(np.arange(len(pool.labels)), chosen)
        propagation.update(np.where(is_chosen, pool.labels, -1), num_classes)
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
    inputs = pool.frozen.pooled
    inferred = infer(Relations(pool.frozen), labels, num_classes)
    head = fit_head(inputs, inferred.labels, num_classes, INSTANT_C, inferred.sample_weights)
    right = 100 * float(np.mean(head.predict(pool.test_inputs) == pool.test_labels))
    estimated = inferred.estimate.accuracy if inferred.estimate else None
    return right, float("nan") if estimated is None else estimated


def draw_photos(photos: Photos, seed: int, has_few_classes: bool) -> Photos:
    """400 random photos of all classes, or of two to five random ones."""
    rng = np.random.default_rng((seed, 0))
    rows = np.arange(len(photos.truth))
    if has_few_classes:
        classes = rng.choice(photos.truth.max() + 1, rng.integers(*_FEW_CLASSES), replace=False)
        rows = np.flatnonzero(np.isin(photos.truth, classes))
    rows = np.sort(rng.permutation(rows)[:_NUM_DRAWN])
    frozen = photos.frozen.convert(lambda array: array[rows])
    return photos._replace(frozen=frozen, truth=photos.truth[rows])


def make_photos(seed: int) -> Photos:
    """500 photos with features only: clusters of unequal classes, which overlap more or less.

    In some folders, some classes are drawn at random.
    """
    rng = np.random.default_rng((seed, 1))
    num_classes, num_clusters, num_inner = (
        rng.integers(2, 15),
        rng.integers(1, 5),
        rng.integers(3, 9),
    )
    shares = rng.dirichlet(np.full(num_classes, rng.choice([1.0, 3.0, 20.0])))
    truth = rng.choice(num_classes, _NUM_MADE, p=shares)
    centers = rng.uniform(0, 1.5) * rng.normal(size=(num_classes, num_clusters, num_inner))
    centers += rng.normal(size=(num_classes, 1, num_inner))
    spread = rng.uniform(0.15, 0.7) * rng.lognormal(0, 0.3, (_NUM_MADE, 1))
    inner = centers[truth, rng.integers(0, num_clusters, _NUM_MADE)]
    inner += spread * rng.normal(size=inner.shape)
    features = inner @ rng.normal(size=(num_inner, 64)) + 0.5 * rng.normal(size=(_NUM_MADE, 64))
    is_odd = rng.random(_NUM_MADE) < rng.choice([0, 0, 0.01, 0.04])
    truth = np.where(is_odd, rng.integers(0, num_classes, _NUM_MADE), truth)
    rows = features.astype(np.float32)
    frozen = FrozenFeatures(rows, rows, rows[:, :0])
    _, truth = np.unique(truth, return_inverse=True)
    return Photos(frozen, truth, np.arange(len(truth)), np.arange(0), np.arange(len(truth)))


class _Learned(NamedTuple):
    """What a session knows after some answers about B photos."""

    probabilities: np.ndarray  # float32 [B, K].
    is_right: np.ndarray  # Whether the most probable class is the true one, bool [B].
    is_open: np.ndarray  # Whether it has no answer, bool [B].
    estimate: Estimate


def _learn(relations: Relations, truth: np.ndarray, known: np.ndarray) -> _Learned:
    """Infers labels from the true classes of the known photos."""
    labels = np.full(len(truth), -1)
    names, labels[known] = np.unique(truth[known], return_inverse=True)
    inferred = infer(relations, labels, len(names))
    assert inferred.estimate is not None, "there are other photos"
    is_right = names[inferred.probabilities.argmax(axis=1)] == truth
    return _Learned(inferred.probabilities, is_right, labels < 0, inferred.estimate)


def _answer(photos: Photos, seed: int) -> Iterator[tuple[_Learned, _Learned]]:
    """Before and after 20 random photos, for each of `_INTERVAL_BUDGETS` in the page's order.

    The classifier learns after every ten answers. It guesses each random photo before.
    """
    rng = np.random.default_rng((seed, 2))
    relations, truth = Relations(photos.frozen), photos.truth
    coverage = Coverage(relations.connect(0, LAST))
    order, _ = coverage.choose(np.ones(len(truth), bool), max(_INTERVAL_BUDGETS))
    for budget in _INTERVAL_BUDGETS:
        known = order[:budget]
        before = learned = _learn(relations, truth, known)
        checked = rng.choice(np.flatnonzero(learned.is_open), MIN_CHECKS, replace=False)
        is_right: list[bool] = []
        confidences: list[float] = []
        for part in np.split(checked, range(NUM_ANSWERS, MIN_CHECKS, NUM_ANSWERS)):
            is_right += learned.is_right[part].tolist()
            confidences += learned.probabilities[part].max(axis=1).tolist()
            known = np.append(known, part)
            learned = _learn(relations, truth, known)
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
}


if __name__ == "__main__":
    grid.run_main(main)
