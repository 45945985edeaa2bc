"""Everything that a report shows, read from the run's folder or computed from its checkpoint."""

import dataclasses
import functools
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
from cls_jax.io import describe_error
from cls_jax.runs.folder import CONFIG, LABELED_INDICES, read_dataset_description, read_result
from cls_jax.runs.metrics import METRICS, read_metrics
from cls_jax.runs.sessions import read_sessions

# Without test images, the networks are compared on this many training images.
_NUM_TRAINING_IMAGES = 1000
_LARGEST = 1e30  # Axes cannot be scaled to more.


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of the newest checkpoint's EMA weights. m images, N networks, K classes.

    Attributes:
        step: of the checkpoint.
        probabilities: float32 [N, m, K].
        labels: int [m], true classes, -1 where unknown.
        source: where the images are.
        indices: int [m], positions of the images in the source.
        is_test: whether they are test images or training images.
    """

    step: int
    probabilities: np.ndarray
    labels: np.ndarray
    source: ImageSource
    indices: np.ndarray
    is_test: bool

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """The most probable class by network, int64 [N, m]."""
        return self.probabilities.argmax(axis=-1)

    @functools.cached_property
    def confidence(self) -> np.ndarray:
        """Its probability, float32 [N, m]."""
        return self.probabilities.max(axis=-1)

    def read_image(self, position: int) -> np.ndarray:
        """One of the m images, uint8 [H, W, C]."""
        return self.source[self.indices[position : position + 1]][0]


@dataclasses.dataclass(frozen=True)
class RunData:
    """A run as a report shows it; what is not available is None or empty.

    Attributes:
        workdir: its folder.
        config: its configuration.
        rows: of its metrics, as `clean_rows` returns them.
        result: of a finished run.
        sessions: see `cls_jax.runs.sessions`.
        class_names: of its K classes.
        dataset: what it was trained on.
        labeled: int32, which training images counted as labeled.
        predictions: of its newest checkpoint.
        notes: a sentence about each thing that is not available.
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

    def attempt(failure: str, make: Callable[[], Any]) -> Any:
        """The result of `make`, or None and a note: the rest of the page does without."""
        try:
            return make()
        except Exception as error:
            notes.append(f"{failure}: {describe_error(error)}")
            return None

    rows = attempt(f"{METRICS} cannot be read", lambda: clean_rows(read_metrics(workdir)))
    result = attempt("The result cannot be read", lambda: read_result(workdir))
    description = attempt("The classes are unknown", lambda: read_dataset_description(workdir))
    dataset = labeled = predictions = None
    if description:
        dataset = attempt("No images", lambda: _load_same_dataset(config, *description))
        labeled = attempt(
            "The labeled images are unknown",
            lambda: read_labeled_indices(workdir / LABELED_INDICES, description[0]),
        )
    if dataset is not None:
        predictions = attempt("No predictions", lambda: predict(workdir, dataset, labeled))
    return RunData(
        workdir=workdir,
        config=config,
        rows=rows or [],
        result=result,
        sessions=read_sessions(workdir),
        class_names=description[0] if description else (),
        dataset=dataset,
        labeled=labeled,
        predictions=predictions,
        notes=tuple(notes),
    )


def clean_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `read_metrics` ordered by step; numbers that cannot be drawn become None."""
    drawable = (
        {k: v if v is not None and abs(v) < _LARGEST else None for k, v in row.items()}
        for row in rows
    )
    return sorted(drawable, key=lambda row: row["step"])


def predict(workdir: pathlib.Path, dataset: Dataset, labeled: np.ndarray | None) -> Predictions:
    """Predicts the test images or, if there are none, some of the unlabeled training images.

    Raises:
        UserError: if there is no checkpoint yet.
        ValueError: in one of several processes, which cannot predict alone.
    """
    if jax.process_count() > 1:
        raise ValueError(
            "several processes trained this run; add predictions with python main.py "
            f"--mode report --workdir {workdir}"
        )
    classifier = load(workdir)
    is_test = len(dataset.test_labels) > 0
    if is_test:
        source, labels = dataset.test_images, np.asarray(dataset.test_labels)
        indices = np.arange(len(labels))
    else:
        source = dataset.train_images
        unlabeled = np.setdiff1d(np.arange(len(source)), [] if labeled is None else labeled)
        shuffled = np.random.default_rng(0).permutation(unlabeled)
        indices = np.sort(shuffled[:_NUM_TRAINING_IMAGES])
        labels = np.asarray(dataset.train_labels)[indices]
    images = source if is_test else source[indices]
    probabilities = classifier.predict_probabilities(images)
    return Predictions(classifier.step, probabilities, labels, source, indices, is_test)


def _load_same_dataset(config, class_names: tuple[str, ...], shape) -> Dataset:
    dataset = load_dataset(config)
    if (dataset.class_names, dataset.shape) != (class_names, shape):
        raise ValueError("the dataset is not the one that the run was trained on")
    return dataset
