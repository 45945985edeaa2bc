"""A run in use: its images, networks and predictions. Package `runs` reads and writes its files."""

import functools
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.datasets import load_dataset
from cls_jax.data.types import Dataset, ImageSource, Selection
from cls_jax.photos.features.extract import FrozenFeatures, FrozenNetwork
from cls_jax.photos.features.instant import read_instant
from cls_jax.photos.folder.layout import Layout
from cls_jax.photos.images.decode import ImageLike
from cls_jax.photos.inference.classifier import Classifier, load
from cls_jax.photos.inference.prediction import Prediction
from cls_jax.photos.start.start import compute_frozen
from cls_jax.runs.folder import INSTANT_FILE, find_trained, read_result
from cls_jax.training.prepare import restore_run
from cls_jax.training.setup import TrainSetup, TrainState


class Run:
    """A run, which can be used as a path, as in `cls_jax.load(run)`.

    Its dataset and newest checkpoint are read once, when first needed.

    Attributes:
        config: The run's configuration.
        workdir: The run's folder, see docs/run_folder.md. It need not exist before training.
        predictor: The path that its classifier opens, see `find_predictor`, or None for the
            networks of the last step.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: pathlib.Path,
        layout: Layout | None = None,
        predictor: pathlib.Path | None = None,
    ):
        """Reads nothing yet. `layout` is for `load_dataset`."""
        self.config, self.workdir, self.layout = config, workdir, layout
        self.predictor = predictor
        # By part: the row of each image in the results, or -1, and the results so far.
        self._computed: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def __fspath__(self) -> str:
        return os.fspath(self.workdir)

    @functools.cached_property
    def result(self) -> dict[str, Any]:
        """The contents of `result.json`, with accuracies in percent. Empty before its end."""
        return read_result(self.workdir) or {}

    def predict(self, images: ImageSource | ImageLike | Iterable[ImageLike]) -> Prediction:
        """Predicts with the run's networks or, if chosen at the end, its instant classifier.

        See `Classifier.predict`. Each call opens the run. For repeated predictions, keep
        `cls_jax.load(run)`.
        """
        return load(self).predict(images)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The images and labels."""
        return load_dataset(self.config, self.layout)

    @functools.cached_property
    def end(self) -> tuple[TrainSetup, TrainState, int]:
        """The setup, the state and the step of the newest checkpoint."""
        return restore_run(self.workdir)

    @functools.cached_property
    def classifier(self) -> Classifier:
        """The classifier used for prediction, or the networks. Only after training."""
        path = self.predictor or find_trained(self.workdir)
        if path == self.workdir:
            return load(path, trained=True, end=self.end)
        return load(path)

    @functools.cached_property
    def _frozen(self) -> FrozenNetwork | None:
        path = self.workdir / INSTANT_FILE
        return read_instant(path).network if path.exists() else None

    @functools.cached_property
    def held_out(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Predictions for the validation and test images, if there are any.

        By "validation" and "test": probabilities float32 [N, n, K] and true classes int [n].
        """
        return {
            name: (self.compute_both(name, np.arange(len(labels)))[0], np.asarray(labels))
            for name, _, labels in self.dataset.held_out
            if len(labels)
        }

    def compute_both(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`Classifier.compute_both`, cached, of images of a part at `rows`, int64 [n]."""
        images = getattr(self.dataset, f"{part}_images")
        if part not in self._computed:
            missing = np.unique(rows)
            p_NBK, f_BC = self._look(part, images, missing)
            places = np.full(len(images), -1)
        else:
            places, p_NBK, f_BC = self._computed[part]
            missing = np.unique(rows[places[rows] < 0])
            if len(missing):
                more_NBK, more_BC = self._look(part, images, missing)
                p_NBK, f_BC = np.hstack([p_NBK, more_NBK]), np.vstack([f_BC, more_BC])
        places[missing] = len(f_BC) - len(missing) + np.arange(len(missing))
        self._computed[part] = places, p_NBK, f_BC
        return p_NBK[:, places[rows]], f_BC[places[rows]]

    def extract(self, part: str, rows: np.ndarray) -> FrozenFeatures:
        """Features of images of a part at `rows`, int64 [n].

        Of the frozen network of the instant classifier, or, if there is none, of the classifier.
        """
        if self._frozen is not None:
            data_dir = self.config.data.data_dir
            return compute_frozen(self.dataset, data_dir, self._frozen, part, rows)
        _, features_BC = self.compute_both(part, rows)
        return FrozenFeatures(features_BC, features_BC, features_BC[:, :0])

    def _look(
        self, part: str, images: ImageSource, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        instant = self.classifier.instant
        if instant is None:
            return self.classifier.compute_both(Selection(images, rows))
        # The features of most of these images are on disk.
        return instant.compute_both(self.extract(part, rows))
