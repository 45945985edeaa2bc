"""Files sorted into folders, one for each class."""

import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Sequence

from cls_jax.errors import UserError
from cls_jax.io import PARTIAL
from cls_jax.photos.folder.names import fold_class

# Not allowed on some system in the name of a folder, at its start, or at its end.
_NOT_IN_NAMES = re.compile(r'[%/\\:*?"<>|\x00-\x1f]|^\.|[. ]$')


UNSURE = "unsure"  # The folder of files whose class is not certain enough.


def set_unsure_apart(
    rows: Sequence[tuple[str, str | None, float | None]], below: float
) -> list[tuple[str, str | None]]:
    """Files and folders for `sort_files`: less confident ones get `UNSURE` instead of their class.

    Rows are a file, its class and its confidence, None for a label that was given. Raises a
    UserError if a class has the name of that folder.
    """
    is_unsure = [confidence is not None and confidence < below for _, _, confidence in rows]
    taken = [label for _, label, _ in rows if label is not None and fold_class(label) == UNSURE]
    if any(is_unsure) and taken:
        raise UserError(
            f"Photos that are not certain enough go into the folder {UNSURE}, and a class is "
            f"called {taken[0]}: rename the class, or sort without a limit."
        )
    return [
        (file, UNSURE if unsure else label)
        for (file, label, _), unsure in zip(rows, is_unsure, strict=True)
    ]


def check_sorting(folder: pathlib.Path) -> None:
    """Raises a UserError if `sort_files` would add to a folder with files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder: choose a new folder for --sort-into.")


def sort_files(labels: Sequence[tuple[str, str | None]], folder: pathlib.Path) -> None:
    """Copies files into FOLDER/<class>/. The files stay where they are.

    Names that occur several times get a number, and files without a class are left out. Characters
    of a class that cannot be part of a folder's name are written like %2F. The folder is created
    completely or not at all. Raises a UserError if the folder has files, or cannot be written.
    """
    check_sorting(folder)
    partial = folder.with_name(f"{folder.name}.{secrets.token_hex(6)}{PARTIAL}")
    taken: dict[str, int] = {}  # Path in lower case → the last number appended to it.
    try:
        partial.mkdir(parents=True)
        for file, label in labels:
            if label is None:
                continue
            name = _NOT_IN_NAMES.sub(lambda match: f"%{ord(match[0]):02X}", label)
            wanted = path = partial / name / os.path.basename(file)
            key = str(wanted).lower()
            while str(path).lower() in taken:
                taken[key] += 1
                path = wanted.with_name(f"{wanted.stem}-{taken[key]}{wanted.suffix}")
            taken[str(path).lower()] = 1
            path.parent.mkdir(exist_ok=True)
            shutil.copy2(file, path)
        if folder.exists():
            folder.rmdir()  # On Windows, a rename cannot replace a folder.
        partial.rename(folder)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} cannot be copied to {folder} ({error.strerror}): choose "
            "another folder for --sort-into."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
