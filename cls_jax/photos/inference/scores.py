"""Metrics of predictions, for `cls-jax evaluate` and the report. B images, K classes."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.io import make_printable, to_csv, write_atomically
from cls_jax.photos.features.accuracy import wilson_interval
from cls_jax.photos.features.decide import decide
from cls_jax.photos.folder import kinds
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.tags import read_sets
from cls_jax.runs.folder import read_result, write_result
from cls_jax.training.evaluate import Accuracies, compute_accuracies

PER_CLASS = "per_class.csv"
NUM_BINS = 15  # At most: Guo et al., On Calibration of Modern Neural Networks, 2017.
# With few images per bin, even calibrated confidences have an error: 12% for 100 images in 15 bins.
_IMAGES_PER_BIN = 50
_AVERAGES = ("macro avg", "weighted avg")  # As in scikit-learn's `classification_report`.
_MAX_PRINTED = 100


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
    list_names: Callable[[Sequence[str]], tuple[str, ...]]  # All classes or tags of labels.
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
    list_names=tuple,
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
    list_names=lambda labels: read_sets(labels).names,
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


class ClassScoring(NamedTuple):
    """How predictions are compared with what is known of images that have one class each.

    What is known are classes, int [B]. `TagScoring` has the same methods for images with tags.
    """

    names: tuple[str, ...]  # Of the classes.
    thresholds: None = None  # The most probable class counts.
    target: Target = CLASSES

    def number(self, labels_B: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """What is known of B images, by the numbers of their labels, int [B], none foreign."""
        if tuple(labels) == self.names:
            return labels_B
        places = {fold_class(name): k for k, name in enumerate(self.names)}
        return np.array([places[fold_class(name)] for name in labels])[labels_B]

    def find_right(self, p_BK: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which predictions of images are right, bool [B]."""
        return decide(p_BK).is_right(known)

    def measure(self, p_NBK: np.ndarray, known: np.ndarray) -> Accuracies:
        """Accuracies of N networks in percent, as `compute_accuracies` names them."""
        return compute_accuracies(p_NBK, known)

    def compute_figures(self, p_BK: np.ndarray, known: np.ndarray) -> Figures:
        """The figures of each class."""
        return compute_figures(p_BK, known, self.names)


class Reliability(NamedTuple):
    """A reliability diagram of up to 15 bins of equal width, with NaN in empty bins."""

    counts: np.ndarray  # int64 [bins], predictions whose confidence falls into each bin.
    confidence: np.ndarray  # float64 [bins], their mean confidence.
    accuracy: np.ndarray  # float64 [bins], the share of them that is correct.
    error: float  # The expected calibration error, between 0 and 1.


def compute_figures(p_BK: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> Figures:
    """Precision, recall, F1 and AUROC by class and on average, as scikit-learn computes them.

    The probabilities are float [B, K], and the labels, the true classes, int [B] with B ≥ 1.
    """
    from sklearn.metrics import precision_recall_fscore_support  # A second, for all who predict.

    num_classes = p_BK.shape[1]
    predicted = decide(p_BK).best
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=range(num_classes), zero_division=0
    )
    recall, f1 = (np.where(support > 0, values, np.nan) for values in (recall, f1))
    is_right = predicted == labels
    hits = np.bincount(labels[is_right], minlength=num_classes)
    classes = [
        ClassFigures(
            precision=precision[k],
            recall=recall[k],
            f1=f1[k],
            area=_compute_auroc(p_BK[:, k], labels == k),
            support=int(support[k]),
            interval=wilson_interval(int(hits[k]), int(support[k]))
            if support[k]
            else (np.nan, np.nan),
        )
        for k in range(num_classes)
    ]
    return Figures(
        accuracy=float(is_right.mean()),
        interval=wilson_interval(int(is_right.sum()), len(labels)),
        class_names=tuple(class_names),
        classes=classes,
        macro=average_figures(classes, np.sign(support)),
        weighted=average_figures(classes, support),
    )


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


def average_figures(classes: Sequence[ClassFigures], weights: np.ndarray) -> ClassFigures:
    """Weighted means of the known figures of classes with a weight above 0."""
    values = np.ma.masked_invalid([row[:4] for row in classes])
    means = np.ma.average(values, axis=0, weights=weights)
    precision, recall, f1, area = np.ma.filled(means, np.nan).tolist()
    return ClassFigures(precision, recall, f1, area, support=sum(row.support for row in classes))


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
    workdir: pathlib.Path, step: int, figures: Figures, more: Mapping[str, float]
) -> None:
    """Writes `per_class.csv` of a run, and adds these and `more` to the result of the same step.

    A result without a test accuracy gets none, since the test images were added later.

    Raises an OSError if the folder cannot be written, and a UserError if the result is damaged.
    """
    write_class_table(workdir, figures)
    result = read_result(workdir)
    if result is not None and result["step"] == step and result["test_accuracy"] is not None:
        updated = {**result, **more, **summarize_figures(figures)}
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
    import scipy.stats  # As above.

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
