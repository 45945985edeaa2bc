"""A run in use: its images, networks and predictions. `open_run` and `load` open it.

It has one of two forms: a training of networks, or an instant classifier, of which nothing was
trained. What differs between the two is here, so that nobody else has to ask. Package `runs` reads
and writes the files of a run.
"""

import abc
import copyreg
import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import validate_config, with_values
from cls_jax.data.types import Dataset, ImageSource
from cls_jax.errors import UserError
from cls_jax.photos.features.instant import (
    INSTANT_FILE,
    InstantClassifier,
    TaggedClassifier,
    read_instant,
)
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork
from cls_jax.photos.folder.catalog import Layout
from cls_jax.photos.folder.instant_config import read_instant_config, read_run_config
from cls_jax.photos.inference.calibration import read_calibration
from cls_jax.photos.inference.classifier import Classifier, Prediction, refuse_forked_child
from cls_jax.photos.inference.inputs import ImageInput
from cls_jax.photos.inference.networks import (
    Networks,
    open_instant_networks,
    open_trained_networks,
)
from cls_jax.photos.inference.unknown import (
    FOLDER_IMAGES,
    FolderImages,
    read_folder_images,
    read_unknown,
)
from cls_jax.photos.start.fit_instant import INSTANT, fit_instant
from cls_jax.photos.start.frozen import compute_frozen
from cls_jax.photos.start.hold_out import open_run_dataset
from cls_jax.photos.start.scores import TAGS, Target, get_target
from cls_jax.photos.start.stages import train_with_stages
from cls_jax.runs.folder import CHECKPOINTS, CONFIG, read_dataset_description, read_result
from cls_jax.training.evaluate import Accuracies, create_evaluate
from cls_jax.training.prepare import RunEnd, restore_run


