"""The sessions of a run: one at a time, each recorded in `sessions.jsonl`.

A record has command, time, versions and hardware.
"""

import contextlib
import datetime
import errno
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import socket
import sys
from collections.abc import Iterator
from typing import Any

import filelock
import jax

from cls_jax.errors import UserError
from cls_jax.io import MAX_JSON_BYTES, parse_json, read_bytes, write_atomically
from cls_jax.parallel.cpus import available_cpus

SESSIONS, LOCK = "sessions.jsonl", ".lock"
# Some network file systems have no locks: there it is up to the user.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_PACKAGES = ("cls-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@contextlib.contextmanager
def lock_run_folder(workdir: pathlib.Path) -> Iterator[None]:
    """Keeps other sessions out of a run's folder, which is created if it does not exist.

    The operating system releases the lock when the process ends, however it ends.

    Raises:
        UserError: If another process trains there, or the folder cannot be written.
    """
    path = workdir / LOCK
    lock = filelock.FileLock(path)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise UserError(
            f"{workdir} is in use by {_read_holder(path)}: wait for it, or choose another "
            "--workdir."
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise UserError(
                f"{workdir} cannot be written ({error.strerror}): choose another --workdir."
            ) from error
    try:
        with contextlib.suppress(OSError):  # A full disk need not stop us here.
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def _read_holder(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):  # Windows lets nobody else read a locked file.
        return path.read_text().strip() or "another process"
    return "another process"


def record_session(workdir: pathlib.Path, first_step: int) -> None:
    """Appends this process's session, which starts with `first_step`, to the run's."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            # The project itself has no version where it runs from its source.
            versions[name] = importlib.metadata.version(name)
    session = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "first_step": first_step,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": describe_hardware(),
        "num_processes": jax.process_count(),
        "versions": versions,
    }
    lines = (json.dumps(one) + "\n" for one in [*read_sessions(workdir), session])
    write_atomically(workdir / SESSIONS, "".join(lines))


def read_sessions(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The sessions of a run, oldest first. Damaged lines are left out."""
    try:
        lines = read_bytes(workdir / SESSIONS, MAX_JSON_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    sessions = []
    for line in lines:
        with contextlib.suppress(ValueError):
            sessions.append(parse_json(line))
    return [session for session in sessions if isinstance(session, dict)]


def describe_hardware() -> str:
    """The devices in words. For a CPU its cores, since its devices are virtual."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{available_cpus()} cores of {names[0] if names else platform.processor()}"
