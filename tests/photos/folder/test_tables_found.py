"""Tables of other programs are found by their content, wherever they lie among the images."""

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.exchange import import_labels
from cls_jax.photos.folder.label_table import LABEL, LabelRow, append_rows
from cls_jax.photos.labeling.photos import open_session
from tests.photos.helpers import get_labels, make_folder, open_catalog
from tests.photos.helpers import read_layout as read

PHOTOS = [f"photos/{i}.png" for i in range(1, 5)]
ROWS = "1.png,cat\n2.png,dog\n3.png,cat\n"
RIGHT = {"photos/1.png": "cat", "photos/2.png": "dog", "photos/3.png": "cat"}


def make(root, names, **tables):
    """A folder with empty images and these tables, "__" for "/" and "_csv" for ".csv"."""
    paths = [name.replace("__", "/").rpartition("_") for name in tables]
    files = [f"{stem}.{suffix}" for stem, _, suffix in paths]
    return make_folder(root, names, zip(files, tables.values(), strict=True))


ONE_HOT = "filename, red, blue\n1.png,1,0\n2.png,0,1\n3.png,0,0\n"


@pytest.mark.parametrize("name", ["labels_csv", "_classes_csv"])
def test_a_column_for_each_class_is_read(tmp_path, name):
    root = make(tmp_path, PHOTOS, **{name: ONE_HOT})
    layout = read(root)
    assert get_labels(layout.train) == {"photos/1.png": "red", "photos/2.png": "blue"}
    assert "files in filename, classes in 2 columns of 0 and 1; 3 of 3 rows" in layout.table
    assert layout.warnings[0].endswith(" has no 1, and so no label.")


def test_tables_for_each_part_count_together(tmp_path):
    rows = [f"{name},{label}" for name, label in zip("1234", "abba", strict=True)]
    tables = {
        f"labels_{part}_csv": "id,label\n" + "\n".join(rows[i : i + 2])
        for i, part in ((0, "train"), (2, "val"))
    }
    layout = read(make(tmp_path, PHOTOS, **tables))
    assert get_labels(layout.train) == {"photos/1.png": "a", "photos/2.png": "b"}
    assert get_labels(layout.validation) == {"photos/3.png": "b", "photos/4.png": "a"}
    assert "labels_val.csv: files in id, classes in label, validation images; 2 of" in layout.table
    (tmp_path / "labels_val.csv").write_text("id,label\n1,a\n")
    with pytest.raises(UserError, match=r"Both 'labels_train.csv' and 'labels_val.csv' name"):
        read(tmp_path)


def test_two_tables_are_asked_about(tmp_path):
    content = f"file,label\n{ROWS}"
    root = make(tmp_path, PHOTOS, a_csv=content, b_csv=content)
    for use in (read, lambda root: open_catalog(root).labelable()):
        with pytest.raises(UserError, match=r"Both 'a.csv' and 'b.csv' name images"):
            use(root)
    (root / "b.csv").rename(root / "labels.csv")
    assert read(root).table.startswith("labels.csv")
    root = make(tmp_path / "same", ["x/1.png", "x/2.png"], a_csv=content, x__a_csv=content)
    with pytest.raises(UserError, match=r"Both 'a.csv' and 'x/a.csv' name images"):
        read(root)


@pytest.mark.parametrize(
    "content",
    {
        "predictions": "file,label,confidence,unknown\n1.png,cat,0.9,0\n2.png,dog,0.8,0\n",
        "sorted on the page": "file,label,source,probability\n1.png,a,label,\n2.png,b,unsure,1\n",
        "labels during training": "file,label,weight\n1.png,cat,0.9\n2.png,dog,1.0\n",
        "suspects": "rank,file,label,suggested,quality\n1,1.png,a,b,.1\n2,2.png,b,a,.2\n",
        "suggestions": "rank,score,file\n1,0.5,1.png\n2,0.5,2.png\n",
        "a curve": "step,loss\n1,a\n2,b\n3,a\n4,a\n",
        "files alone": "file\n1.png\n2.png\n",
        "other files": "file,label\nx.png,cat\ny.png,dog\n",
        "a text": "Photos of cats, dogs and\nothers, by Ann.\n",
    }.values(),
)
def test_what_has_no_labels_of_images_is_no_table(tmp_path, content):
    root = make(tmp_path, PHOTOS, other_csv=content)
    with pytest.raises(
        UserError, match=r"if 'other.csv' has the labels, pass --labels \S+other.csv"
    ):
        read(root)
    assert not any(open_catalog(root).labelable().values())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("image,dx,sex\n1,nv,m\n2,mel,f\n3,nv,f\n", "classes in 'dx', 'sex': pass --label-column"),
        ("file,date\n1.png,May\n2.png,June\n", "in 'date', but they hardly repeat: pass"),
    ],
)
def test_unclear_classes_are_asked_about_only_where_they_are_needed(tmp_path, content, sentence):
    root = make(tmp_path, PHOTOS, meta_csv=content)
    with pytest.raises(UserError, match=f"meta.csv may have the classes {sentence}|{sentence}"):
        read(root)
    assert not any(open_catalog(root).labelable().values())
    column = content.split(",")[1].split("\n")[0]
    assert len(read(root, label_column=column).class_names) == 2


