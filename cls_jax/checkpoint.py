"""Checkpoints of the train state: the only file that imports Orbax."""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from cls_jax.errors import UserError
from cls_jax.train_state import TrainState

FORMAT_VERSION = 1


class Checkpointer:
    """Keeps the newest few states of a run in its folder `checkpoints/`.

    A state is written in the background under a temporary name and renamed when it is whole; an
    older one is removed after that.
    """

    def __init__(self, workdir: pathlib.Path, keep: int = 1):
        """Opens the checkpoints of the run in `workdir`; creates their folder if there is none."""
        self.folder = pathlib.Path(workdir).resolve() / "checkpoints"
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(
            self.folder, options=options, item_names=("state", "notes")
        )

    def latest_step(self) -> int | None:
        """The newest step that can be restored, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, notes: dict[str, Any]) -> None:
        """Starts writing the state and a few JSON notes; returns when the state may be donated."""
        notes = {"format_version": FORMAT_VERSION, **notes}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), notes=ocp.args.JsonSave(notes)
            ),
        )

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Restores a step onto the shapes and shardings of `like`, a state or its abstraction.

        Raises:
            UserError: if the checkpoint is of another format version.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract), notes=ocp.args.JsonRestore()
            ),
        )
        notes = restored.notes
        if notes["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"The checkpoint of step {step} in {self.folder} has format version "
                f"{notes['format_version']}, this program reads {FORMAT_VERSION}: use the version "
                "of cls_jax that wrote it."
            )
        # Arrays made by Orbax are not XLA's own, so the first step could not reuse their memory
        # (jax #18617); a copy made by XLA can be donated.
        return jax.jit(lambda state: jax.tree.map(lambda leaf: leaf.copy(), state))(
            restored.state
        ), notes

    def close(self) -> None:
        """Waits until the last state is whole."""
        self._manager.close()
