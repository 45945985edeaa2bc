"""The reading by the names of files and folders, with a pattern that the user gives.

A folder never counts as labeled because of its names. A sentence proposes a pattern where they seem
to carry the classes.
"""

import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.io import make_printable, write_count
from cls_jax.photos.folder.names import clean, fold_case, fold_class, means_unlabeled
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.reading import CHOSEN, Fault, Reading
from cls_jax.photos.folder.sources import compile_pattern
from cls_jax.photos.shell import write_command

_EXAMPLE = r"'([^/]+)_\d+\.'"
# A name is words, and then a number, or the reverse. The words have no digits.
_WORDS = r"[^\W\d_]+(?:[ _.-]+[^\W\d_]+)*"
_WORDS_FIRST = re.compile(rf"({_WORDS})([ _.-]*)(\(?\d+\)?)")
_NUMBER_FIRST = re.compile(rf"(\(?\d+\)?)([ _.-]*)({_WORDS})")
_MOST_NAMES, _FEWEST_IMAGES = 0.95, 2  # Share of the names that fit, and images of a class.
_NUM_NAMED = 3
# Words that cameras and other programs put before a number.
_NO_CLASSES = {
    *("capture", "download", "dsc", "dscf", "dscn", "file", "frame", "gopr", "image", "images"),
    *("img", "imgp", "mvi", "p", "pano", "photo", "picture", "pxl", "sam", "scan", "screenshot"),
    *("test", "train", "val", "vid", "whatsapp image"),
}


class Proposal(NamedTuple):
    """A pattern that finds a class in most names."""

    pattern: str
    counts: Mapping[str, int]  # Images of each class.
    num_names: int
    example: str  # A name with a class.


def read_pattern(names: Iterable[str], pattern: str, splits: Mapping[str, str]) -> Reading:
    """The reading by a pattern that the user gives, searched in each name with all folders.

    Files in folders of unlabeled images, by `splits`, have no class. It has a fault if the pattern
    is none, or fits no name.
    """
    found = Reading("--label-pattern", evidence=(CHOSEN,))
    try:
        compiled = compile_pattern(pattern, "--label-pattern", "class", _EXAMPLE)
    except UserError as error:
        return found._replace(fault=Fault(str(error)))
    labels: dict[str, str] = {}
    for name in names:
        top, _, rest = name.partition("/")
        if rest and splits.get(top) == "unlabeled":
            continue
        match = compiled.search(name)
        label = clean(match[1] or "") if match else ""
        labels[name] = "" if means_unlabeled(label) else label
    num_found = sum(map(bool, labels.values()))
    if labels and not num_found:
        sentence = f"{_show(pattern)} fits no name, such as {next(iter(labels))!r:.200}."
        return found._replace(fault=Fault(sentence))
    files = write_count(len(labels), "file", "files")
    sentence = f"{_show(pattern)}: classes of {num_found:,} of {files}."
    return found._replace(labels=labels, sentence=sentence)


def _show(pattern: str) -> str:
    """The option as typed in a shell, shortened."""
    return f"--label-pattern {make_printable(shlex.quote(pattern)):.200}"


def propose_from_names(names: Sequence[str]) -> Proposal | None:
    """A pattern for the classes that the names of files seem to begin or end with, or None.

    Most names are words and a number, as in Abyssinian_12.jpg and cat.4001.jpg. There are several
    of such words, and each has several images.
    """
    stems = [os.path.splitext(name.rpartition("/")[2])[0] for name in names]
    for form, words, number in ((_WORDS_FIRST, 1, 3), (_NUMBER_FIRST, 3, 1)):
        matches = [form.fullmatch(stem) for stem in stems]
        found = [match for match in matches if match]
        counts = Counter(fold_case(match[words]) for match in found)
        is_common = len(found) >= _MOST_NAMES * len(names) and len(found) > 0
        if not is_common or len(counts) < 2 or len(found) < _FEWEST_IMAGES * len(counts):
            continue
        if counts.keys() & _NO_CLASSES:
            continue
        separators = {match[2] for match in found}
        separator = re.escape(separators.pop()) if len(separators) == 1 else "[ _.-]*"
        digits = r"\(?\d+\)?" if any("(" in match[number] for match in found) else r"\d+"
        word = "([^/]+?)"
        parts = (word, separator, digits) if words == 1 else (digits, separator, word)
        start = "" if words == 1 else "(?:^|/)"
        pattern = rf"{start}{''.join(parts)}\.[^./]+$"
        example = next(name for name, match in zip(names, matches, strict=True) if match)
        labels = [re.search(pattern, name) for name in names]
        counts = Counter(match[1] for match in labels if match)
        return Proposal(pattern, counts, len(names), example)
    return None


def describe_names(root: pathlib.Path, names: Sequence[str], options: FolderOptions) -> str | None:
    """What to run if names of files seem to carry the classes, the end of a sentence, or None.

    The command repeats the `options` of the folder.
    """
    proposal = propose_from_names(names)
    if proposal is None:
        return None
    num_found = sum(proposal.counts.values())
    options = options._replace(label_pattern=proposal.pattern)
    command = write_command(["train", str(root), *options.to_arguments(root)])
    return (
        f"if names such as {proposal.example!r:.100} carry the class "
        f"({_list_counts(proposal.counts)}; {num_found:,} of "
        f"{write_count(proposal.num_names, 'name', 'names')}), {command} reads it"
    )


def describe_inner_folders(
    root: pathlib.Path, names: Iterable[str], depth: int, options: FolderOptions
) -> str | None:
    """What to run if folders with the names of classes repeat within others, or None.

    `names` are those of labeled files, and `depth` the number of folders above the first ones. The
    command repeats the `options` of the folder.
    """
    inner: dict[str, set[str]] = {}
    counts = Counter[str]()
    num_names = 0
    top = ""
    for name in names:
        num_names += 1
        parts = name.split("/")
        if len(parts) < depth + 3:
            continue
        top = "/".join(parts[:depth])
        inner.setdefault(fold_class(parts[depth + 1]), set()).add(parts[depth])
        counts[parts[depth + 1]] += 1
    num_inside = sum(counts.values())
    repeated = [name for name, tops in inner.items() if len(tops) > 1]
    if len(inner) < 2 or 2 * len(repeated) < len(inner) or num_inside < num_names:
        return None
    start = f"^{re.escape(top)}/" if top else "^"
    options = options._replace(
        label_pattern=f"{start}[^/]+/([^/]+)/", source_pattern=f"{start}([^/]+)/"
    )
    command = write_command(["train", str(root), *options.to_arguments(root)])
    return (
        f"if these are the classes ({_list_counts(counts)}), {command} reads them, and takes the "
        "folders around them for what the images come from"
    )


def _list_counts(counts: Mapping[str, int]) -> str:
    """The most frequent classes, each with its number of images."""
    first = sorted(counts, key=lambda name: (-counts[name], name))[:_NUM_NAMED]
    listed = ", ".join(f"{name!r:.60} {counts[name]:,}" for name in first)
    more = len(counts) - len(first)
    return listed + (f" and {more:,} more" if more else "")
