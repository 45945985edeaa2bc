"""Images with several tags, as tables, folders and the log of labels have them."""

import json

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.dataset import load_folder, summarize_folder
from cls_jax.photos.folder.exchange import WRITERS, export_labels, import_labels
from cls_jax.photos.folder.kinds import read_sets
from cls_jax.photos.folder.log import compare_checks
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.plan.rules import create_folder_config
from tests.photos.helpers import get_labels, open_catalog, read_layout, write_images

TAGS = AUTOMATIC._replace(tags=True)
CAT_DOG = {"0.png": "cat;dog", "1.png": "dog", "2.png": "bird"}


def make_folder(root, files):
    write_images(root, {"": 6})
    for name, text in files.items():
        (root / name).write_text(text)
    return root


def read_labels(root, options=TAGS):
    return get_labels(open_catalog(root, options).train().train)


def write_label_studio(classes):
    choice = {"type": "choices", "from_name": "c", "value": {"choices": classes}}
    return [{"result": [choice]}]


COCO = {
    "images": [{"id": i, "file_name": f"{i}.png"} for i in range(4)],
    "categories": [{"id": i, "name": name} for i, name in enumerate(["cat", "dog", "bird"])],
    "annotations": [
        {"image_id": image, "category_id": name}
        for image, name in [(0, 1), (0, 0), (0, 1), (1, 1), (2, 2)]
    ],
}
LABEL_STUDIO = [
    {"data": {"image": f"{i}.png"}, "annotations": write_label_studio(label.split(";"))}
    for i, label in enumerate(CAT_DOG.values())
]
FIFTYONE = {"classes": ["cat", "dog", "bird"], "labels": {"0": [0, 1], "1": 1, "2": [2]}}
SAMPLES = {
    "samples": [
        {
            "filepath": file,
            "ground_truth": {
                "_cls": "Classifications",
                "classifications": [{"label": tag} for tag in label.split(";")],
            },
        }
        for file, label in CAT_DOG.items()
    ]
}
CVAT = "".join(
    f'<image name="{file}">{"".join(f"<tag label={tag!r}/>" for tag in label.split(";"))}</image>'
    for file, label in CAT_DOG.items()
)
FORMS = {
    "semicolons": ("x.csv", "file,label\n0.png,dog;cat\n1.png,dog\n2.png,bird\n"),
    "bars": ("x.csv", "file,label\n0.png,cat | dog\n1.png,dog\n2.png,bird\n"),
    "commas": ("x.csv", 'file,label\n0.png,"cat, dog"\n1.png,dog\n2.png,bird\n'),
    "blanks": ("x.csv", "file,tags\n0.png,cat dog\n1.png,dog\n2.png,bird\n"),
    "a list": ("x.csv", "file,label\n0.png,\"['cat', 'dog']\"\n1.png,['dog']\n2.png,bird\n"),
    "a row per tag": ("labels.csv", "file,label\n0.png,cat\n1.png,dog\n0.png,dog\n2.png,bird\n"),
    "0 and 1": ("x.csv", "file,bird,cat,dog\n0.png,0,1,1\n1.png,0,0,1\n2.png,1,0,0\n"),
    "numbers": ("x.csv", "file,label\n0.png,0;1\n1.png,1\n2.png,2\n"),
    "COCO": ("x.json", json.dumps(COCO)),
    "Label Studio": ("x.json", json.dumps(LABEL_STUDIO)),
    "FiftyOne": ("labels.json", json.dumps(FIFTYONE)),
    "FiftyOne's samples": ("samples.json", json.dumps(SAMPLES)),
    "CVAT": ("x.xml", f"<annotations>{CVAT}</annotations>"),
    "JSON lines": (
        "metadata.jsonl",
        "\n".join(
            json.dumps({"file_name": file, "label": label.split(";")})
            for file, label in CAT_DOG.items()
        ),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_several_tags_are_read_as_other_programs_write_them(tmp_path, form):
    name, text = FORMS[form]
    names = {"classes.txt": "cat\ndog\nbird\n"} if form == "numbers" else {}
    root = make_folder(tmp_path, {name: text, **names})
    assert read_labels(root) == CAT_DOG
    assert "tags in" in open_catalog(root, TAGS).train().table


@pytest.mark.parametrize("form", sorted({*FORMS} - {"blanks", "a row per tag", "commas"}))
def test_without_the_option_several_tags_are_refused_with_it(tmp_path, form):
    name, text = FORMS[form]
    with pytest.raises(UserError, match="pass --tags if images may have several"):
        read_labels(make_folder(tmp_path, {name: text}), AUTOMATIC)


def test_a_row_per_tag_is_one_class_without_the_option_and_says_so(tmp_path):
    root = make_folder(tmp_path, dict([FORMS["a row per tag"]]))
    assert read_labels(root, AUTOMATIC)["0.png"] == "dog"
    assert "Pass --tags" in " ".join(open_catalog(root).train().warnings)


def test_cells_of_a_tag_that_are_neither_0_nor_1_leave_it_open(tmp_path):
    text = "file,bird,cat,dog\n0.png,,1,0\n1.png,0,-1,1.0\n2.png,0,0,0\n3.png,,,\n"
    root = make_folder(tmp_path, {"x.csv": text})
    assert read_labels(root) == {"0.png": "?bird;cat", "1.png": "?cat;dog", "2.png": ";"}
    sets = read_sets(open_catalog(root, TAGS).train().class_names)
    assert sets.names == ("bird", "cat", "dog")
    np.testing.assert_array_equal(sets.values, [[0, 0, 0], [-1, 1, 0], [0, -1, 1]])
    np.testing.assert_array_equal(sets.mark(np.array([1, -1]))[1], [-1, -1, -1])


LOG = """file,label,decision,time
0.png,cat;Dog,label,2026-01-01T00:00:00.000000Z
1.png,,none,2026-01-01T00:00:01.000000Z
2.png,dog,check 0.1 0.9 cat;dog,2026-01-01T00:00:02.000000Z
3.png,dog;cat,check 0.1 0.8 cat;dog,2026-01-01T00:00:03.000000Z
4.png,,skip,2026-01-01T00:00:04.000000Z
5.png,,none 0.1 0.7 ;,2026-01-01T00:00:05.000000Z
"""


def test_the_log_has_tags_and_none_of_them(tmp_path):
    catalog = open_catalog(make_folder(tmp_path, {"labels.csv": LOG}), TAGS)
    assert catalog.labelable() == {
        "0.png": "Dog;cat",
        "1.png": ";",
        "2.png": "Dog",
        "3.png": "Dog;cat",
        "4.png": None,
        "5.png": ";",
    }
    assert compare_checks(catalog.marks).is_right == [False, True, True]
    assert catalog.marks.find_used() == {"cat", "dog"}


def test_labels_joined_by_semicolons_are_asked_about_without_the_option(tmp_path):
    root = make_folder(tmp_path, {"labels.csv": LOG})
    for use in (read_layout, open_session):
        with pytest.raises(UserError, match="'cat;Dog' may be one class or several: pass --tags"):
            use(root)


@pytest.mark.parametrize("name", WRITERS)
def test_tags_are_written_and_read_again(tmp_path, name):
    root = make_folder(tmp_path / "a", dict([FORMS["0 and 1"]]))
    file = tmp_path / "labels.out"
    assert export_labels(root, file, name, TAGS) == 3
    other = make_folder(tmp_path / "b", {})
    import_labels(other, file, name, TAGS)
    assert read_labels(other) == CAT_DOG


def test_open_tags_are_written_to_tables_only(tmp_path):
    text = "file,cat,dog\n0.png,1,\n1.png,0,1\n2.png,0,0\n"
    root = make_folder(tmp_path, {"x.csv": text})
    export_labels(root, tmp_path / "a.out", "csv", TAGS)
    assert (tmp_path / "a.out").read_text().splitlines()[1:] == [
        "0.png,?dog;cat",
        "1.png,dog",
        "2.png,;",
    ]
    export_labels(root, tmp_path / "b.out", "json-lines", TAGS)
    assert "?dog" not in (tmp_path / "b.out").read_text()


def load(root):
    config = create_folder_config(str(root), "cls").data
    config.tags = True
    return load_folder(config)


def test_an_image_in_two_class_folders_has_both_tags(tmp_path):
    write_images(tmp_path, {"cat": 2, "dog": 1, "unlabeled": 1})
    (tmp_path / "dog/1.png").write_bytes((tmp_path / "cat/0.png").read_bytes())
    dataset = load(tmp_path)
    labels = [dataset.class_names[k] if k >= 0 else "" for k in dataset.train.labels]
    assert dict(zip(dataset.train.files, labels, strict=True)) == {
        "cat/0.png": "cat;dog",
        "cat/1.png": "cat",
        "dog/0.png": "dog",
        "unlabeled/0.png": "",
    }
    assert ("dog/1.png", "the same image as cat/0.png") in dataset.skipped_files


def test_sets_of_tags_that_only_test_images_have_are_known(tmp_path):
    text = (
        "file,label,split\n0.png,cat,train\n1.png,dog,train\n2.png,cat;dog,test\n3.png,bat,test\n"
    )
    root = make_folder(tmp_path, {"x.csv": text})
    layout = open_catalog(root, TAGS).train()
    assert [label for _, label in layout.test] == ["cat;dog"]
    assert "test/ has 1 class that no labeled image has" in " ".join(layout.warnings)
    assert load(root).class_names == ("cat", "cat;dog", "dog")
    summary = summarize_folder(root, TAGS)
    assert (summary.class_counts, summary.num_labeled) == ({"cat": 1, "dog": 1}, 2)


def test_a_tag_whose_images_are_all_damaged_is_named(tmp_path):
    root = make_folder(tmp_path, dict([FORMS["semicolons"]]))
    (root / "2.png").write_bytes(b"x")
    with pytest.raises(UserError, match="None of the labeled images of class 'bird' can be read"):
        load(root)
