"""Evaluates a run from its folder and its dataset."""

import pathlib

from cls_jax.data.datasets import load_dataset
from cls_jax.evaluate import Accuracies, create_evaluate
from cls_jax.restore import restore_run


def evaluate_run(workdir: pathlib.Path) -> tuple[int, Accuracies]:
    """Restores the newest checkpoint of a run and evaluates it as training does.

    Returns:
        The checkpoint's step, and accuracies in percent as `create_evaluate` names them.

    Raises:
        UserError: if the folder is not that of a run or holds no checkpoint yet.
    """
    program, state, step = restore_run(workdir)
    dataset = load_dataset(program.config)
    return step, create_evaluate(program)(state, dataset.test_images, dataset.test_labels)
