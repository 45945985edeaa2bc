"""Labels of a folder's images in the formats of other programs, see `formats`."""

import json
import os
import pathlib
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from cls_jax.data.resize import ImageError
from cls_jax.errors import UserError
from cls_jax.io import to_csv
from cls_jax.photos.folder.kinds import join_tags
from cls_jax.photos.images.decode import read_header

ANNOTATIONS = "annotations.xml"  # In an archive of CVAT.
Rows = Sequence[tuple[str, Sequence[str]]]  # Names of images in a folder, and their classes.


def write_csv(root: pathlib.Path, rows: Rows) -> bytes:
    """A table."""
    lines = [(file, join_tags(classes)) for file, classes in rows]
    return to_csv([("file", "label"), *lines]).encode()


def write_label_studio(root: pathlib.Path, rows: Rows) -> bytes:
    """Tasks with choices, whose images are local files."""
    question = {"from_name": "choice", "to_name": "image", "type": "choices"}
    tasks = [
        {
            "data": {"image": f"/data/local-files/?d={urllib.parse.quote(file)}"},
            "annotations": [{"result": [{**question, "value": {"choices": list(classes)}}]}],
        }
        for file, classes in rows
    ]
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode()


def write_cvat(root: pathlib.Path, rows: Rows) -> bytes:
    """A document of "CVAT for images", with a tag for each image."""
    annotations = ElementTree.Element("annotations")
    ElementTree.SubElement(annotations, "version").text = "1.1"
    for number, (file, classes) in enumerate(rows):
        width, height = _read_size(root / file, "CVAT")
        sizes = {"width": str(width), "height": str(height)}
        image = {"id": str(number), "name": file, **sizes}
        element = ElementTree.SubElement(annotations, "image", image)
        for name in classes:
            ElementTree.SubElement(element, "tag", {"label": name, "source": "manual"})
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


def write_coco(root: pathlib.Path, rows: Rows) -> bytes:
    """Each class of an image is an annotation, whose box is the whole image."""
    names = _list_classes(rows)
    images, annotations = [], list[dict[str, object]]()
    for number, (file, classes) in enumerate(rows, 1):
        width, height = _read_size(root / file, "COCO")
        images.append({"id": number, "file_name": file, "width": width, "height": height})
        annotations += [
            {
                "id": i,
                "image_id": number,
                "category_id": names.index(name) + 1,
                "bbox": [0, 0, width, height],
                "area": width * height,
                "iscrowd": 0,
            }
            for i, name in enumerate(classes, len(annotations) + 1)
        ]
    categories = [{"id": i, "name": name} for i, name in enumerate(names, 1)]
    stored = {"images": images, "annotations": annotations, "categories": categories}
    return json.dumps(stored, ensure_ascii=False, indent=1).encode()


def write_lines(root: pathlib.Path, rows: Rows) -> bytes:
    """Lines of JSON, as in `metadata.jsonl` of Hugging Face."""
    are_single = all(len(classes) == 1 for _, classes in rows)
    lines = [
        {"file_name": file, "label": classes[0] if are_single else list(classes)}
        for file, classes in rows
    ]
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()


def write_fiftyone(root: pathlib.Path, rows: Rows) -> bytes:
    """`labels.json` of an image classification dataset."""
    names = _list_classes(rows)
    labels: dict[str, int | list[int]] = {}
    for file, classes in rows:
        stem = os.path.splitext(file)[0]
        if stem in labels:
            raise UserError(
                f"Two labeled images are called {stem!r} without their extensions, which FiftyOne "
                "leaves out: rename one of them."
            )
        numbers = list(map(names.index, classes))
        labels[stem] = numbers[0] if len(numbers) == 1 else numbers
    return json.dumps({"classes": names, "labels": labels}, ensure_ascii=False, indent=1).encode()


def _list_classes(rows: Rows) -> list[str]:
    return sorted({name for _, classes in rows for name in classes})
