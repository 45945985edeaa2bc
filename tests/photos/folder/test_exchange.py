"""Labels of other programs, in files as these programs write them."""

import io
import json
import zipfile

import pytest
from PIL import Image

from cls_jax.errors import UserError
from cls_jax.photos.cli import console
from cls_jax.photos.folder.exchange import WRITERS, import_labels
from tests.photos.helpers import get_labels, place, read_layout

NAMES = [f"photos/{name}.png" for name in ("my cat", "é", "3", "4")]
LABELS = {NAMES[0]: "cat", NAMES[1]: "dög", NAMES[2]: "cat"}


def answer(*names, kind="choices", question="choice"):
    value = {"from_name": question, "to_name": "image", "type": kind, "value": {kind: list(names)}}
    return {"id": 1, "was_cancelled": False, "result": [value]}


def archive(content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("annotations.xml", content)
    return buffer.getvalue()


LABEL_STUDIO = [
    {
        "id": 5,
        "data": {"image": "/data/upload/1/0a1b2c3d-my%20cat.png", "ref": "x"},
        "annotations": [answer("cat")],
        "predictions": [answer("wrong")],
    },
    {"data": {"image": "/data/upload/1/0a1b2c3e-é.png"}, "annotations": [answer("dög")]},
    {
        "data": {"image": "/data/upload/1/0a1b2c3f-3.png"},
        "annotations": [{**answer("wrong"), "was_cancelled": True}, answer("cat")],
    },
    {"data": {"image": "/data/upload/1/0a1b2c40-4.png"}, "annotations": []},
]
MINIMAL = [
    {
        "image": "/data/local-files/?d=photos%2Fmy%20cat.png",
        "id": 3,
        "choice": "cat",
        "annotator": 1,
    },
    {"image": "/data/local-files/?d=photos/é.png", "id": 4, "choice": "dög", "user": 1},
    {"image": "/data/local-files/?d=photos/3.png", "id": 5, "choice": {"choices": ["cat"]}},
    {"image": "/data/local-files/?d=photos/4.png", "id": 6},
]
LABEL_STUDIO_CSV = """annotation_id,annotator,choice,created_at,id,image,lead_time,updated_at
1,1,cat,2026-01-01T00:00:00Z,4,/data/upload/1/0a1b2c3d-my%20cat.png,1.5,2026-01-01T00:00:00Z
2,1,dög,2026-01-01T00:00:01Z,3,/data/upload/1/0a1b2c3e-é.png,1.25,2026-01-01T00:00:00Z
3,1,cat,2026-01-01T00:00:02Z,2,/data/upload/1/0a1b2c3f-3.png,0.5,2026-01-01T00:00:00Z
"""
IMAGES = """<image id="0" name="my cat.png" width="4" height="4" subset="default">
    <tag label="cat" source="manual"><attribute name="sure">yes</attribute></tag></image>
  <image id="1" name="é.png" width="4" height="4"><tag label="dög" source="manual"/></image>
  <image id="2" name="3.png" width="4" height="4"><tag label="cat"/></image>
  <image id="3" name="4.png" width="4" height="4"></image>"""
XML = f"""<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><name>pets</name></task></meta>
  {IMAGES}</annotations>"""
FIFTYONE = {"classes": ["cat", "dög"], "labels": {"my cat": 0, "é": 1, "3": 0, "4": None}}
SAMPLES = [
    {
        "filepath": f"data/{name.split('/')[1]}",
        "tags": ["train"],
        "metadata": {"_cls": "ImageMetadata"},
        "ground_truth": {"_cls": "Classification", "label": label},
        "model": {"_cls": "Classification", "label": "wrong"},
    }
    for name, label in LABELS.items()
]


def dump(value):
    return json.dumps(value).encode()


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "around" / "album"
    for i, name in enumerate(NAMES):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(place(folder, name))
    return folder


OTHER_PROGRAMS = {
    "Label Studio JSON": dump(LABEL_STUDIO),
    "Label Studio JSON-MIN": dump(MINIMAL),
    "Label Studio CSV": LABEL_STUDIO_CSV.encode(),
    "CVAT XML": XML.encode(),
    "CVAT archive": archive(XML),
    "FiftyOne labels": dump(FIFTYONE),
    "FiftyOne labels with attributes": dump(
        {"classes": None, "labels": {k: {"label": v} for k, v in LABELS.items()}}
    ),
    "FiftyOne samples": dump({"samples": SAMPLES}),
}


@pytest.mark.parametrize("content", OTHER_PROGRAMS.values(), ids=OTHER_PROGRAMS)
def test_labels_of_other_programs_are_added_once(root, tmp_path, content):
    path = tmp_path / "export"
    path.write_bytes(content)
    found = import_labels(root, path)
    assert (found.num_added, found.num_known) == (3, 0)
    dropped = [
        "The names in export begin with 'data', which is not in the folder: they were looked "
    ]
    assert found.warnings == [f"{text}up without it." for text in dropped if b"data/m" in content]
    assert found.sentence.startswith("export: files in ")
    assert get_labels(read_layout(root).train) == LABELS
    written = (root / "labels.csv").read_bytes()
    name = "label-studio" if content.startswith((b"[", b"annotation_id")) else ""
    found = import_labels(root, path, name)
    assert (found.num_added, found.num_known) == (0, 3)
    assert (root / "labels.csv").read_bytes() == written


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (dump([{"data": {"image": "3.png"}, "annotations": [answer("cat", "dog")]}]), "several"),
        (
            dump(
                [{"data": {"image": "3.png"}, "annotations": [answer("a", kind="rectanglelabels")]}]
            ),
            "regions of images, and no choices",
        ),
        (
            dump(
                [
                    {"data": {"image": "3.png"}, "annotations": [answer("cat", question=name)]}
                    for name in ("animal", "quality")
                ]
            ),
            r"classes in 'animal', 'quality': pass --label-column",
        ),
        (XML.replace("tag", "box").encode(), "regions of images, and no tags"),
        (
            XML.replace("</image>", '<tag label="owl"/></image>').encode(),
            "several classes, 'cat', 'owl'",
        ),
        (b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "has a document type"),
        (XML[:200].encode(), "cannot be read as labels of cvat"),
        (b"PK\x03\x04", "cannot be read as labels of cvat"),
        (dump({"classes": ["cat"], "labels": {"3": 7}}), "cannot be read as labels of fiftyone"),
        (dump({"samples": [{"filepath": "3.png"}]}), "no sample has a classification"),
        (dump([1]), "it is no list of tasks"),
        (b"[" * 100_000, "cannot be read as labels of label-studio"),
    ],
    ids=range(12),
)
def test_what_has_no_class_per_image_is_refused(root, tmp_path, content, sentence):
    (tmp_path / "export").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        import_labels(root, tmp_path / "export")
    assert not (root / "labels.csv").exists()


