"""What a user says about a folder where it can be read in several ways."""

import os
import pathlib
from typing import Any, NamedTuple

from cls_jax.errors import UserError
from cls_jax.photos.folder.kinds import ONE_CLASS, TAGS, Classes

CLASSES, SPLITS = "classes", "splits"


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
