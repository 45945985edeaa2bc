"""Tables of other programs are found by their content, wherever they lie among the images."""

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder import index
from cls_jax.photos.folder.exchange import import_labels
from cls_jax.photos.folder.label_table import LABEL, LabelRow, append_rows
from cls_jax.photos.labeling.photos import open_session
from tests.photos.helpers import get_labels, make_folder, open_catalog
from tests.photos.helpers import read_layout as read

PHOTOS = [f"photos/{i}.png" for i in range(1, 5)]


def make(root, names, **tables):
    """A folder with empty images and these tables, "__" for "/" and "_csv" for ".csv"."""
    paths = [name.replace("__", "/").rpartition("_") for name in tables]
    files = [f"{stem}.{suffix}" for stem, _, suffix in paths]
    return make_folder(root, names, zip(files, tables.values(), strict=True))


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


def test_a_table_without_a_place_for_labels_stays_as_it_is(tmp_path):
    one_hot = "filename, red, blue\n1.png,1,0\n2.png,0,1\n3.png,0,0\n"
    root = make(tmp_path, PHOTOS, labels_csv=one_hot)
    with pytest.raises(UserError, match=r"labels.csv has a column for each class, .*: rename it"):
        open_session(root)
    catalog = open_catalog(root)
    row = LabelRow("photos/3.png", "red", LABEL, "2026-01-01T00:00:00.000000Z")
    with pytest.raises(UserError, match="has a column for each class"):
        append_rows(root / "labels.csv", [row], catalog.table, catalog.folder.files)
    assert (root / "labels.csv").read_text() == one_hot
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


def test_names_are_indexed_once(tmp_path, monkeypatch):
    folded = []
    cut = index._cut_stem
    monkeypatch.setattr(index, "_cut_stem", lambda name: folded.append(name) or cut(name))
    names = [f"site{k}/{i}.png" for k in (1, 2) for i in range(6)]
    rows = "".join(f"{name},{i},{i % 2},x\n" for i, name in enumerate(names))
    table = f"file,number,label,site\n{rows}"
    open_catalog(make(tmp_path, names, train_csv=table, labels_csv=table)).train()
    assert sorted(folded) == names
