"""The contract of all readers: one set of labels, from any file, for each command."""

import json
import shutil

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.exchange import import_labels
from cls_jax.photos.folder.given_labels import label_labelable
from cls_jax.photos.folder.layout import read_layout
from cls_jax.photos.folder.readers import (
    COCO,
    CSV,
    CVAT,
    DATUMARO,
    FIFTYONE,
    JSON_LINES,
    JSON_OBJECT,
    JSON_RECORDS,
    LABEL_STUDIO,
    LABELBOX,
    MANIFEST,
    PARQUET,
    READERS,
    VERTEX,
    WORDS,
    LabelFile,
    find_format,
)
from cls_jax.photos.images.files import list_images
from cls_jax.photos.labeling.photos import open_session
from tests.photos.folder.test_odd_folders import place

LABELS = {"a.png": "cat", "b.png": "dog", "c.png": "cat"}  # And d.png has none.
UNLABELED = "d.png"
ROWS = [*LABELS.items(), (UNLABELED, "")]


def write_coco(labels):
    names = sorted({label for _, label in labels})
    images = [{"id": i, "file_name": file} for i, (file, _) in enumerate(labels)]
    images.append({"id": 99, "file_name": UNLABELED})
    return json.dumps(
        {
            "images": images,
            "categories": [{"id": i, "name": name} for i, name in enumerate(names)],
            "annotations": [
                {"id": 2 * i + again, "image_id": i, "category_id": names.index(label)}
                for i, (_, label) in enumerate(labels)
                for again in (0, 1)
            ],
        }
    )


def write_label_studio():
    tasks = []
    for file, label in ROWS:
        result = {"from_name": "x", "type": "choices", "value": {"choices": [label]}}
        tasks.append(
            {"data": {"image": file}, "annotations": [{"result": [result]}] if label else []}
        )
    return json.dumps(tasks)


def write_cvat():
    tags = "".join(
        f'<image name="{file}">' + (f'<tag label="{label}"/>' if label else "") + "</image>"
        for file, label in ROWS
    )
    return f"<annotations>{tags}</annotations>"


def write_datumaro():
    names = sorted(set(LABELS.values()))
    items = [
        {
            "id": file.partition(".")[0],
            "image": {"path": file},
            "annotations": [{"type": "label", "label_id": names.index(label)}] if label else [],
        }
        for file, label in ROWS
    ]
    categories = {"label": {"labels": [{"name": name} for name in names]}}
    return json.dumps({"info": {}, "categories": categories, "items": items})


