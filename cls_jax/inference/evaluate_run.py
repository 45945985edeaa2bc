"""Evaluation of a finished or unfinished run: accuracies, figures per class, calibration."""

import contextlib
import functools
import pathlib
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import read_config
from cls_jax.config.from_folder import create_instant_config
from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import read_labeled_indices
from cls_jax.data.sources.folder import list_layout, take_rows
from cls_jax.data.sources.folder_layout import NO_CLASS_NAME, Layout
from cls_jax.data.sources.label_table import fold
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.inference.calibration import (
    CALIBRATION,
    MIN_IMAGES,
    Calibration,
    fit_calibration,
    read_calibration,
    write_fitted,
)
from cls_jax.inference.classifier import Classifier, Outputs, load
from cls_jax.inference.scores import Figures, compute_figures, write_figures
from cls_jax.inference.suspects import take_unlabeled
from cls_jax.inference.unknown import UNKNOWN, UnknownScore, fit_unknown, read_unknown
from cls_jax.runs.checkpoint import CHECKPOINTS
from cls_jax.runs.folder import (
    CONFIG,
    INSTANT,
    LABELED_INDICES,
    find_answer,
    read_result,
    write_result,
)
from cls_jax.runs.result import choose_answer
from cls_jax.training.evaluate import Accuracies, create_evaluate
from cls_jax.training.loop import train
from cls_jax.training.probe import recall_features
from cls_jax.training.setup import TrainSetup, TrainState

_MAX_NAMED = 10  # Classes in a message.
# Labeled images that strangers are told by: more would cost minutes on a CPU.
_MAX_LABELED = 500


class Evaluation(NamedTuple):
    """What `evaluate_run` found about the checkpoint of a step."""

    step: int
    accuracies: Accuracies  # In percent, as `create_evaluate` names them.
    figures: Figures | None  # Of network 1 by class. None in several processes.


