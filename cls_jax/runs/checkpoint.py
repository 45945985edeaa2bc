"""Checkpoints of any pytree of arrays: the only file that imports Orbax.

A checkpoint carries a checksum of every array and of its metadata, so that damage on disk is found
when it is read, even where the file format itself would not notice.
"""

import errno
import functools
import hashlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from cls_jax.batch import Leaf, PyTree
from cls_jax.errors import UserError
from cls_jax.io import describe_error
from cls_jax.parallel import compilation
from cls_jax.parallel.distributed import (
    all_processes,
    barrier,
    from_all_processes,
    from_main_process,
    is_main_process,
    together,
)
from cls_jax.runs.folder import CHECKPOINTS

# Earlier formats were never released. In this one, every row of an array has a hash, which a
# process can compute for the rows that it holds.
FORMAT_VERSION = 4
DAMAGED = "damaged_checkpoints"
# What a process or machine may lack while it reads several files at once, but not one by one.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


# The content of a checkpoint: step, state, and metadata, which include those given to `save`.
Restored = tuple[int, PyTree, dict[str, Any]]


class Checkpointer:
    """Keeps the newest few states of a run in its folder `checkpoints/`, or another one.

    A state is written in the background under a temporary name and renamed once it is complete.
    Only then is an older one removed. A failed save is reported, and training continues.

    The newest `keep` states are kept. If None, the folder is only read. The attribute `warn` shows
    a sentence to the user, on standard error unless it is replaced.
    """

    def __init__(
        self, workdir: pathlib.Path, keep: int | None = None, folder: str = CHECKPOINTS
    ) -> None:
        self._workdir = pathlib.Path(workdir).resolve()
        self.folder = self._workdir / folder
        self._keep = keep
        self.warn: Callable[[str], None] = functools.partial(print, file=sys.stderr, flush=True)
        self._unconfirmed: int | None = None  # The step whose state is being written.
        self._manager: Any = None
        if keep is not None:
            self._open()

    def _open(self) -> None:
        """Opens the folder for writing."""
        import orbax.checkpoint as ocp  # Half a second that nothing but checkpoints needs.

        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            # Leftovers of a killed session. Only the session that trains may remove them.
            cleanup_tmp_directories=True,
            # Processes wait for each other at barriers called by step: those of another folder
            # that is being written at the same time need other names.
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                barrier_sync_key_prefix=self.folder.name
            ),
        )
        # Our metadata is called "notes" on disk: Orbax reserves "metadata".
        self._manager = ocp.CheckpointManager(
            self.folder, options=options, item_names=("state", "notes")
        )

    def latest_step(self) -> int | None:
        """The step of the newest complete checkpoint, or None. Whether it is intact is not checked.

        With several processes all must call this.
        """
        return max(self.list_steps(), default=None)

    def save(self, step: int, state: PyTree, metadata: dict[str, Any]) -> None:
        """Starts writing a state and JSON metadata. Returns when the state may be donated."""
        import orbax.checkpoint as ocp  # As above.

        self.finish()
        # One explicit copy to the host: Orbax would fetch each array implicitly, which the loop's
        # transfer guard refuses on a GPU.
        # Each of several processes writes the shards that it holds.
        arrays = fetch_to_host(state) if jax.process_count() == 1 else state
        hashes = _gather_hashes(hash_rows(arrays))
        metadata = {"format_version": FORMAT_VERSION, "arrays": hashes, **metadata}
        metadata["sha256"] = _digest(metadata)
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays), notes=ocp.args.JsonSave(metadata)
        )
        self._unconfirmed = step

        def write() -> None:
            # Raises an OSError if nothing can be written. Orbax would retry for minutes.
            probe = self.folder / f"{jax.process_index()}.probe"
            probe.write_bytes(bytes(4096))
            probe.unlink()
            if self._manager is None:
                self._open()
            with jax.transfer_guard("allow"):  # Orbax fetches shards before it returns.
                self._manager.save(step, args=args)

        self._try(write)

    def finish(self, expected: int | None = None) -> str:
        """Waits until the last state is complete, or reports why it is not.

        Returns a clause that names the newest checkpoint. Raises a UserError if `expected` is
        given, and the newest checkpoint is of another step.
        """
        self._wait()
        newest = describe_newest(self.latest_step())
        if expected is not None and self.latest_step() != expected:
            raise UserError(
                f"The last state could not be written, and {newest}: free disk space and rerun the "
                "command to continue."
            )
        return newest

    def _wait(self) -> None:
        """Waits until the last state is complete or has failed."""
        if self._unconfirmed is not None:
            self._try(self._manager.wait_until_finished)
            self._unconfirmed = None

    def _try(self, write: Callable[[], None]) -> None:
        """Writes. On failure tidies up and reports it."""
        try:
            write()
        except Exception as error:  # Every library involved raises its own types.
            step = self._unconfirmed
            self._unconfirmed = None
            if jax.process_count() > 1:
                raise  # The others wait for this one: end all, to resume from the last good state.
            # Once renamed, a checkpoint is complete.
            for path in self.folder.glob(f"{step}.*"):
                shutil.rmtree(path, ignore_errors=True)
            self._manager = None  # It remembers the failure.
            self.warn(
                f"Warning: the checkpoint of step {step} could not be written "
                f"({describe_failure(error)}): training continues, and "
                f"{describe_newest(self.latest_step(), 'newest complete')}."
            )

    def restore_newest(self, like: PyTree) -> Restored | None:
        """Restores the newest intact checkpoint, or returns None if the run has none yet.

        A damaged one is reported and, by the session that trains, moved to `damaged_checkpoints/`,
        and the one before it is used. With several processes all must call this.

        Arrays have exactly the shapes, dtypes and shardings of `like`, and a jitted function may
        donate them. If these are `jax.ShapeDtypeStruct`s, nothing else takes memory. Raises a
        UserError if there are checkpoints but none is intact, or one is of another format.
        """
        last_reason = None
        for step in sorted(self.list_steps(), reverse=True):
            restored, reason = self._try_restore(step, like)
            if restored is not None:
                return restored
            if not from_main_process((self.folder / str(step)).exists()):
                continue  # A training in progress has just removed it.
            last_reason = reason
            where = self._set_aside(step) if self._keep is not None else "left where it is"
            self.warn(
                f"Warning: the checkpoint of step {step} in {self.folder} is damaged ({reason}): "
                f"{where}, and the previous one is used."
            )
        # Also next time: a checkpoint that was set aside still shows that the run had started.
        if last_reason is None and not from_main_process((self._workdir / DAMAGED).exists()):
            return None
        raise UserError(
            f"{self._workdir} has no intact checkpoint "
            f"({last_reason or f'the damaged ones are in {DAMAGED}/'}): restore one from a backup, "
            "or train a new run in another folder."
        )

    def restore(self, step: int, like: PyTree) -> Restored | None:
        """Restores the checkpoint of a step, or returns None if there is none.

        Otherwise as `restore_newest`. Raises a UserError if it is damaged.
        """
        if step not in self.list_steps():
            return None
        restored, reason = self._try_restore(step, like)
        if restored is None:
            raise UserError(
                f"The checkpoint of step {step} in {self.folder} is damaged ({reason}): restore "
                "it from a backup, or choose another."
            )
        return restored

    def _try_restore(self, step: int, like: PyTree) -> tuple[Restored | None, str | None]:
        """Returns the checkpoint, or why it is damaged: the same in every process.

        Damage is proved: the system lets every file be read, and a second attempt fails, too.
        Raises a UserError if the system refuses, such as for lack of file descriptors.
        """
        reason = None
        for _ in range(2):
            metadata = state = refusal = None
            try:
                metadata, state = self._read(step, like)
            except (UserError, jax.errors.JaxRuntimeError, MemoryError):  # Not caused by the files.
                raise
            except Exception as error:
                reason = describe_failure(error)
                refusal = reason if getattr(error, "errno", None) in _SCARCE else None
            # Every process must get here before they verify together.
            if all_processes(metadata is not None):
                break
            together(functools.partial(self._refuse, step, refusal))
        else:
            return None, reason or "another process cannot read it"
        assert metadata is not None  # No process failed, so this one did not.
        # Every array that was read. `_read` checks that no other is missing.
        if not all_processes(_is_intact(state, metadata)):
            return None, "arrays differ from those that were saved"
        # Arrays made by Orbax are not in XLA's own memory, so the first step could not reuse it
        # (jax #18617). A copy made by XLA can be donated. Without `out_shardings` XLA would choose
        # its own spelling of the same shardings, and the step would be compiled again.
        shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
        copy = compilation.jit(
            lambda state: jax.tree.map(jnp.copy, state), runs=1, out_shardings=shardings
        )
        return (step, copy(state), metadata), None

    def _refuse(self, step: int, refusal: str | None) -> None:
        """Raises a UserError if the system refuses to read a checkpoint, for a reason if known."""
        if refusal := refusal or _find_refusal(self.folder / str(step)):
            raise UserError(
                f"The checkpoint of step {step} in {self.folder} cannot be read ({refusal}): "
                "rerun the command once it can."
            )

    def _read(self, step: int, like: PyTree) -> tuple[dict[str, Any], PyTree]:
        """The metadata and the state."""
        import orbax.checkpoint as ocp  # As above.

        # Without barriers: a process that cannot read would leave the others there.
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
        handler = ocp.CompositeCheckpointHandler("state", "notes")
        reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
        folder, notes = self.folder / str(step), ocp.args.JsonRestore()
        metadata = reader.restore(folder, args=ocp.args.Composite(notes=notes)).notes
        if metadata["sha256"] != _digest(metadata):
            raise ValueError("metadata differ from those that were saved")
        if metadata["format_version"] != FORMAT_VERSION:
            raise UserError(
                f"The checkpoint of step {step} in {self.folder} has format version "
                f"{metadata['format_version']}, this program reads {FORMAT_VERSION}: use the "
                "version of cls_jax that wrote it."
            )
        args = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        return metadata, reader.restore(folder, args=args).state

    def list_steps(self) -> list[int]:
        """Steps of complete checkpoints, as process 0 sees them: all must try the same ones."""
        # Read from the folder, not the manager's memory, since files may have changed.
        try:
            names = [path.name for path in self.folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        steps = [int(name) for name in names if name.isdecimal()]
        known: list[int] = from_main_process([step for step in steps if step != self._unconfirmed])
        return known

    def _set_aside(self, step: int) -> str:
        if is_main_process():
            folder = self._workdir / DAMAGED
            folder.mkdir(exist_ok=True)
            names = [str(step), *(f"{step}-{i}" for i in range(1, 1000))]
            target = next(folder / name for name in names if not (folder / name).exists())
            shutil.move(self.folder / str(step), target)  # Perhaps to another file system.
        barrier(f"set aside {step}")
        self._manager.reload()
        return f"it was moved to {DAMAGED}/"

    def close(self) -> None:
        """Waits until the last state is complete. The other processes need not call it too."""
        self._wait()
        if self._manager is not None:
            self._manager.close()


def _digest(metadata: dict[str, Any]) -> str:
    """SHA-256 of everything but an earlier "sha256"."""
    rest = {key: value for key, value in metadata.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def fetch_to_host(state: PyTree) -> PyTree:
    """A state's arrays as whole NumPy arrays, in every process. All must call this."""
    if jax.process_count() > 1:  # Another process holds a part of every array.
        with jax.transfer_guard("allow"):  # Gathering counts as implicit.
            return multihost_utils.process_allgather(state, tiled=True)
    # On a CPU `device_get` returns views of the buffers that the next step overwrites.
    return jax.tree.map(np.array, jax.device_get(state))


def _find_refusal(folder: pathlib.Path) -> str | None:
    """Why the system cannot read the files of a checkpoint, or None if they may be damaged."""

    def refuse(error: OSError) -> None:
        raise error

    try:
        for parent, _, names in os.walk(folder, onerror=refuse):
            for name in names:
                pathlib.Path(parent, name).read_bytes()
    except FileNotFoundError:  # A training in progress has just removed it.
        return None
    except OSError as error:
        return describe_failure(error)
    return None


def _is_intact(state: PyTree, metadata: dict[str, Any]) -> bool:
    """Whether the rows that this process holds equal those saved."""
    expected = metadata["arrays"]
    return all(
        row < len(expected.get(name, ())) and digest == expected[name][row]
        for name, held in hash_rows(state).items()
        for row, digest in held.items()
    )


def hash_rows(arrays: PyTree) -> dict[str, dict[int, str]]:
    """SHA-256 of the rows of every array that this process holds, by the array's path and by row.

    A row is an entry of the first axis, or a scalar. Each hash covers the type and the whole
    array's shape, too.
    """
    hashes = {}
    for name, array in _name_arrays(arrays).items():
        held = hashes[name] = dict[int, str]()
        for first, part in _iterate_held(array):
            for row, values in enumerate(part, first):
                if row not in held:
                    held[row] = _hash(values, array.shape)
    return hashes


def _iterate_held(array: Leaf) -> Iterator[tuple[int, np.ndarray]]:
    """The parts of an array in this process: index of the first row, and the rows."""
    if jax.process_count() == 1:
        parts = [(0, jax.device_get(array) if isinstance(array, jax.Array) else array)]
    else:
        # Arrays are spread by network, hence by whole rows.
        parts = [
            (shard.index[0].start or 0 if array.ndim else 0, jax.device_get(shard.data))
            for shard in array.addressable_shards
        ]
    for first, part in parts:
        yield first, np.asarray(part) if array.ndim else np.asarray(part)[None]


def _gather_hashes(held: dict[str, dict[int, str]]) -> dict[str, list[str]]:
    """The hashes of all rows, gathered from all processes."""
    gathered: dict[str, dict[int, str]] = {name: {} for name in held}
    # Pairs, since JSON has no numbers as keys.
    for part in from_all_processes({name: list(rows.items()) for name, rows in held.items()}):
        for name, rows in part.items():
            gathered[name].update(rows)
    return {name: [rows[row] for row in sorted(rows)] for name, rows in gathered.items()}


def _hash(array: np.ndarray, shape: tuple[int, ...]) -> str:
    """SHA-256 of an array's type and bytes and of the shape that it is part of."""
    digest = hashlib.sha256(f"{array.dtype}{shape}".encode())
    # Flattened first, since a scalar has no axis to view as bytes.
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _name_arrays(arrays: PyTree) -> dict[str, Leaf]:
    """The arrays of a pytree, or their shapes, by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def describe_failure(error: Exception) -> str:
    """An error in a few words: the operating system's reason if known, else its text."""
    for reason in ("No space left on device", "Read-only file system", "No such file or directory"):
        if reason in str(error):
            return reason
    return describe_error(error).rstrip(".: ")


def describe_newest(step: int | None, which: str = "newest") -> str:
    """A clause that names the newest (or another) checkpoint by its step, or that there is none."""
    if step is None:
        return "there is no checkpoint yet"
    return f"the {which} checkpoint is from step {step}"
