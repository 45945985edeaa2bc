"""Evaluates a run from its folder alone."""

import pathlib

from cls_jax.checkpoint import Checkpointer
from cls_jax.config import read_config
from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.evaluate import Accuracies, create_evaluate
from cls_jax.program import create_program
from cls_jax.run_folder import CONFIG


def evaluate_run(workdir: pathlib.Path) -> tuple[int, Accuracies]:
    """Restores the newest checkpoint of a run and evaluates it as training does.

    Returns:
        The checkpoint's step, and accuracies in percent as `create_evaluate` names them.

    Raises:
        UserError: if the folder is not that of a run or holds no checkpoint yet.
    """
    config = read_config(workdir / CONFIG)
    config.mesh.network = config.mesh.data = 0  # These devices, not those of the training.
    checkpointer = Checkpointer(workdir)
    step = checkpointer.latest_step()
    if step is None:
        raise UserError(
            f"{workdir} holds no checkpoint yet: train until step {config.checkpoint_every} first."
        )
    dataset = load_dataset(config)
    program, state = create_program(config, dataset.shape)
    state, _ = checkpointer.restore(step, state)
    return step, create_evaluate(program)(state, dataset.test_images, dataset.test_labels)
