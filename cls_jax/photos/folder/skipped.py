"""Sentences about the files of a folder that are left out."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from cls_jax.errors import UserError
from cls_jax.io import make_printable, write_count
from cls_jax.photos.images.files import SkippedFile

_MAX_FILES_NAMED = 3
_ROW = re.compile(r"in .+, but (not in the folder|it could be several images)", re.S)
# A reason that says what one file is, such as "not a file": what the plural needs.
_NOUN = re.compile(r"^(not )?an? (.*?\b(?:file|folder|image|link))\b(.*)", re.S)


def describe_skipped(skipped: Iterable[SkippedFile], prefix: str = "") -> str:
    """The most frequent reason for skipped files, in parentheses."""
    rows = [(name, reason) for name, reason in skipped if name.startswith(prefix)]
    if not rows:
        return ""
    example, reason, count = find_example(rows)
    were = write_count(count, "file was", "files were")
    return f" ({were} skipped, such as {example!r:.100}: {reason})"


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
    clauses = []
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        listed = ", ".join(
            f"{make_printable(name)!r:.100}" for name in sorted(names)[:_MAX_FILES_NAMED]
        )
        more = ", …" if len(names) > _MAX_FILES_NAMED else ""
        subject = f"{len(names):,}"
        if len(reasons) == 1:
            subject = "it" if len(names) == 1 else "they"
        clauses.append(f"{subject} {_conjugate(reason, len(names))} ({listed}{more})")
    return f"{count} left out: {'; '.join(clauses)}."


def _conjugate(reason: str, count: int) -> str:
    """A reason as what follows a number of files: "has no …", "are broken links"."""
    if reason.startswith("no "):
        return f"{'has' if count == 1 else 'have'} {reason}"
    if count == 1:
        return f"is {reason}"
    plural = _NOUN.sub(r"\1\2s\3", reason)
    return f"are {plural}"
