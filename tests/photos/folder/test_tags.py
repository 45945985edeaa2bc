"""Images with several tags, as tables, folders and the log of labels have them."""

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
from tests.photos.helpers import get_labels, make_folder, open_catalog, read_layout, write_images

TAGS = AUTOMATIC._replace(tags=True)
CAT_DOG = {"0.png": "cat;dog", "1.png": "dog", "2.png": "bird"}
TABLE = "file,label\n0.png,dog;cat\n1.png,dog\n2.png,bird\n"


def make(root, files):
    return make_folder(write_images(root, {"": 6}), (), files)


def read_labels(root, options=TAGS):
    return get_labels(open_catalog(root, options).train().train)


def test_cells_of_a_tag_that_are_neither_0_nor_1_leave_it_open(tmp_path):
    text = "file,bird,cat,dog\n0.png,,1,0\n1.png,0,-1,1.0\n2.png,0,0,0\n3.png,,,\n"
    root = make(tmp_path, {"x.csv": text})
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
    catalog = open_catalog(make(tmp_path, {"labels.csv": LOG}), TAGS)
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
    root = make(tmp_path, {"labels.csv": LOG})
    for use in (read_layout, open_session):
        with pytest.raises(UserError, match="'cat;Dog' may be one class or several: pass --tags"):
            use(root)


@pytest.mark.parametrize("name", WRITERS)
def test_tags_are_written_and_read_again(tmp_path, name):
    root = make(tmp_path / "a", {"x.csv": TABLE})
    file = tmp_path / "labels.out"
    assert export_labels(root, file, name, TAGS) == 3
    other = make(tmp_path / "b", {})
    import_labels(other, file, name, TAGS)
    assert read_labels(other) == CAT_DOG


def test_open_tags_are_written_to_tables_only(tmp_path):
    text = "file,cat,dog\n0.png,1,\n1.png,0,1\n2.png,0,0\n"
    root = make(tmp_path, {"x.csv": text})
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
    root = make(tmp_path, {"x.csv": text})
    layout = open_catalog(root, TAGS).train()
    assert [label for _, label in layout.test] == ["cat;dog"]
    assert "test/ has 1 class that no labeled image has" in " ".join(layout.warnings)
    assert layout.skipped[-1] == ("3.png", "a test image of a class without labeled images")
    assert load(root).class_names == ("cat", "cat;dog", "dog")
    summary = summarize_folder(root, TAGS)
    assert (summary.class_counts, summary.num_labeled) == ({"cat": 1, "dog": 1}, 2)


def test_a_tag_whose_images_are_all_damaged_is_named(tmp_path):
    root = make(tmp_path, {"x.csv": TABLE})
    (root / "2.png").write_bytes(b"x")
    with pytest.raises(UserError, match="None of the labeled images of class 'bird' can be read"):
        load(root)