def test_images_for_testing_and_rows_without_an_image_are_named(root, tmp_path):
    Image.new("RGB", (4, 4)).save(place(root, "test/cat/5.png"))
    samples = [
        {"filepath": name, "tags": [tag], "label": {"_cls": "Classification", "label": "cat"}}
        for name, tag in [("3.png", "test"), ("4.png", ""), ("5.png", ""), ("6.png", "")]
    ]
    (tmp_path / "samples.json").write_bytes(dump({"samples": samples}))
    (root / "labels.csv").write_text("file,label\nphotos/4.png,dog\n")
    found = import_labels(root, tmp_path)  # The folder of an export.
    assert found.num_added == 1
    left_out, held_out, replaced = found.warnings
    assert "1 row of samples.json is left out, such as '6.png', which fits no image" in left_out
    assert "2 images for testing or validation got no label, such as 'photos/3.png'" in held_out
    assert "1 image had another label before, such as 'photos/4.png'" in replaced
    assert (root / "labels.csv").read_text().endswith("photos/4.png,dog\nphotos/4.png,cat\n")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *zip(WRITERS, ["a.json", "a.zip", "a.txt", "b.json", "c.json", "a.csv"], strict=True),
        ("", "a.xml"),
        ("", "b.jsonl"),
    ],
)
def test_written_labels_are_read_again(root, tmp_path, monkeypatch, capsys, name, file):
    rows = "".join(f"{name},{label}\n" for name, label in LABELS.items())
    (root / "labels.csv").write_text("file,label\n" + rows)
    words = [*filter(None, [name]), str(tmp_path / file)]

    def run(*words):
        console.run(console.parse_arguments(["labels", str(root), *words]))

    for way in ("--to", "--from"):
        run(way, *words)
        (root / "labels.csv").unlink(missing_ok=True)
    assert "3 labels: " in capsys.readouterr().out
    run("--from", *words)
    assert f"3 labels added to {root / 'labels.csv'}." in capsys.readouterr().out
    assert get_labels(read_layout(root).train) == LABELS
    for mistaken, sentence in (
        (["--to", *words], "exists: choose a new file"),
        (
            ["--to", str(tmp_path / "d.json")],
            r"not tell the format: .* --to label-studio .*d\.json",
        ),
        (["--from", "yolo", "file"], "and before it one of coco, cvat, json-lines, fiftyone"),
    ):
        with pytest.raises(UserError, match=sentence):
            run(*mistaken)
