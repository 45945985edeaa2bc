"""Labels from and for other programs: Label Studio, CVAT, COCO, FiftyOne, and tables.

Formats, as their documentation describes them: https://labelstud.io/guide/task_format,
https://docs.cvat.ai/docs/other/xml_format, https://cocodataset.org/#format-data and
https://docs.voxel51.com/user_guide/export_datasets.html (FiftyOneImageClassificationDataset and
FiftyOneDataset).
"""

import io
import json
import os
import pathlib
import urllib.parse
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cls_jax.data.resize import ImageError
from cls_jax.errors import UserError, explain_writing
from cls_jax.io import (
    to_csv,
    write_atomically,
    write_count,
)
from cls_jax.photos.folder.catalog import Catalog, read_catalog
from cls_jax.photos.folder.label_table import (
    LABEL,
    LabelRow,
    append_rows,
    find_next_time,
    read_parsed,
)
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.folder.propose.tables import collect_labels, read_named
from cls_jax.photos.folder.readers import (
    ANNOTATIONS,
    COCO,
    CSV,
    CVAT,
    FIFTYONE,
    FORMATS,
    JSON_LINES,
    LABEL_STUDIO,
)
from cls_jax.photos.folder.reading import Reading
from cls_jax.photos.folder.sidecars import parse_all_sidecars
from cls_jax.photos.images.decode import read_header
from cls_jax.photos.images.files import list_images

_FIFTYONE_FILES = ("labels.json", "samples.json")  # In a folder that FiftyOne has exported.
_BY_SUFFIX = {".csv": CSV, ".xml": CVAT, ".zip": CVAT, ".jsonl": JSON_LINES}


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

    `name` is one of `FORMATS`, "" for the one that the content has. Nothing is added if there is
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
    found = _read_file(catalog, path, name, options)
    if found.fault:
        raise UserError(found.fault.sentence)
    known = catalog.labelable()
    labels = found.list_labels()
    held_out = [file for file in labels if found.parts.get(file) in ("test", "validation")]
    held_out += [file for file in labels if file not in known and file not in held_out]
    warnings = list(found.warnings)
    if held_out:
        images = write_count(len(held_out), "image", "images")
        warnings.append(
            f"{images} for testing or validation got no label, such as {held_out[0]!r}: move what "
            "should have one to test/<class>/ or val/<class>/."
        )
    labels = {file: label for file, label in labels.items() if file not in held_out}
    new = [
        (file, label)
        for file, label in labels.items()
        if fold_class(known[file] or "") != fold_class(label)
    ]
    if replaced := [file for file, _ in new if known[file]]:
        warnings.append(
            f"{write_count(len(replaced), 'image', 'images')} had another label before, such as "
            f"{replaced[0]!r}: the new one counts."
        )
    table_path = catalog.table_path
    if new:
        table = catalog.table
        moment = find_next_time(max((row.time for row in table.rows), default=""))
        rows = [LabelRow(file, label, LABEL, moment) for file, label in new]
        with explain_writing(table_path, "change its permissions"):
            append_rows(table_path, rows, table, catalog.folder.files, catalog.folder.options)
    num_known = len(labels) - len(new)
    return Imported(len(new), num_known, table_path, found.sentence, warnings)


def _read_file(catalog: Catalog, path: pathlib.Path, name: str, options: FolderOptions) -> Reading:
    """The labels in a file of another program, or in a folder of files about an image each."""
    folder = catalog.folder._replace(options=options)
    if path.is_dir():
        parsed, fault = parse_all_sidecars(path)
        if fault:
            return Reading(fault=fault)
        if parsed is not None:
            return collect_labels(read_parsed(path, parsed, folder.files, options))
    return read_named(folder, path, kind=name)


def export_labels(
    root: pathlib.Path, path: pathlib.Path, name: str = "", options: FolderOptions = AUTOMATIC
) -> int:
    """Writes the labels of a folder's images, without test and validation, to a new file.

    `name` is one of `FORMATS`, "" for the one that the file's name tells. Returns the number of
    labels. Raises a UserError if the format is not clear, the file exists or cannot be written, or
    no image has a label.
    """
    name = name or _BY_SUFFIX.get(path.suffix.lower(), "")
    if name not in FORMATS:
        raise UserError(
            f"The name of {path} does not tell the format: write it before, as in --to "
            f"{LABEL_STUDIO} {path}, and choose from {', '.join(FORMATS)}."
        )
    if path.exists():
        raise UserError(f"{path} exists: choose a new file.")
    labels = read_catalog(root, list_images(root), options).labelable()
    rows = [(file, label) for file, label in sorted(labels.items()) if label]
    if not rows:
        raise UserError(f"No image in {root} has a label: label some with cls-jax label.")
    content = write_labels(root, rows, name)
    if name == CVAT and path.suffix.lower() == ".zip":
        content = _zip(content)
    with explain_writing(path, "choose another file"):
        write_atomically(path, content)
    return len(rows)


