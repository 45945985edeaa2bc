"""One set of labels for each command, from any file that has them, wherever it lies.

`test_readings.py` has what tables say.
"""

import itertools
import json
import shutil

import pytest

from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS
from cls_jax.photos.folder import index
from cls_jax.photos.folder.exchange import import_labels
from cls_jax.photos.folder.formats import CSV, FORMATS, WORDS, LabelFile, find_format
from cls_jax.photos.folder.label_table import append_rows
from cls_jax.photos.folder.log import LABEL, LabelRow
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.folder.remedies import describe_left_out
from cls_jax.photos.labeling.photos import open_session
from tests.photos.folder.public_layouts import write_lines
from tests.photos.helpers import get_labels, make_folder, open_catalog, read_layout

LABELS = {"a.png": "cat", "b.png": "dog", "c.png": "cat"}  # And d.png has none.
UNLABELED = "d.png"
IN_TRAIN = {f"train/{name}": label for name, label in LABELS.items()}
ROWS = [*LABELS.items(), (UNLABELED, "")]


def write_coco(rows):
    names = sorted({label for _, label in rows if label})
    return json.dumps(
        {
            "images": [{"id": i, "file_name": file} for i, (file, _) in enumerate(rows)],
            "categories": [{"id": i, "name": name} for i, name in enumerate(names)],
            "annotations": [
                {"id": 2 * i + again, "image_id": i, "category_id": names.index(label)}
                for i, (_, label) in enumerate(rows)
                for again in (0, 1)
                if label
            ],
        }
    )


def write_label_studio(rows):
    tasks = []
    for file, label in rows:
        result = {"from_name": "x", "type": "choices", "value": {"choices": [label]}}
        tasks.append(
            {"data": {"image": file}, "annotations": [{"result": [result]}] if label else []}
        )
    return json.dumps(tasks)


def write_cvat(rows):
    tags = "".join(
        f'<image name="{file}">' + (f'<tag label="{label}"/>' if label else "") + "</image>"
        for file, label in rows
    )
    return f"<annotations>{tags}</annotations>"


def write_datumaro(rows):
    names = sorted({label for _, label in rows if label})
    items = [
        {
            "id": file.partition(".")[0],
            "image": {"path": file},
            "annotations": [{"type": "label", "label_id": names.index(label)}] if label else [],
        }
        for file, label in rows
    ]
    categories = {"label": {"labels": [{"name": name} for name in names]}}
    return json.dumps({"info": {}, "categories": categories, "items": items})


def write_labelbox(rows):
    exported = []
    for file, label in rows:
        answers = [{"name": "animal", "radio_answer": {"name": label}}] if label else []
        labels = [{"annotations": {"classifications": answers}}]
        exported.append({"data_row": {"external_id": file}, "projects": {"x": {"labels": labels}}})
    return write_lines(*exported)


def write_manifest(rows):
    lines = []
    for file, label in rows:
        line = {"source-ref": f"s3://bucket/{file}"}
        if label:  # As Rekognition has it, with a key for each class.
            line |= {f"x_{label}": 1, f"x_{label}-metadata": {"class-name": label}}
        lines.append(line)
    return write_lines(*lines)


def write_vertex(rows):
    return write_lines(
        *(
            {"imageGcsUri": f"gs://x/{file}", "classificationAnnotation": {"displayName": label}}
            for file, label in rows
        )
    )


def write_via(rows):
    return json.dumps(
        {
            f"{file}12": {"filename": file, "size": 12, "file_attributes": {"animal": label}}
            for file, label in rows
        }
    )


