"""Classes with numbers get their names from a file beside them, if it fits all of them."""

import json

import pytest

from tests.photos.helpers import make_folder, open_catalog
from tests.photos.helpers import read_layout as read

NAMES = ("cat", "dog", "big owl")
WORDNET = ("n01440764", "n01443537", "n01484850")
FILES = {
    "classes.txt": "cat\ndog\nbig owl\n",
    "obj.names": "cat\ndog\nbig owl",
    "data.yaml": "nc: 3\nnames: ['cat', 'dog', 'big owl']\ntrain: ../train\n",
    "dataset.yaml": "path: x\nnames:\n  0: cat\n  1: dog\n  2: big owl\n",
    "label_map.txt": "0 cat\n1 dog\n2 big owl\n",
    "map.txt": "0: cat\n1: dog\n2: big owl\n",
    "signnames.csv": "ClassId,SignName\n0,cat\n1,dog\n2,big owl\n",
    "names.tsv": "cat\t0\ndog\t1\nbig owl\t2\n",
    "label_num_to_disease_map.json": json.dumps({"0": "cat", "1": "dog", "2": "big owl"}),
    "class_indices.json": json.dumps({"cat": 0, "dog": 1, "big owl": 2}),
    "labels.json": json.dumps(NAMES),
    "config.json": json.dumps({"model": "x", "id2label": {"0": "cat", "1": "dog", "2": "big owl"}}),
    "dataset_infos.json": json.dumps({"d": {"features": {"label": {"names": NAMES}}}}),
    "README.md": "---\ndataset_info:\n  features:\n  - name: label\n    dtype:\n"
    "      class_label:\n        names:\n          '0': cat\n          '1': dog\n"
    "          '2': big owl\n---\n# Pets\n",
}


def make(root, labels, **files):
    names = [f"{label}/{i}.png" for i, label in enumerate(labels)]
    return make_folder(root, names, files)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("labels", [("0", "1", "2"), ("00000", "00001", "00002")])
def test_folders_with_numbers_get_names(tmp_path, name, labels):
    root = make(tmp_path, labels)
    (root / name).write_text(FILES[name])
    layout = read(root)
    assert {file.name: label for file, label in layout.train} == {
        f"{label}/{i}.png": NAMES[i] for i, label in enumerate(labels)
    }
    ends = f"from {labels[0]} = cat to {labels[-1]} = big owl"
    assert layout.table == f"{name}: names of 3 classes, {ends.replace('0000', '')}."
    assert layout.skipped == []  # The file is read, so it is not left out.
    assert set(open_catalog(root).labelable().values()) == set(NAMES)
    marks = open_catalog(root).start_marks()
    assert {mark.label for mark in marks.files.values()} == set(NAMES)


@pytest.mark.parametrize("table", ["labels.csv", "train.csv"])
def test_numbers_in_a_table_get_names(tmp_path, table):
    root = make(tmp_path, ["photos"] * 4)
    (root / table).write_text("file,label\n0.png,0\n1.png,1.0\n2.png,2\n3.png,2\n")
    (root / "classes.txt").write_text(FILES["classes.txt"])
    layout = read(root)
    labels = [label for _, label in layout.train]
    assert labels == ["cat", "dog", "big owl", "big owl"]
    assert "4 of 4 rows found. classes.txt: names of 3 classes, from 0 = " in layout.table


@pytest.mark.parametrize(
    ("labels", "files", "warning"),
    [
        (("0", "1", "2"), {"classes.txt": "cat\ndog\n"}, "'classes.txt' does not name the classes"),
        # 0 or 1 may be the first.
        (("1", "2"), {"classes.txt": "a\nb\nc\n"}, "'classes.txt' does not name the classes"),
        (("0", "1", "2"), {"map.json": '{"0": "cat", "1": "dog"}'}, ""),
        (("0", "1", "2"), {"classes.txt": "cat\ncat\ndog\n"}, "does not name the classes"),
        (
            ("0", "1"),
            {"a.json": '{"0": "cat", "1": "dog"}', "b.json": '{"0": "dog", "1": "cat"}'},
            "Both 'a.json' and 'b.json' have names",
        ),
        (("0", "1", "2"), {"README.txt": "Cats.\nDogs.\nOwls.\n"}, ""),
        (("0", "1", "2"), {"x.yaml": "a: [", "x.json": "{", "x.txt": "\0"}, ""),
        (("0", "1", "a"), {"classes.txt": "cat\ndog\nowl\n"}, ""),
    ],
)
def test_names_that_do_not_fit_leave_numbers(tmp_path, labels, files, warning):
    root = make(tmp_path, labels)
    for name, content in files.items():
        (root / name).write_text(content)
    layout = read(root)
    assert layout.class_names == labels
    assert [warning in one for one in layout.warnings] == [True] * bool(warning)
