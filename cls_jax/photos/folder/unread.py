"""Files of a folder that are not read, and what to do with archives and the like.

Only names count here. Nothing is opened or unpacked.
"""

import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.formats import FORMATS
from cls_jax.photos.folder.names import fold_case, list_names
from cls_jax.photos.images.files import SkippedFile
from cls_jax.photos.shell import find_program

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
# Ending of an archive → the command that unpacks it.
_UNPACK = {
    ".zip": "{python} -m zipfile -e {file} {folder}",
    **dict.fromkeys(_TAR, "mkdir {folder} && tar -xf {file} -C {folder}"),
    **dict.fromkeys((".7z", ".rar"), "7z x {file} -o{folder}"),
}
_ARCHIVES = tuple(_UNPACK)
_MAX_FILES_NAMED = 3
_ROW = re.compile(r"in .+, but (not in the folder|it could be several images)", re.S)


def describe_unpacking(path: pathlib.Path) -> str:
    """The command that unpacks an archive into a new folder beside it, for a sentence."""
    name = fold_case(path.name)
    suffix = next(suffix for suffix in _ARCHIVES if name.endswith(suffix))
    target = path.with_name(path.name[: -len(suffix)] or "unpacked")
    while target.exists():  # Its files could be overwritten.
        target = target.with_name(f"{target.name}-unpacked")
    file, folder = shlex.quote(str(path)), shlex.quote(str(target))
    return _UNPACK[suffix].format(python=find_program("python"), file=file, folder=folder)


def find_folder(path: str | os.PathLike, wanted: str) -> pathlib.Path:
    """The folder at a path. Raises a UserError, with what is `wanted`, if there is none."""
    folder = pathlib.Path(path).expanduser()
    if folder.is_file() and fold_case(folder.name).endswith(_ARCHIVES):
        raise UserError(
            f"{path} is an archive: unpack it with `{describe_unpacking(folder)}`, and pass the "
            "new folder."
        )
    if not folder.is_dir():
        raise UserError(f"{path} is not a folder. Pass {wanted}.")
    return folder


def describe_packed(root: pathlib.Path, names: Sequence[str]) -> str | None:
    """What to do with archives and other files that may hold the images, or None without any.

    It is the end of a sentence.
    """
    if archives := [name for name in names if fold_case(name).endswith(_ARCHIVES)]:
        each, have = "it", "has"
        if more := len(archives) - 1:
            each, have = "each", f"and {write_count(more, 'other archive', 'other archives')} have"
        return (
            f"if {archives[0]!r:.200} {have} the images, unpack {each} into a folder of its own, "
            f"as with `{describe_unpacking(root / archives[0])}`"
        )
    for one in (one for one in FORMATS.values() if one.has_images):
        if found := [name for name in names if fold_case(name).endswith(one.endings)]:
            return f"{found[0]!r:.200} is not read: {one.remedy}"
    return None


def describe_skipped(skipped: Iterable[SkippedFile], prefix: str = "") -> str:
    """The most frequent reason for skipped files, in parentheses."""
    rows = [(name, reason) for name, reason in skipped if name.startswith(prefix)]
    if not rows:
        return ""
    example, reason, count = find_example(rows)
    were = f"{write_count(count, 'file was', 'files were')} skipped, such as {example!r:.100}"
    return f" ({were}: {reason})"


def find_example(skipped: Sequence[SkippedFile]) -> tuple[str, str, int]:
    """A file that is skipped for the most frequent reason, this reason, and how many files are."""
    reason, count = Counter(reason for _, reason in skipped).most_common(1)[0]
    return min(name for name, why in skipped if why == reason), reason, count


def refuse_unreadable(what: str, failures: Sequence[SkippedFile]) -> UserError:
    """The error that no image can be read, with the most frequent reason and the remedy."""
    if not failures:
        return UserError(f"{what} can be read: convert them to JPEG or PNG.")
    example, reason, _ = find_example(failures)
    remedy = "" if "pip install" in reason else ": convert them to JPEG or PNG"
    return UserError(f"{what} can be read ({example!r:.100}: {reason}){remedy}.")


def describe_left_out(skipped: Iterable[SkippedFile]) -> str | None:
    """A sentence about the files that are left out, the first three by name. None without any."""
    reasons: dict[str, list[str]] = {}
    for name, reason in skipped:
        if not _ROW.fullmatch(reason):
            reasons.setdefault(reason.split(";")[0], []).append(name)
    if not reasons:
        return None
    count = write_count(sum(map(len, reasons.values())), "file is", "files are")
    clauses = (
        f"{reason} ({list_names(sorted(names), _MAX_FILES_NAMED)})"
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))
    )
    return f"{count} left out: {'; '.join(clauses)}."
