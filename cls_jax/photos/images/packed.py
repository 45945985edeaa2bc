"""A folder of images in a few large files, as written by `cls-jax pack`.

Millions of small files are slow to list, copy and read over a network. A packed folder has their
unchanged bytes in ArrayRecord files, and an index of their names. Images are opened by their paths,
as if the packed folder were the original one.
"""

import functools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.extras import check_extra
from cls_jax.io import PARSE_ERRORS, describe_error, open_regular
from cls_jax.photos.images.store import hash_content

INDEX = "packed_images.npz"
SHARD = ".array_record"
_SHARD_BYTES = 2**28
_OPTIONS = "group_size:1"  # One image at a time, in any order.


class PackedFolder(NamedTuple):
    """The images of a packed folder, by their names in it."""

    rows: dict[str, int]  # Name with "/" → number of the record, in the order of the names.
    sizes: np.ndarray  # int64 [n], in bytes.
    digests: np.ndarray  # V16 [n], of their contents.
    failures: dict[int, str]  # Number of a record → why it cannot be read as an image.
    times: tuple[int, int]  # mtime and ctime of the index in nanoseconds.
    read: Callable[[int], bytes]  # The content of a record.


def pack_folder(
    root: pathlib.Path,
    names: Sequence[str],
    failures: Mapping[int, str],
    copied: Iterable[str],
    output: pathlib.Path,
) -> int:
    """Writes the files of a folder, by their names in order, to a new packed folder.

    `failures` are those that cannot be read as images, with the reason. `copied` are names of
    tables such as labels.csv, which stay files. Returns the number of shards. Raises a UserError if
    there is no file, the output is not empty, or a file cannot be read or written. Whoever calls it
    has checked that the package array_record is there.
    """
    if not names:
        raise UserError(f"There is no image in {root}: pass a folder of images.")
    if (root / INDEX).exists():
        raise UserError(f"{root} is a packed folder: copy it as it is.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not empty: choose a new folder.")
    try:
        output.mkdir(parents=True, exist_ok=True)
        sizes, digests, num_shards = _write_shards(root, names, output)
        for name in copied:
            shutil.copyfile(root / name, output / name)
        # Last, since it marks the folder as packed.
        text = np.frombuffer("\0".join(names).encode("utf-8", "surrogateescape"), np.uint8)
        partial = output / f".{INDEX}"
        np.savez(
            partial,
            names=text,
            sizes=np.array(sizes),
            digests=np.frombuffer(b"".join(digests), "V16"),
            failures=np.array(json.dumps(list(failures.items()))),
            num_shards=num_shards,
        )
        os.replace(partial, output / INDEX)
    except (OSError, RuntimeError) as error:  # The latter from ArrayRecord.
        path = getattr(error, "filename", None) or output
        raise UserError(
            f"{path} cannot be packed ({describe_error(error)}): free disk "
            "space or remove the file, then pack into a new folder."
        ) from error
    return num_shards


def _write_shards(
    root: pathlib.Path, names: Sequence[str], output: pathlib.Path
) -> tuple[list[int], list[bytes], int]:
    """Copies the content of one or more files: returns their sizes and digests, and the shards.

    Raises an OSError, or ArrayRecord's RuntimeError.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    sizes: list[int] = []
    digests: list[bytes] = []
    num_shards = 0
    written = _SHARD_BYTES
    writer = None
    for name in names:
        with open_regular(root / name) as file:
            content = file.read()
        if written + len(content) > _SHARD_BYTES:
            if writer is not None:
                writer.close()
            writer = ArrayRecordWriter(str(_name_shard(output, num_shards)), _OPTIONS)
            num_shards += 1
            written = 0
        writer.write(content)  # type: ignore[union-attr] # The first file opens one.
        sizes.append(len(content))
        digests.append(hash_content(content))
        written += len(content)
    writer.close()  # type: ignore[union-attr]
    return sizes, digests, num_shards


def _name_shard(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"images-{number:05}{SHARD}"


def open_packed(root: str | os.PathLike) -> PackedFolder | None:
    """The images of a packed folder, or None. Raises a UserError if its index cannot be read."""
    path = os.path.join(os.path.abspath(root), INDEX)
    try:
        stat = os.stat(path)
    except (OSError, ValueError):  # A name with a zero byte is a ValueError.
        return None
    return _read_index(path, stat.st_mtime_ns, stat.st_ctime_ns)


@functools.lru_cache(maxsize=4)
def _read_index(path: str, mtime_ns: int, ctime_ns: int) -> PackedFolder:
    check_extra("shards", f"{path}, an index of packed images,")
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as stored:
            text, sizes, num_shards = (stored[key] for key in ("names", "sizes", "num_shards"))
            digests = stored["digests"]
            failures = str(stored["failures"])
        names = text.tobytes().decode("utf-8", "surrogateescape").split("\0")
        shards = [str(_name_shard(pathlib.Path(path).parent, i)) for i in range(num_shards)]
        records = ArrayRecordDataSource(shards)
        if not len(names) == len(sizes) == len(digests) == len(records):
            raise ValueError("it does not match the packed images")
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path} is not a valid index of packed images ({describe_error(error)}): pack the "
            "folder again."
        ) from error
    return PackedFolder(
        rows={name: row for row, name in enumerate(names)},
        sizes=sizes,
        digests=digests,
        failures=dict(json.loads(failures)),
        times=(mtime_ns, ctime_ns),
        read=records.__getitem__,
    )


def find_packed(path: str | os.PathLike) -> tuple[PackedFolder, int] | None:
    """The packed folder and record number of an image's path, or None if it is not packed."""
    whole = pathlib.Path(os.path.abspath(path))
    for parent in whole.parents:
        if (packed := open_packed(parent)) is not None:
            row = packed.rows.get(whole.relative_to(parent).as_posix())
            return None if row is None else (packed, row)
    return None
