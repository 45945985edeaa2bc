"""A cache of decoded images and features by file content, in one SQLite file.

The store has neither names nor labels. A table maps path, size, times and inode of a file to its
digest, so that unchanged files are not read again. Every row has a checksum. A damaged row counts
as missing, and a damaged store is replaced by an empty one.

Blobs are in SQLite, too. Reading a row of 12 KB takes 21 µs of CPU time and one of 150 KB 69 µs,
about three times as long as from separate files, but a thread reads ahead of the training, and no
index can disagree with the files. The journal is a rollback journal: a write-ahead log needs shared
memory and would write images twice. Writes are not synced (`synchronous`): a killed process leaves
whole rows anyway, and checksums reveal damage after a power failure.
"""

import atexit
import contextlib
import errno
import functools
import hashlib
import os
import pathlib
import shutil
import sqlite3
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import filelock

from cls_jax.io import describe_error, find_cache_folder

_FILE = "rows-1.sqlite"  # Increase the number when the tables change.
_PART = 256  # Rows per query.
_READ_AT_ONCE = 32  # Rows in memory, such as images of some megabytes each.
_FRESH_SECONDS = 3600  # Rows used within this time may be in use by another process.
_MARK_SECONDS = 1200  # Uses are recorded at most this often.
_WAIT_SECONDS = 60.0  # For another process that writes.
_TRIES = 5  # Of a transaction, while others delete the store.
_PAUSE_SECONDS = 0.01  # Between them.
_DEFAULT_GIGABYTES = 20.0
# A page holds a row of 12 KB. `shrink` returns free pages.
_SCHEMA = """
PRAGMA page_size = 16384;
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -8000;
CREATE TABLE IF NOT EXISTS contents (key BLOB PRIMARY KEY, digest BLOB, checksum INTEGER)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, options TEXT, digest BLOB,
    checksum INTEGER, used INTEGER, size INTEGER, UNIQUE (options, digest));
CREATE TABLE IF NOT EXISTS blobs (id INTEGER PRIMARY KEY, blob BLOB);
CREATE TRIGGER IF NOT EXISTS delete_blob AFTER DELETE ON rows
    BEGIN DELETE FROM blobs WHERE id = old.id; END;
"""
_ADD_ROW = """
INSERT OR IGNORE INTO rows (options, digest, checksum, used, size) VALUES (?, ?, ?, ?, ?)
"""
_SIZE = """
SELECT * FROM pragma_user_version, pragma_page_count, pragma_freelist_count, pragma_page_size
"""
# Reads only metadata. Of equally old rows, the first are deleted.
_DELETE_LEAST_RECENTLY_USED = """
DELETE FROM rows WHERE used < ? AND id IN (
    SELECT id FROM (SELECT id, sum(size) OVER (ORDER BY used DESC, id DESC) AS total FROM rows)
    WHERE total > ? * (SELECT sum(size) FROM rows))
"""
# SQLite's primary codes for damage: malformed or no database, other tables or types.
_DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_SCHEMA,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_FORMAT,
)
# Its codes where somebody else has deleted the file in use, as `cls-jax cache --clear` does and a
# system that cleans up, or where the system refuses. All others mean that it refuses.
_DELETED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def get_cache_folder() -> pathlib.Path:
    """The folder of the user's store, which may be deleted at any time.

    Where there can be none, it is a temporary one of this process, which a line says once.
    """
    return _make_writable(find_cache_folder() / "store")


