"""What the images of a folder come from: patients, cameras, sites, videos and the like.

A column of the label table says it, or a pattern of the names of files.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.data.sampling import take_evenly
from cls_jax.errors import UserError
from cls_jax.io import make_printable, write_count
from cls_jax.photos.folder.names import (
    clean,
    find_part,
    fold_case,
    fold_class,
    group_pairs,
    list_names,
)

_MAX_NAMED = 3
# Of a proposed pattern: the share of names that it fits, and the fewest images of a source.
_MOST_NAMES, _FEWEST_IMAGES = 0.95, 2
_NUM_PAIRS = 20  # Of copies, that are compared.
NUM_NAMES = 1_000  # Enough to propose a pattern.
_MAX_LEVELS = 4  # Of folders.
# A word with a number, and then a number of its own, as in P012_03.png.
_NUMBERED = re.compile(r"(([^\W\d_]+)([-_]?)\d+)[-_ ]\d+")
# What programs add to the name of a copy: a.rf.<hash> (Roboflow), a_aug_3, "a - Copy (2)", a-1, or
# "a (2)". With the share of copies that must look alike, since independent photos are named so,
# too: none of 300 pairs, and a quarter of those that are turned by up to 30 degrees and cropped.
_COPIES = {
    r"\.rf\.\w+": 0,
    r"[-_ .]+aug(?:mented)?[-_ \d]*": 0.15,
    r"[-_ (]+copy[-_ ()\d]*": 0.15,
    r"[-_]\d+": 0.15,
    r" ?\(\d+\)": 0.15,
}


class Sources(NamedTuple):
    """The sources of the training images."""

    numbers: np.ndarray  # Of each image's source, int32 [n], -1 where unknown.
    origin: str  # What says it, such as "the column 'patient'".


def search_names(
    names: Sequence[str],
    pattern: str,
    option: str = "--source-pattern",
    what: str = "source",
    example: str = r"'(P\d+)_'",
) -> dict[str, str]:
    """Name → what the group of a pattern finds in it, with all folders, if it finds something.

    Raises a UserError with the `option` if the pattern is none with one group, for `what`, or fits
    no name.
    """
    shown = f"{option} {make_printable(shlex.quote(pattern)):.200}"
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"{shown} is no regular expression ({error}): write one such as {example}."
        ) from error
    if compiled.groups != 1:
        raise UserError(
            f"{shown} needs one group, in parentheses, for the {what}, such as {example}."
        )
    found = {name: match[1] for name in names if (match := compiled.search(name)) and match[1]}
    if names and not found:
        raise UserError(f"{shown} fits no name, such as {names[0]!r:.200}.")
    return found


def number_sources(names: Iterable[str], sources: Mapping[str, str]) -> np.ndarray:
    """The number of each image's source, int32 [n], -1 where unknown.

    Cells that differ only in case, accents' composition and spaces are one source.
    """
    numbers: dict[str, int] = {}
    folded = {cell: fold_case(clean(cell)) for cell in set(sources.values())}
    return np.array(
        [
            numbers.setdefault(source, len(numbers))
            if (source := folded.get(sources.get(name, ""), ""))
            else -1
            for name in names
        ],
        np.int32,
    )


def propose_pattern(names: Sequence[str]) -> str | None:
    """A sentence about a source that the names seem to carry, or None.

    A word with a number, and then another number, as in P012_03.png. If there are several such
    words, these are rather the classes.
    """
    stems = {name: os.path.splitext(name.rpartition("/")[2])[0] for name in names}
    found = {name: match for name, stem in stems.items() if (match := _NUMBERED.fullmatch(stem))}
    sources = {match[1] for match in found.values()}
    words = {match[2] for match in found.values()}  # One for each class, if there are several.
    is_common = len(found) >= max(_MOST_NAMES * len(names), _FEWEST_IMAGES * len(sources))
    if not is_common or len(sources) < 2 or len(words) > 1:
        return None
    separator = "[-_]?" if any(match[3] for match in found.values()) else ""
    pattern = rf"({re.escape(words.pop())}{separator}\d+)[-_ ]\d+"
    example = make_printable(next(iter(found)))
    return (
        f"Names such as {example!r:.100} may say what an image comes from: with --source-pattern "
        f"'{pattern}', images of one source are held out together."
    )


def propose_copies(names: Sequence[str], are_alike: Callable[[str, str], bool]) -> str | None:
    """A sentence about names that differ only in what programs add for copies, or None.

    At least half do, and the first and the last image of a name look alike: enough of the pairs
    that were sampled. Where all in a folder have one name, they are numbered images of a class.
    """
    for added, share in _COPIES.items():
        photo = re.compile(rf"(.+?)(?:{added})?\.[^./]+", re.I)
        groups = group_pairs(
            (match[1] if (match := photo.fullmatch(name)) else name, name) for name in names
        )
        several = [sorted(group, key=len) for group in groups.values() if len(group) > 1]
        folders = {name.rpartition("/")[0] for name in groups}
        are_most = 2 * sum(map(len, several)) >= len(names) and len(groups) >= 2 * len(folders)
        pairs = [(group[0], group[-1]) for group in take_evenly(several, _NUM_PAIRS)]
        if are_most and pairs and sum(are_alike(a, b) for a, b in pairs) >= share * len(pairs):
            first, second = map(make_printable, pairs[0])
            is_unique = len({name.rpartition("/")[2] for name in names}) == len(names)
            start = "([^/]+?)" if is_unique else "^(.+?)"
            return (
                f"Names such as {first!r:.100} and {second!r:.100} are those of copies: with "
                rf"--source-pattern '(?i){start}(?:{added})?\.[^./]+$', copies of one photo are "
                "held out together."
            )
    return None


def propose_by_folders(names: Sequence[str], labels: np.ndarray) -> str | None:
    """A sentence about a level of folders that may say what labeled images come from, or None.

    As in `deer/site1/…`, or in `site1/…` if a table has the classes. Folders that stand one for one
    for the classes or for parts of the data, or of which there is only one, are another level's.
    Names are those of n labeled images, with their folders, and labels int [n].
    """
    folders = [name.split("/")[:-1] for name in names]
    for level in range(_MAX_LEVELS):
        inner = ["" if len(path) <= level else fold_class(path[level]) for path in folders]
        found, places = np.unique(inner, return_inverse=True)
        if inner.count("") > (1 - _MOST_NAMES) * len(inner):
            return None
        pairs = np.unique(np.stack([places.reshape(-1), labels]), axis=1)
        is_class = len(found) == pairs.shape[1] == len(np.unique(labels))
        are_parts = all(map(find_part, filter(None, found)))
        if len(found) < 2 or is_class or are_parts:
            continue
        if len(names) < _FEWEST_IMAGES * len(found):
            return None
        counts = np.unique(pairs[1], return_counts=True)[1]
        pattern = "^" + "[^/]+/" * level + "([^/]+)/"
        example = "/".join(next(path for path in folders if len(path) > level)[: level + 1])
        return (
            f"Folders such as {make_printable(example)!r:.100} may say what an image comes from: "
            f"with --source-pattern '{pattern}', images of folders of one name are held out "
            f"together ({len(found):,} names, {_write_range(counts)} in a class)."
        )
    return None


def propose_origins(origins: Sequence[tuple[str, str]]) -> str | None:
    """A sentence about cameras or patients that some images name, see `read_origin`, or None."""
    known = [origin for origin in origins if origin[1]]
    found = set(known)
    if len(found) < 2 or len(known) < max(_FEWEST_IMAGES * len(found), len(origins) / 2):
        return None
    kind = known[0][0]
    return (
        f"{len(known):,} of {len(origins):,} sampled images name their {kind}, of which there are "
        f"{len(found):,}. If the images to classify will be of other {kind}s, write each image's "
        f"into a column '{kind}' of the label table: images of one {kind} are then held out "
        "together."
    )


def _write_range(counts: np.ndarray | Sequence[int]) -> str:
    few, many = min(counts), max(counts)
    return f"{few:,}" if few == many else f"{few:,} to {many:,}"


def describe_sources(sources: Sources, labels: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """Lines of a plan about the sources of training images with `labels`, int [n]."""
    numbers = sources.numbers
    is_known = numbers >= 0
    counts = [len(np.unique(numbers[is_known & (labels == k)])) for k in range(len(class_names))]
    lines = [
        f"Sources:     {len(np.unique(numbers[is_known])):,} by {sources.origin}, of "
        f"{int(is_known.sum()):,} of {len(numbers):,} training images; labeled images of a class "
        f"are from {_write_range(counts)}"
    ]
    single = [make_printable(class_names[k]) for k, n in enumerate(counts) if n == 1]
    if single:
        lines.append(
            f"All labels of {list_names(single, _MAX_NAMED)} are from one source each: the "
            "classifier may learn the source instead of the class, and nothing can tell. Label "
            "images of other sources."
        )
    return lines


def describe_shared(train: Iterable[str], held_out: Iterable[str], part: str) -> str | None:
    """A sentence about sources of held-out images that training images have, too, or None.

    Both are the sources of the images of a part, "" where unknown. The held-out part is called
    `part`.
    """
    known = set(train) - {""}
    shared = [source for source in held_out if source in known]
    if not shared:
        return None
    images_are = write_count(len(shared), f"{part} image is", f"{part} images are")
    return (
        f"{images_are} from sources that training images have, too, such as {shared[0]!r:.100}: "
        "accuracy on them says nothing about new sources."
    )
