"""Labels from and for other programs: Label Studio, CVAT, FiftyOne, and tables.

Formats, as their documentation describes them:
https://labelstud.io/guide/task_format, https://docs.cvat.ai/docs/other/xml_format and
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cls_jax.data.resize import ImageError
from cls_jax.errors import UserError, explain_writing
from cls_jax.io import (
    PARSE_ERRORS,
    describe_error,
    parse_json,
    read_bytes,
    to_csv,
    write_atomically,
    write_count,
)
from cls_jax.photos.folder.find_files import FileIndex
from cls_jax.photos.folder.given_labels import find_table, label_labelable, read_table
from cls_jax.photos.folder.label_table import (
    LABEL,
    LABELS_CSV,
    LabelRow,
    LabelTable,
    ParsedTable,
    append_rows,
    find_next_time,
    read_label_table,
    read_parsed,
)
from cls_jax.photos.folder.labels import collect_labels
from cls_jax.photos.folder.names import find_part, fold_class
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.images.decode import read_header
from cls_jax.photos.images.files import list_images

LABEL_STUDIO, CVAT, FIFTYONE, CSV = "label-studio", "cvat", "fiftyone", "csv"
FORMATS = (LABEL_STUDIO, CVAT, FIFTYONE, CSV)
_MAX_BYTES = 2**28
_ANNOTATIONS = "annotations.xml"  # In an archive of CVAT.
_FIFTYONE_FILES = ("labels.json", "samples.json")  # In a folder that FiftyOne has exported.
_BY_SUFFIX = {".csv": CSV, ".xml": CVAT, ".zip": CVAT}


class _Cells(NamedTuple):
    """The labels of a file as a table."""

    header: list[str]
    lines: list[list[str]]
    label_column: str = ""  # Where the format says which one has the classes.


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
    listing.skipped[:] = [row for row in listing.skipped if not _is_same(root / row[0], path)]
    index = FileIndex(listing.files.names, root)
    read = _read(path, name, index, options)
    found = collect_labels(read)
    table_path = root / (find_table(listing) or LABELS_CSV)
    # The options are those of the file that is read, and not of the folder's table.
    own = FolderOptions(layout=options.layout)
    known = label_labelable(root, listing, own)
    labels = {file: label for file, label in found.classes.items() if label}
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
    if new:
        table = read_table(root, listing, own)
        moment = find_next_time(max((row.time for row in table.rows), default=""))
        rows = [LabelRow(file, label, LABEL, moment) for file, label in new]
        with explain_writing(table_path, "change its permissions"):
            append_rows(table_path, rows, table, index, own)
    num_known = len(labels) - len(new)
    return Imported(len(new), num_known, table_path, found.sentence, warnings)


def _is_same(one: pathlib.Path, other: pathlib.Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


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
    labels = label_labelable(root, list_images(root), options)
    rows = [(file, label) for file, label in sorted(labels.items()) if label]
    if not rows:
        raise UserError(f"No image in {root} has a label: label some with cls-jax label.")
    content = _WRITERS[name](root, rows)
    if name == CVAT and path.suffix.lower() == ".zip":
        content = _zip(content)
    with explain_writing(path, "choose another file"):
        write_atomically(path, content)
    return len(rows)


def _read(path: pathlib.Path, name: str, index: FileIndex, options: FolderOptions) -> LabelTable:
    """The labels of a file in one of `FORMATS`."""
    try:
        content = read_bytes(path, _MAX_BYTES)
        shown = _find_format(content)
        name = name or shown
        if name == CSV or (name, shown) == (LABEL_STUDIO, CSV):
            return read_label_table(path, index, options, content)
        cells = _READERS[name](content)
    except UserError:
        raise
    except PARSE_ERRORS as error:
        what = f"as labels of {name}" if name else "as labels"
        raise UserError(
            f"{path} cannot be read {what} ({describe_error(error)}): export the labels again, or "
            f"choose another of the formats {', '.join(FORMATS)}."
        ) from error
    if options.label_column == "":
        options = options._replace(label_column=cells.label_column)
    return read_parsed(path, ParsedTable(cells.header, cells.lines), index, options)


def _find_format(content: bytes) -> str:
    start = content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if content.startswith(b"PK") or start == b"<":
        return CVAT
    if start in (b"[", b"{"):
        return LABEL_STUDIO if start == b"[" else FIFTYONE
    return CSV


def _parse(content: bytes) -> Any:
    return parse_json(content.decode("utf-8-sig"))


def _join(names: Sequence[str]) -> str:
    """A cell with one class, or with a list, which is refused where its file is found."""
    return names[0] if len(names) == 1 else json.dumps(list(names)) if names else ""


def _fill(header: Iterable[str], rows: Iterable[Mapping[str, str]]) -> list[list[str]]:
    header = list(header)
    return [[row.get(name, "") for name in header] for row in rows]


def _read_label_studio(content: bytes) -> _Cells:
    """Tasks with annotations (JSON), or one object per task (JSON-MIN)."""
    tasks = _parse(content)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ValueError("it is no list of tasks")
    rows = []
    names: dict[str, None] = {}  # Of the questions with classes as answers.
    if not any("data" in task for task in tasks):
        rows = [{key: _write_cell(value) for key, value in task.items()} for task in tasks]
        return _Cells(
            header := list(dict.fromkeys(k for row in rows for k in row)), _fill(header, rows)
        )
    num_others = 0
    for task in tasks:
        data = {key: value for key, value in task["data"].items() if isinstance(value, str)}
        answers = [one for one in task.get("annotations", []) if not one.get("was_cancelled")]
        found = []
        for answer in answers:
            classes = {
                one["from_name"]: _join(one["value"]["choices"])
                for one in answer["result"]
                if one["type"] == "choices"
            }
            num_others += any(one["type"] != "choices" for one in answer["result"])
            names |= dict.fromkeys(classes)
            found.append({**data, **classes})
        rows += found or [data]
    if not names and num_others:
        raise ValueError("it has regions of images, and no choices")
    header = list(dict.fromkeys([*(key for row in rows for key in row), *names]))
    return _Cells(header, _fill(header, rows), next(iter(names)) if len(names) == 1 else "")


def _write_cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class _Builder(ElementTree.TreeBuilder):
    """Refuses a document type, whose entities could fill the memory."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a document type, which CVAT does not write")