def test_class_folders_count_before_a_table(tmp_path):
    names = ["cat/1.png", "dog/2.png"]
    root = make(tmp_path, names, other_csv="file,label\n1.png,cat\n2.png,owl\n")
    layout = read(root)
    assert layout.class_names == ("cat", "dog")
    assert layout.table == ""
    assert layout.warnings == [
        "1 image has another class in other.csv than by the folder, such as 'dog/2.png': the "
        "folders count."
    ]
    assert "other.csv" in dict(layout.skipped)
    (root / "other.csv").write_text("file,label\n1.png,a\n2.png,b\n")
    with pytest.raises(UserError, match=r"class 'cat' by its folder and 'a' in other.csv: pass"):
        read(root)
    assert read(root, layout="classes").class_names == ("cat", "dog")
    (root / "other.csv").rename(root / "labels.csv")
    assert read(root).class_names == ("a", "b")


@pytest.mark.parametrize("folders", ["photos_part_1 photos_part_2", "train_images test_images"])
def test_folders_that_are_no_classes_do_not_count_before_a_table(tmp_path, folders):
    one, two = folders.split()
    root = make(tmp_path, [f"{one}/1.png", f"{one}/2.png", f"{two}/3.png"])
    assert read(root).class_names == tuple(sorted([one, two]))
    (root / "train.csv").write_text("image,label\n1.png,a\n2.png,b\n")
    (root / "sample_submission.csv").write_text("image,label\n3.png,a\n")
    layout = read(root)
    assert get_labels(layout.train) == {f"{one}/1.png": "a", f"{one}/2.png": "b"}
    assert len(layout.train) == 3
    assert layout.table.startswith("train.csv: ")


def test_a_table_without_a_place_for_labels_stays_as_it_is(tmp_path):
    root = make(tmp_path, PHOTOS, labels_csv=ONE_HOT)
    with pytest.raises(UserError, match=r"labels.csv has a column for each class, .*: rename it"):
        open_session(root)
    catalog = open_catalog(root)
    row = LabelRow("photos/3.png", "red", LABEL, "2026-01-01T00:00:00.000000Z")
    with pytest.raises(UserError, match="has a column for each class"):
        append_rows(root / "labels.csv", [row], catalog.table, catalog.folder.files)
    assert (root / "labels.csv").read_text() == ONE_HOT
    (root / "labels.csv").rename(root / "given.csv")
    assert sorted(open_session(root).known.class_names) == ["blue", "red"]


def test_what_a_table_holds_out_is_not_shown(tmp_path):
    content = "file,label,split\n1.png,cat,train\n2.png,dog,train\n3.png,cat,test\n"
    root = make(tmp_path, PHOTOS, meta_csv=content)
    assert "photos/3.png" not in open_catalog(root).labelable()
    assert get_labels(read(root).test) == {"photos/3.png": "cat"}


@pytest.mark.parametrize(
    ("table", "content"),
    {
        "Site1/TimelapseData.csv": "File,RelativePath,Species\n1.jpg,CAM,elk\n2.jpg,CAM,fox\n",
        "table.csv": "PK,image,label\n1,Site1/CAM/1.jpg,elk\n2,Site1/CAM/2.jpg,fox\n",
    }.items(),
)
def test_a_table_is_imported_as_training_reads_it(tmp_path, table, content):
    names = [f"Site{k}/{cam}/{i}.jpg" for k in (1, 2) for cam in ("CAM", "CAM2") for i in (1, 2)]
    root = make(tmp_path, names)
    (root / table).write_text(content)
    labels = {"Site1/CAM/1.jpg": "elk", "Site1/CAM/2.jpg": "fox"}
    assert get_labels(read(root, labels=table).train) == labels
    assert get_labels(read(root).train) == labels
    assert import_labels(root, root / table).num_added == 2
    (root / table).unlink()
    assert get_labels(read(root).train) == labels