@functools.cache
def _make_writable(folder: pathlib.Path) -> pathlib.Path:
    try:
        if not folder.is_absolute():
            raise FileNotFoundError(errno.ENOENT, "this user has no home")
        folder.mkdir(parents=True, exist_ok=True)
        # SQLite needs file locks, too.
        with contextlib.suppress(filelock.Timeout), _create_lock(folder).acquire(timeout=0):
            pass
    except (OSError, NotImplementedError) as error:
        temporary = pathlib.Path(tempfile.mkdtemp(prefix="cls_jax-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        # Whoever clears the cache deletes what lies beside the store, too.
        (folder := temporary / "store").mkdir()
        print(
            f"There is no cache of images and features ({describe_error(error)}), so the next "
            "command computes them again: to keep them, set the environment variable "
            "XDG_CACHE_HOME to a folder that can be written, on a disk with file locks.",
            file=sys.stderr,
        )
    return folder


def _create_lock(folder: pathlib.Path) -> filelock.BaseFileLock:
    return filelock.FileLock(folder / "lock")


def hash_content(content: bytes) -> bytes:
    """The digest of a file's content, 16 bytes."""
    return hashlib.blake2b(content, digest_size=16).digest()


def find_places(digests: Iterable[bytes]) -> dict[bytes, list[int]]:
    """The positions of each digest, in order."""
    places: dict[bytes, list[int]] = {}
    for i, digest in enumerate(digests):
        places.setdefault(digest, []).append(i)
    return places


class Store:
    """Rows of bytes by `options` and the digest of the content that they were computed from.

    `options` is a string that begins with the kind of row, such as "images/". Several threads and
    processes may use the store. All methods raise an OSError if it cannot be opened, read or
    written.
    """

    def __init__(self, folder: pathlib.Path, max_gigabytes: float | None = None) -> None:
        """Opens the store in a folder when it is first used.

        `max_gigabytes` is the size that `shrink` leaves it. None means the last given size.
        """
        self.folder = folder
        self._max_gigabytes = max_gigabytes
        # For work that one process should do at a time. Reading and writing need no lock.
        self.lock = _create_lock(self.folder)
        self._path = os.path.realpath(self.folder / _FILE)
        self._idle: list[sqlite3.Connection] = []  # Connections not in use.
        weakref.finalize(self, _close, self._idle)

    def find_contents(self, keys: Sequence[bytes]) -> list[bytes]:
        """The digests of files by their keys (see `files.compute_key`), b"" if unknown."""
        query = "SELECT key, digest, checksum FROM contents WHERE key IN"
        found = {
            key: digest
            for key, digest, checksum in self._run(lambda db: list(_select(db, query, keys)))
            if _compute_checksum(key, digest) == checksum
        }
        return [found.get(key, b"") for key in keys]

    def find(self, options: str, digests: Sequence[bytes]) -> set[bytes]:
        """Which digests have a row. Within the next 40 minutes, `shrink` will not delete them."""

        def find(db: sqlite3.Connection) -> set[bytes]:
            query = "SELECT digest, used < ? FROM rows WHERE options = ? AND digest IN"
            found = dict(_select(db, query, digests, _find_stale(), options))
            _mark(db, options, [digest for digest, is_stale in found.items() if is_stale])
            return set(found)

        return self._run(find)

    def read(
        self, options: str, digests: Iterable[bytes], trusted: Container[bytes] = ()
    ) -> Iterator[tuple[bytes, bytes]]:
        """Digest and content of each existing row.

        Damaged rows are deleted. Rows of `trusted` digests are not checked.
        """
        query = (
            "SELECT digest, checksum, used < ?, blob FROM rows JOIN blobs USING (id) "
            "WHERE options = ? AND digest IN"
        )

        def read(db: sqlite3.Connection, part: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
            """Reads the rows of some digests, in one transaction."""
            found, stale, damaged = [], [], []
            for digest, checksum, is_stale, blob in _select(
                db, query, part, _find_stale(), options
            ):
                if digest in trusted or _compute_checksum(options, digest, blob) == checksum:
                    found.append((digest, blob))
                    stale += [digest] * is_stale
                else:
                    damaged.append((options, digest))
            db.executemany("DELETE FROM rows WHERE options = ? AND digest = ?", damaged)
            _mark(db, options, stale)
            return found

        distinct = list(dict.fromkeys(digests))
        for start in range(0, len(distinct), _READ_AT_ONCE):
            yield from self._run(
                functools.partial(read, part=distinct[start : start + _READ_AT_ONCE])
            )

    def write(
        self, options: str, rows: Mapping[bytes, bytes], contents: Mapping[bytes, bytes]
    ) -> None:
        """Adds rows by digest, all or none, and digests by key. An existing row remains."""

        def write(db: sqlite3.Connection) -> None:
            for digest, blob in rows.items():
                checksum = _compute_checksum(options, digest, blob)
                row = options, digest, checksum, int(time.time()), len(blob)
                if (added := db.execute(_ADD_ROW, row)).rowcount:
                    db.execute("INSERT INTO blobs VALUES (?, ?)", (added.lastrowid, blob))
            for key, digest in contents.items():
                values = key, digest, _compute_checksum(key, digest)
                db.execute("INSERT OR REPLACE INTO contents VALUES (?, ?, ?)", values)

        self._run(write)

    def shrink(self) -> None:
        """Deletes the least recently used rows of all kinds until the store has its size.

        Rows used within the last hour stay.
        """
        max_gigabytes = self._max_gigabytes

        def shrink(db: sqlite3.Connection) -> None:
            """Deletes rows, in one transaction."""
            version, num_pages, num_free, page_bytes = db.execute(_SIZE).fetchone()
            megabytes = version - 1
            if max_gigabytes is not None and megabytes != round(1e3 * max_gigabytes):
                megabytes = round(1e3 * max_gigabytes)
                db.execute(f"PRAGMA user_version = {megabytes + 1}")
            limit = 1e6 * megabytes if megabytes >= 0 else 1e9 * _DEFAULT_GIGABYTES
            used = (num_pages - num_free) * page_bytes
            if used > limit:
                fresh = int(time.time()) - _FRESH_SECONDS
                db.execute(_DELETE_LEAST_RECENTLY_USED, (fresh, limit / used))
                db.execute("DELETE FROM contents WHERE digest NOT IN (SELECT digest FROM rows)")
                db.executescript("PRAGMA incremental_vacuum")  # `execute` frees a single page.

        self._run(shrink)

    def measure(self, kind: str) -> int:
        """The bytes on disk for all rows of a kind."""
        if not os.path.exists(self._path):
            return 0
        query = "SELECT total(size * (options LIKE ?)) / max(total(size), 1) FROM rows"
        share = self._run(lambda db: db.execute(query, (f"{kind}/%",)).fetchone()[0])
        return round(share * os.path.getsize(self._path))

    def delete(self) -> None:
        """Deletes the store. Processes that have opened it begin a new one when they write."""
        _close(self._idle)
        for path in (self._path, f"{self._path}-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """The result of a transaction, repeated if the store was damaged or deleted."""
        for tries_left in reversed(range(_TRIES)):
            connections: list[sqlite3.Connection] = []  # The connection to close.
            try:
                connections.append(self._idle.pop() if self._idle else self._open())
                with connections[0]:
                    result = work(connections[0])
                self._idle.append(connections.pop())
                return result
            except (sqlite3.Error, FileNotFoundError) as error:  # The latter while it is opened.
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CANTOPEN) & 0xFF
                if not tries_left or code not in _DAMAGE + _DELETED:
                    number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
                    raise OSError(number, str(error), self._path) from error
            finally:
                _close(connections)
            if code in _DAMAGE:
                self.delete()
            _close(self._idle)  # The others have the same file open.
            time.sleep(_PAUSE_SECONDS)  # To delete a folder takes a moment.
        raise AssertionError

    def _open(self) -> sqlite3.Connection:
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # Owned by someone else.
            self.folder.chmod(0o700)
        # Without file locks, SQLite would assume that other processes hold them.
        with contextlib.suppress(filelock.Timeout), self.lock.acquire(timeout=0):
            pass
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
        db = sqlite3.connect(
            self._path, _WAIT_SECONDS, isolation_level="IMMEDIATE", check_same_thread=False
        )
        try:
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


def _select(
    db: sqlite3.Connection, query: str, keys: Sequence[bytes], *parameters: Any
) -> Iterator[tuple]:
    """The rows of a query whose last column is one of some keys."""
    for start in range(0, len(keys), _PART):
        part = keys[start : start + _PART]
        marks = ",".join("?" * len(part))
        yield from db.execute(f"{query} ({marks})", (*parameters, *part))


def _find_stale() -> int:
    """The time before which a recorded use is stale."""
    return int(time.time()) - _MARK_SECONDS


def _mark(db: sqlite3.Connection, options: str, digests: Sequence[bytes]) -> None:
    """Records that rows are used now, unless the store is read-only or busy."""
    rows = [(int(time.time()), options, digest) for digest in digests]
    with contextlib.suppress(sqlite3.OperationalError):
        db.executemany("UPDATE rows SET used = ? WHERE options = ? AND digest = ?", rows)


def _compute_checksum(*parts: Any) -> int:
    """The CRC-32 of strings and bytes, or -1 if damage has changed a type."""
    checksum = 0
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        if not isinstance(content, bytes):
            return -1
        checksum = zlib.crc32(content, checksum)
    return checksum
