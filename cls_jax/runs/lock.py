"""One training session at a time in a run's folder."""

import contextlib
import errno
import os
import pathlib
import socket
from collections.abc import Iterator

import filelock

from cls_jax.errors import UserError

LOCK = ".lock"
# Some network file systems have no locks: there it is up to the user.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


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
            f"{workdir} is in use: {_read_holder(path)} trains there; wait for it, or give "
            "--workdir another folder."
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UserError(
                f"{workdir} cannot be written ({error.strerror}): give --workdir another folder."
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