def write_labelbox():
    rows = []
    for file, label in ROWS:
        answers = [{"name": "animal", "radio_answer": {"name": label}}] if label else []
        labels = [{"annotations": {"classifications": answers}}]
        rows.append({"data_row": {"external_id": file}, "projects": {"x": {"labels": labels}}})
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write_manifest():
    rows = []
    for file, label in ROWS:
        row = {"source-ref": f"s3://bucket/{file}"}
        if label:  # As Rekognition has it, with a key for each class.
            row |= {f"x_{label}": 1, f"x_{label}-metadata": {"class-name": label, "confidence": 1}}
        rows.append(row)
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write_vertex():
    rows = [
        {"imageGcsUri": f"gs://x/{file}", "classificationAnnotation": {"displayName": label}}
        for file, label in ROWS
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write_via():
    return json.dumps(
        {
            f"{file}12": {"filename": file, "size": 12, "file_attributes": {"animal": label}}
            for file, label in ROWS
        }
    )


def write_parquet():
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    files, labels = zip(*ROWS, strict=True)
    sink = pa.BufferOutputStream()
    images = [{"bytes": b"x"}] * len(ROWS)
    pq.write_table(pa.table({"file_name": files, "label": labels, "image": images}), sink)
    return sink.getvalue().to_pybytes()


# Format → the name of a file, and its content.
FILES = {
    CSV: ("x.csv", "file,label\n" + "".join(f"{file},{label}\n" for file, label in ROWS)),
    COCO: ("_annotations.coco.json", write_coco(list(LABELS.items()))),
    JSON_LINES: (
        "metadata.jsonl",
        "".join(json.dumps({"file_name": k, "label": v or None}) + "\n" for k, v in ROWS),
    ),
    JSON_OBJECT: ("x.json", json.dumps(dict(ROWS))),
    FIFTYONE: ("labels.json", json.dumps({"classes": None, "labels": LABELS | {UNLABELED: None}})),
    LABEL_STUDIO: ("x.json", write_label_studio()),
    CVAT: ("annotations.xml", write_cvat()),
    DATUMARO: ("default.json", write_datumaro()),
    LABELBOX: ("export.ndjson", write_labelbox()),
    VERTEX: ("import.jsonl", write_vertex()),
    MANIFEST: ("output.manifest", write_manifest()),
    JSON_RECORDS: ("via.json", write_via()),
    PARQUET: ("metadata.parquet", write_parquet),
    WORDS: ("list.txt", "# File and class\n" + "".join(f"{k} {v}\n" for k, v in LABELS.items())),
}


@pytest.fixture
def root(tmp_path):
    for name in (*LABELS, UNLABELED):
        place(tmp_path / "album", f"train/{name}").touch()
    return tmp_path / "album"


def get_labels(part):
    return {file.name.rpartition("/")[2]: label for file, label in part if label}


def test_each_reader_is_tested():
    assert FILES.keys() == READERS.keys()


@pytest.mark.parametrize("kind", FILES)
def test_a_reader_gives_the_labels_to_each_command(root, tmp_path, kind):
    name, content = FILES[kind]
    content = content() if callable(content) else content.encode()
    assert find_format(LabelFile(content)) == kind
    path = tmp_path / name
    path.write_bytes(content)
    import_labels(root, path)  # cls-jax labels --from
    assert get_labels(read_layout(root, list_images(root)).train) == LABELS
    (root / "labels.csv").unlink()

    for folder in ("", "train"):
        inside = root / folder / name
        shutil.copy(path, inside)
        layout = read_layout(root, list_images(root))  # cls-jax train
        assert get_labels(layout.train) == LABELS
        assert len(layout.train) == len(ROWS)
        assert layout.table.startswith(f"{inside.relative_to(root)}: files in ")
        num_rows = len(LABELS) + (kind != WORDS)
        assert layout.table.endswith(f"; {num_rows} of {num_rows} rows found.")
        session = open_session(root)  # cls-jax label
        assert sorted(session._answers.class_names) == ["cat", "dog"]
        found = label_labelable(root, list_images(root))  # cls-jax suggest
        assert sum(map(bool, found.values())) == len(LABELS)
        assert inside.read_bytes() == content
        inside.unlink()


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_or_one_about_others_is_left_out(root, kind):
    name, content = FILES[kind]
    content = content() if callable(content) else content.encode()
    elsewhere = content.replace(b".png", b"-x.png")
    for text in (content[: len(content) // 2], elsewhere, b"", b"{", b"[1]"):
        (root / name).write_bytes(text)
        if text == content[: len(content) // 2] and kind in (CSV, JSON_LINES, WORDS):
            continue  # Its first rows can be read.
        with pytest.raises(UserError, match=r"has no labeled image"):
            read_layout(root, list_images(root))


def test_splits_have_files_of_their_own(root):
    for part in ("valid", "test"):
        for name in LABELS:
            place(root, f"{part}/{name}").touch()
    others = {"a.png": "dog", "b.png": "cat", "c.png": "dog"}
    for part, labels in (("train", LABELS), ("valid", others), ("test", others)):
        (root / part / "_annotations.coco.json").write_text(write_coco(list(labels.items())))
    layout = read_layout(root, list_images(root))
    assert get_labels(layout.train) == LABELS
    assert get_labels(layout.validation) == get_labels(layout.test) == others


def test_an_image_of_several_categories_is_named(root):
    content = write_coco([("a.png", "cat"), ("a.png", "dog"), ("b.png", "dog")])
    stored = json.loads(content)
    stored["annotations"].append({"id": 9, "image_id": 0, "category_id": 1})
    (root / "train/_annotations.coco.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"coco.json gives 'a.png' several classes, 'cat', 'dog'"):
        read_layout(root, list_images(root))


def test_classes_may_list_their_files(root):
    (root / "split.json").write_text(json.dumps({"cat": ["a.png", "c.png"], "dog": ["b.png"]}))
    assert get_labels(read_layout(root, list_images(root)).train) == LABELS


def test_numbers_of_classes_label_no_files(tmp_path):
    for i in range(4):
        place(tmp_path, f"photos/{i}.png").touch()
    (tmp_path / "label_map.json").write_text(json.dumps({"0": "cat", "1": "dog", "2": "owl"}))
    with pytest.raises(UserError, match="only the class 'photos'"):
        read_layout(tmp_path, list_images(tmp_path))
