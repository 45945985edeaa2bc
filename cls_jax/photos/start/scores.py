"""Metrics of predictions, for a run's result, `cls-jax evaluate` and the report.

Shape suffixes: N networks, B images, K classes, T tags.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.io import make_printable, to_csv, write_atomically
from cls_jax.photos.features.accuracy import wilson_interval
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.tags import find_right
from cls_jax.photos.folder import kinds
from cls_jax.photos.folder.kinds import TagSets, read_sets
from cls_jax.photos.folder.names import fold_class
from cls_jax.runs.folder import read_result, write_result
from cls_jax.training.evaluate import Accuracies, compute_accuracies

PER_CLASS = "per_class.csv"
NUM_BINS = 15  # At most: Guo et al., On Calibration of Modern Neural Networks, 2017.
# With few images per bin, even calibrated confidences have an error: 12% for 100 images in 15 bins.
_IMAGES_PER_BIN = 50
_AVERAGES = ("macro avg", "weighted avg")  # As in scikit-learn's `classification_report`.
_MAX_PRINTED = 100


def _compute_auroc(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """The chance that a positive has a larger score than a negative. Ties count half.

    By ranks (Mann and Whitney, 1947): scikit-learn takes 16 s for 1,000 classes and 50,000 images.
    """
    num = int(is_positive.sum())
    if num in (0, len(scores)):
        return np.nan
    ordered, positives = np.sort(scores), scores[is_positive]
    ranks = sum(np.searchsorted(ordered, positives, side).sum() for side in ("left", "right"))
    return float((ranks - num**2) / (2 * num * (len(scores) - num)))


def _compute_average_precision(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """As scikit-learn computes it, which takes a second to import."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(is_positive, scores))


class Target(NamedTuple):
    """What is predicted: the class of an image, or its tags, of which it may have several."""

    noun: str
    plural: str
    area: str  # The area under a curve that no threshold changes, as files name it.
    means: tuple[str, ...]  # How results name its mean over the tags, too.
    title: str  # As tables for people name it.
    accuracy: str  # The share that files call accuracy, for people.
    expected: str  # The same, expected of other images.
    whose: str  # What its interval belongs to, after "interval".
    unsaid: float  # The precision of what is never predicted.
    # The area, by the scores of images and whether each is positive, of which there are some.
    measure_area: Callable[[np.ndarray, np.ndarray], float]
    read: Callable[[Sequence[str]], TagSets]  # The classes or tags of labels.
    split: Callable[[str], tuple[str, ...]]  # Those of one label.


CLASSES = Target(
    noun="class",
    plural="classes",
    area="auroc",
    means=(),
    title="AUROC",
    accuracy="Test accuracy",
    expected="Expected accuracy",
    whose="",
    unsaid=0.0,
    measure_area=_compute_auroc,
    read=lambda labels: TagSets(tuple(labels), np.eye(len(labels), dtype=np.int8)),
    split=kinds.ONE_CLASS.split,
)
TAGS = Target(
    noun="tag",
    plural="tags",
    area="average_precision",
    means=("test_mean_average_precision",),
    title="AP",
    accuracy="All tags right",
    expected="Expected: all tags right",
    whose=" of all tags right",
    unsaid=np.nan,
    measure_area=_compute_average_precision,
    read=read_sets,
    split=kinds.TAGS.split,
)


def get_target(data_config: Any) -> Target:
    """What a run predicts, by the section `data` of its configuration."""
    return TAGS if data_config.get("tags", False) else CLASSES


class ClassFigures(NamedTuple):
    """Metrics of a class, or means over classes, from 0 to 1. NaN where there are no images."""

    precision: float  # 0 without predictions of this class, NaN without any of a tag.
    recall: float
    f1: float
    area: float  # AUROC, of this class against all others. Average precision for tags.
    support: int  # The number of images of this class.
    interval: tuple[float, float] = (np.nan, np.nan)  # 95% Wilson, of the recall. Not of a mean.


class Figures(NamedTuple):
    """How well one network predicts images of known class, or images whose tags are known."""

    accuracy: float  # A share from 0 to 1. With tags, of images all of whose tags are right.
    interval: tuple[float, float]  # Its 95% Wilson interval.
    class_names: tuple[str, ...]
    classes: list[ClassFigures]
    macro: ClassFigures  # Unweighted means. The recall is the balanced accuracy.
    weighted: ClassFigures  # Means weighted by the classes' numbers of images.
    target: Target = CLASSES