def write_parquet(rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    files, labels = zip(*rows, strict=True)
    sink = pa.BufferOutputStream()
    images = [{"bytes": b"x"}] * len(rows)
    pq.write_table(pa.table({"file_name": files, "label": labels, "image": images}), sink)
    return sink.getvalue().to_pybytes().decode("latin-1")


# Format → the name of a file, and how it is written from files and classes, "" without one.
SAMPLES = {
    CSV: ("x.csv", lambda rows: "file,label\n" + "".join(f"{k},{v}\n" for k, v in rows)),
    "coco": ("_annotations.coco.json", write_coco),
    "json-lines": (
        "metadata.jsonl",
        lambda rows: write_lines(*({"file_name": k, "label": v or None} for k, v in rows)),
    ),
    "json-object": ("x.json", lambda rows: json.dumps(dict(rows))),
    "fiftyone": (
        "labels.json",
        lambda rows: json.dumps({"classes": None, "labels": {k: v or None for k, v in rows}}),
    ),
    "label-studio": ("x.json", write_label_studio),
    "cvat": ("annotations.xml", write_cvat),
    "datumaro": ("default.json", write_datumaro),
    "labelbox": ("export.ndjson", write_labelbox),
    "vertex": ("import.jsonl", write_vertex),
    "manifest": ("output.manifest", write_manifest),
    "json-records": ("via.json", write_via),
    "parquet": ("metadata.parquet", write_parquet),
    WORDS: (
        "list.txt",
        lambda rows: "# File and class\n" + "".join(f"{k} {v}\n" for k, v in rows if v),
    ),
}
# The same of files about one image each, from its class.
SIDECAR_SAMPLES = {
    "webdataset": (".cls", "{}\n".format),
    "supervisely": (
        ".json",
        lambda label: json.dumps({"tags": [{"name": label}, {"name": "train"}], "objects": []}),
    ),
    "darwin": (
        ".json",
        lambda label: json.dumps({"item": {"name": "x"}, "annotations": [{"name": label}]}),
    ),
    "labelme": (
        ".json",
        lambda label: json.dumps(
            {"imagePath": "x", "flags": {label: True, "x": False}, "shapes": []}
        ),
    ),
    "voc": (".xml", "<annotation><object><name>{}</name></object></annotation>".format),
    "yolo": (".txt", lambda label: f"{NUMBERS[label]} 0.5 0.5 0.1 0.1\n"),
}
NUMBERS = {"cat": 0, "dog": 1}
# What several programs write. They are asked after the formats of one program.
GENERAL = {"json-lines", "json-object", "json-records", WORDS, CSV}


def write(kind, rows):
    name, write_rows = SAMPLES[kind]
    return name, write_rows(rows).encode("latin-1" if kind == "parquet" else "utf-8")


@pytest.fixture
def root(tmp_path):
    return make_folder(tmp_path / "album", [f"train/{name}" for name in (*LABELS, UNLABELED)])


def test_each_reader_has_a_sample():
    assert SAMPLES.keys() == {name for name, one in FORMATS.items() if one.read}
    assert SIDECAR_SAMPLES.keys() == {name for name, one in FORMATS.items() if one.read_one}
    for kind, (name, _) in SAMPLES.items():
        assert name.endswith(FORMATS[kind].endings)
    for kind, (ending, _) in SIDECAR_SAMPLES.items():
        assert FORMATS[kind].endings == (ending,)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_reader_claims_its_sample_and_no_other(kind):
    for other in SAMPLES:
        file = LabelFile(write(other, ROWS)[1])
        assert (find_format(file) == kind) == (other == kind)
        try:
            is_claimed = FORMATS[kind].claims(file)
        except PARSE_ERRORS:
            is_claimed = False
        assert is_claimed == (other == kind) or kind in GENERAL


@pytest.mark.parametrize("kind", SIDECAR_SAMPLES)
def test_a_reader_of_files_about_an_image_claims_its_sample_and_no_other(tmp_path, kind):
    for other, (ending, write_label) in SIDECAR_SAMPLES.items():
        file = LabelFile(write_label("cat").encode(), tmp_path / f"a{ending}")
        if ending in FORMATS[kind].endings:
            assert FORMATS[kind].knows(file) == (other == kind)
    ending, write_label = SIDECAR_SAMPLES[kind]
    files = {f"photos/{file[0]}{ending}": write_label(label) for file, label in LABELS.items()}
    make_folder(tmp_path, [f"photos/{file}" for file in LABELS], files)
    labels = {f"photos/{k}": str(NUMBERS[v]) if kind == "yolo" else v for k, v in LABELS.items()}
    layout = read_layout(tmp_path)
    assert get_labels(layout.train) == labels
    assert layout.table == f"photos/*{ending}: files in file, classes in label; 3 of 3 rows found."
    assert layout.skipped == []
    (tmp_path / "photos/a").with_suffix(ending).write_bytes(b"\xff")
    with pytest.raises(UserError, match=rf"'photos/a{ending}' cannot be read .*: repair or remove"):
        read_layout(tmp_path)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_reader_gives_the_labels_to_each_command(root, tmp_path, kind):
    name, content = write(kind, ROWS)
    path = tmp_path / name
    path.write_bytes(content)
    import_labels(root, path)  # cls-jax labels --from
    assert get_labels(read_layout(root).train) == IN_TRAIN
    (root / "labels.csv").unlink()
    options = FolderOptions(labels=str(path))  # --labels
    layout = read_layout(root, options)
    assert get_labels(layout.train) == IN_TRAIN
    assert layout.table.startswith(f"{path}: files in ")

    for folder in ("", "train"):
        inside = root / folder / name
        shutil.copy(path, inside)
        layout = read_layout(root)  # cls-jax train
        assert get_labels(layout.train) == IN_TRAIN
        assert len(layout.train) == len(ROWS)
        assert layout.table.startswith(f"{inside.relative_to(root)}: files in ")
        num_rows = len(LABELS) + (kind != WORDS)
        assert layout.table.endswith(f"; {num_rows} of {num_rows} rows found.")
        session = open_session(root)  # cls-jax label
        assert sorted(session.known.class_names) == ["cat", "dog"]
        found = open_catalog(root).labelable()  # cls-jax suggest
        assert sum(map(bool, found.values())) == len(LABELS)
        assert inside.read_bytes() == content
        inside.unlink()


@pytest.mark.parametrize("kind", SAMPLES)
def test_rows_in_any_order_give_the_same_labels_and_unknown_files_are_named(root, kind):
    for rows in itertools.permutations([*LABELS.items(), ("gone.png", "dog")]):
        name, content = write(kind, rows)
        (root / name).write_bytes(content)
        layout = read_layout(root)
        assert get_labels(layout.train) == IN_TRAIN
        assert layout.table.endswith("; 3 of 4 rows found.")
        (warning,) = layout.warnings
        assert warning.startswith(f"1 row of {name} is left out, such as ")
        assert "gone.png" in warning


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_damaged_file_or_one_about_others_is_left_out(root, kind):
    name, content = write(kind, ROWS)
    half = content[: len(content) // 2]
    for text in (half, content.replace(b".png", b"-x.png"), b"", b"{", b"[1]"):
        (root / name).write_bytes(text)
        if text == half and kind in (CSV, "json-lines", WORDS):
            continue  # Its first rows can be read.
        with pytest.raises(UserError, match=r"has no labeled image"):
            read_layout(root)
    (root / name).write_bytes(half + b"\xff")
    with pytest.raises(UserError, match=rf"{name} cannot be read as"):
        read_layout(root, labels=name)


PHOTOS = [f"photos/{i}.png" for i in range(1, 5)]


def test_a_table_without_a_place_for_labels_stays_as_it_is(tmp_path):
    one_hot = "filename, red, blue\n1.png,1,0\n2.png,0,1\n3.png,0,0\n"
    root = make_folder(tmp_path, PHOTOS, {"labels.csv": one_hot})
    with pytest.raises(UserError, match=r"labels.csv has a column for each class, .*: rename it"):
        open_session(root)
    catalog = open_catalog(root)
    row = LabelRow("photos/3.png", "red", LABEL, "2026-01-01T00:00:00.000000Z")
    with pytest.raises(UserError, match="has a column for each class"):
        append_rows(root / "labels.csv", [row], catalog.table, catalog.folder.files)
    assert (root / "labels.csv").read_text() == one_hot
    (root / "labels.csv").rename(root / "given.csv")
    assert sorted(open_session(root).known.class_names) == ["blue", "red"]


@pytest.mark.parametrize(
    ("table", "content"),
    {
        "Site1/TimelapseData.csv": "File,RelativePath,Species\n1.jpg,CAM,elk\n2.jpg,CAM,fox\n",
        "table.csv": "PK,image,label\n1,Site1/CAM/1.jpg,elk\n2,Site1/CAM/2.jpg,fox\n",
    }.items(),
)
def test_a_table_is_imported_as_training_reads_it(tmp_path, table, content):
    names = [f"Site{k}/{cam}/{i}.jpg" for k in (1, 2) for cam in ("CAM", "CAM2") for i in (1, 2)]
    root = make_folder(tmp_path, names, {table: content})
    labels = {"Site1/CAM/1.jpg": "elk", "Site1/CAM/2.jpg": "fox"}
    assert get_labels(read_layout(root, labels=table).train) == labels
    assert get_labels(read_layout(root).train) == labels
    assert import_labels(root, root / table).num_added == 2
    (root / table).unlink()
    assert get_labels(read_layout(root).train) == labels


def test_names_are_indexed_once(tmp_path, monkeypatch):
    folded = []
    cut = index._cut_stem
    monkeypatch.setattr(index, "_cut_stem", lambda name: folded.append(name) or cut(name))
    names = [f"site{k}/{i}.png" for k in (1, 2) for i in range(6)]
    rows = "".join(f"{name},{i},{i % 2},x\n" for i, name in enumerate(names))
    tables = dict.fromkeys(("train.csv", "labels.csv"), f"file,number,label,site\n{rows}")
    open_catalog(make_folder(tmp_path, names, tables)).train()
    assert sorted(folded) == names


def test_absolute_paths_are_those_of_these_files(tmp_path):
    root, other = (make_folder(tmp_path / name, PHOTOS) for name in ("album", "other"))
    table = "file,label\n{0}/photos/1.png,cat\n{0}/photos/2.png,dog\n"
    (root / "labels.csv").write_text(table.format(root))
    assert get_labels(read_layout(root).train) == {"photos/1.png": "cat", "photos/2.png": "dog"}
    (root / "labels.csv").write_text(table.format(other))
    with pytest.raises(UserError, match=r"No row of labels\.csv names an image of"):
        read_layout(root)


@pytest.mark.parametrize("kind", range(4))
def test_corrected_predictions_are_labels(tmp_path, monkeypatch, kind):
    from cls_jax.photos.inference.tables import PREDICTION_TABLES, write_table

    columns = PREDICTION_TABLES[kind]
    root = make_folder(tmp_path / "album", PHOTOS)
    monkeypatch.chdir(tmp_path)
    rows = [
        {"file": f"album/photos/{i}.png", "label": label, "confidence": 0.5, "top5": "cat:1;dog:0"}
        | {"second_label": "dog", "second_confidence": 0.25, "unknown": 0.5, "foreign": False}
        for i, label in ((1, "cat"), (2, "dog"), (3, "cat"))
    ]
    rows.append({"file": "album/photos/4.png", "error": "damaged"})
    write_table(root / "labels.csv", columns, rows)
    assert [label for _, label in read_layout(root).train] == ["cat", "dog", "cat", ""]


def test_a_plan_says_how_many_files_are_left_out_and_why(tmp_path):
    root = make_folder(tmp_path, [f"labeled/{name}/1.png" for name in ("cat", "dog")])
    assert describe_left_out(read_layout(root).skipped) is None
    make_folder(root, [*(f"{i}.png" for i in range(5)), "notes.txt"])
    (root / "labeled/cat/2.png").symlink_to("/nowhere")
    assert describe_left_out(read_layout(root).skipped) == (
        "7 files are left out: outside of a class folder ('0.png', '1.png', '2.png' and 2 more); "
        "a broken link ('labeled/cat/2.png'); no image extension ('notes.txt')."
    )
