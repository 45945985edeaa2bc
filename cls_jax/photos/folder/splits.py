"""What the folders at the top stand for: classes, or training, test or unlabeled images."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.photos.folder.names import find_part, fold_class, means_unlabeled
from cls_jax.photos.folder.options import CLASSES, SPLITS, FolderOptions
from cls_jax.photos.images.files import Listing

_MAX_NAMED = 6


class _Top(NamedTuple):
    """A folder at the top."""

    part: str | None  # What its name stands for.
    num_direct: int  # Images directly in it.
    inner: set[str]  # Folders in it that have images, folded, without those of unlabeled images.

    @property
    def has_images(self) -> bool:
        return self.num_direct > 0 or len(self.inner) > 0


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


def find_splits(listing: Listing, has_table: bool, options: FolderOptions) -> dict[str, str]:
    """Folder → its contents, as `find_part` names them. Of `labeled` and `train`, the first counts.

    With a table, its rows have the classes. Without one, folders called train, val or test may be
    classes. Raises a UserError if they may be either, and `options.layout` does not say so.
    """
    tops = _list_tops(listing)
    named = {name: top.part for name, top in tops.items() if top.part is not None}
    sure = {name: part for name, part in named.items() if "label" in fold_class(name)}
    if "train" in sure.values():
        with_folders = {name.split("/")[0] for name in listing.folders if "/" in name}
        return sure | {
            name: part
            for name, part in named.items()
            if part != "train" and (has_table or part == "test" or name in with_folders)
        }
    if options.layout or has_table:
        return sure if options.layout == CLASSES else named
    if _choose_layout(tops, sure) == CLASSES:
        return sure
    return {n: part for n, part in named.items() if part != "train" or n in sure or tops[n].inner}


def _choose_layout(tops: Mapping[str, _Top], sure: Mapping[str, str]) -> str:
    """Whether folders called train, val or test are classes or splits.

    Raises a UserError if they may be either.
    """
    found = {name: top for name, top in tops.items() if name not in sure and top.has_images}
    # A folder called train without class folders is a class, if anything.
    others = {n: top for n, top in found.items() if not top.part or _is_plain_train(top)}
    doubtful = {n: top for n, top in found.items() if n not in others}
    bases = [top for top in doubtful.values() if top.part == "train"]
    held_out = [top for top in doubtful.values() if top.part != "train"]
    classes = set(map(fold_class, others))
    if bases:
        classes = set().union(*(top.inner for top in bases))
    # A split has class folders, and a class has images of its own.
    may_be_splits = len(classes) >= 2
    # Beside two classes, it may be one whose images are all in folders.
    num_clear = sum(top.num_direct > 0 for top in others.values())
    have_images = all(top.num_direct for top in doubtful.values())
    may_be_classes = bool(others) and (have_images or num_clear >= 2)
    if any(top.inner & classes for top in held_out) and not any(top.num_direct for top in bases):
        may_be_classes = False
    if may_be_splits and may_be_classes and doubtful:
        kinds = {"train": "training", "test": "test", "validation": "validation"}
        parts = dict.fromkeys(kinds[top.part] for top in doubtful.values() if top.part)
        raise UserError(
            f"The folder can be read in two ways: {_list_names(doubtful)} may be "
            f"{'a class' if len(doubtful) == 1 else 'classes'} beside {_list_names(others)}, or "
            f"{' and '.join(parts)} images of the classes {_list_names(sorted(classes))}: pass "
            "--layout classes or --layout splits."
        )
    # Photos and test photos, none of them labeled, are no two classes.
    is_test = any(top.part == "test" for top in held_out)
    return CLASSES if may_be_classes and not is_test else SPLITS


def _is_plain_train(top: _Top) -> bool:
    return top.part == "train" and not top.inner


def _list_names(names: Iterable[str]) -> str:
    names = list(names)
    listed = ", ".join(map(repr, names[:_MAX_NAMED]))
    return listed + (f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else "")