class Scoring(NamedTuple):
    """How predictions are compared with what is known of B images.

    Of images with one class each, that is the class, int [B]. Of images with tags, it is int8
    [B, T]: 1 with a tag, 0 without it, -1 if it is open. What is open does not count.
    """

    names: tuple[str, ...]  # Of the classes or tags.
    # From which probability on an image has each tag, floating [T]. None of classes.
    thresholds: np.ndarray | None = None

    @property
    def target(self) -> Target:
        """What is predicted."""
        return CLASSES if self.thresholds is None else TAGS

    def number(self, labels_B: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """What is known of B images, by the numbers of their labels, int [B], none foreign.

        Nothing is known of an image without a label, -1. As in training, a labeled image has none
        of the tags that its label does not name. A name stands for the class or tag that is spelled
        so or, without one, otherwise: an array may have the letters "a" and "A".
        """
        theirs, values_SN = self.target.read(labels)
        usual = {fold_class(name): name for name in self.names}
        own = {name: name for name in self.names}
        meant = np.array([own.get(name, usual.get(fold_class(name))) for name in theirs], object)
        known_SK = np.zeros((len(labels), len(self.names)), np.int8)
        for k, name in enumerate(self.names):
            if (is_named := meant == name).any():
                known_SK[:, k] = values_SN[:, is_named].max(axis=1)
        if self.thresholds is None:
            return np.where(labels_B >= 0, decide(known_SK).best[labels_B], -1)
        return np.where(labels_B[:, None] >= 0, known_SK[labels_B], np.int8(-1))

    def find_right(self, p_BK: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which images have the predicted class, or all tags right, bool [B]."""
        if self.thresholds is None:
            return decide(p_BK).is_right(known)
        return find_right(p_BK, known, self.thresholds)

    def measure(self, p_NBK: np.ndarray, known: np.ndarray, split: str = "test") -> Accuracies:
        """Accuracies of N networks in percent, as `compute_accuracies` names those of a split.

        Of tags, by the probabilities of network 1: the share of images with all tags right, and the
        mean average precision.
        """
        if self.thresholds is None:
            return compute_accuracies(p_NBK, known, split)
        figures = self.compute_figures(p_NBK[0], known)
        measured = {
            f"{split}/accuracy": 100 * figures.accuracy,
            f"{split}/mean_average_precision": 100 * figures.macro.area,
        }
        return {name: value for name, value in measured.items() if not np.isnan(value)}

    def compute_figures(self, p_BK: np.ndarray, known: np.ndarray) -> Figures:
        """Precision, recall, F1 and area by class or tag and on average, as scikit-learn's.

        They are NaN where no image has a class, or a tag that is not open.
        """
        if self.thresholds is None:
            says_BK, has_BK = decide(p_BK).has, known[:, None] == np.arange(len(self.names))
        else:
            says_BK, has_BK = p_BK >= self.thresholds, known
        classes = [
            _compare(self.target, p[has >= 0], says[has >= 0], has[has >= 0] == 1)
            for p, says, has in zip(p_BK.T, says_BK.T, has_BK.T.astype(np.int8), strict=True)
        ]
        support = np.array([row.support for row in classes])
        is_right = self.find_right(p_BK, known)[(has_BK >= 0).any(axis=1)]
        return Figures(
            accuracy=float(is_right.mean()) if len(is_right) else np.nan,
            interval=wilson_interval(int(is_right.sum()), len(is_right)),
            class_names=self.names,
            classes=classes,
            macro=_average(classes, np.sign(support)),
            weighted=_average(classes, support),
            target=self.target,
        )


def _compare(
    target: Target, p_n: np.ndarray, says_n: np.ndarray, has_n: np.ndarray
) -> ClassFigures:
    """The figures of a class or tag on n images: its probabilities, predictions and truth."""
    num_right, num_said, support = (int(a.sum()) for a in (says_n & has_n, says_n, has_n))
    precision = num_right / num_said if num_said else target.unsaid
    if not support:
        return ClassFigures(precision, recall=np.nan, f1=np.nan, area=np.nan, support=0)
    return ClassFigures(
        precision,
        recall=num_right / support,
        f1=2 * num_right / (num_said + support),
        area=target.measure_area(p_n, has_n),
        support=support,
        interval=wilson_interval(num_right, support),
    )


def _average(classes: Sequence[ClassFigures], weights: np.ndarray) -> ClassFigures:
    """Weighted means of the known figures of classes with a weight above 0."""
    values = np.ma.masked_invalid([row[:4] for row in classes])
    means = np.ma.average(values, axis=0, weights=weights)
    precision, recall, f1, area = np.ma.filled(means, np.nan).tolist()
    return ClassFigures(precision, recall, f1, area, support=sum(row.support for row in classes))


class Reliability(NamedTuple):
    """A reliability diagram of up to 15 bins of equal width, with NaN in empty bins."""

    counts: np.ndarray  # int64 [bins], predictions whose confidence falls into each bin.
    confidence: np.ndarray  # float64 [bins], their mean confidence.
    accuracy: np.ndarray  # float64 [bins], the share of them that is correct.
    error: float  # The expected calibration error, between 0 and 1.


def format_percent(share: float) -> str:
    """A share between 0 and 1 in percent, or a dash for NaN."""
    return "–" if np.isnan(share) else f"{100 * share:.1f}%"


def describe_figures(figures: Figures) -> str:
    """The figures as a table of aligned lines, in percent. Of many classes, only the averages."""
    rows = _list_rows(figures)
    if len(figures.classes) > _MAX_PRINTED:
        rows = rows[-len(_AVERAGES) :]
    rows = [(make_printable(name), row) for name, row in rows]
    width = max(len(name) for name, _ in rows)
    noun, title = figures.target.noun, figures.target.title
    lines = [f"  {noun:{width}}  precision  recall      F1  {title:>6}  images"]
    for name, row in rows:
        precision, recall, f1, area = map(format_percent, row[:4])
        lines.append(
            f"  {name:{width}}  {precision:>9}  {recall:>6}  {f1:>6}  {area:>6}  {row.support:>6}"
        )
    return "\n".join(lines)


def _list_rows(figures: Figures) -> list[tuple[str, ClassFigures]]:
    """Classes and averages with their names."""
    averages = zip(_AVERAGES, (figures.macro, figures.weighted), strict=True)
    return [*zip(figures.class_names, figures.classes, strict=True), *averages]


def write_figures(
    workdir: pathlib.Path, step: int, figures: Figures, accuracies: Accuracies
) -> None:
    """Writes `per_class.csv` of a run, and adds all to the result of the same step.

    A result without a test accuracy gets none, since the test images were added later.

    Raises an OSError if the folder cannot be written, and a UserError if the result is damaged.
    """
    write_class_table(workdir, figures)
    result = read_result(workdir)
    if result is not None and result["step"] == step and result["test_accuracy"] is not None:
        named = {name.replace("/", "_"): value for name, value in accuracies.items()}
        updated = {**result, **named, **summarize_figures(figures)}
        if updated != result:
            write_result(workdir, updated)


def write_class_table(workdir: pathlib.Path, figures: Figures) -> None:
    """Writes `per_class.csv`: shares from 0 to 1 by class, then the two averages."""
    noun, area = figures.target.noun, figures.target.area
    names = noun, "precision", "recall", "f1", area, "recall_low", "recall_high", "support"
    rows: list[Sequence[Any]] = [names]
    for name, row in _list_rows(figures):
        values = ["" if np.isnan(x) else f"{x:.6f}" for x in (*row[:4], *row.interval)]
        rows.append([name, *values, row.support])
    write_atomically(workdir / PER_CLASS, to_csv(rows))


def summarize_figures(figures: Figures) -> dict[str, Any]:
    """The figures as `result.json` has them, in percent. None where a figure is unknown."""
    low, high = figures.interval
    summary: dict[str, Any] = {"test_accuracy_low": 100 * low, "test_accuracy_high": 100 * high}
    noun, area = figures.target.noun, figures.target.area
    for average, row in (("macro", figures.macro), ("weighted", figures.weighted)):
        values = _name_values(row, area)
        summary |= {f"test_{name}_{average}": value for name, value in values.items()}
    summary |= dict.fromkeys(figures.target.means, summary[f"test_{area}_macro"])
    summary["per_class"] = [
        {noun: name, **_name_values(row, area), "support": row.support}
        for name, row in zip(figures.class_names, figures.classes, strict=True)
    ]
    return summary


def _name_values(row: ClassFigures, area: str) -> dict[str, float | None]:
    """Precision, recall, F1 and area by name, in percent. None where JSON would need NaN."""
    values = zip((*ClassFigures._fields[:3], area), row[:4], strict=True)
    return {name: None if np.isnan(value) else 100 * float(value) for name, value in values}


def compute_reliability(probabilities: np.ndarray, labels: np.ndarray) -> Reliability:
    """Compares the confidence of float [m, K] with its accuracy on int [m], m ≥ 1.

    scikit-learn's `calibration_curve` does not return the counts, which the error needs.
    """
    import scipy.stats  # Takes a second, too.

    said = decide(probabilities)
    confidence = said.confidence.astype(np.float64)
    num_bins = min(max(len(labels) // _IMAGES_PER_BIN, 1), NUM_BINS)
    # Rounding may raise a probability above 1, where there is no bin.
    values = [confidence, said.is_right(labels)]
    (mean_confidence, accuracy), _, places = scipy.stats.binned_statistic(
        np.minimum(confidence, 1.0), values, bins=num_bins, range=(0, 1)
    )
    counts = np.bincount(places - 1, minlength=num_bins)
    error = np.nansum(counts * np.abs(accuracy - mean_confidence)) / len(labels)
    return Reliability(counts, mean_confidence, accuracy, float(error))


def find_confused_pairs(confusions: np.ndarray, limit: int) -> list[tuple[int, int, int]]:
    """The most frequent mistakes in int [K, K]: at most `limit` of (true, predicted, count)."""
    mistakes = confusions - np.diag(np.diag(confusions))
    order = np.argsort(-mistakes, axis=None, kind="stable")[:limit]
    pairs = zip(*np.unravel_index(order, mistakes.shape), strict=True)
    return [(int(i), int(j), int(mistakes[i, j])) for i, j in pairs if mistakes[i, j] > 0]
