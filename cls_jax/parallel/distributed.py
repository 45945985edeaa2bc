"""Several processes that train one run together, by JAX's distributed runtime.

Every process runs the same program, and `jax.devices()` are the devices of all. Process 0 writes
the run's files, so all must see the same folder.
"""

import faulthandler
import hashlib
import json
import math
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from cls_jax.batch import PyTree
from cls_jax.errors import UserError

T = TypeVar("T")

# Without a heartbeat for this long, a process counts as lost, and the runtime ends the others.
_HEARTBEAT_SECONDS = 60
_TIMEOUT_SECONDS = 300  # Schedulers may start processes minutes apart.
_BYTES_AT_ONCE = 2**26  # Per message from process 0.


def initialize_distributed(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Connects this process with the others of the run, if there are any, before JAX is used.

    Process 0 listens at the address, a host:port, and processes are numbered from 0. All three are
    None where SLURM, Open MPI or an indexed Kubernetes job started several processes. After five
    minutes, the process exits with one sentence and code 2. Raises a UserError if only some of the
    three values are given, or they are invalid.
    """
    if coordinator_address is None and num_processes is None and process_id is None:
        if not has_scheduler():
            return
    elif coordinator_address is None or num_processes is None or process_id is None:
        raise UserError(
            "Several processes need --coordinator_address, --num_processes and --process_id "
            "together: pass all three, or none if a scheduler starts the processes."
        )
    else:
        check_values(coordinator_address, num_processes, process_id)
    where = f"the coordinator {coordinator_address} and " if coordinator_address else ""
    sentence = (
        f"This process could not connect to {where}all other processes within "
        f"{_TIMEOUT_SECONDS} s: check that each of them was started and can reach the coordinator."
    )
    # When a process is lost later, the runtime aborts the others with a message. Absl's fault
    # handler would bury it under the stacks of all threads.
    faulthandler.disable()

    def give_up() -> None:
        print(f"Error: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)

    # After its own timeout the runtime would abort too, without naming the address.
    timer = threading.Timer(_TIMEOUT_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator_address=coordinator_address,
            num_processes=num_processes,
            process_id=process_id,
            initialization_timeout=_TIMEOUT_SECONDS + 60,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"The processes could not connect ({reason}): pass --coordinator_address, "
            "--num_processes and --process_id."
        ) from error
    finally:
        timer.cancel()


def has_scheduler() -> bool:
    """Whether a scheduler that JAX detects started several processes, including this one.

    JAX's own detection follows in `jax.distributed.initialize`, but cannot decide this: a single
    SLURM task with four GPUs would get one of them, since JAX assumes one task per device. A
    notebook's pod in Kubernetes would be taken for a job.
    """
    environ = os.environ
    in_slurm_step = {"SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"} <= set(environ)
    return (
        (in_slurm_step and int(environ.get("SLURM_NTASKS", 1)) > 1)
        or int(environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1
        or {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= set(environ)
    )


def check_values(coordinator_address: str, num_processes: int, process_id: int) -> None:
    """Raises a UserError if the address is not host:port or the index is out of range."""
    host, _, port = coordinator_address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(
            f"--coordinator_address={coordinator_address} is not an address: write host:port, as "
            "in 10.0.0.1:1234."
        )
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process_id={process_id} is not one of --num_processes={num_processes}: number the "
            f"processes from 0 to {num_processes - 1}."
        )


def is_main_process() -> bool:
    """Whether this process writes the run's files and prints messages."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Returns once every process has called this with the same name."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def from_main_process(value: Any) -> Any:
    """Process 0's value, as JSON can hold it, in every process. All must call this."""
    return value if jax.process_count() == 1 else json.loads(_broadcast(json.dumps(value).encode()))


def _broadcast(content: bytes) -> bytes:
    """Process 0's bytes in every process, a bounded part at a time."""
    # JAX's collectives move data implicitly, which the training loop's guard would refuse.
    with jax.transfer_guard("allow"):
        size = int(multihost_utils.broadcast_one_to_all(np.uint32(len(content))))
        received = bytearray()
        for start in range(0, size, _BYTES_AT_ONCE):
            length = min(_BYTES_AT_ONCE, size - start)  # The same in every process.
            part = np.frombuffer(content[start : start + length].ljust(length), np.uint8)
            received += multihost_utils.broadcast_one_to_all(part).tobytes()
    return bytes(received)


def compute_in_main_process(compute: Callable[[], bytes]) -> bytes:
    """Calls a function in process 0 and returns its result in every process. All must call this.

    Raises a UserError in every process if the function raises one.
    """
    if jax.process_count() == 1:
        return compute()
    content = b""
    if is_main_process():
        try:
            content = b"1" + compute()
        except UserError as error:
            content = b"0" + str(error).encode("utf-8", "backslashreplace")
    content = _broadcast(content)
    if content.startswith(b"0"):
        raise UserError(content[1:].decode())
    return content[1:]


def decide(compute: Callable[[], Any]) -> Any:
    """What a function of process 0 returns, as JSON can hold it, or the UserError that it raises.

    In every process. All must call this: where one of them decides alone, the others wait for it.
    """
    if jax.process_count() == 1:
        return compute()
    return json.loads(compute_in_main_process(lambda: json.dumps(compute()).encode()))


def together(compute: Callable[[], T]) -> T:
    """What a function returns in this process, or the UserError that it raises in any of them.

    All must call this, with a function that needs no other process: where one gives up alone, the
    others wait for it.
    """
    if jax.process_count() == 1:
        return compute()
    reason = value = None
    try:
        value = compute()
    except UserError as error:
        reason = str(error)
    if reasons := list(filter(None, from_all_processes(reason))):
        raise UserError(reasons[0])
    return cast(T, value)


def arrays_from_main_process(tree: PyTree) -> PyTree:
    """Process 0's NumPy arrays in every process. All must call this, with arrays of its shapes."""
    if jax.process_count() == 1:
        return tree
    with jax.transfer_guard("allow"):
        return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))