def _read_cvat(content: bytes) -> _Cells:
    """Images with tags ("CVAT for images"), alone or in an archive."""
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(_ANNOTATIONS) as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"{_ANNOTATIONS} has more than {_MAX_BYTES:,} bytes")
    parser = ElementTree.XMLParser(target=_Builder())
    parser.feed(content)
    images = parser.close().findall("image")
    lines = []
    num_others = 0
    for image in images:
        tags = list(dict.fromkeys(tag.attrib["label"] for tag in image.findall("tag")))
        num_others += any(child.tag != "tag" for child in image)
        part = find_part(image.get("subset", "")) or ""
        lines.append([image.attrib["name"], _join(tags), part])
    if num_others and not any(line[1] for line in lines):
        raise ValueError("it has regions of images, and no tags")
    return _Cells(["file", "label", "split"], lines, "label")


def _read_fiftyone(content: bytes) -> _Cells:
    """labels.json of an image classification dataset, or samples.json of any dataset."""
    stored = _parse(content)
    if "samples" in stored:
        return _read_samples(stored["samples"])
    classes = stored.get("classes")
    lines = []
    for name, target in stored["labels"].items():
        if isinstance(target, dict):
            target = target.get("label")
        targets = target if isinstance(target, list) else [target]
        labels = [classes[t] if isinstance(t, int) else str(t) for t in targets if t is not None]
        lines.append([name, _join(labels)])
    return _Cells(["file", "label"], lines, "label")


def _read_samples(samples: Sequence[Mapping[str, Any]]) -> _Cells:
    rows = []
    names: dict[str, None] = {}
    for sample in samples:
        row = {"filepath": sample["filepath"]}
        parts = [tag for tag in sample.get("tags") or [] if find_part(tag)]
        row["split"] = parts[0] if parts else ""
        for field, value in sample.items():
            kind = value.get("_cls") if isinstance(value, dict) else None
            if kind == "Classification":
                row[field] = value.get("label") or ""
            elif kind == "Classifications":
                row[field] = _join([one["label"] for one in value["classifications"]])
            if field in row:
                names.setdefault(field)
        rows.append(row)
    names.pop("filepath", None)
    names.pop("split", None)
    if not names:
        raise ValueError("no sample has a classification")
    header = ["filepath", "split", *names]
    label = "ground_truth" if "ground_truth" in names else next(iter(names))
    chosen = label if len(names) == 1 or label == "ground_truth" else ""
    return _Cells(header, _fill(header, rows), chosen)


_READERS: dict[str, Callable[[bytes], _Cells]] = {
    LABEL_STUDIO: _read_label_studio,
    CVAT: _read_cvat,
    FIFTYONE: _read_fiftyone,
}
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
        try:
            width, height, _ = read_header(root / file)
        except ImageError as error:
            raise UserError(
                f"{root / file} has a label, but cannot be read ({error}): remove the file or its "
                "label, since CVAT needs the size of the image."
            ) from error
        sizes = {"width": str(width), "height": str(height)}
        image = {"id": str(number), "name": file, **sizes}
        element = ElementTree.SubElement(annotations, "image", image)
        ElementTree.SubElement(element, "tag", {"label": label, "source": "manual"})
    ElementTree.indent(annotations)
    content: bytes = ElementTree.tostring(annotations, encoding="utf-8", xml_declaration=True)
    return content


def _zip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_ANNOTATIONS, content)
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
}
