"""Labels from and for other programs: Label Studio, CVAT, COCO, FiftyOne, and tables."""

import io
import os
import pathlib
import zipfile
from typing import NamedTuple

from cls_jax.errors import UserError, explain_writing
from cls_jax.io import write_atomically, write_count
from cls_jax.photos.folder import writers
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.formats import CSV, CVAT, FORMATS, LABEL_STUDIO, WRITERS
from cls_jax.photos.folder.kinds import ONE_CLASS, Classes
from cls_jax.photos.folder.label_table import append_rows, find_next_time
from cls_jax.photos.folder.log import LABEL, LabelRow, fold_label
from cls_jax.photos.folder.names import HELD_OUT
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.propose import read_named
from cls_jax.photos.images.files import list_images

_FIFTYONE_FILES = ("labels.json", "samples.json")  # In a folder that FiftyOne has exported.


class Imported(NamedTuple):
    """What was added to a folder's table."""

    num_added: int  # Rows.
    num_known: int  # Labels that the folder had already.
    table: pathlib.Path
    sentence: str  # Which columns were read.
    warnings: list[str]


def import_labels(
    root: pathlib.Path, path: pathlib.Path, name: str = "", options: FolderOptions = AUTOMATIC
) -> Imported:
    """Adds the labels of another program's file to the label table of a folder.

    `name` is one of `WRITERS`, "" for the one that the content has. Nothing is added if there is
    nothing new. Raises a UserError if the file cannot be read or has no labels of images, or the
    table cannot be read or written.
    """
    if path.is_dir():
        path = next((path / file for file in _FIFTYONE_FILES if (path / file).exists()), path)
    listing = list_images(root)
    # The folder's labels are those without the file, which may lie in it and be removed later.
    itself = os.path.realpath(path)
    listing.others[:] = [one for one in listing.others if os.path.realpath(root / one) != itself]
    # The options are those of the file that is read, and not of the folder's table.
    own = options._replace(file_column="", label_column="", source_column="")
    catalog = read_catalog(root, listing, own)
    found = read_named(catalog.folder._replace(options=options), path, kind=name)
    known, labels = catalog.labelable(), found.list_labels()
    held_out = {file for file in labels if file not in known or found.marks[file].part in HELD_OUT}
    warnings = list(found.warnings)
    if held_out:
        warnings.append(
            f"{write_count(len(held_out), 'image', 'images')} for testing or validation got no "
            f"label, such as {min(held_out)!r}: move what should have one to test/<class>/ or "
            "val/<class>/."
        )
    labels = {file: label for file, label in labels.items() if file not in held_out}
    new = {k: v for k, v in labels.items() if fold_label(known[k] or "") != fold_label(v)}
    if replaced := [file for file in new if known[file]]:
        warnings.append(
            f"{write_count(len(replaced), 'image', 'images')} had another label before, such as "
            f"{replaced[0]!r}: the new one counts."
        )
    table_path = catalog.table_path
    if new:
        table = catalog.table
        moment = find_next_time(max((row.time for row in table.rows), default=""))
        rows = [LabelRow(file, label, LABEL, moment) for file, label in new.items()]
        with explain_writing(table_path, "change its permissions"):
            append_rows(table_path, rows, table, catalog.folder.files, catalog.folder.options)
    return Imported(len(new), len(labels) - len(new), table_path, found.sentence, warnings)


def export_labels(
    root: pathlib.Path, path: pathlib.Path, name: str = "", options: FolderOptions = AUTOMATIC
) -> int:
    """Writes the labels of a folder's images, without test and validation, to a new file.

    `name` is one of `WRITERS`, "" for the one that the file's name tells. Returns the number of
    labels. Raises a UserError if the format is not clear, the file exists or cannot be written, or
    no image has a label.
    """
    suffix = path.suffix.lower()
    name = name or next((name for name, one in FORMATS.items() if suffix in one.written), "")
    if name not in WRITERS:
        raise UserError(
            f"The name of {path} does not tell the format: write it before, as in --to "
            f"{LABEL_STUDIO} {path}, and choose from {', '.join(WRITERS)}."
        )
    if path.exists():
        raise UserError(f"{path} exists: choose a new file.")
    catalog = read_catalog(root, list_images(root), options)
    labeled = sorted(file for file, label in catalog.labelable().items() if label)
    rows = [(file, catalog.marks.get(file).labels) for file in labeled]
    if not rows:
        raise UserError(f"No image in {root} has a label: label some with cls-jax label.")
    content = write_labels(root, rows, name, options.kind)
    if name == CVAT and suffix == ".zip":
        archived = io.BytesIO()
        with zipfile.ZipFile(archived, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(writers.ANNOTATIONS, content)
        content = archived.getvalue()
    with explain_writing(path, "choose another file"):
        write_atomically(path, content)
    return len(rows)


def write_labels(
    root: pathlib.Path, rows: writers.Rows, name: str, kind: Classes = ONE_CLASS
) -> bytes:
    """A file in one of `WRITERS` with the classes of images, by their names in a folder.

    Only a table has those that are open, as other programs know no such classes.

    Raises a UserError if the format needs the size of an image that cannot be read, or cannot tell
    two images apart.
    """
    if name != CSV:
        rows = [(file, [n for n in names if kind.name([n]) == [n]]) for file, names in rows]
    return WRITERS[name](root, rows)