@dataclasses.dataclass(eq=False, repr=False)
class Run(abc.ABC):
    """A run, which can be used as a path, as in `cls_jax.load(run)`.

    `cls_jax.train` returns one, and otherwise `create_run` or `open_run`. Nothing is read before it
    is needed: its result, dataset and classifier are then read once.
    """

    config: ConfigDict
    workdir: pathlib.Path  # See docs/run_folder.md. It need not exist before training.
    layout: Layout | None = None  # Of its folder of images, if this has been listed already.
    chosen_step: int | str | None = None  # Of another checkpoint than the newest.
    start_of: "Run | None" = None  # Of an instant classifier: the training that began with it.
    # By split: the row of each of its n images in what follows, int64 [n], -1 for none, and the
    # probabilities float32 [N, B, K] and features float32 [B, N C] of those that were seen.
    _seen: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = dataclasses.field(
        default_factory=dict
    )

    def __fspath__(self) -> str:
        return os.fspath(self.workdir)

    @property
    def target(self) -> Target:
        """What it predicts: classes, or tags."""
        return get_target(self.config.data)

    @functools.cached_property
    def result(self) -> dict[str, Any]:
        """The contents of `result.json`, with accuracies in percent. Empty before its end."""
        return read_result(self.workdir) or {}

    def predict(self, images: ImageSource | ImageInput | Iterable[ImageInput]) -> Prediction:
        """Predicts with the run's networks or, if chosen at the end, its instant classifier.

        See `Classifier.predict`. The classifier is read once, as the run was opened.
        """
        refuse_forked_child()
        return self.predictor.classifier.predict(images)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The images and labels."""
        return open_run_dataset(self.config, self.workdir, self.layout)

    @property
    def predictor(self) -> "Run":
        """The run whose classifier predicts for this one, see `TrainedRun.predictor`."""
        return self

    @property
    def begun_with(self) -> "InstantRun | None":
        """The instant classifier that a training began with, in its folder `instant/`, if any."""
        return None

    @property
    @abc.abstractmethod
    def classifier(self) -> Classifier:
        """What it has trained or fitted, read once. Raises a UserError if that is damaged."""

    @property
    def has_classifier(self) -> bool:
        """Whether there is one. A finished run keeps its result even without its checkpoints."""
        return True

    @abc.abstractmethod
    def train(self) -> None:
        """Trains, resumes or fits it, and sets `result`. All processes must call this.

        Raises the same as `run_training` and `fit_instant`.
        """

    @abc.abstractmethod
    def measure_test(self) -> Accuracies:
        """The accuracies on the test images, in percent, as training measures them."""

    @property
    @abc.abstractmethod
    def frozen(self) -> FrozenNetwork | None:
        """The frozen network of the instant classifier, if there is one."""

    @abc.abstractmethod
    def _look(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`Networks.predict_with_features` of images of a split at `rows`, int64 [n]."""

    @functools.cached_property
    def held_out(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Predictions for the validation and test images, if there are any.

        By "validation" and "test": probabilities float32 [N, n, K], and what is known of the
        images, as `Classifier.scoring` takes it, such as their classes, int [n].
        """
        names, number = self.dataset.class_names, self.classifier.scoring.number
        return {
            name: (
                self.predict_with_features(name, np.arange(len(split)))[0],
                number(split.labels, names),
            )
            for name, split in self.dataset.held_out.items()
            if len(split)
        }

    def predict_with_features(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`Networks.predict_with_features`, cached, of images of a split at `rows`, int64 [n]."""
        if part not in self._seen:
            missing = np.unique(rows)
            p_NBK, f_BC = self._look(part, missing)
            places = np.full(len(getattr(self.dataset, part)), -1)
        else:
            places, p_NBK, f_BC = self._seen[part]
            missing = np.unique(rows[places[rows] < 0])
            if len(missing):
                more_NBK, more_BC = self._look(part, missing)
                p_NBK, f_BC = np.hstack([p_NBK, more_NBK]), np.vstack([f_BC, more_BC])
        places[missing] = len(f_BC) - len(missing) + np.arange(len(missing))
        self._seen[part] = places, p_NBK, f_BC
        return p_NBK[:, places[rows]], f_BC[places[rows]]

    def extract(self, part: str, rows: np.ndarray) -> FrozenFeatures:
        """Features of images of a split at `rows`, int64 [n].

        Of the frozen network of the instant classifier, or, if there is none, of the classifier.
        """
        if self.frozen is not None:
            split = getattr(self.dataset, part).take(rows)
            data_dir = self.config.data.data_dir
            return compute_frozen(self.dataset, split, data_dir, [self.frozen])
        _, features_BC = self.predict_with_features(part, rows)
        return FrozenFeatures(features_BC, features_BC, features_BC[:, :0])

    def _create_classifier(
        self,
        networks: Networks,
        step: int,
        folder_images: FolderImages | None = None,
        tags: tuple[str, ...] | None = None,
        thresholds: np.ndarray | None = None,
    ) -> Classifier:
        """The networks with the assessments in the folder."""
        labels, _ = read_dataset_description(self.workdir)
        names = self.target.read(labels).names
        fitted = tags if self.target is TAGS else names
        if fitted != names or networks.num_classes != len(names):
            raise UserError(
                f"The classifier in {self.workdir} was fitted to other {self.target.plural}. Train "
                "it again."
            )
        return Classifier(
            self.workdir,
            networks,
            names,
            step,
            calibration=read_calibration(self.workdir, step),
            unknown=read_unknown(self.workdir, step, networks.num_features),
            folder_images=folder_images,
            thresholds=thresholds,
        )


class TrainedRun(Run):
    """Networks that are trained, and perhaps the instant classifier that they began with."""

    @property
    def predictor(self) -> Run:
        """The run itself, or its instant classifier.

        A finished result decides, unless a step has been chosen. Raises a UserError if it is
        damaged, or the instant classifier is missing.
        """
        if self.chosen_step is not None or self.result.get("predictor") != INSTANT:
            return self
        if self.begun_with is None:
            raise UserError(
                f"{self.workdir / INSTANT}, the instant classifier that predicts for this run, is "
                "missing: copy it there again, or train a new run."
            )
        return self.begun_with

    @functools.cached_property
    def begun_with(self) -> "InstantRun | None":
        """On the same images."""
        folder = self.workdir / INSTANT
        if not all((folder / name).exists() for name in (CONFIG, INSTANT_FILE)):
            return None
        same = {"data.data_dir": self.config.data.data_dir}
        config = with_values(read_instant_config(folder), same)
        # Listed once: labels may have been added since.
        return InstantRun(config, folder, self.layout, start_of=self)

    @functools.cached_property
    def end(self) -> RunEnd:
        """The setup, the state and the step of the newest checkpoint, or the chosen one."""
        return restore_run(self.workdir, self.config, self.chosen_step)

    @functools.cached_property
    def classifier(self) -> Classifier:
        """The EMA networks."""
        networks = open_trained_networks(self.end)
        return self._create_classifier(networks, self.end.step)

    @property
    def has_classifier(self) -> bool:
        """Whether it has a checkpoint."""
        return any((self.workdir / CHECKPOINTS).glob("[0-9]*"))

    def train(self) -> None:
        """Trains or resumes it."""
        self.result, end = train_with_stages(self.config, self.workdir, lambda config: self.dataset)
        self.config = with_values(self.config, {"num_steps": self.result["step"]})
        if end is not None:
            self.end = end

    def measure_test(self) -> Accuracies:
        """See `create_evaluate`."""
        setup, state, _ = self.end
        test = self.dataset.test
        return create_evaluate(setup)(state, test.images, test.labels)

    @property
    def frozen(self) -> FrozenNetwork | None:
        """That of the instant classifier."""
        return None if self.begun_with is None else self.begun_with.frozen

    def _look(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = getattr(self.dataset, part).take(rows).images
        return self.classifier.networks.predict_with_features(images)


class InstantRun(Run):
    """An instant classifier: a frozen network with heads for the classes."""

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The images and labels."""
        run = self.start_of
        # Of another size, they have other pixels. And it may have learned what was held out.
        sames = ("image_size", "validation")
        if run is not None and all(run.config.data[k] == self.config.data[k] for k in sames):
            return run.dataset
        return open_run_dataset(self.config, self.workdir, self.layout)

    @functools.cached_property
    def _instant(self) -> InstantClassifier | TaggedClassifier:
        return read_instant(self.workdir / INSTANT_FILE)

    @functools.cached_property
    def classifier(self) -> Classifier:
        """The frozen network with its heads."""
        instant, networks = self._instant, open_instant_networks(self._instant)
        images = read_folder_images(self.workdir / FOLDER_IMAGES, networks.num_features)
        if isinstance(instant, TaggedClassifier):
            return self._create_classifier(networks, 0, images, instant.names, instant.thresholds)
        return self._create_classifier(networks, 0, images)

    def train(self) -> None:
        """Fits it."""
        self.result = fit_instant(self.config, self.workdir, lambda config: self.dataset)

    def measure_test(self) -> Accuracies:
        """From features on disk."""
        p_NBK, known = self.held_out["test"]
        return self.classifier.scoring.measure(p_NBK, known)

    @property
    def frozen(self) -> FrozenNetwork | None:
        """Its own."""
        return self._instant.network

    def _look(self, part: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The features of most of these images are on disk.
        return self._instant.predict_with_features(self.extract(part, rows))


def create_run(
    config: ConfigDict,
    workdir: pathlib.Path,
    layout: Layout | None = None,
    step: int | str | None = None,
) -> Run:
    """The run of a configuration, which is an instant classifier if it has no section `method`.

    The folder need not exist. `layout` is that of the folder of images, if it has been listed
    already. `step` is for `open_run`.
    """
    if "method" in config:
        return TrainedRun(config, workdir, layout, step)
    if step is not None:
        raise UserError(
            f"{workdir} has an instant classifier, which has no steps: leave out the step."
        )
    return InstantRun(config, workdir, layout)


def open_run(
    workdir: pathlib.Path,
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    step: int | str | None = None,
) -> Run:
    """The run in a folder.

    `data_dir` is the dataset's place if it is no longer the training's `config.data.data_dir`, and
    `eval_batch_size` replaces the training's for networks. `step` is that of another checkpoint
    than the newest, or "best", on the validation images. Raises a UserError if there is no run, it
    is damaged, or an instant classifier is asked for a step.
    """
    config = read_run_config(workdir)
    if data_dir is not None:
        config = with_values(config, {"data.data_dir": data_dir})
    if eval_batch_size is not None and "eval_batch_size" in config:
        config = with_values(config, {"eval_batch_size": eval_batch_size})
        validate_config(config)
    return create_run(config, workdir, step=step)


def check_photos(run: Run, remedy: str) -> None:
    """Raises a UserError with a remedy if a run's folder of photos is no longer there."""
    root = pathlib.Path(run.config.data.data_dir).expanduser()
    if run.config.data.name == "folder" and not root.is_dir():
        raise UserError(f"The run's photos are no longer in {root}: {remedy}.")


def load(
    run: str | os.PathLike, trained: bool = False, step: int | str | None = None
) -> Classifier:
    """Opens a run's classifier: its newest checkpoint, or its instant classifier.

    `run` is its folder, or what `cls_jax.train` returned. If `trained`, the checkpoint is opened
    even where the run chose its instant classifier. `step` is that of another checkpoint, or
    "best", on the validation images. Raises a UserError if there is no run, no such checkpoint,
    or a damaged file, or the process was forked from one that had used JAX.
    """
    refuse_forked_child()
    opened = open_run(pathlib.Path(run).expanduser(), step=step)
    return (opened if trained else opened.predictor).classifier


def _reduce(classifier: Classifier) -> tuple[Any, ...]:
    """How a classifier is pickled: by its own folder, its step and its fingerprint."""
    fingerprint = classifier.compute_fingerprint()
    return _reopen, (os.fspath(classifier.workdir), classifier.step, fingerprint)


def _reopen(workdir: str, step: int, fingerprint: str) -> Classifier:
    """The pickled classifier of a folder. Raises a UserError if the folder has another one now."""
    # An instant classifier has no step.
    classifier = load(workdir, trained=True, step=step or None)
    if classifier.compute_fingerprint() != fingerprint:
        raise UserError(
            f"The classifier in {workdir} has changed since it was pickled: open it with "
            "cls_jax.load and pickle it again."
        )
    return classifier


copyreg.pickle(Classifier, _reduce)
