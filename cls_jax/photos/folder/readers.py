"""Labels in the files of other programs, as the cells of a table.

Formats, as their documentation describes them:
https://labelstud.io/guide/task_format, https://docs.cvat.ai/docs/other/xml_format,
https://docs.voxel51.com/user_guide/export_datasets.html (FiftyOneImageClassificationDataset and
FiftyOneDataset), https://cocodataset.org/#format-data and
https://huggingface.co/docs/datasets/image_dataset (metadata.jsonl).
"""

import functools
import io
import json
import pathlib
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cls_jax.io import PARSE_ERRORS, parse_json
from cls_jax.photos.folder.find_files import FileIndex
from cls_jax.photos.folder.label_table import ParsedTable, parse_table
from cls_jax.photos.folder.names import find_part
from cls_jax.photos.folder.options import FolderOptions

LABEL_STUDIO, CVAT, FIFTYONE, CSV = "label-studio", "cvat", "fiftyone", "csv"
COCO, JSON_LINES, JSON_OBJECT, WORDS = "coco", "json-lines", "json-object", "words"
ANNOTATIONS = "annotations.xml"  # In an archive of CVAT.
_MAX_BYTES = 2**28
_HEAD_CHARACTERS = 10_000  # That show whether a file is a table with separators.


class Content:
    """The bytes of a file, parsed at most once."""

    def __init__(self, content: bytes):
        self.raw = content
        self.start = content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]

    @functools.cached_property
    def json(self) -> Any:
        """The value of a JSON file. Raises one of `PARSE_ERRORS` for any other file."""
        return parse_json(self.raw.decode("utf-8-sig"))

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of a file with one in each line, empty for any other file."""
        if self.start != b"{":
            return []
        lines = list(filter(None, map(str.strip, self.raw.decode("utf-8-sig").splitlines())))
        if not (lines[0].startswith("{") and lines[0].endswith("}")):
            return []
        objects = list(map(parse_json, lines))
        return objects if all(isinstance(one, dict) for one in objects) else []

    def get(self, key: str) -> Any:
        """What an object has for a key, None for any other file."""
        is_object = self.start == b"{" and isinstance(self.json, dict)
        return self.json.get(key) if is_object else None


class Reader(NamedTuple):
    """How the files of a format are known and read. Both raise `PARSE_ERRORS` for damaged ones."""

    claims: Callable[[Content], bool]
    read: Callable[[Content], ParsedTable]


def find_format(content: Content) -> str:
    """The format of a file, by its content. Files with no other format count as tables."""
    for name, reader in READERS.items():
        try:
            is_one = reader.claims(content)
        except PARSE_ERRORS:
            is_one = False
        if is_one:
            return name
    return CSV


def parse_file(
    path: pathlib.Path, content: Content, name: str, index: FileIndex, options: FolderOptions
) -> ParsedTable | None:
    """The cells of a file in a format, None if it is empty.

    Raises one of `PARSE_ERRORS` if it is damaged, and a UserError if it is no table.
    """
    if name == CSV:
        return parse_table(path, index, options, content.raw)
    return READERS[name].read(content)


def _join(names: Sequence[str]) -> str:
    """A cell with one class, or with a list, which is refused where its file is found."""
    return names[0] if len(names) == 1 else json.dumps(list(names)) if names else ""


def _fill(header: Iterable[str], rows: Iterable[Mapping[str, str]]) -> list[list[str]]:
    header = list(header)
    return [[row.get(name, "") for name in header] for row in rows]


def _read_label_studio(content: Content) -> ParsedTable:
    """Tasks with annotations (JSON), or one object per task (JSON-MIN)."""
    tasks = content.json
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ValueError("it is no list of tasks")
    rows = []
    names: dict[str, None] = {}  # Of the questions with classes as answers.
    if not any("data" in task for task in tasks):
        rows = [{key: _write_cell(value) for key, value in task.items()} for task in tasks]
        header = list(dict.fromkeys(key for row in rows for key in row))
        return ParsedTable(header, _fill(header, rows))
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
    label = next(iter(names)) if len(names) == 1 else ""
    return ParsedTable(header, _fill(header, rows), label_column=label)


def _write_cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


class _Builder(ElementTree.TreeBuilder):
    """Refuses a document type, whose entities could fill the memory."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a document type, which CVAT does not write")