def write_labels(root: pathlib.Path, rows: Sequence[tuple[str, str]], name: str) -> bytes:
    """A file in one of `FORMATS` with the labels of images, by their names in a folder.

    Raises a UserError if the format needs the size of an image that cannot be read, or cannot tell
    two images apart.
    """
    return _WRITERS[name](root, rows)


_Rows = Sequence[tuple[str, str]]


def _write_csv(root: pathlib.Path, rows: _Rows) -> bytes:
    return to_csv([("file", "label"), *rows]).encode()


def _write_label_studio(root: pathlib.Path, rows: _Rows) -> bytes:
    tasks = []
    for file, label in rows:
        choice = {
            "from_name": "choice",
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [label]},
        }
        address = f"/data/local-files/?d={urllib.parse.quote(file)}"
        tasks.append({"data": {"image": address}, "annotations": [{"result": [choice]}]})
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode()


def _write_cvat(root: pathlib.Path, rows: _Rows) -> bytes:
    annotations = ElementTree.Element("annotations")
    ElementTree.SubElement(annotations, "version").text = "1.1"
    for number, (file, label) in enumerate(rows):
        width, height = _read_size(root / file, "CVAT")
        sizes = {"width": str(width), "height": str(height)}
        image = {"id": str(number), "name": file, **sizes}
        element = ElementTree.SubElement(annotations, "image", image)
        ElementTree.SubElement(element, "tag", {"label": label, "source": "manual"})
    ElementTree.indent(annotations)
    return bytes(ElementTree.tostring(annotations, encoding="utf-8", xml_declaration=True))


def _read_size(path: pathlib.Path, program: str) -> tuple[int, int]:
    """Width and height of an image. Raises a UserError if it cannot be read."""
    try:
        width, height, _ = read_header(path)
    except ImageError as error:
        raise UserError(
            f"{path} has a label, but cannot be read ({error}): remove the file or its label, "
            f"since {program} needs the size of the image."
        ) from error
    return width, height


def _write_coco(root: pathlib.Path, rows: _Rows) -> bytes:
    """Each image has one annotation, whose box is the whole image."""
    classes = sorted({label for _, label in rows})
    images, annotations = [], []
    for number, (file, label) in enumerate(rows, 1):
        width, height = _read_size(root / file, "COCO")
        images.append({"id": number, "file_name": file, "width": width, "height": height})
        category = classes.index(label) + 1
        annotations.append(
            {
                "id": number,
                "image_id": number,
                "category_id": category,
                "bbox": [0, 0, width, height],
                "area": width * height,
                "iscrowd": 0,
            }
        )
    categories = [{"id": i, "name": name} for i, name in enumerate(classes, 1)]
    stored = {"images": images, "annotations": annotations, "categories": categories}
    return json.dumps(stored, ensure_ascii=False, indent=1).encode()


def _write_lines(root: pathlib.Path, rows: _Rows) -> bytes:
    lines = [{"file_name": file, "label": label} for file, label in rows]
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()


def _zip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ANNOTATIONS, content)
    return buffer.getvalue()


def _write_fiftyone(root: pathlib.Path, rows: _Rows) -> bytes:
    classes = sorted({label for _, label in rows})
    labels: dict[str, int] = {}
    for file, label in rows:
        stem = os.path.splitext(file)[0]
        if stem in labels:
            raise UserError(
                f"Two labeled images are called {stem!r} without their extensions, which FiftyOne "
                "leaves out: rename one of them."
            )
        labels[stem] = classes.index(label)
    stored = {"classes": classes, "labels": labels}
    return json.dumps(stored, ensure_ascii=False, indent=1).encode()


_WRITERS: dict[str, Callable[[pathlib.Path, _Rows], bytes]] = {
    LABEL_STUDIO: _write_label_studio,
    CVAT: _write_cvat,
    FIFTYONE: _write_fiftyone,
    CSV: _write_csv,
    COCO: _write_coco,
    JSON_LINES: _write_lines,
}
