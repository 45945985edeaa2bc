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
from collections.abc import Callable, Iterator
from typing import Any

import filelock
import jax

from cls_jax.errors import UserError, explain_writing
from cls_jax.io import MAX_JSON_BYTES, parse_json, read_bytes, write_atomically
from cls_jax.parallel.machine import available_cpus

SESSIONS = "sessions.jsonl"
LOCK = ".lock"
# Some network file systems have no locks. There, avoiding a second session is up to the user.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_PACKAGES = ("cls-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@contextlib.contextmanager
def hold_at_once(
    path: pathlib.Path, target: pathlib.Path, busy: Callable[[], str], remedy: str
) -> Iterator[None]:
    """Holds a lock file, creating its folder if necessary, or raises a UserError.

    The message is `busy()` if another process holds the lock, or else that the target cannot be
    written, with the remedy. Does nothing on file systems without locks. The operating system
    releases the lock when the process ends, even if it is killed.
    """
    lock = filelock.FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise UserError(busy()) from error
    except NotImplementedError:
        pass
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            with explain_writing(target, remedy):
                raise
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def lock_run_folder(workdir: pathlib.Path) -> Iterator[None]:
    """Creates a run's folder, and raises a UserError while another process trains there."""
    path = workdir / LOCK
    another = "choose another --workdir"
    busy = lambda: f"{workdir} is in use by {_read_holder(path)}: wait for it, or {another}."  # noqa: E731
    with hold_at_once(path, workdir, busy, another):
        with contextlib.suppress(OSError):  # A full disk is no reason to stop here.
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield


def is_held(workdir: pathlib.Path) -> bool:
    """Whether a process trains in a run's folder. False where there are no locks."""
    lock = filelock.FileLock(workdir / LOCK)
    try:
        with lock.acquire(blocking=False):
            return False
    except filelock.Timeout:
        return True
    except (OSError, NotImplementedError):
        return False


def _read_holder(path: pathlib.Path) -> str:
    with contextlib.suppress(OSError):  # On Windows, only the holder can read a locked file.
        return path.read_text().strip() or "another process"
    return "another process"


def record_session(workdir: pathlib.Path, first_step: int) -> None:
    """Appends this process's session, which starts with `first_step`, to the run's."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            # The package has no version if it runs from source.
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
    """The devices in words. For a CPU the cores, since its devices are virtual."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} x {device.device_kind}"
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{available_cpus()} cores of {names[0] if names else platform.processor()}"
