"""Labels in files beside the images, one for each image.

Formats, as their documentation describes them: the files `.cls` of an unpacked WebDataset shard
(https://github.com/webdataset/webdataset), Supervisely's tags
(https://developer.supervisely.com/getting-started/supervisely-annotation-format), V7's Darwin JSON
(https://docs.v7labs.com/reference/darwin-json), LabelMe's flags and shapes
(https://github.com/wkentaro/labelme), Pascal VOC's XML and YOLO's boxes
(https://docs.ultralytics.com/datasets/detect). Where an image has regions, all of one class, that
is its class, as in COCO files.
"""

import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, parse_json, read_bytes
from cls_jax.photos.folder.label_table import ParsedTable
from cls_jax.photos.folder.names import find_part, fold
from cls_jax.photos.folder.readers import join_classes, parse_xml
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import Listing, list_images

_MAX_BYTES = 2**26  # LabelMe may store the image in its file.
_BOX = re.compile(r"(\d+)(?:\s+[-+.\deE]+){4,}\s*")  # Also the corners of a polygon.
# Classes of an image by the content of its file, or None if the file is of another kind.
_Reader = Callable[[bytes], list[str] | None]


def may_have_sidecars(listing: Listing) -> bool:
    """Whether a folder has a file with one of these endings."""
    endings = tuple(_READERS)
    return any(name.lower().endswith(endings) for name, _ in listing.skipped)


def find_sidecars(listing: Listing) -> dict[tuple[str, str], list[str]]:
    """Folder and ending → files that are called as images, without or with their endings.

    Most of the files of a folder with this ending must be.
    """
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, _ in listing.skipped:
        suffix = os.path.splitext(name)[1].lower()
        if suffix in _READERS:
            kinds.setdefault((os.path.dirname(name), suffix), []).append(name)
    if not kinds:
        return {}
    stems = {os.path.splitext(fold(name.rpartition("/")[2]))[0] for name in listing.files.names()}
    found = {}
    for kind, names in kinds.items():
        beside = [name for name in names if _get_stem(name) in stems]
        if 2 * len(beside) > len(names):
            found[kind] = beside
    return found


def _get_stem(name: str) -> str:
    """The name without its ending, and that of an image before it, as in 1.jpg.json, folded."""
    stem, _ = os.path.splitext(fold(name.rpartition("/")[2]))
    return os.path.splitext(stem)[0] if stem.endswith(SUFFIXES) else stem


def parse_sidecars(root: pathlib.Path, names: list[str]) -> ParsedTable | None:
    """The cells of a table that such files make up, None for no files, or if they are no such.

    Files are named without folders. Raises a UserError if one of them is damaged.
    """
    lines = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        try:
            classes = _READERS[suffix.lower()](read_bytes(root / name, _MAX_BYTES))
        except PARSE_ERRORS as error:
            raise UserError(
                f"{name!r:.200} cannot be read ({describe_error(error)}), but other files like it "
                "have the label of an image each: repair or remove it."
            ) from error
        if classes is None:
            return None
        parts = [part for folder in stem.split("/")[:-1] if (part := find_part(folder))]
        cell = join_classes(list(dict.fromkeys(classes)))
        lines.append([stem.rpartition("/")[2], cell, parts[0] if parts else ""])
    return ParsedTable(["file", "label", "split"], lines, label_column="label") if lines else None


def parse_all_sidecars(folder: pathlib.Path) -> ParsedTable | None:
    """The same of a folder that has such files without the images, None without any.

    Of several endings, the most frequent one counts. Raises a UserError as `parse_sidecars` does.
    """
    names = [name for name, _ in list_images(folder).skipped]
    kinds = Counter(os.path.splitext(name)[1].lower() for name in names)
    suffix = max(_READERS, key=lambda suffix: kinds[suffix])
    return parse_sidecars(folder, [name for name in names if name.lower().endswith(suffix)])


def _read_class(content: bytes) -> list[str] | None:
    text = content.decode("utf-8-sig").strip()
    return None if "\n" in text else [text] if text else []


def _read_json(content: bytes) -> list[str] | None:
    value: Any = parse_json(content.decode("utf-8-sig"))
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("tags"), list) and isinstance(value.get("objects"), list):
        return _read_supervisely(value)
    if isinstance(value.get("item"), dict) and isinstance(value.get("annotations"), list):
        return [str(one["name"]) for one in value["annotations"]]  # Of V7.
    if isinstance(value.get("shapes"), list) and "imagePath" in value:  # Of LabelMe.
        flags = [name for name, is_set in (value.get("flags") or {}).items() if is_set is True]
        return flags or [str(one["label"]) for one in value["shapes"]]
    return None


def _read_supervisely(value: dict[str, Any]) -> list[str]:
    tags = [str(one["name"]) for one in value["tags"]]
    tags = [tag for tag in tags if find_part(tag) is None]  # Such as "train".
    return tags or [str(one["classTitle"]) for one in value["objects"]]


def _read_voc(content: bytes) -> list[str] | None:
    document = parse_xml(content)
    if document.tag != "annotation":
        return None
    return [one.findtext("name", "").strip() for one in document.findall("object")]


def _read_yolo(content: bytes) -> list[str] | None:
    lines = list(filter(str.strip, content.decode("utf-8-sig").splitlines()))
    matches = [_BOX.fullmatch(line.strip()) for line in lines]
    return None if None in matches else [match[1] for match in matches if match]


_READERS: dict[str, _Reader] = {
    ".cls": _read_class,
    ".json": _read_json,
    ".txt": _read_yolo,
    ".xml": _read_voc,
}
