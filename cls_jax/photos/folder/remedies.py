"""What a folder lacks to be trained on, what of it is not read, and what to do.

Nothing is opened or unpacked here.
"""

import itertools
import os
import pathlib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.formats import FORMATS
from cls_jax.photos.folder.names import (
    HELD_OUT,
    find_part,
    fold_case,
    fold_class,
    group_pairs,
    list_names,
    means_unlabeled,
)
from cls_jax.photos.folder.options import ARCHIVES, CLASSES, FolderOptions, describe_unpacking
from cls_jax.photos.folder.reading import Folder
from cls_jax.photos.images.files import SkippedFile
from cls_jax.photos.shell import write_command

_REMEDY = (
    "arrange the images as labeled/<class>/ and unlabeled/, as one folder with labels.csv beside "
    "it, or as one folder for each class (see cls-jax help own_images)"
)
_NUM_TRIED = 100_000  # Names that may carry classes.
_NUMBER = re.compile("0*([0-9]+)")
_MAX_FILES_NAMED = 3
_ROW = re.compile(r"in .+, but (not in the folder|it could be several images)", re.S)
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


def describe_missing(
    folder: Folder,
    class_names: Collection[str],
    splits: Mapping[str, str],
    table: str,
    skipped: Sequence[SkippedFile],
) -> str:
    """The sentence that fewer than two classes have a labeled image, with what to do."""
    what = f"only the class {min(class_names)!r}" if class_names else "no labeled image"
    needed = f"{folder.root} has {what}, but at least two classes are needed"
    skips = describe_skipped(skipped)
    if table:
        write = f"write the classes of more images into {table}"
        if "*" in table or table.startswith("--"):
            write = "label more of the images" if "*" in table else f"change the pattern of {table}"
        return f"{needed}{skips}: {write}."
    held_out = [name for name, kind in splits.items() if kind in HELD_OUT]
    if remedy := _find_remedy(folder, held_out):
        return f"{needed}: {remedy}."
    if class_names or not folder.listing.files:
        return f"{needed}{skips}: {_REMEDY}."
    label = shlex.join(["cls-jax", "label", str(folder.root)])
    return f"{label} asks for labels in the browser: {needed}. Or {_REMEDY}{skips}."


def describe_unnamed(folder: Folder, table: str, skipped: Sequence[SkippedFile]) -> str | None:
    """A sentence if rows of a table were `skipped`, none of which names an image."""
    files = folder.listing.files
    if not skipped or not len(files):
        return None
    cell = skipped[0][0]
    return (
        f"No row of {table} names an image of {folder.root}: it has names such as {cell!r:.200}, "
        f"and the folder has {_find_alike(cell, files.names())}"
    )


def describe_class_folders(
    folder: Folder,
    splits: Mapping[str, str],
    labeled: Sequence[str],
    skipped: Sequence[SkippedFile],
) -> str | None:
    """A sentence if a class folder has no image, or only images in subfolders.

    Those of the `labeled` images that are in subfolders are allowed if the user has said that these
    folders are classes.
    """
    bases = [name for name, kind in splits.items() if kind == "train"]
    depth = 1 if bases else 0
    paths = [name.split("/") for name in reversed(labeled)]
    nested = {"/".join(path[: depth + 1]): "/".join(path[: depth + 2]) for path in paths}
    with_images = {
        "/".join(path[: depth + 1])
        for path in paths
        if len(path) == depth + 2 or folder.options.layout == CLASSES
    }
    if only_nested := sorted(nested.keys() - with_images):
        example = nested[only_nested[0]]
        return (
            f"The class folder {only_nested[0]!r} has no image of its own, only folders such as "
            f"{example!r}: {_describe_inner(folder, labeled, depth)}."
        )
    if with_images and not bases and all(map(find_part, with_images)):
        held_out = [*splits, *(name for name in with_images if find_part(name) != "train")]
        return (
            f"{folder.root} has no labeled image, because there is no class folder in "
            f"{' or '.join(map(repr, sorted(with_images)))}: "
            f"{_find_remedy(folder, held_out) or _REMEDY}."
        )
    empty = sorted(_list_classes(folder.listing.folders, bases) - with_images - splits.keys())
    if not (with_images and empty):
        return None
    return (
        f"The class {empty[0].split('/')[-1]!r} has no image in {folder.root / empty[0]}"
        f"{describe_skipped(skipped, empty[0] + '/')}: add at least one, or move the folder "
        "elsewhere."
    )


