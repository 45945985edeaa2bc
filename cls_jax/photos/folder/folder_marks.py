"""The marks of a folder's files: its label table on top of class folders and other tables."""

import pathlib
import re
from collections.abc import Iterable

from cls_jax.photos.folder.catalog import Catalog, find_table, read_catalog
from cls_jax.photos.folder.class_names import ClassNames
from cls_jax.photos.folder.label_table import LabelRow, read_text
from cls_jax.photos.folder.log import NO_MARKS, FileMarks, fold, start
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.reading import HELD_OUT
from cls_jax.photos.images.files import list_images

_CHECK = re.compile(r"\b(check|none) [\d.]")


def start_marks(catalog: Catalog) -> FileMarks:
    """The marks of a folder's files without its label table.

    Those for testing or validation have a class, too: one that is renamed is so there as well.
    """
    # A table cannot name the others, so no answer about them could be saved.
    base = {name: label for name, label in catalog.list_base().items() if _is_unicode(name)}
    held_out = {name for name, part in catalog.parts.items() if part in HELD_OUT}
    for name in catalog.folder.listing.files.names():
        top, *rest = name.split("/")
        if rest and catalog.splits.get(top) in HELD_OUT:
            held_out.add(name)
            if len(rest) > 1 and _is_unicode(name):
                base[name] = catalog.names.get(rest[0])
    return start(base, held_out)


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def name_rows(rows: Iterable[LabelRow], names: ClassNames) -> list[LabelRow]:
    """Rows with the names of classes that have numbers."""
    return [row._replace(label=names.get(row.label)) for row in rows]


def read_checked(root: pathlib.Path, options: FolderOptions) -> FileMarks:
    """The marks of a folder's files if some of them are checks, and otherwise none.

    Raises a UserError if the label table cannot be read.
    """
    listing = list_images(root)
    name = find_table(listing)
    if name is None or not _CHECK.search(read_text(root / name)):
        return NO_MARKS
    catalog = read_catalog(root, listing, options)
    rows = name_rows(catalog.table.rows, catalog.names)
    return fold(rows, start_marks(catalog), catalog.table.find)
