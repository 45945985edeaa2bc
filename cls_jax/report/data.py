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
    """Predictions of the newest checkpoint's EMA weights. m images, N networks, K classes."""

    step: int
    probabilities: np.ndarray  # float32 [N, m, K]
    labels: np.ndarray  # int [m], -1 where the true class is unknown.
    source: ImageSource
    indices: np.ndarray  # int [m], positions of the images in the source.
    is_test: bool  # Otherwise they are training images.

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


@dataclasses.dataclass
class RunData:
    """A run as a report shows it; parts that are not available are None or empty."""

    workdir: pathlib.Path
    config: Any
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # See `clean_rows`.
    result: dict[str, Any] | None = None  # Of a finished run.
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    class_names: tuple[str, ...] = ()
    dataset: Dataset | None = None
    labeled: np.ndarray | None = None  # int32, which training images counted as labeled.
    predictions: Predictions | None = None
    notes: list[str] = dataclasses.field(default_factory=list)  # What is missing, and why.


def collect_run(workdir: pathlib.Path, data_dir: str | None = None) -> RunData:
    """Reads a run, finished or not; loads its dataset and predicts with its newest checkpoint.

    Args:
        workdir: the run's folder.
        data_dir: as for `write_report`.

    Raises:
        UserError: if the folder is not that of a run.
    """
    run = RunData(workdir, read_config(workdir / CONFIG), sessions=read_sessions(workdir))
    if data_dir is not None:
        run.config.data.data_dir = data_dir

    def attempt(failure: str, make: Callable[[], Any]) -> Any:
        """The result of `make`; if it fails, None, and a note at the top of the page."""
        try:
            return make()
        except Exception as error:
            run.notes.append(f"{failure}: {describe_error(error)}")
            return None

    rows = attempt(f"{METRICS} cannot be read", lambda: clean_rows(read_metrics(workdir)))
    run.rows = rows or []
    run.result = attempt("The result cannot be read", lambda: read_result(workdir))
    description = attempt("The classes are unknown", lambda: read_dataset_description(workdir))
    if not description:
        return run
    run.class_names = description[0]
    run.dataset = attempt("No images", lambda: _load_same_dataset(run.config, *description))
    path = workdir / LABELED_INDICES
    run.labeled = attempt(
        "The labeled images are unknown", lambda: read_labeled_indices(path, run.class_names)
    )
    if run.dataset is not None:
        run.predictions = attempt(
            "No predictions", lambda: predict(workdir, run.dataset, run.labeled)
        )
    return run


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
            "several processes trained this run; add predictions with python -m cls_jax report "
            f"{workdir}"
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
