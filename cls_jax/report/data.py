"""Everything that a report shows, read from the run's folder and made anew where it must be."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from cls_jax.config import read_config
from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import read_labeled_indices
from cls_jax.data.types import Dataset, ImageSource
from cls_jax.inference.classifier import load
from cls_jax.runs.folder import CONFIG, LABELED_INDICES, read_dataset_description, read_result
from cls_jax.runs.metrics import METRICS, read_metrics
from cls_jax.runs.sessions import read_sessions

# Of a run without test images: training images on which the networks are compared.
_NUM_TRAINING_IMAGES = 1000
_LARGEST = 1e30
_LONGEST_REASON = 400


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What the averaged networks of the newest checkpoint say. m images, N networks, K classes.

    Attributes:
        step: of the checkpoint.
        probabilities: float32 [N, m, K].
        labels: int [m], true classes, -1 where unknown.
        source: where the images are.
        indices: int [m], which of the source's images they are.
        is_test: whether they are test images, else training images.
    """

    step: int
    probabilities: np.ndarray
    labels: np.ndarray
    source: ImageSource
    indices: np.ndarray
    is_test: bool

    @property
    def first(self) -> np.ndarray:
        """Probabilities of network 1, float32 [m, K]."""
        return self.probabilities[0]

    @property
    def ensemble(self) -> np.ndarray:
        """Mean probabilities of all networks, float32 [m, K]."""
        return self.probabilities.mean(axis=0)

    def read_image(self, position: int) -> np.ndarray:
        """One of the m images, uint8 [H, W, C]."""
        return self.source[self.indices[position : position + 1]][0]


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run as a report shows it; what could not be had is None or empty.

    Attributes:
        workdir: its folder.
        config: its configuration.
        rows: of its metrics, ordered by step; values are finite floats or None.
        result: of a finished run.
        sessions: see `cls_jax.runs.sessions`.
        class_names: of its K classes.
        dataset: what it was trained on.
        labeled: int32, which training images counted as labelled.
        predictions: of its newest checkpoint.
        notes: a sentence about each thing that could not be had.
    """

    workdir: pathlib.Path
    config: Any
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None
    sessions: list[dict[str, Any]]
    class_names: tuple[str, ...]
    dataset: Dataset | None
    labeled: np.ndarray | None
    predictions: Predictions | None
    notes: tuple[str, ...]


def collect_run(workdir: pathlib.Path, data_dir: str | None = None) -> RunData:
    """Reads a run, finished or not; loads its dataset and predicts with its newest checkpoint.

    Args:
        workdir: the run's folder.
        data_dir: as for `write_report`.

    Raises:
        UserError: if the folder is not that of a run.
    """
    config = read_config(workdir / CONFIG)
    if data_dir is not None:
        config.data.data_dir = data_dir
    notes: list[str] = []

    def attempt(what: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, else None and a note: the rest of the page does without."""
        try:
            return make()
        except Exception as error:
            notes.append(f"{what}: {_first_line(error)}")
            return None

    rows = attempt(f"{METRICS} cannot be read", lambda: clean_rows(read_metrics(workdir))) or []
    result = attempt("The result cannot be read", lambda: read_result(workdir))
    description = attempt("The classes are unknown", lambda: read_dataset_description(workdir))
    class_names = description[0] if description else ()
    dataset = labeled = predictions = None
    if description:
        dataset = attempt("No images", lambda: _load_same_dataset(config, *description))
        labeled = attempt(
            "The labelled images are unknown",
            lambda: read_labeled_indices(workdir / LABELED_INDICES, class_names),
        )
    if dataset is not None:
        predictions = attempt("No predictions", lambda: predict(workdir, dataset, labeled))
    return RunData(
        workdir=workdir,
        config=config,
        rows=rows,
        result=result,
        sessions=read_sessions(workdir),
        class_names=class_names,
        dataset=dataset,
        labeled=labeled,
        predictions=predictions,
        notes=tuple(notes),
    )


def clean_rows(rows: list[Any]) -> list[dict[str, Any]]:
    """Metrics with a step each, in its order, and numbers that can be drawn; others are None."""
    kept = [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]
    numbers = [
        {"step": row["step"]}
        | {str(name): _to_number(value) for name, value in row.items() if name != "step"}
        for row in kept
    ]
    return sorted(numbers, key=lambda row: row["step"])


def predict(workdir: pathlib.Path, dataset: Dataset, labeled: np.ndarray | None) -> Predictions:
    """Predicts the test images or, where there are none, some of the unlabelled training images.

    Raises:
        UserError: if there is no checkpoint yet.
        ValueError: if several processes trained: one alone cannot predict then.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"several processes trained; python main.py --mode report --workdir {workdir} adds them"
        )
    classifier = load(workdir)
    is_test = len(dataset.test_labels) > 0
    if is_test:
        source, labels = dataset.test_images, np.asarray(dataset.test_labels)
        indices = np.arange(len(labels))
        images: ImageSource = source
    else:
        source = dataset.train_images
        unlabeled = np.setdiff1d(np.arange(len(source)), [] if labeled is None else labeled)
        shuffled = np.random.default_rng(0).permutation(unlabeled)
        indices = np.sort(shuffled[:_NUM_TRAINING_IMAGES])
        images, labels = source[indices], np.asarray(dataset.train_labels)[indices]
    probabilities = classifier.predict_probabilities(images)
    return Predictions(classifier.step, probabilities, labels, source, indices, is_test)


def _load_same_dataset(config, class_names: tuple[str, ...], shape) -> Dataset:
    dataset = load_dataset(config)
    if (dataset.class_names, dataset.shape) != (class_names, shape):
        raise ValueError("the dataset is no longer the one that the run was trained on")
    return dataset


def _to_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LARGEST else None


def _first_line(error: Exception) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return line + "." if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + " …"
