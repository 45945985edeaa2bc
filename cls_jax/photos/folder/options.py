"""What a user says about a folder: where it is, and which of several ways to read it counts."""

import os
import pathlib
import shlex
from typing import Any, NamedTuple

from cls_jax.errors import UserError
from cls_jax.photos.folder.kinds import ONE_CLASS, TAGS, Classes
from cls_jax.photos.folder.names import fold_case
from cls_jax.photos.shell import find_program

CLASSES, SPLITS = "classes", "splits"
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
# Ending of an archive → the command that unpacks it.
_UNPACK = {
    ".zip": "{python} -m zipfile -e {file} {folder}",
    **dict.fromkeys(_TAR, "mkdir {folder} && tar -xf {file} -C {folder}"),
    **dict.fromkeys((".7z", ".rar"), "7z x {file} -o{folder}"),
}
ARCHIVES = tuple(_UNPACK)


class FolderOptions(NamedTuple):
    """How to read a folder. "" where its content decides."""

    file_column: str = ""  # Header, or number from 1, of the label table's column of files.
    label_column: str = ""  # The same of the column of classes.
    # Whether folders called train, val or test are classes ("classes") or hold some ("splits").
    layout: str = ""
    source_column: str = ""  # As the other columns, of what images come from.
    source_pattern: str = ""  # A regular expression of names, whose group is the source.
    labels: str = ""  # The only file with labels, absolute or relative to the folder.
    label_pattern: str = ""  # A regular expression of names, whose group is the class.
    tags: bool = False  # Whether an image may have several classes, see `kinds`.

    @property
    def kind(self) -> Classes:
        """What a label can be."""
        return TAGS if self.tags else ONE_CLASS

    def to_arguments(self, root: pathlib.Path) -> list[str]:
        """The options of a command on this folder, as typed."""
        names = [f"--{field.replace('_', '-')}" for field in self._fields]
        values = self._replace(labels=str(root / self.labels) if self.labels else "")
        return [
            word
            for name, value in zip(names, values, strict=True)
            if value
            for word in ([name] if value is True else [name, str(value)])
        ]


AUTOMATIC = FolderOptions()


def get_folder_options(data_config: Any) -> FolderOptions:
    """The options in the section `data` of a configuration."""
    return FolderOptions(**{name: data_config[name] for name in FolderOptions._fields})


def find_folder(path: str | os.PathLike, wanted: str) -> pathlib.Path:
    """The folder at a path. Raises a UserError, with what is `wanted`, if there is none."""
    folder = pathlib.Path(path).expanduser()
    if folder.is_file() and fold_case(folder.name).endswith(ARCHIVES):
        raise UserError(
            f"{path} is an archive: unpack it with `{describe_unpacking(folder)}`, and pass the "
            "new folder."
        )
    if not folder.is_dir():
        raise UserError(f"{path} is not a folder. Pass {wanted}.")
    return folder


def describe_unpacking(path: pathlib.Path) -> str:
    """The command that unpacks an archive into a new folder beside it, for a sentence."""
    name = fold_case(path.name)
    suffix = next(suffix for suffix in ARCHIVES if name.endswith(suffix))
    target = path.with_name(path.name[: -len(suffix)] or "unpacked")
    while target.exists():  # Its files could be overwritten.
        target = target.with_name(f"{target.name}-unpacked")
    file, folder = shlex.quote(str(path)), shlex.quote(str(target))
    return _UNPACK[suffix].format(python=find_program("python"), file=file, folder=folder)


def find_labels_file(root: str | os.PathLike, typed: str) -> str:
    """The option `labels` for the file that a user names, "" for "".

    The name is relative to the current folder, or else to `root`. Raises a UserError if there is no
    such file, or one in each of these.
    """
    if not typed:
        return ""
    folder = pathlib.Path(root).expanduser()
    given = pathlib.Path(typed).expanduser()
    found = [path for path in (given, folder / given) if path.is_file()]
    if not found:
        raise UserError(
            f"There is no file {typed:.500} with labels, here or in {folder}: check the spelling "
            "of --labels."
        )
    if len(found) == 2 and not os.path.samefile(found[0], found[1]):
        raise UserError(
            f"--labels {typed:.500} may be {os.path.abspath(found[0])} or {found[1]}: write one of "
            "these."
        )
    path = os.path.abspath(found[0])
    inside = os.path.relpath(path, os.path.abspath(folder))
    return path if inside.startswith(os.pardir) else pathlib.Path(inside).as_posix()
