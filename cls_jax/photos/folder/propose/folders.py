"""Readings by the names of folders, and of files with a pattern that the user gives.

Case and the composition of accents make no difference to folders.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cls_jax.io import make_printable, write_count
from cls_jax.photos.folder.names import clean, find_part, fold_class, list_names, means_unlabeled
from cls_jax.photos.folder.options import CLASSES, SPLITS, FolderOptions
from cls_jax.photos.folder.reading import CHOSEN, SORTED, Reading
from cls_jax.photos.folder.sources import search_names
from cls_jax.photos.images.files import Listing

_EXAMPLE = r"'([^/]+)_\d+\.'"
_WORD = re.compile(r"[^\W\d_]+")
# Last words of the names of folders that are numbered, since one would be too large.
_STORAGE = (
    *("image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "data"),
    *("batch", "features", "folder", "frames", "input", "part", "set", "split"),
)


class _Top(NamedTuple):
    """A folder at the top."""

    part: str | None  # What its name stands for.
    num_direct: int  # Images directly in it.
    inner: set[str]  # Folders in it that have images, folded, without those of unlabeled images.

    @property
    def has_images(self) -> bool:
        return self.num_direct > 0 or len(self.inner) > 0

    @property
    def has_classes(self) -> bool:
        """Whether it may hold class folders: of those called train, not all do."""
        return bool(self.part) and (self.part != "train" or len(self.inner) > 0)


def propose_folders(listing: Listing, options: FolderOptions) -> Iterator[Reading]:
    """The readings of a folder by its folders alone: one, or two where both are possible."""
    if not listing.folders:
        yield Reading()
        return
    tops = _list_tops(listing)
    sure = _find_sure(tops)
    layouts = {options.layout: ""}
    if not options.layout and "train" not in sure.values():
        layouts = _list_layouts(tops, sure)
    for layout, meaning in layouts.items():
        splits = _find_splits(listing, tops, layout)
        if layout == SPLITS and not options.layout:
            splits = {n: k for n, k in splits.items() if n in sure or tops[n].has_classes}
        labels = _label_by_class(listing, splits)
        yield Reading(
            labels=labels,
            splits=splits,
            evidence=(SORTED,) if _are_classes(set(labels.values()), options) else (),
            arguments=("--layout", layout) if layout else (),
            meaning=meaning,
        )


def find_splits(listing: Listing, options: FolderOptions) -> dict[str, str]:
    """Folder → its contents, as `find_part` names them, where a table has the classes."""
    if not listing.folders:
        return {}
    return _find_splits(listing, _list_tops(listing), options.layout, has_table=True)


def propose_labeled(listing: Listing, options: FolderOptions) -> Reading:
    """What folders say beside a table of another program: labeled/<class>/ and the splits."""
    bases = {name for name in listing.folders if fold_class(name) in ("labeled", "labelled")}
    return Reading(labels=_label_within(listing, bases), splits=find_splits(listing, options))


def _list_tops(listing: Listing) -> dict[str, _Top]:
    """The folders at the top, by name."""
    counts = Counter[str]()
    inner: dict[str, set[str]] = {}
    for name in listing.files.names():
        top, *rest = name.split("/", 2)
        if len(rest) == 1:
            counts[top] += 1
        elif rest and not means_unlabeled(rest[0]):
            inner.setdefault(top, set()).add(fold_class(rest[0]))
    tops = dict.fromkeys(name for name in listing.folders if "/" not in name)
    return {name: _Top(find_part(name), counts[name], inner.get(name, set())) for name in tops}


def _find_sure(tops: Mapping[str, _Top]) -> dict[str, str]:
    """The folders called labeled and unlabeled, which are no classes."""
    return {
        name: top.part for name, top in tops.items() if top.part and "label" in fold_class(name)
    }


def _find_splits(
    listing: Listing, tops: Mapping[str, _Top], layout: str, has_table: bool = False
) -> dict[str, str]:
    """Folder → its contents. Of `labeled` and `train`, the first counts.

    Beside `labeled`, a folder for validation has class folders, or a table has its classes.
    """
    named = {name: top.part for name, top in tops.items() if top.part is not None}
    sure = _find_sure(tops)
    if "train" not in sure.values():
        return sure if layout == CLASSES else named
    with_folders = {name.split("/")[0] for name in listing.folders if "/" in name}
    return sure | {
        name: part
        for name, part in named.items()
        if part != "train" and (has_table or part == "test" or name in with_folders)
    }


def _list_layouts(tops: Mapping[str, _Top], sure: Mapping[str, str]) -> dict[str, str]:
    """The layouts that folders called train, val or test may mean, with the end of a sentence.

    It is "" if there is only one.
    """
    found = {name: top for name, top in tops.items() if name not in sure and top.has_images}
    # A folder called train without class folders is a class, if anything.
    doubtful = {name: top for name, top in found.items() if top.has_classes}
    others = {name: top for name, top in found.items() if name not in doubtful}
    within = [top.inner for top in doubtful.values() if top.part == "train"]
    classes = set().union(*within) if within else set(map(fold_class, others))
    may_be_classes = _may_be_classes(others, doubtful, classes)
    if may_be_classes and doubtful and len(classes) >= 2:
        kinds = {"train": "training", "test": "test", "validation": "validation"}
        parts = dict.fromkeys(kinds[top.part] for top in doubtful.values() if top.part)
        a_class = "a class" if len(doubtful) == 1 else "classes"
        return {
            CLASSES: f"{list_names([*doubtful])} may be {a_class} beside {list_names([*others])}",
            SPLITS: f"{' and '.join(parts)} images of the classes {list_names(sorted(classes))}",
        }
    # Photos and test photos, none of them labeled, are no two classes.
    is_test = any(top.part == "test" for top in doubtful.values())
    return {CLASSES if may_be_classes and not is_test else SPLITS: ""}


def _may_be_classes(
    others: Mapping[str, _Top], doubtful: Mapping[str, _Top], classes: set[str]
) -> bool:
    """Whether all of these folders may be classes: a class has images of its own."""
    bases = [top for top in doubtful.values() if top.part == "train"]
    held_out = [top for top in doubtful.values() if top.part != "train"]
    if any(top.inner & classes for top in held_out) and not any(top.num_direct for top in bases):
        return False
    # Beside two classes, it may be one whose images are all in folders.
    num_clear = sum(top.num_direct > 0 for top in others.values())
    have_images = all(top.num_direct for top in doubtful.values())
    return bool(others) and (have_images or num_clear >= 2)


def _label_by_class(listing: Listing, splits: Mapping[str, str]) -> dict[str, str]:
    """Image → class, by the folders in those for training, or else by at least two at the top."""
    bases = {name for name, kind in splits.items() if kind == "train"}
    if bases:
        return _label_within(listing, bases)
    tops = {name.split("/")[0] for name in listing.files.names() if name.count("/") == 1}
    tops -= splits.keys()
    if len(set(map(fold_class, tops))) < 2 or all(map(find_part, tops)):
        return {}
    return {name: top for name in listing.files.names() if (top := name.split("/")[0]) in tops}


def _label_within(listing: Listing, bases: set[str]) -> dict[str, str]:
    paths = ((name, name.split("/", 2)) for name in (listing.files.names() if bases else ()))
    return {
        name: path[1]
        for name, path in paths
        if len(path) > 2 and path[0] in bases and not means_unlabeled(path[1])
    }


def _are_classes(folders: Iterable[str], options: FolderOptions) -> bool:
    """Whether there are at least two class folders, or folders that may be some.

    Folders that differ only in numbers and parts of the data, as images_1 and images_2, or as
    train_images and test_images, are none beside a table, unless `options.layout` says so.
    """
    folders = set(map(fold_class, folders))
    if len(folders) < 2 or options.layout == CLASSES:
        return len(folders) >= 2
    words = [_WORD.findall(name) for name in folders]
    kinds = {tuple(word for word in found if not find_part(word)) for found in words}
    is_storage = all(find_part(w) or w in _STORAGE for found in words for w in found[-1:])
    return not (len(kinds) == 1 and kinds != {()} and is_storage)


def read_pattern(names: Iterable[str], pattern: str, splits: Mapping[str, str]) -> Reading:
    """The reading by a pattern that the user gives, searched in each name with all folders.

    Files in folders of unlabeled images, by `splits`, have no class. Raises a UserError as
    `search_names` does.
    """
    names = [name for name in names if splits.get(name.partition("/")[0]) != "unlabeled"]
    found = search_names(names, pattern, "--label-pattern", "class", _EXAMPLE)
    labels = {name: clean(found.get(name, "")) for name in names}
    labels = {name: "" if means_unlabeled(label) else label for name, label in labels.items()}
    shown = f"--label-pattern {make_printable(shlex.quote(pattern)):.200}"
    of_files = f"{sum(map(bool, labels.values())):,} of {write_count(len(labels), 'file', 'files')}"
    return Reading(
        "--label-pattern",
        labels=labels,
        evidence=(CHOSEN,),
        sentence=f"{shown}: classes of {of_files}.",
    )
