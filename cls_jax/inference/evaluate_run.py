"""Evaluation of a finished or unfinished run, and its calibration on the test images."""

import contextlib
import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.datasets import load_dataset
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.inference.calibration import (
    CALIBRATION,
    MIN_IMAGES,
    Calibration,
    fit_calibration,
    write_calibration,
)
from cls_jax.inference.classifier import Classifier, load
from cls_jax.runs.folder import read_dataset_description
from cls_jax.training.evaluate import Accuracies, create_evaluate
from cls_jax.training.loop import train
from cls_jax.training.restore import restore_run


def train_calibrated(config: ConfigDict, workdir: pathlib.Path) -> dict[str, Any]:
    """Trains or resumes a run as `training.loop.train` does, then calibrates its confidences.

    Not in several processes, of which each would write the calibration, and not without enough
    test images.

    Raises:
        UserError: as of `training.loop.train`.
        StoppedError: likewise.
    """
    result = train(config, workdir)
    has_test = result["test_accuracy"] is not None
    if has_test and jax.process_count() == 1 and not (workdir / CALIBRATION).exists():
        calibrate_run(workdir, load(workdir), load_dataset(config))
    return result


def calibrate_run(
    workdir: pathlib.Path, classifier: Classifier, dataset: Dataset
) -> Calibration | None:
    """Fits a calibration on the test images and stores it in the run's folder.

    Returns:
        What was stored; None if there are fewer than 100 test images.

    Raises:
        OSError: if the folder cannot be written.
    """
    labels = np.asarray(dataset.test_labels)
    if len(labels) < MIN_IMAGES:
        return None
    p_BK = classifier.predict_probabilities(dataset.test_images).mean(axis=0)
    calibration = Calibration(classifier.step, *fit_calibration(p_BK, labels), len(labels))
    write_calibration(workdir, calibration)
    return calibration


def evaluate_run(workdir: pathlib.Path, data_dir: str | None = None) -> tuple[int, Accuracies]:
    """Restores the newest checkpoint of a run, evaluates it as training does, and calibrates it.

    Args:
        workdir: the run's folder.
        data_dir: where the dataset is now, if not in the `config.data.data_dir` of the training.

    Returns:
        The checkpoint's step, and accuracies in percent as `create_evaluate` names them.

    Raises:
        UserError: if the folder is not that of a run or holds no checkpoint yet, or the dataset
            has no test images or other classes.
    """
    setup, state, step = restore_run(workdir)
    if data_dir is not None:
        setup.config.data.data_dir = data_dir
    dataset = load_dataset(setup.config)
    class_names, _ = read_dataset_description(workdir)
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
    accuracies = create_evaluate(setup)(state, dataset.test_images, dataset.test_labels)
    if jax.process_count() == 1:
        classifier = Classifier(setup, state, class_names, step)
        with contextlib.suppress(OSError):  # A folder that is read-only can still be evaluated.
            calibrate_run(workdir, classifier, dataset)
    return step, accuracies
