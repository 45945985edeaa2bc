"""What to do with files that hold images or labels and are not read: archives and the like.

Only names count here. Nothing is opened or unpacked.
"""

import os
import pathlib
import shlex
from collections.abc import Sequence

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.names import fold
from cls_jax.photos.shell import find_program

_ZIP = (".zip",)
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_OTHERS = (".7z", ".rar")
ARCHIVES = (*_ZIP, *_TAR, *_OTHERS)
# Endings of files that may hold all images → what to do.
_SAVE = "save its images as files, one folder for each class"
_CONTAINERS = {
    (".parquet", ".arrow"): f"{_SAVE}, with the package datasets of Hugging Face",
    (".tfrecord", ".tfrecords", ".tfrec", ".record"): f"{_SAVE}, for example with FiftyOne",
    (".npz",): "train on it as arrays (see cls-jax help own_arrays)",
    (".npy", ".h5", ".hdf5", ".lmdb", ".mdb", ".pkl", ".pickle", "-ubyte"): (
        "save its arrays as an .npz (see cls-jax help own_arrays)"
    ),
    (".mat",): "if it has the labels, save them as a CSV file with the columns file and label",
}


def describe_unpacking(path: pathlib.Path) -> str:
    """The command that unpacks an archive into a new folder beside it, for a sentence."""
    name = fold(path.name)
    suffix = next(suffix for suffix in ARCHIVES if name.endswith(suffix))
    target = path.with_name(path.name[: -len(suffix)] or "unpacked")
    while target.exists():  # Its files could be overwritten.
        target = target.with_name(f"{target.name}-unpacked")
    file, folder = shlex.quote(str(path)), shlex.quote(str(target))
    if suffix in _ZIP:
        return f"{find_program('python')} -m zipfile -e {file} {folder}"
    if suffix in _TAR:
        return f"mkdir {folder} && tar -xf {file} -C {folder}"
    return f"7z x {file} -o{folder}"


def refuse_no_folder(path: str | os.PathLike, wanted: str) -> UserError:
    """The error that a path is no folder, which `wanted` describes, with what to do."""
    file = pathlib.Path(path).expanduser()
    if file.is_file() and fold(file.name).endswith(ARCHIVES):
        return UserError(
            f"{path} is an archive: unpack it with `{describe_unpacking(file)}`, and pass the new "
            "folder."
        )
    return UserError(f"{path} is not a folder. Pass {wanted}.")


def describe_packed(root: pathlib.Path, names: Sequence[str]) -> str | None:
    """What to do with archives and other files that may hold the images, or None without any.

    It is the end of a sentence.
    """
    if archives := [name for name in names if fold(name).endswith(ARCHIVES)]:
        more = len(archives) - 1
        each, have = "it", "has"
        if more:
            each, have = "each", f"and {write_count(more, 'other archive', 'other archives')} have"
        return (
            f"if {archives[0]!r:.200} {have} the images, unpack {each} into a folder of its own, "
            f"as with `{describe_unpacking(root / archives[0])}`"
        )
    for endings, remedy in _CONTAINERS.items():
        if found := [name for name in names if fold(name).endswith(endings)]:
            return f"{found[0]!r:.200} is not read: {remedy}"
    return None