def _list_classes(folders: Iterable[str], bases: Collection[str]) -> set[str]:
    """The folders that are classes, in those for training if there are any, or else at the top."""
    inside = [name.rpartition("/") for name in folders]
    return {
        f"{top}{sign}{name}"
        for top, sign, name in inside
        if (top in bases if bases else not top) and not means_unlabeled(name)
    }


def _describe_inner(folder: Folder, labeled: Collection[str], depth: int) -> str:
    """What to do where images of a class are all in folders of their own."""
    if inner := describe_inner_folders(folder.root, labeled, depth, folder.options):
        return inner
    folders = {os.path.dirname(name) for name in folder.listing.files.names()}
    common = os.path.commonpath(folders) if all(folders) else ""
    depths = {name[len(common) :].count("/") for name in folders}
    if common and depths == {1} and len(folders) > 1:
        whole = shlex.quote(str(folder.root / common))
        return f"move the images up, or pass {whole}, whose folders are then the classes"
    return "move the images up, or pass the folder whose subfolders are the classes"


def _find_remedy(folder: Folder, held_out: Collection[str]) -> str | None:
    """What to do with a folder without classes, by what lies in it, or None.

    Images in folders that are `held_out` carry no classes.
    """
    root, listing = folder.root, folder.listing
    names = [
        name
        for name in itertools.islice(listing.files.names(), _NUM_TRIED)
        if name.split("/")[0] not in held_out
    ]
    if remedy := describe_names(root, names, folder.options):
        return remedy
    for one in (one for one in FORMATS.values() if one.remedy and not one.has_images):
        top = [name for name in listing.others if name.lower().endswith(one.endings)]
        if name := next((name for name in top if "/" not in name), None):
            path = shlex.quote(str(root / name))
            return f"if {name!r} has the labels, {one.remedy.format(path)}"
    if packed := describe_packed(root, listing.others):
        return packed
    around = list(root.parent.glob("*.[cC][sS][vV]"))
    if len(around) != 1:
        return None
    path = shlex.quote(str(around[0]))
    return f"if {around[0].name!r} beside this folder has the labels, pass --labels {path}"


def _find_alike(cell: str, names: Iterable[str]) -> str:
    """The file that a cell of a table seems to mean, or any other, and what to write instead."""

    def simplify_path(path: str) -> tuple[str, str]:
        return os.path.splitext(fold_case(path.replace("\\", "/").rpartition("/")[2]))

    stem, ending = simplify_path(cell)
    first = ""
    for name in names:
        first = first or name
        other, other_ending = simplify_path(name)
        if stem == other and ending != other_ending:
            return f"{name!r:.200}. Write names with the extensions of the files."
        if stem != other and _NUMBER.sub(r"\1", stem) == _NUMBER.sub(r"\1", other):
            return f"{name!r:.200}. Write names with all their zeros, which spreadsheets leave out."
    return f"{first!r:.200}. Write names relative to the folder."


def describe_packed(root: pathlib.Path, names: Sequence[str]) -> str | None:
    """What to do with archives and other files that may hold the images, or None without any.

    It is the end of a sentence.
    """
    if archives := [name for name in names if fold_case(name).endswith(ARCHIVES)]:
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
    reasons = group_pairs(
        (reason.split(";")[0], name) for name, reason in skipped if not _ROW.fullmatch(reason)
    )
    if not reasons:
        return None
    count = write_count(sum(map(len, reasons.values())), "file is", "files are")
    clauses = (
        f"{reason} ({list_names(sorted(names), _MAX_FILES_NAMED)})"
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))
    )
    return f"{count} left out: {'; '.join(clauses)}."


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
    tops = group_pairs((fold_class(path[depth + 1]), path[depth]) for path in paths)
    num_repeated = sum(len(set(found)) > 1 for found in tops.values())
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
