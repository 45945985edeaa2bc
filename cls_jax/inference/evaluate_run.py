"""Evaluation of a finished or unfinished run."""

import pathlib

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.inference.restore import restore_run
from cls_jax.runs.folder import read_dataset_description
from cls_jax.training.evaluate import Accuracies, create_evaluate


def evaluate_run(workdir: pathlib.Path, data_dir: str | None = None) -> tuple[int, Accuracies]:
    """Restores the newest checkpoint of a run and evaluates it as training does.

    Args:
        workdir: the run's folder.
        data_dir: where the dataset is now, if not in the `config.data.data_dir` of the training.

    Returns:
        The checkpoint's step, and accuracies in percent as `create_evaluate` names them.

    Raises:
        UserError: if the folder is not that of a run or holds no checkpoint yet, or the dataset
            has no test images or other classes.
    """
    program, state, step = restore_run(workdir)
    if data_dir is not None:
        program.config.data.data_dir = data_dir
    dataset = load_dataset(program.config)
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
    return step, create_evaluate(program)(state, dataset.test_images, dataset.test_labels)
