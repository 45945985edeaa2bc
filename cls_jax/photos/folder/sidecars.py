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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cls_jax.io import PARSE_ERRORS, describe_error, read_bytes
from cls_jax.photos.folder.columns import Table
from cls_jax.photos.folder.formats import LabelFile, name_images
from cls_jax.photos.folder.names import find_part, fold_case
from cls_jax.photos.folder.reading import Fault
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import Listing, group_by_ending, list_images

_MAX_BYTES = 2**26  # LabelMe may store the image in its file.
_BOX = re.compile(r"(\d+)(?:\s+[-+.\deE]+){4,}\s*")  # Also the corners of a polygon.


def list_sidecars(listing: Listing) -> dict[str, list[str]]:
    """A pattern such as photos/*.json → files that are called as images, with or without endings.

    Most of the files of a folder with this ending must be.
    """
    kinds = group_by_ending(listing.others, _ENDINGS)
    if not kinds:
        return {}
    stems = {
        os.path.splitext(fold_case(name.rpartition("/")[2]))[0] for name in listing.files.names()
    }
    found = {}
    for kind, names in kinds.items():
        beside = [name for name in names if _get_stem(name) in stems]
        if 2 * len(beside) > len(names):
            found["/*".join(kind).lstrip("/")] = beside
    return found


def _get_stem(name: str) -> str:
    """The name without its ending, and that of an image before it, as in 1.jpg.json, folded."""
    stem, _ = os.path.splitext(fold_case(name.rpartition("/")[2]))
    return os.path.splitext(stem)[0] if stem.endswith(SUFFIXES) else stem


def parse_sidecars(root: pathlib.Path, names: Sequence[str]) -> tuple[Table | None, Fault | None]:
    """The cells of a table that such files make up, None for no files, or if they are no such.

    Files are named without folders. There is a fault if one of them is damaged.
    """
    rows = []
    for name in names:
        stem, _ = os.path.splitext(name)
        try:
            classes = read_sidecar(LabelFile(read_bytes(root / name, _MAX_BYTES), root / name))
        except PARSE_ERRORS as error:
            return None, Fault(
                f"{name!r:.200} cannot be read ({describe_error(error)}), but other files like it "
                "have the label of an image each: repair or remove it."
            )
        if classes is None:
            return None, None
        *folders, last = stem.split("/")
        rows.append((last, classes, next(filter(find_part, folders), "")))
    return name_images(rows) if rows else None, None


def read_sidecar(file: LabelFile) -> list[str] | None:
    """The classes of an image by its file, None if no reader claims that.

    Raises one of `PARSE_ERRORS` if it is damaged.
    """
    ending = file.path.suffix.lower()
    known = (one for one in SIDECARS.values() if one.ending == ending and one.knows(file))
    found = next(known, None)
    return found.read(file) if found else None


def parse_all_sidecars(folder: pathlib.Path) -> tuple[Table | None, Fault | None]:
    """The same of a folder that has such files without the images, None without any.

    Of several endings, the most frequent one counts.
    """
    names = list_images(folder).others
    kinds = Counter(os.path.splitext(name)[1].lower() for name in names)
    suffix = max(_ENDINGS, key=lambda suffix: kinds[suffix])
    return parse_sidecars(folder, [name for name in names if name.lower().endswith(suffix)])


def _has(**kinds: type) -> Callable[[LabelFile], bool]:
    """Whether a file is an object with keys whose values are of these kinds."""
    return lambda file: (
        isinstance(file.json, dict)
        and all(isinstance(file.json.get(key), kind) for key, kind in kinds.items())
    )


def _read_word(file: LabelFile) -> list[str]:
    text = file.raw.decode("utf-8-sig").strip()
    return [text] if text else []


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


class Sidecar(NamedTuple):
    """How the files of a format are known, and their classes are read."""

    ending: str
    knows: Callable[[LabelFile], bool]
    read: Callable[[LabelFile], list[str]]


SIDECARS = {
    "webdataset": Sidecar(".cls", lambda file: b"\n" not in file.raw.strip(), _read_word),
    "supervisely": Sidecar(".json", _has(tags=list, objects=list), _read_supervisely),
    "darwin": Sidecar(
        ".json",
        _has(item=dict, annotations=list),
        lambda file: [str(one["name"]) for one in file.json["annotations"]],
    ),
    "labelme": Sidecar(".json", _has(shapes=list, imagePath=str), _read_labelme),
    "yolo": Sidecar(
        ".txt",
        lambda file: None not in _match_boxes(file),
        lambda file: [match[1] for match in _match_boxes(file) if match],
    ),
    "voc": Sidecar(
        ".xml",
        lambda file: file.xml.tag == "annotation",
        lambda file: [one.findtext("name", "").strip() for one in file.xml.findall("object")],
    ),
}
_ENDINGS = tuple(dict.fromkeys(one.ending for one in SIDECARS.values()))
