"""The formats of files that may have labels: how each is known, read and written.

Formats, as their documentation describes them:
https://labelstud.io/guide/task_format, https://docs.cvat.ai/docs/other/xml_format,
https://docs.voxel51.com/user_guide/export_datasets.html (FiftyOneImageClassificationDataset and
FiftyOneDataset), https://cocodataset.org/#format-data,
https://huggingface.co/docs/datasets/image_dataset (metadata.jsonl and metadata.parquet),
https://docs.cvat.ai/docs/dataset_management/formats/format-datumaro,
https://cloud.google.com/vertex-ai/docs/image-data/classification/prepare-data,
https://docs.labelbox.com/reference/export-image-annotations,
https://docs.aws.amazon.com/sagemaker/latest/dg/sms-data-output.html (manifests, also of
Rekognition), https://gitlab.com/vgg/via (VIA's JSON) and
https://doc.superannotate.com/docs/superannotate-json-structure. For files about an image each:
https://github.com/webdataset/webdataset (`.cls` in an unpacked shard),
https://developer.supervisely.com/getting-started/supervisely-annotation-format (tags),
https://docs.v7labs.com/reference/darwin-json, https://github.com/wkentaro/labelme (flags and
shapes), Pascal VOC and https://docs.ultralytics.com/datasets/detect (YOLO). Where an image has
regions, all of one class, that is its class.
"""

import functools
import io
import json
import pathlib
import re
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cls_jax.errors import UserError
from cls_jax.extras import check_extra
from cls_jax.io import PARSE_ERRORS, describe_error, parse_json, read_bytes
from cls_jax.photos.folder import writers
from cls_jax.photos.folder.columns import Table
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.label_table import LABELS_CSV, parse_table
from cls_jax.photos.folder.names import find_part
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions

Named = tuple[str, Iterable[str], str]  # An image, its classes, and the part of the data, or "".
CSV, CVAT, LABEL_STUDIO, WORDS = "csv", "cvat", "label-studio", "words"
_NO_FILES = FileIndex((), pathlib.Path())
_HEAD_CHARACTERS = 10_000  # That show whether a file is a table with separators.
_ZIP = b"PK\x03\x04"
_MAX_BYTES = 2**28
_BOX = re.compile(r"(\d+)(?:\s+[-+.\deE]+){4,}\s*")  # Also the corners of a polygon.


class _Builder(ElementTree.TreeBuilder):
    """Refuses a document type, whose entities could fill the memory."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a document type, which CVAT does not write")


def _unpack(raw: bytes) -> bytes:
    """The document in an archive of CVAT."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive, archive.open(writers.ANNOTATIONS) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{writers.ANNOTATIONS} has more than {_MAX_BYTES:,} bytes")
    return content