def _read_cvat(content: Content) -> ParsedTable:
    """Images with tags ("CVAT for images"), alone or in an archive."""
    raw = content.raw
    if raw.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive, archive.open(ANNOTATIONS) as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ValueError(f"{ANNOTATIONS} has more than {_MAX_BYTES:,} bytes")
    parser = ElementTree.XMLParser(target=_Builder())
    parser.feed(raw)
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
    return ParsedTable(["file", "label", "split"], lines, label_column="label")


def _read_fiftyone(content: Content) -> ParsedTable:
    """labels.json of an image classification dataset, or samples.json of any dataset."""
    stored = content.json
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
    return ParsedTable(["file", "label"], lines, label_column="label")


def _read_samples(samples: Sequence[Mapping[str, Any]]) -> ParsedTable:
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
    return ParsedTable(header, _fill(header, rows), label_column=chosen)


def _read_coco(content: Content) -> ParsedTable:
    """Images with annotations, each of which has a category."""
    stored = content.json
    names = {one["id"]: one["name"] for one in stored["categories"]}
    found: dict[Any, dict[str, None]] = {one["id"]: {} for one in stored["images"]}
    for one in stored["annotations"]:
        found[one["image_id"]].setdefault(str(names[one["category_id"]]))
    lines = [[one["file_name"], _join(list(found[one["id"]]))] for one in stored["images"]]
    return ParsedTable(["file_name", "category"], lines, label_column="category")


def _has_lines(content: Content) -> bool:
    return len(content.lines) > 1 or any("file_name" in line for line in content.lines)


def _read_lines(content: Content) -> ParsedTable:
    """An object for each image, one in each line."""
    rows = [dict(_flatten(one)) for one in content.lines]
    header = list(dict.fromkeys(key for row in rows for key in row))
    return ParsedTable(header, _fill(header, rows))


def _flatten(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Header and cell of each value, also of those in an object."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", _write_cell(cell)) for inner, cell in value.items())
        else:
            yield key, _write_cell(value)


def _is_mapping(content: Content) -> bool:
    """Whether an object has a class for each file, or a list of files for each class."""
    values = content.json.values() if content.start == b"{" else ()
    if not values:
        return False
    are_files = (isinstance(v, list) and all(isinstance(w, str) for w in v) for v in values)
    return all(isinstance(value, str | int) for value in values) or all(are_files)


def _read_mapping(content: Content) -> ParsedTable:
    lines = []
    for key, value in content.json.items():
        is_class = isinstance(value, list)
        lines += [[file, key] for file in value] if is_class else [[key, _write_cell(value)]]
    return ParsedTable(["key", "value"], lines, label_column="value")


def _split_lines(content: Content) -> list[list[str]]:
    """The words of lines with equally many of them, empty for any other file, or a table."""
    text = content.raw.decode("utf-8-sig")
    lines = [line.split() for line in text.splitlines() if not line.lstrip().startswith("#")]
    lines = list(filter(None, lines))
    head = text[:_HEAD_CHARACTERS]
    is_other = any(mark in head for mark in ",;\t|\0") or len(set(map(len, lines))) != 1
    return [] if is_other or len(lines) < 2 or len(lines[0]) < 2 else lines


def _read_words(content: Content) -> ParsedTable:
    lines = _split_lines(content)
    return ParsedTable([""] * len(lines[0]), lines)


def _start_with(*starts: bytes) -> Callable[[Content], bool]:
    return lambda content: content.raw.startswith(starts) or content.start in starts


# The first one that claims a file reads it.
READERS = {
    COCO: Reader(
        lambda content: all(content.get(key) for key in ("images", "annotations", "categories")),
        _read_coco,
    ),
    JSON_LINES: Reader(_has_lines, _read_lines),
    JSON_OBJECT: Reader(_is_mapping, _read_mapping),
    FIFTYONE: Reader(_start_with(b"{"), _read_fiftyone),
    LABEL_STUDIO: Reader(_start_with(b"["), _read_label_studio),
    CVAT: Reader(_start_with(b"PK", b"<"), _read_cvat),
    WORDS: Reader(lambda content: len(_split_lines(content)) > 1, _read_words),
}
