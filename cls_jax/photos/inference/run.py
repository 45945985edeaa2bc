"""A run in use: its images, networks and predictions. Package `runs` reads and writes its files."""

import functools
import os
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import read_config
from cls_jax.data.types import Dataset, ImageSource, Split
from cls_jax.photos.features.instant import INSTANT_FILE, read_instant
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork
from cls_jax.photos.folder.instant_config import is_instant, read_instant_config
from cls_jax.photos.folder.layout import Layout
from cls_jax.photos.inference.classifier import Classifier, load
from cls_jax.photos.inference.inputs import ImageInput
from cls_jax.photos.inference.prediction import Prediction
from cls_jax.photos.start.fit_instant import INSTANT
from cls_jax.photos.start.frozen import compute_frozen
from cls_jax.photos.start.hold_out import open_run_dataset
from cls_jax.runs.folder import CONFIG, read_result
from cls_jax.training.prepare import RunEnd, restore_run


class _Seen(NamedTuple):
    """What a classifier has said of some images of a split."""

    places: np.ndarray  # int64 [n], the row of each image of the split in the results, or -1.
    probabilities: np.ndarray  # float32 [N, B, K].
    features: np.ndarray  # float32 [B, N C].


class Run:
    """A run, which can be used as a path, as in `cls_jax.load(run)`.

    Its dataset and newest checkpoint are read once, when first needed.

    Attributes:
        config: The run's configuration.
        workdir: The run's folder, see docs/run_folder.md. It need not exist before training.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: pathlib.Path,
        layout: Layout | None = None,
        step: str | None = None,
    ):
        """Reads nothing yet. `layout` is for `open_run_dataset`, `step` for `load`."""
        self.config = config
        self.workdir = workdir
        self.layout = layout
        self._step = step
        self._seen: dict[str, _Seen] = {}  # By split.

    def __fspath__(self) -> str:
        return os.fspath(self.workdir)

    @functools.cached_property
    def result(self) -> dict[str, Any]:
        """The contents of `result.json`, with accuracies in percent. Empty before its end."""
        return read_result(self.workdir) or {}

    def predict(self, images: ImageSource | ImageInput | Iterable[ImageInput]) -> Prediction:
        """Predicts with the run's networks or, if chosen at the end, its instant classifier.

        See `Classifier.predict`. Each call opens the run. For repeated predictions, keep
        `cls_jax.load(run)`.
        """
        return load(self).predict(images)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The images and labels."""
        return open_run_dataset(self.config, self.workdir, self.layout)

    @functools.cached_property
    def end(self) -> RunEnd:
        """The setup, the state and the step of the newest checkpoint, or the chosen one."""
        return restore_run(self.workdir, self.config.eval_batch_size, self._step)

    @functools.cached_property
    def is_instant(self) -> bool:
        """Whether the folder has an instant classifier, and no trained networks. After training."""
        return is_instant(self.workdir)

    @functools.cached_property
    def classifier(self) -> Classifier:
        """The run's networks, or the instant classifier that the folder has. Only after training.

        Not the one in `instant/`, which is a run by itself.
        """
        end = None if self.is_instant else self.end
        return load(self.workdir, trained=True, end=end, step=self._step)

    @functools.cached_property
    def _frozen(self) -> FrozenNetwork | None:
        """The frozen network of the instant classifier, if there is one."""
        if (instant := self.classifier.instant) is not None:
            return instant.network
        path = self.workdir / INSTANT / INSTANT_FILE
        return read_instant(path).network if path.exists() else None

    @functools.cached_property
    def held_out(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Predictions for the validation and test images, if there are any.

        By "validation" and "test": probabilities float32 [N, n, K] and true classes int [n].
        """
        return {
            name: (self.predict_with_features(name, np.arange(len(split)))[0], split.labels)
            for name, split in self.dataset.held_out.items()
            if len(split)
        }

    def predict_with_features(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`Networks.predict_with_features`, cached, of images of a split at `rows`, int64 [n]."""
        if part not in self._seen:
            missing = np.unique(rows)
            p_NBK, f_BC = self._look(part, missing)
            places = np.full(len(self._get_split(part)), -1)
        else:
            places, p_NBK, f_BC = self._seen[part]
            missing = np.unique(rows[places[rows] < 0])
            if len(missing):
                more_NBK, more_BC = self._look(part, missing)
                p_NBK, f_BC = np.hstack([p_NBK, more_NBK]), np.vstack([f_BC, more_BC])
        places[missing] = len(f_BC) - len(missing) + np.arange(len(missing))
        self._seen[part] = _Seen(places, p_NBK, f_BC)
        return p_NBK[:, places[rows]], f_BC[places[rows]]

    def extract(self, part: str, rows: np.ndarray) -> FrozenFeatures:
        """Features of images of a split at `rows`, int64 [n].

        Of the frozen network of the instant classifier, or, if there is none, of the classifier.
        """
        if self._frozen is not None:
            split = self._get_split(part).take(rows)
            data_dir = self.config.data.data_dir
            return compute_frozen(self.dataset, split, data_dir, [self._frozen])
        _, features_BC = self.predict_with_features(part, rows)
        return FrozenFeatures(features_BC, features_BC, features_BC[:, :0])

    def _get_split(self, part: str) -> Split:
        split: Split = getattr(self.dataset, part)
        return split

    def _look(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        instant = self.classifier.instant
        if instant is None:
            images = self._get_split(part).take(rows).images
            return self.classifier.networks.predict_with_features(images)
        # The features of most of these images are on disk.
        return instant.predict_with_features(self.extract(part, rows))


def read_run_config(workdir: pathlib.Path) -> ConfigDict:
    """The configuration of a run, or of an instant classifier, which has fewer keys.

    Raises a UserError if it is neither, or damaged.
    """
    return read_instant_config(workdir) if is_instant(workdir) else read_config(workdir / CONFIG)