class LabelFile:
    """A file that may have labels of a folder's images, parsed at most once."""

    def __init__(
        self,
        raw: bytes,
        path: pathlib.Path = pathlib.Path(),
        index: FileIndex = _NO_FILES,
        options: FolderOptions = AUTOMATIC,
    ):
        """The bytes of the file at `path`. The folder's files tell the columns of a table apart."""
        self.raw = raw
        self.path = path
        self.index = index
        self.options = options
        self.start = raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]

    @functools.cached_property
    def json(self) -> Any:
        """The value of a JSON file. Raises one of `PARSE_ERRORS` for any other file."""
        return parse_json(self.raw.decode("utf-8-sig"))

    @functools.cached_property
    def xml(self) -> ElementTree.Element:
        """The root of an XML document, alone or in an archive. Raises as `json` does."""
        parser = ElementTree.XMLParser(target=_Builder())
        parser.feed(_unpack(self.raw) if self.raw.startswith(_ZIP) else self.raw)
        return parser.close()

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of a file with one in each line, empty for any other file."""
        if self.start != b"{":
            return []
        lines = list(filter(None, map(str.strip, self.raw.decode("utf-8-sig").splitlines())))
        if not lines[0].endswith("}"):
            return []
        objects = list(map(parse_json, lines))
        return objects if all(isinstance(one, dict) for one in objects) else []

    @functools.cached_property
    def words(self) -> list[list[str]]:
        """The words of lines, empty for any other file, or a table.

        If some have more than others, the first one of each line, and the rest.
        """
        text = self.raw.decode("utf-8-sig")
        if any(mark in text[:_HEAD_CHARACTERS] for mark in ",;\t|\0"):
            return []
        texts = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
        lines = [line.split() for line in texts if line]
        if len(set(map(len, lines))) > 1:  # Names of classes have several words.
            lines = [line.split(maxsplit=1) for line in texts if line]
        is_other = len(set(map(len, lines))) != 1 or len(lines) < 2 or len(lines[0]) < 2
        return [] if is_other else lines

    @functools.cached_property
    def records(self) -> dict[str, Any]:
        """An object for each file, as VIA, SuperAnnotate and others write it, or nothing."""
        stored = self.get("_via_img_metadata") or (self.json if self.start == b"{" else {})
        if isinstance(stored, dict):  # Of MegaDetector and Edge Impulse.
            lists = [stored[k] for k in ("images", "files") if isinstance(stored.get(k), list)]
            if len(lists) == 1:
                stored = {str(number): one for number, one in enumerate(lists[0])}
        is_one = isinstance(stored, dict) and all(isinstance(v, dict) for v in stored.values())
        return stored if is_one else {}

    def get(self, key: str) -> Any:
        """What an object has for a key, None for any other file."""
        is_object = self.start == b"{" and isinstance(self.json, dict)
        return self.json.get(key) if is_object else None


class Format(NamedTuple):
    """How the files of a format are known, read and written.

    The functions that read may raise `PARSE_ERRORS` for a damaged file.
    """

    endings: tuple[str, ...]  # Of the files that are looked at where nobody names them.
    read: Callable[[LabelFile], Table] | None = None
    # A file that begins as those of the format do.
    knows: Callable[[LabelFile], bool] = lambda file: True
    starts: tuple[bytes, ...] = ()  # With one of these the files begin, () for any.
    extra: str = ""  # Of this package, that reading needs.
    # From a folder, and the names and classes of images in it.
    write: Callable[[pathlib.Path, writers.Rows], bytes] | None = None
    written: tuple[str, ...] = ()  # Endings of a new file that tell the format.
    remedy: str = ""  # What to do with a file that is not read. "{}" is its path.
    has_images: bool = False  # Whether it may hold the images themselves.
    # The classes in a file that is about one image and called as it is.
    read_one: Callable[[LabelFile], list[str]] | None = None

    def claims(self, file: LabelFile) -> bool:
        """Whether a file has this format."""
        is_begun = file.start in self.starts or file.raw.startswith(self.starts)
        return self.read is not None and (is_begun or not self.starts) and self.knows(file)


def find_format(file: LabelFile) -> str:
    """The format of a file, by its content, "" if none claims it."""
    for name, one in FORMATS.items():
        try:
            if one.claims(file):
                return name
        except PARSE_ERRORS:
            continue
    return ""


def read_sidecar(file: LabelFile) -> list[str] | None:
    """The classes of an image by a file about it, None if it has no such format.

    Raises one of `PARSE_ERRORS` if it is damaged.
    """
    ending = file.path.suffix.lower()
    for one in FORMATS.values():
        if one.read_one and ending in one.endings and one.knows(file):
            return one.read_one(file)
    return None


def get_reader(name: str, file: str) -> Callable[[LabelFile], Table]:
    """What reads a format, for a file. Raises a UserError if its extra is missing."""
    one = FORMATS[name]
    assert one.read is not None, f"{name} is not read"
    if one.extra:
        check_extra(one.extra, f"Reading {file}")
    return one.read


def parse_chosen(
    path: pathlib.Path, index: FileIndex, options: FolderOptions, name: str = ""
) -> Table:
    """The cells of a file that a user names, in one of `FORMATS`, or the one that it has if "".

    Raises a UserError if it cannot be read.
    """
    try:
        file = LabelFile(read_bytes(path, _MAX_BYTES), path, index, options)
        found = find_format(file)
        # Label Studio exports tables, too.
        name = CSV if (name, found) == (LABEL_STUDIO, CSV) else name or found
        if not name:
            _ = file.lines or file.json  # Raises if it is damaged.
            raise ValueError("it has none of the formats that are read")
        return get_reader(name, path.name)(file)
    except PARSE_ERRORS as error:
        what = f"as labels of {name}" if name else "as labels"
        raise UserError(
            f"{path} cannot be read {what} ({describe_error(error)}): export the labels again, or "
            f"choose another of the formats {', '.join(WRITERS)}."
        ) from error


def name_images(rows: Iterable[Named]) -> Table:
    """The table of some images."""
    lines = [
        [name, _join_classes(list(dict.fromkeys(classes))), find_part(part) or ""]
        for name, classes, part in rows
    ]
    has_parts = any(part for _, _, part in lines)
    header = ["file", "label", "split"] if has_parts else ["file", "label"]
    return Table(header, [line[: len(header)] for line in lines], label_column="label")


def _of_images(read: Callable[[LabelFile], Iterator[Named]]) -> Callable[[LabelFile], Table]:
    return lambda file: name_images(read(file))


def _join_classes(names: Sequence[str]) -> str:
    """A cell with one class, or with a list, which is refused where its file is found."""
    return names[0] if len(names) == 1 else json.dumps(list(names)) if names else ""


def _join_rows(rows: Sequence[Mapping[str, str]], label_column: str = "") -> Table:
    """A table of rows by header, which may have different ones."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    return Table(
        header, [[row.get(name, "") for name in header] for row in rows], label_column=label_column
    )


