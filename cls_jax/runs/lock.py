"""One training session at a time in a run's folder."""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

from cls_jax.errors import UserError

LOCK = ".lock"
# Some network file systems have no locks: there it is up to the user.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def lock_run_folder(workdir: pathlib.Path) -> Iterator[None]:
    """Keeps other sessions out of a run's folder, which is created if it does not exist.

    The operating system releases the lock when the process ends, however it ends.

    Raises:
        UserError: if another process trains there, or the folder cannot be written.
    """
    path = workdir / LOCK
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise UserError(
            f"{workdir} cannot be written ({error.strerror}): give --workdir another folder."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(
                f"{workdir} is in use: {holder} trains there; wait for it, or give --workdir "
                "another folder."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        with contextlib.suppress(OSError):  # A full disk need not stop us here.
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        yield
