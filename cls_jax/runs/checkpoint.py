"""Checkpoints of the train state: the only file that imports Orbax.

A checkpoint carries a checksum of every array and of its notes, so that one damaged on disk is
found when it is read, also where the file format itself would not notice.
"""

import hashlib
import json
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from cls_jax.errors import UserError

FORMAT_VERSION = 2
PyTree = Any
CHECKPOINTS = "checkpoints"
DAMAGED = "damaged_checkpoints"


class Restored(NamedTuple):
    """What a checkpoint holds."""

    step: int
    state: PyTree
    notes: dict[str, Any]


class Checkpointer:
    """Keeps the newest few states of a run in its folder `checkpoints/`.

    A state is written in the background under a temporary name and renamed when it is whole; an
    older one is removed after that. What cannot be written is said, and training goes on.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        keep: int | None = None,
        warn: Callable[[str], None] | None = None,
    ):
        """Opens the checkpoints of the run in `workdir`.

        Args:
            workdir: the run's folder.
            keep: how many to keep; None only reads and leaves the folder as it is.
            warn: shows a sentence to the user; on standard error by default.
        """
        self._workdir = pathlib.Path(workdir).resolve()
        self.folder = self._workdir / CHECKPOINTS
        self._keep = keep
        self.warn = warn or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
        self._unconfirmed: int | None = None  # The step whose state is being written.
        self._open()

    def _open(self) -> None:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            create=self._keep is not None,
            read_only=self._keep is None,
            # What a killed session left; only the one session that trains may remove it.
            cleanup_tmp_directories=self._keep is not None,
        )
        self._manager: ocp.CheckpointManager | None = ocp.CheckpointManager(
            self.folder, options=options, item_names=("state", "notes")
        )

    def latest_step(self) -> int | None:
        """The newest step that can be restored, or None."""
        steps = [step for step in self._list_steps() if step != self._unconfirmed]
        return max(steps, default=None)

    def save(self, step: int, state: PyTree, notes: dict[str, Any]) -> None:
        """Starts writing the state and a few JSON notes; returns when the state may be donated."""
        self.finish()
        notes = {"fingerprint": state_checksum(state), **notes}
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), notes=ocp.args.JsonSave(_add_checksum(notes))
        )
        self._unconfirmed = step

        def write() -> None:
            self._probe()
            if self._manager is None:
                self._open()
            self._manager.save(step, args=args)

        self._try(write)

    def finish(self) -> None:
        """Waits until the last state is whole, or says why it is not."""
        if self._unconfirmed is not None:
            self._try(self._manager.wait_until_finished)
            self._unconfirmed = None

    def _try(self, write: Callable[[], None]) -> None:
        """Writes; where the disk does not take it, tidies up and says so."""
        try:
            write()
        except Exception as error:  # Every layer below has its own.
            if jax.process_count() > 1:
                raise  # The others wait for this one: all end, and go on from the last whole state.
            step, self._unconfirmed = self._unconfirmed, None
            self._forget(step)
            self.warn(
                f"Warning: the checkpoint of step {step} could not be written "
                f"({describe_failure(error)}): training goes on, and the newest whole one is "
                f"{describe_step(self.latest_step())}."
            )

    def _probe(self) -> None:
        """Raises an OSError where nothing can be written; Orbax would try for minutes."""
        path = self.folder / f"{jax.process_index()}.probe"
        path.write_bytes(bytes(4096))
        path.unlink()

    def _forget(self, step: int | None) -> None:
        """Removes what a failed save left, and the manager, which remembers the failure."""
        # Under its own name a state is whole, whatever failed after that.
        for path in self.folder.glob(f"{step}.*"):
            shutil.rmtree(path, ignore_errors=True)
        self._manager = None

    def restore_newest(self, like: PyTree) -> Restored | None:
        """Restores the newest whole checkpoint onto the shapes and shardings of `like`.

        One that is damaged is named and, by the session that trains, moved to
        `damaged_checkpoints/`; then comes the one before it.

        Args:
            like: a state or its abstraction.

        Returns:
            The checkpoint, or None where the run has none yet.

        Raises:
            UserError: if there are checkpoints but none is whole, or one is of another format.
        """
        last_reason = None
        for step in sorted(self._list_steps(), reverse=True):
            restored, reason = self._try_restore(step, like)
            if restored is not None:
                return restored
            if not (self.folder / str(step)).exists():
                continue  # A run that goes on has removed it just now.
            last_reason = reason
            where = self._set_aside(step) if self._keep is not None else "left where it is"
            self.warn(
                f"Warning: the checkpoint of step {step} in {self.folder} is damaged ({reason}): "
                f"{where}, and the one before it is used."
            )
        # Also the next time: what was moved away still says that the run had begun.
        if last_reason is None and not (self._workdir / DAMAGED).exists():
            return None
        raise UserError(
            f"{self._workdir} holds no checkpoint that is whole "
            f"({last_reason or f'the damaged ones are in {DAMAGED}/'}): bring one back from a "
            "copy, or give --workdir a new folder."
        )

    def _try_restore(self, step: int, like: PyTree) -> tuple[Restored | None, str | None]:
        restored = reason = None
        try:
            restored = self._restore(step, like)
        except (UserError, jax.errors.JaxRuntimeError):  # Not a matter of the files.
            raise
        except Exception as error:
            reason = describe_failure(error)
        if jax.process_count() > 1:
            is_whole = multihost_utils.process_allgather(np.array(restored is not None))
            if not is_whole.all():
                restored, reason = None, reason or "another process cannot read it"
        return restored, reason

    def _restore(self, step: int, like: PyTree) -> Restored:
        notes = self._manager.restore(
            step, args=ocp.args.Composite(notes=ocp.args.JsonRestore())
        ).notes
        _verify_checksum(notes)
        if notes["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"The checkpoint of step {step} in {self.folder} has format version "
                f"{notes['format_version']}, this program reads {FORMAT_VERSION}: use the version "
                "of cls_jax that wrote it."
            )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        state = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        ).state
        if state_checksum(state) != notes["fingerprint"]:
            raise ValueError("arrays differ from those that were saved")
        # Arrays made by Orbax are not XLA's own, so the first step could not reuse their memory
        # (jax #18617); a copy made by XLA can be donated.
        copy = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf.copy(), state))
        return Restored(step, copy(state), notes)

    def _list_steps(self) -> list[int]:
        # From the folder, not from the manager's memory: files may have come and gone.
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return []
        return [int(name) for name in names if name.isdecimal()]

    def _set_aside(self, step: int) -> str:
        folder = self._workdir / DAMAGED
        target = folder / str(step)
        if jax.process_index() == 0:
            folder.mkdir(exist_ok=True)
            for i in range(1, 1000):
                if not target.exists():
                    break
                target = folder / f"{step}-{i}"
            (self.folder / str(step)).rename(target)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"set aside {step}")
        self._manager.reload()
        return f"it was moved to {target.relative_to(self._workdir)}/"

    def close(self) -> None:
        """Waits until the last state is whole."""
        self.finish()
        if self._manager is not None:
            self._manager.close()


def state_checksum(state: PyTree) -> list[int]:
    """A checksum of every array of a state, the same however it is spread over devices.

    The sum of an array's 32-bit words w_i times 2i + 1, modulo 2^32: the odd factors make every
    single flipped bit and every swap of neighbours visible.
    """
    mesh = jax.tree.leaves(state)[0].sharding.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    sums = jax.jit(_sum_words, out_shardings=everywhere)(state)
    return [int(value) for value in jax.device_get(sums)]


def _sum_words(state: PyTree) -> jax.Array:
    def sum_array(array: jax.Array) -> jax.Array:
        if array.dtype == bool:
            array = array.astype(jnp.uint8)
        unsigned = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
        words = jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32).reshape(-1)
        factors = 2 * jnp.arange(words.size, dtype=jnp.uint32) + 1
        return jnp.sum(words * factors, dtype=jnp.uint32)

    return jnp.stack([sum_array(array) for array in jax.tree.leaves(state)])


def _add_checksum(notes: dict[str, Any]) -> dict[str, Any]:
    notes = {"format_version": FORMAT_VERSION, **notes}
    return {**notes, "sha256": _digest(notes)}


def _verify_checksum(notes: dict[str, Any]) -> None:
    rest = {key: value for key, value in notes.items() if key != "sha256"}
    # Format 1 had no seal; it is told by its version.
    if notes["format_version"] != 1 and notes["sha256"] != _digest(rest):
        raise ValueError("notes differ from those that were saved")


def _digest(notes: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(notes, sort_keys=True).encode()).hexdigest()


def describe_failure(error: Exception) -> str:
    """An error in a few words: the system's own where it has some, else the last line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    for sign in ("No space left on device", "Read-only file system", "No such file or directory"):
        if sign in text:
            return sign
    return text[:200].rstrip(".: ") or type(error).__name__


def describe_step(step: int | None) -> str:
    """A checkpoint in words, or that there is none."""
    return "none yet" if step is None else f"that of step {step}"