def take_local(num_rows: int) -> slice:
    """The rows that this process works on, where each has its share."""
    index = jax.process_index()
    count = jax.process_count()
    return slice(num_rows * index // count, num_rows * (index + 1) // count)


def gather_rows(local: np.ndarray, num_rows: int) -> np.ndarray:
    """All rows in every process, from the `take_local` of each. All must call this.

    Rows are of any type of fixed size. Memory is that of all rows, twice for a moment.
    """
    count = jax.process_count()
    if count == 1:
        return local
    row_bytes = local.dtype.itemsize * math.prod(local.shape[1:])
    raw = np.zeros((-(-num_rows // count), row_bytes), np.uint8)  # JAX would round other types.
    raw[: len(local)] = np.frombuffer(local.tobytes(), np.uint8).reshape(len(local), row_bytes)
    with jax.transfer_guard("allow"):
        gathered = multihost_utils.process_allgather(raw)
    sizes = [num_rows * (i + 1) // count - num_rows * i // count for i in range(count)]
    parts = [part[:size] for part, size in zip(gathered, sizes, strict=True)]
    return np.concatenate(parts).view(local.dtype).reshape((num_rows, *local.shape[1:]))


def from_all_processes(value: Any) -> list[Any]:
    """The values of all processes in their order, as JSON can hold them. All must call this."""
    if jax.process_count() == 1:
        return [value]
    text = json.dumps(value).encode()
    with jax.transfer_guard("allow"):
        size = int(multihost_utils.process_allgather(np.int32(len(text))).max())
        content = np.frombuffer(text.ljust(size), np.uint8)  # All messages have the same length.
        return [json.loads(part.tobytes()) for part in multihost_utils.process_allgather(content)]


def all_processes(value: bool) -> bool:
    """Whether it is true in every process. All must call this."""
    return all(from_all_processes(value))


def check_same(text: str, workdir: pathlib.Path) -> None:
    """Raises a UserError in every process unless all have the same configuration and run folder."""
    if different := _find_different([f"{text}{workdir}".encode()]):
        raise UserError(
            f"Processes {different} differ from process 0 in config or --workdir: start all with "
            "the same command except for --process_id."
        )


def check_same_data(parts: Iterable[bytes]) -> None:
    """Raises a UserError in every process unless all see the same images, labels and budget."""
    if different := _find_different(parts):
        raise UserError(
            f"Processes {different} see other images or labels than process 0: use the same folder "
            "for all, for example on a shared file system."
        )


def check_same_weights(tree: PyTree) -> None:
    """Raises a UserError in every process unless all start from the same arrays.

    NumPy arrays, or JAX arrays on devices of this process.
    """
    leaves = map(jax.device_get, jax.tree.leaves(tree))
    if different := _find_different(np.asarray(leaf).tobytes() for leaf in leaves):
        raise UserError(
            f"Processes {different} start from other weights than process 0: use the same files, "
            "package versions and kind of device for all."
        )


def _find_different(parts: Iterable[bytes]) -> list[int]:
    """The processes whose content differs from process 0's. All must call this."""
    if jax.process_count() == 1:
        return []
    content = hashlib.sha256()
    for part in parts:
        content.update(part)
    with jax.transfer_guard("allow"):
        digests = multihost_utils.process_allgather(np.frombuffer(content.digest(), np.uint8))
    return [i for i, other in enumerate(digests) if (other != digests[0]).any()]