class OpenRun:
    """A run whose dataset and newest checkpoint are read when they are first needed, and once.

    Attributes:
        config: The run's configuration.
        workdir: The run's folder, which need not exist before `train_calibrated`.
    """

    def __init__(self, config: ConfigDict, workdir: pathlib.Path, layout: Layout | None = None):
        """Reads nothing yet. `layout` is for `load_dataset`."""
        self.config, self.workdir, self.layout = config, workdir, layout
        self._end: tuple[TrainSetup, TrainState, int] | None = None

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The images and labels."""
        return load_dataset(self.config, self.layout)

    @functools.cached_property
    def classifier(self) -> Classifier:
        """The newest checkpoint. Use it after training only."""
        return load(self.workdir, trained=True, end=self._end)

    @functools.cached_property
    def recalled(self) -> Dataset:
        """The dataset for the classifier: with features for images, see `recall_features`."""
        return recall_features(self.classifier.setup, self.dataset, self.config.data.data_dir)

    @functools.cached_property
    def held_out(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """What the classifier predicts for the validation and test images, if there are any.

        By "validation" and "test", probabilities float32 [N, n, K] and true classes int [n].
        """
        return {
            name: (self.classifier.predict_probabilities(images), np.asarray(labels))
            for name, images, labels in self.recalled.held_out
            if len(labels)
        }

    @functools.cached_property
    def outputs(self) -> Outputs:
        """What the classifier says about the training images."""
        return Outputs(self.classifier, self.recalled.train_images)

    def train_calibrated(self) -> dict[str, Any]:
        """Trains or resumes the run as `training.loop.train` does, calibrates and assesses it.

        Several processes do not calibrate and assess, because each would write the same files.

        A run on a folder of images that starts from propagated labels begins with the instant
        classifier, a run without steps in the folder `instant`. `choose_answer` says which of the
        two answers.

        Returns the contents of `result.json`, and raises the same as `training.loop.train`.
        """
        config = self.config
        begins_instant = config.model.init_head == "graph" and config.data.name == "folder"
        if not (begins_instant and config.num_steps) or jax.process_count() > 1:
            return self._train_assessed()
        start = OpenRun(create_instant_config(config), self.workdir / INSTANT, self.layout)
        instant = read_result(start.workdir)
        if instant is None:
            if (self.workdir / LABELED_INDICES).exists():  # The labels that the user has chosen.
                start.workdir.mkdir(exist_ok=True)
                shutil.copy(self.workdir / LABELED_INDICES, start.workdir)
            instant = start.train_calibrated()
        result = self._train_assessed()
        if "answer" not in result:
            result |= choose_answer(result, instant)
            write_result(self.workdir, result)
        return result

    def _train_assessed(self) -> dict[str, Any]:
        def keep(*end: Any) -> None:
            self._end = end

        result = train(self.config, self.workdir, lambda config: self.dataset, keep)
        readers = (read_calibration, read_unknown)
        is_assessed = any(read(self.workdir, result["step"]) for read in readers)
        is_assessed = is_assessed or "per_class" in result
        # A finished run keeps its result without checkpoints.
        has_checkpoint = any((self.workdir / CHECKPOINTS).glob("[0-9]*"))
        if is_assessed or not has_checkpoint or jax.process_count() > 1:
            return result
        assess_run(self)
        return read_result(self.workdir) or result


def assess_run(run: OpenRun) -> Figures | None:
    """Computes a run's figures per class, calibrates its confidences, learns to tell strangers.

    Writes `calibration.json`, fitted on the validation images if there are at least 100. Writes
    `per_class.csv`, and adds the figures to the result of the same step, if there is one. Writes
    `unknown.json`, if there are unlabeled images. A folder that is read-only stays as it is.

    Returns the figures of network 1, or None without test images. Raises a UserError if the result
    is damaged.
    """
    workdir, step, figures = run.workdir, run.classifier.step, None
    if "test" in run.held_out:
        p_NBK, labels = run.held_out["test"]
        figures = compute_figures(p_NBK[0], labels, run.classifier.class_names)
    with contextlib.suppress(OSError):
        validation = run.held_out.get("validation")
        if validation and len(validation[1]) >= MIN_IMAGES:
            p_NBK, labels = validation
            numbers = fit_calibration(p_NBK.mean(axis=0), labels)
            calibration = Calibration(step, *numbers, len(labels), fitted_on="validation")
            write_fitted(workdir / CALIBRATION, calibration)
        if figures is not None:
            write_figures(workdir, step, figures)
        if unknown := assess_unknown(run):
            write_fitted(workdir / UNKNOWN, unknown)
    return figures


def assess_unknown(run: OpenRun) -> UnknownScore | None:
    """Fits the score of unknown images to at most 500 labeled and 1,000 unlabeled images of a run.

    None for a folder without a list of labeled images, or without unlabeled images. Raises a
    UserError if the list is damaged.
    """
    path, classifier = run.workdir / LABELED_INDICES, run.classifier
    if not path.exists():
        return None
    labeled = np.sort(read_labeled_indices(path, classifier.class_names))
    unlabeled = take_unlabeled(len(run.dataset.train_images), labeled)
    if not len(unlabeled):
        return None
    rows = np.concatenate([take_rows(labeled, _MAX_LABELED), unlabeled])
    labels = np.where(np.isin(rows, labeled), run.dataset.train_labels[rows], -1)
    _, features = run.outputs.compute(rows)
    score = fit_unknown(features, labels, len(classifier.class_names), classifier.step)
    if score is not None and classifier.step:
        # Networks pull together the images whose labels they have learned. On digits, where there
        # are no strangers, 39% of the unlabeled images were then farther than 95% of those.
        score = score._replace(far_share=None)
    return score


def evaluate_run(workdir: pathlib.Path, data_dir: str | None = None) -> Evaluation:
    """Restores the newest checkpoint of a run, evaluates it as training does, and assesses it.

    `data_dir` is the dataset's place if it is no longer the training's `config.data.data_dir`.

    Raises:
        UserError: If `workdir` is not a run's folder or holds no checkpoint yet, or the dataset has
            no test images or other classes.
    """
    workdir = find_answer(workdir)
    config = read_config(workdir / CONFIG)
    if data_dir is not None:
        config.data.data_dir = data_dir
    run = OpenRun(config, workdir)
    classifier, dataset, class_names = run.classifier, run.dataset, run.classifier.class_names
    if dataset.class_names != class_names:
        raise UserError(
            f"The classes of {dataset.name} ({', '.join(dataset.class_names)}) differ from those "
            f"of the run in {workdir} ({', '.join(class_names)}): restore the original folder."
        )
    if not len(dataset.test_images):
        raise UserError(
            f"{dataset.name} has no test images to evaluate on: add them as test/<class>/ beside "
            "the training images."
        )
    evaluate = create_evaluate(classifier.setup)
    accuracies = evaluate(classifier.state, run.recalled.test_images, dataset.test_labels)
    figures = assess_run(run) if jax.process_count() == 1 else None
    return Evaluation(classifier.step, accuracies, figures)


def evaluate_folder(workdir: pathlib.Path, folder: str) -> tuple[Evaluation, int, int]:
    """Evaluates the newest checkpoint of a run on another folder of labeled images.

    The folder has a layout of docs/own_images.md. Its test images are used, or all labeled images
    if it has no test images. Nothing is written. Returns the evaluation, the number of images in
    it, and the number that could not be read.

    Raises:
        UserError: If the folder has another class or no image that can be read.
    """
    root = pathlib.Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"{folder} is not a folder: name one with labeled images.")
    layout = list_layout(root)
    rows = layout.test or [row for row in layout.train if row[1] != NO_CLASS_NAME]
    classifier = load(workdir)
    index = {fold(name): k for k, name in enumerate(classifier.class_names)}
    if foreign := sorted({name for _, name in rows if fold(name) not in index}):
        is_one, names = len(foreign) == 1, ", ".join(map(repr, foreign[:_MAX_NAMED]))
        raise UserError(
            f"The run in {workdir} does not know the {'class' if is_one else 'classes'} {names}: "
            f"rename or remove {'its folder' if is_one else 'their folders'} in {root}."
        )
    parts, is_read = [], []
    for batch in classifier.read_files([str(root / file.name) for file, _ in rows]):
        parts.append(classifier.predict_probabilities(batch.images))
        is_read += [error is None for error in batch.errors]
    p_NBK = np.concatenate(parts, axis=1)
    labels = np.array([index[fold(name)] for _, name in rows])[np.array(is_read)]
    if not len(labels):
        raise UserError(f"No labeled image in {root} can be read: convert them to JPEG or PNG.")
    networks = 100 * (p_NBK.argmax(axis=-1) == labels).mean(axis=1)
    accuracies = {"test/accuracy": float(networks[0])}
    if len(networks) > 1:
        accuracies["test/accuracy_network_2"] = float(networks[1])
        ensemble = p_NBK.mean(axis=0).argmax(axis=-1)
        accuracies["test/accuracy_ensemble"] = float(100 * (ensemble == labels).mean())
    figures = compute_figures(p_NBK[0], labels, classifier.class_names)
    evaluation = Evaluation(classifier.step, accuracies, figures)
    return evaluation, len(labels), len(rows) - len(labels)
