"""Restores a trained run from its folder."""

import pathlib

from cls_jax.config import read_config
from cls_jax.errors import UserError
from cls_jax.runs.checkpoint import CHECKPOINTS, Checkpointer
from cls_jax.runs.folder import (
    CONFIG,
    RESULT,
    read_dataset_description,
    read_mean_and_std,
    use_mean_and_std,
)
from cls_jax.training.setup import TrainSetup, create_train_setup
from cls_jax.training.state import TrainState


def restore_run(workdir: pathlib.Path) -> tuple[TrainSetup, TrainState, int]:
    """Restores the newest checkpoint of a run onto the devices at hand.

    Returns:
        The program of the run's configuration, the state, and its step.

    Raises:
        UserError: if the folder is not that of a run or holds no checkpoint yet.
    """
    config = read_config(workdir / CONFIG)
    config.mesh.network = config.mesh.data = 0  # The devices at hand, not those of the training.
    checkpointer = Checkpointer(workdir)
    if checkpointer.latest_step() is None and (workdir / RESULT).exists():
        raise UserError(
            f"{workdir} is finished, but its checkpoints have been deleted: restore "
            f"{CHECKPOINTS}/ from a backup, or delete {RESULT} to train it again."
        )
    if checkpointer.latest_step() is None:
        raise UserError(
            f"{workdir} holds no checkpoint yet: train until step {config.checkpoint_every} first."
        )
    _, dataset_spec = read_dataset_description(workdir)
    if not config.data.mean:
        config = use_mean_and_std(config, *read_mean_and_std(workdir))
    setup = create_train_setup(config, dataset_spec)
    restored = checkpointer.restore_newest(setup.state_shapes)
    checkpointer.close()
    assert restored is not None, workdir  # It has a latest step.
    return setup, restored.state, restored.step
