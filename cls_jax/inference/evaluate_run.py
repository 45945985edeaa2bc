"""Evaluation of a finished or unfinished run: accuracies, figures per class, calibration."""

import contextlib
import functools
import pathlib
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import read_config
from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import read_labeled_indices
from cls_jax.data.sources.folder import list_layout, take_rows
from cls_jax.data.sources.folder_layout import NO_CLASS_NAME, Layout
from cls_jax.data.sources.label_table import fold
from cls_jax.data.types import Dataset, ImageSource, Selection
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
from cls_jax.inference.unknown import UNKNOWN, UnknownScore, fit_unknown
from cls_jax.parallel.distributed import barrier, is_main_process
from cls_jax.runs.folder import (
    CONFIG,
    LABELED_INDICES,
    find_assessments,
    find_predictor,
    find_trained,
    is_instant,
)
from cls_jax.training.evaluate import Accuracies, compute_accuracies, create_evaluate
from cls_jax.training.instant import compute_frozen
from cls_jax.training.setup import TrainSetup, TrainState
from cls_jax.training.start import restore_run

_MAX_NAMED = 10  # Classes in a message.
# Labeled images by which images of no class are told: more would cost minutes on a CPU.
_MAX_LABELED = 500


class Evaluation(NamedTuple):
    """What `evaluate_run` found about the checkpoint of a step."""

    step: int
    accuracies: Accuracies  # In percent, as `create_evaluate` names them.
    figures: Figures | None  # Of network 1 by class.
    calibration: Calibration | None = None


class OpenRun:
    """A run whose dataset and newest checkpoint are read when they are first needed, and once.

    Attributes:
        config: The run's configuration.
        workdir: The run's folder, which need not exist before training.
        predictor: The path of what its classifier opens, see `find_predictor`, or None for the
            networks after the last step.
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
        """What predicts, or the networks after training. Use it after training only."""
        path = self.predictor or find_trained(self.workdir)
        if path == self.workdir:
            return load(path, trained=True, end=self.end)
        return load(path)

    @functools.cached_property
    def outputs(self) -> dict[str, Outputs]:
        """What the classifier says about the "train", "validation" and "test" images."""
        dataset = self.dataset
        parts = [("train", dataset.train_images, dataset.train_labels), *dataset.held_out]
        return {
            part: Outputs(functools.partial(self._look, part, images), len(images))
            for part, images, _ in parts
        }

    def _look(self, part: str, images: ImageSource, rows: np.ndarray) -> Any:
        instant = self.classifier.instant
        if instant is None:
            return self.classifier.compute_both(Selection(images, rows))
        # Its network has seen most of these images: their features are on disk.
        data_dir = self.config.data.data_dir
        features = compute_frozen(self.dataset, data_dir, instant.network, part, rows)
        return instant.compute_both(features)

    @functools.cached_property
    def held_out(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """What the classifier predicts for the validation and test images, if there are any.

        By "validation" and "test", probabilities float32 [N, n, K] and true classes int [n].
        """
        return {
            name: (self.outputs[name].compute(np.arange(len(labels)))[0], np.asarray(labels))
            for name, _, labels in self.dataset.held_out
            if len(labels)
        }


def assess_run(run: OpenRun) -> Figures | None:
    """Computes a run's figures per class, calibrates its confidences, scores images of no class.

    Writes `calibration.json`, fitted on the validation images if there are at least 100. Writes
    `per_class.csv`, and adds the figures to the result of the same step, if there is one. Writes
    `unknown.json`, if there are unlabeled images. A folder that is read-only stays as it is. Of an
    instant classifier beside trained networks there are no figures. All of several processes must
    call this: they predict together, and process 0 writes.

    Returns the figures of network 1, or None without test images. Raises a UserError if the result
    is damaged.
    """
    workdir, step, figures = run.workdir, run.classifier.step, None
    folder = find_assessments(workdir, run.predictor)
    fitted: dict[str, Any] = {UNKNOWN: assess_unknown(run)}
    if "test" in run.held_out:
        p_NBK, labels = run.held_out["test"]
        figures = compute_figures(p_NBK[0], labels, run.classifier.class_names)
    p_NBK, labels = run.held_out.get("validation", (np.zeros(0), np.zeros(0)))
    if len(labels) >= MIN_IMAGES:
        numbers = fit_calibration(p_NBK.mean(axis=0), labels)
        fitted[CALIBRATION] = Calibration(step, *numbers, len(labels), fitted_on="validation")
    if is_main_process():
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            for name, found in fitted.items():
                if found:
                    write_fitted(folder / name, found)
            if figures is not None and folder == workdir:
                write_figures(workdir, step, figures)
    barrier("assessed")
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
    _, features = run.outputs["train"].compute(rows)
    score = fit_unknown(features, labels, len(classifier.class_names), classifier.step)
    if score is not None and classifier.step:
        # Networks pull together the images whose labels they have learned. On digits, where every
        # image has a class, 39% of the unlabeled images were then farther than 95% of those.
        score = score._replace(far_share=None)
    return score


def evaluate_run(workdir: pathlib.Path, data_dir: str | None = None) -> Evaluation:
    """Restores the newest checkpoint of a run, evaluates it as training does, and assesses it.

    `data_dir` is the dataset's place if it is no longer the training's `config.data.data_dir`.

    Raises:
        UserError: If `workdir` is not a run's folder or holds no checkpoint yet, or the dataset has
            no test images or other classes.
    """
    predictor = workdir if is_instant(workdir) else find_predictor(workdir)
    workdir = predictor.parent if is_instant(predictor) else predictor
    config = read_config(workdir / CONFIG)
    if data_dir is not None:
        config.data.data_dir = data_dir
    run = OpenRun(config, workdir, predictor=predictor)
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
    if classifier.instant is None:
        setup, state, _ = run.end
        accuracies = create_evaluate(setup)(state, dataset.test_images, dataset.test_labels)
    else:
        accuracies = compute_accuracies(*run.held_out["test"])
    figures = assess_run(run)
    calibration = read_calibration(find_assessments(workdir, predictor), classifier.step)
    return Evaluation(classifier.step, accuracies, figures, calibration)


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
        raise UserError(f"{folder} is not a folder. Pass a folder of labeled images.")
    layout = list_layout(root)
    rows = layout.test or [row for row in layout.train if row[1] != NO_CLASS_NAME]
    classifier = load(workdir)
    index = {fold(name): k for k, name in enumerate(classifier.class_names)}
    if foreign := sorted({name for _, name in rows if fold(name) not in index}):
        is_one, names = len(foreign) == 1, ", ".join(map(repr, foreign[:_MAX_NAMED]))
        raise UserError(
            f"The run in {workdir} does not have the {'class' if is_one else 'classes'} {names}: "
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
