"""What a folder lacks to be trained on, and what to do: the ends of errors, and whole ones."""

import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from cls_jax.photos.folder.formats import FORMATS
from cls_jax.photos.folder.names import find_part, fold_case, means_unlabeled
from cls_jax.photos.folder.options import CLASSES
from cls_jax.photos.folder.propose.names import describe_inner_folders, describe_names
from cls_jax.photos.folder.reading import HELD_OUT, Folder
from cls_jax.photos.folder.unread import describe_packed, describe_skipped
from cls_jax.photos.images.files import SkippedFile

_REMEDY = (
    "arrange the images as labeled/<class>/ and unlabeled/, as one folder with labels.csv beside "
    "it, or as one folder for each class (see cls-jax help own_images)"
)
_NUM_TRIED = 100_000  # Names that may carry classes.
_NUMBER = re.compile("0*([0-9]+)")


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
    labeled: Collection[str],
    skipped: Sequence[SkippedFile],
) -> str | None:
    """A sentence if a class folder has no image, or only images in subfolders.

    Those of the `labeled` images that are in subfolders are allowed if the user has said that these
    folders are classes.
    """
    bases = [name for name, kind in splits.items() if kind == "train"]
    depth = 1 if bases else 0
    with_images: set[str] = set()
    nested: dict[str, str] = {}
    for name in labeled:
        parts = name.split("/")
        top = "/".join(parts[: depth + 1])
        if len(parts) == depth + 2 or folder.options.layout == CLASSES:
            with_images.add(top)
        else:
            nested.setdefault(top, "/".join(parts[: depth + 2]))
    if only_nested := sorted(nested.keys() - with_images):
        example = nested[only_nested[0]]
        return (
            f"The class folder {only_nested[0]!r} has no image of its own, only folders such as "
            f"{example!r}: {_describe_inner(folder, labeled, depth)}."
        )
    if with_images and not bases and all(map(find_part, with_images)):
        held_out = [name for name, kind in splits.items() if kind != "train"]
        held_out += [name for name in with_images if find_part(name) != "train"]
        return (
            f"{folder.root} has no labeled image, because there is no class folder in "
            f"{' or '.join(map(repr, sorted(with_images)))}: "
            f"{_find_remedy(folder, held_out) or _REMEDY}."
        )
    if not with_images:
        return None
    empty = _list_empty(folder.listing.folders, bases, {*with_images, *splits})
    if not empty:
        return None
    return (
        f"The class {empty[0].split('/')[-1]!r} has no image in {folder.root / empty[0]}"
        f"{describe_skipped(skipped, empty[0] + '/')}: add at least one, or move the folder "
        "elsewhere."
    )


def _list_empty(
    folders: Iterable[str], bases: Collection[str], known: Collection[str]
) -> list[str]:
    """The folders that would be classes if they had images, but for those that are `known`."""
    inside = [name.rpartition("/") for name in folders if name not in known]
    return sorted(
        f"{top}{sign}{name}"
        for top, sign, name in inside
        if (top in bases if bases else not top) and not means_unlabeled(name)
    )


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