def _read_label_studio(file: LabelFile) -> Table:
    """Tasks with annotations (JSON), or one object per task (JSON-MIN)."""
    tasks = file.json
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ValueError("it is no list of tasks")
    if any("data" in task for task in tasks):
        return _read_tasks(tasks)
    return _join_rows([{key: _write_cell(value) for key, value in task.items()} for task in tasks])


def _read_tasks(tasks: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    names: dict[str, None] = {}  # Of the questions with classes as answers.
    kinds = set()
    for task in tasks:
        data = {key: value for key, value in task["data"].items() if isinstance(value, str)}
        answers = [one for one in task.get("annotations", []) if not one.get("was_cancelled")]
        found = [_read_choices(answer["result"]) for answer in answers]
        names |= {name: None for classes in found for name in classes}
        kinds |= {one["type"] for answer in answers for one in answer["result"]}
        rows += [data | classes for classes in found] or [data]
    if not names and kinds - {"choices"}:
        raise ValueError("it has regions of images, and no choices")
    return _join_rows(rows, next(iter(names)) if len(names) == 1 else "")


def _read_choices(result: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Question → the classes in an answer."""
    choices = (one for one in result if one["type"] == "choices")
    return {one["from_name"]: _join_classes(one["value"]["choices"]) for one in choices}


def _write_cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _read_cvat(file: LabelFile) -> Table:
    """Images with tags ("CVAT for images")."""
    images = file.xml.findall("image")
    kinds = {child.tag for image in images for child in image}
    if kinds and "tag" not in kinds:
        raise ValueError("it has regions of images, and no tags")
    return name_images(
        (
            image.attrib["name"],
            [tag.attrib["label"] for tag in image.findall("tag")],
            image.get("subset", ""),
        )
        for image in images
    )


def _list_fiftyone(file: LabelFile) -> Iterator[Named]:
    """labels.json of an image classification dataset."""
    classes = file.json.get("classes")
    for name, target in file.json["labels"].items():
        if isinstance(target, dict):
            target = target.get("label")
        targets = target if isinstance(target, list) else [target]
        yield (
            name,
            [classes[t] if isinstance(t, int) else str(t) for t in targets if t is not None],
            "",
        )


def _read_samples(file: LabelFile) -> Table:
    """samples.json of any dataset of FiftyOne."""
    rows = []
    for sample in file.json["samples"]:
        part = next(filter(find_part, sample.get("tags") or []), "")
        row = {"filepath": sample["filepath"], "split": part}
        for field, value in sample.items():
            kind = value.get("_cls") if isinstance(value, dict) else None
            if kind in ("Classification", "Classifications"):
                found = value.get("classifications", [value])
                row[field] = _join_classes([one["label"] for one in found if one.get("label")])
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))[2:]
    if not names:
        raise ValueError("no sample has a classification")
    only = names[0] if len(names) == 1 else ""
    return _join_rows(rows, "ground_truth" if "ground_truth" in names else only)


def _read_fiftyone(file: LabelFile) -> Table:
    """Either of them."""
    return _read_samples(file) if "samples" in file.json else name_images(_list_fiftyone(file))


def _list_coco(file: LabelFile) -> Iterator[Named]:
    """Images with annotations, each of which has a category."""
    stored = file.json
    names = {one["id"]: str(one["name"]) for one in stored["categories"]}
    found: dict[Any, list[str]] = {one["id"]: [] for one in stored["images"]}
    for one in stored["annotations"]:
        found[one["image_id"]].append(names[one["category_id"]])
    return ((one["file_name"], found[one["id"]], "") for one in stored["images"])


def _read_lines(file: LabelFile) -> Table:
    """An object for each image, one in each line."""
    return _join_rows([dict(_flatten(one)) for one in file.lines])


def _flatten(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Header and cell of each value, also of those in an object."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", _write_cell(cell)) for inner, cell in value.items())
        else:
            yield key, _write_cell(value)


def _have(*keys: str) -> Callable[[LabelFile], bool]:
    """Whether all lines are objects with these keys."""
    return lambda file: bool(file.lines) and all(line.keys() >= {*keys} for line in file.lines)


def _read_manifest(file: LabelFile) -> Table:
    """An object in each line, with a class by name in the metadata of each of its labels.

    Without metadata, a column has words.
    """
    rows = []
    for line in file.lines:
        found = [one.get("class-name") for one in line.values() if isinstance(one, dict)]
        rows.append((line["source-ref"], [str(name) for name in found if name], ""))
    return name_images(rows) if any(names for _, names, _ in rows) else _read_lines(file)


def _list_vertex(file: LabelFile) -> Iterator[Named]:
    """An address in each line, with one class or a list of them, and the part of the data."""
    for line in file.lines:
        found = line.get("classificationAnnotations") or [
            line.get("classificationAnnotation") or {}
        ]
        names = [one["displayName"] for one in found if one.get("displayName")]
        marks = (line.get("dataItemResourceLabels") or {}).items()
        part = next((value for key, value in marks if key.endswith("ml_use")), "")
        yield line["imageGcsUri"], names, part


def _list_labelbox(file: LabelFile) -> Iterator[Named]:
    """A row in each line, with the labels of each project."""
    for line in file.lines:
        data = line["data_row"]
        labels = [label for project in line["projects"].values() for label in project["labels"]]
        answers = [one for label in labels for one in label["annotations"]["classifications"]]
        names = [one["radio_answer"]["name"] for one in answers if "radio_answer" in one]
        yield data.get("external_id") or data.get("global_key") or data["row_data"], names, ""


def _list_datumaro(file: LabelFile) -> Iterator[Named]:
    """Items with annotations, each of which has the number of a label."""
    names = [one["name"] for one in file.json["categories"]["label"]["labels"]]
    for item in file.json["items"]:
        media = item.get("image") or item.get("media") or {}
        found = [names[one["label_id"]] for one in item["annotations"]]
        yield media.get("path") or item["id"], found, ""


def _turn(records: dict[str, Any]) -> dict[str, Any]:
    """The columns of pandas, which have numbers as keys, by row, and other records as they are."""
    keys = {key for one in records.values() for key in one}
    if not keys or not all(map(str.isdecimal, keys)):
        return records
    return {
        key: {name: one[key] for name, one in records.items() if key in one}
        for key in sorted(keys, key=int)
    }


def _read_records(file: LabelFile) -> Table:
    rows = []
    names: dict[str, None] = {}  # Of VIA's attributes.
    for key, record in _turn(file.records).items():
        row = {} if key.isdecimal() else {"file": str(record.get("filename", key))}
        attributes = record.get("file_attributes")
        if isinstance(attributes, dict):
            names |= dict.fromkeys(attributes)
            row |= {name: _write_cell(value) for name, value in attributes.items()}
        elif isinstance(record.get("label"), dict):  # Of Edge Impulse.
            row |= {key: str(record[key]) for key in ("path", "category")}
            row["label"] = str(record["label"]["label"])
            names["label"] = None
        else:
            row |= dict(_flatten(record))
        rows.append(row)
    return _join_rows(rows, next(iter(names)) if len(names) == 1 else "")


def _read_parquet(file: LabelFile) -> Table:
    """The columns of a table that have text, numbers or truth values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = pq.ParquetFile(pa.BufferReader(file.raw))
    types = pa.types
    kinds = [types.is_string, types.is_large_string, types.is_integer, types.is_floating]
    kinds += [types.is_boolean, types.is_dictionary]
    header = [one.name for one in stored.schema_arrow if any(is_one(one.type) for is_one in kinds)]
    columns = stored.read(header).to_pydict()
    cells = [list(map(_write_cell, columns[name])) for name in header]
    return Table(header, list(map(list, zip(*cells, strict=True))))


def _is_mapping(file: LabelFile) -> bool:
    """Whether an object has a class for each file, or a list of files for each class."""
    values = file.json.values() if file.start == b"{" else ()
    are_files = (isinstance(v, list) and all(isinstance(w, str) for w in v) for v in values)
    are_classes = all(isinstance(value, str | int) for value in values)
    return bool(values) and (are_classes or all(are_files))


def _read_mapping(file: LabelFile) -> Table:
    lines = []
    for key, value in file.json.items():
        is_class = isinstance(value, list)
        lines += [[file, key] for file in value] if is_class else [[key, _write_cell(value)]]
    return Table(["key", "value"], lines, label_column="value")


def _has(**kinds: type) -> Callable[[LabelFile], bool]:
    """Whether a file is an object with keys whose values are of these kinds."""
    return lambda file: (
        isinstance(file.json, dict)
        and all(isinstance(file.json.get(key), kind) for key, kind in kinds.items())
    )


def _read_supervisely(file: LabelFile) -> list[str]:
    tags = [str(one["name"]) for one in file.json["tags"]]
    tags = [tag for tag in tags if find_part(tag) is None]  # Such as "train".
    return tags or [str(one["classTitle"]) for one in file.json["objects"]]


def _read_labelme(file: LabelFile) -> list[str]:
    flags = [name for name, is_set in (file.json.get("flags") or {}).items() if is_set is True]
    return flags or [str(one["label"]) for one in file.json["shapes"]]


def _match_boxes(file: LabelFile) -> list[re.Match[str] | None]:
    lines = filter(None, map(str.strip, file.raw.decode("utf-8-sig").splitlines()))
    return [_BOX.fullmatch(line) for line in lines]


_JSON, _LINES = (".json", ".labels"), (".jsonl", ".ndjson", ".manifest")
_OBJECT = (b"{",)
_SAVE = "save its images as files, one folder for each class"
_HUGGING_FACE = f"{_SAVE}, with the package datasets of Hugging Face"
# The first one that claims a file reads it: the formats of one program before those of many.
FORMATS = {
    "parquet": Format(
        (".parquet",),
        _read_parquet,
        starts=(b"PAR1",),
        extra="parquet",
        remedy=_HUGGING_FACE,
        has_images=True,
    ),
    "datumaro": Format(
        _JSON,
        _of_images(_list_datumaro),
        lambda file: isinstance(file.get("items"), list) and bool(file.get("categories")),
        starts=_OBJECT,
    ),
    "manifest": Format(_LINES, _read_manifest, _have("source-ref"), starts=_OBJECT),
    "vertex": Format(_LINES, _of_images(_list_vertex), _have("imageGcsUri"), starts=_OBJECT),
    "labelbox": Format(
        _LINES, _of_images(_list_labelbox), _have("data_row", "projects"), starts=_OBJECT
    ),
    "coco": Format(
        _JSON,
        _of_images(_list_coco),
        lambda file: all(map(file.get, ("images", "annotations", "categories"))),
        starts=_OBJECT,
        write=writers.write_coco,
    ),
    CVAT: Format(
        (".xml",),
        _read_cvat,
        starts=(_ZIP, b"<"),
        write=writers.write_cvat,
        written=(".xml", ".zip"),
    ),
    "json-lines": Format(
        _LINES,
        _read_lines,
        lambda file: len(file.lines) > 1 or any("file_name" in line for line in file.lines),
        starts=_OBJECT,
        write=writers.write_lines,
        written=(".jsonl",),
    ),
    "json-object": Format(_JSON, _read_mapping, _is_mapping, starts=_OBJECT),
    "json-records": Format(_JSON, _read_records, lambda file: bool(file.records), starts=_OBJECT),
    "fiftyone": Format(
        _JSON,
        _read_fiftyone,
        lambda file: isinstance(file.get("samples"), list) or isinstance(file.get("labels"), dict),
        starts=_OBJECT,
        write=writers.write_fiftyone,
    ),
    LABEL_STUDIO: Format(
        _JSON, _read_label_studio, starts=(b"[",), write=writers.write_label_studio
    ),
    WORDS: Format(
        (".txt",),
        lambda file: Table([""] * len(file.words[0]), file.words),
        lambda file: bool(file.words),
    ),
    CSV: Format(
        (".csv", ".tsv", ".tab"),
        lambda file: parse_table(file.path, file.index, file.options, file.raw),
        lambda file: file.start != b"{",
        write=writers.write_csv,
        written=(".csv",),
        remedy="pass --labels {}",
    ),
    "webdataset": Format(
        (".cls",),
        knows=lambda file: b"\n" not in file.raw.strip(),
        read_one=lambda file: list(filter(None, [file.raw.decode("utf-8-sig").strip()])),
    ),
    "supervisely": Format(
        (".json",), knows=_has(tags=list, objects=list), read_one=_read_supervisely
    ),
    "darwin": Format(
        (".json",),
        knows=_has(item=dict, annotations=list),
        read_one=lambda file: [str(one["name"]) for one in file.json["annotations"]],
    ),
    "labelme": Format((".json",), knows=_has(shapes=list, imagePath=str), read_one=_read_labelme),
    "yolo": Format(
        (".txt",),
        knows=lambda file: None not in _match_boxes(file),
        read_one=lambda file: [match[1] for match in _match_boxes(file) if match],
    ),
    "voc": Format(
        (".xml",),
        knows=lambda file: file.xml.tag == "annotation",
        read_one=lambda file: [
            one.findtext("name", "").strip() for one in file.xml.findall("object")
        ],
    ),
    "spreadsheet": Format(
        (".csv.txt", ".ods", ".xls", ".xlsx"),
        remedy=f"save it as {LABELS_CSV}, a CSV file in UTF-8",
    ),
    "arrow": Format((".arrow",), remedy=_HUGGING_FACE, has_images=True),
    "tfrecord": Format(
        (".tfrecord", ".tfrecords", ".tfrec", ".record"),
        remedy=f"{_SAVE}, for example with FiftyOne",
        has_images=True,
    ),
    "npz": Format(
        (".npz",), remedy="train on it as arrays (see cls-jax help own_arrays)", has_images=True
    ),
    "arrays": Format(
        (".npy", ".h5", ".hdf5", ".lmdb", ".mdb", ".pkl", ".pickle", "-ubyte"),
        remedy="save its arrays as an .npz (see cls-jax help own_arrays)",
        has_images=True,
    ),
    "matlab": Format(
        (".mat",),
        remedy="if it has the labels, save them as a CSV file with the columns file and label",
        has_images=True,
    ),
}
SIDECARS = tuple(dict.fromkeys(e for one in FORMATS.values() if one.read_one for e in one.endings))
WRITERS = {name: one.write for name, one in FORMATS.items() if one.write}
