"""The reading by the names of files and folders, with a pattern that the user gives.

A folder never counts as labeled because of its names. A sentence proposes a pattern where they seem
to carry the classes.
"""

import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

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
        if not rest or splits.get(top) != "unlabeled":
            match = compiled.search(name)
            label = clean(match[1] or "") if match else ""
            labels[name] = "" if means_unlabeled(label) else label
    num_found = sum(map(bool, labels.values()))
    if labels and not num_found:
        sentence = f"{_show(pattern)} fits no name, such as {next(iter(labels))!r:.200}."
        return found._replace(fault=Fault(sentence))
    of_files = f"{num_found:,} of {write_count(len(labels), 'file', 'files')}"
    return found._replace(labels=labels, sentence=f"{_show(pattern)}: classes of {of_files}.")


def _show(pattern: str) -> str:
    """The option as typed in a shell, shortened."""
    return f"--label-pattern {make_printable(shlex.quote(pattern)):.200}"


def propose_from_names(names: Sequence[str]) -> tuple[str, Mapping[str, int], str] | None:
    """A pattern for the classes that the names of files seem to begin or end with, or None.

    Most names are words and a number, as in Abyssinian_12.jpg and cat.4001.jpg. There are several
    of such words, and each has several images. With the images of each class, and an example.
    """
    stems = {name: os.path.splitext(name.rpartition("/")[2])[0] for name in names}
    for form, words, number in ((_WORDS_FIRST, 1, 3), (_NUMBER_FIRST, 3, 1)):
        found = {name: match for name, stem in stems.items() if (match := form.fullmatch(stem))}
        counts = Counter(fold_case(match[words]) for match in found.values())
        is_common = 0 < _MOST_NAMES * len(names) <= len(found) >= _FEWEST_IMAGES * len(counts)
        if not is_common or len(counts) < 2 or counts.keys() & _NO_CLASSES:
            continue
        separators = {match[2] for match in found.values()}
        separator = re.escape(separators.pop()) if len(separators) == 1 else "[ _.-]*"
        digits = r"\(?\d+\)?" if any("(" in match[number] for match in found.values()) else r"\d+"
        parts = ("", "([^/]+?)", separator, digits)
        if words == 3:
            parts = ("(?:^|/)", digits, separator, "([^/]+?)")
        pattern = rf"{''.join(parts)}\.[^./]+$"
        labels = filter(None, (re.search(pattern, name) for name in names))
        return pattern, Counter(match[1] for match in labels), next(iter(found))
    return None


def describe_names(root: pathlib.Path, names: Sequence[str], options: FolderOptions) -> str | None:
    """What to run if names of files seem to carry the classes, the end of a sentence, or None.

    The command repeats the `options` of the folder.
    """
    if (proposal := propose_from_names(names)) is None:
        return None
    pattern, counts, example = proposal
    arguments = options._replace(label_pattern=pattern).to_arguments(root)
    return (
        f"if names such as {example!r:.100} carry the class ({_list_counts(counts)}; "
        f"{sum(counts.values()):,} of {write_count(len(names), 'name', 'names')}), "
        f"{write_command(['train', str(root), *arguments])} reads it"
    )


def describe_inner_folders(
    root: pathlib.Path, names: Collection[str], depth: int, options: FolderOptions
) -> str | None:
    """What to run if folders with the names of classes repeat within others, or None.

    `names` are those of labeled files, and `depth` the number of folders above the first ones. The
    command repeats the `options` of the folder.
    """
    paths = [path for name in names if len(path := name.split("/")) >= depth + 3]
    tops: dict[str, set[str]] = {}
    for path in paths:
        tops.setdefault(fold_class(path[depth + 1]), set()).add(path[depth])
    num_repeated = sum(len(found) > 1 for found in tops.values())
    if len(tops) < 2 or 2 * num_repeated < len(tops) or len(paths) < len(names):
        return None
    start = "".join(["^", *(f"{re.escape(top)}/" for top in paths[0][:depth])])
    options = options._replace(
        label_pattern=f"{start}[^/]+/([^/]+)/", source_pattern=f"{start}([^/]+)/"
    )
    command = write_command(["train", str(root), *options.to_arguments(root)])
    return (
        f"if these are the classes ({_list_counts(Counter(path[depth + 1] for path in paths))}), "
        f"{command} reads them, and takes the folders around them for what the images come from"
    )


def _list_counts(counts: Mapping[str, int]) -> str:
    """The most frequent classes, each with its number of images."""
    first = sorted(counts, key=lambda name: (-counts[name], name))[:_NUM_NAMED]
    listed = ", ".join(f"{name!r:.60} {counts[name]:,}" for name in first)
    more = len(counts) - len(first)
    return listed + (f" and {more:,} more" if more else "")
