"""Tables of other programs, wherever they lie among the images, as all commands take them.

`test_readings.py` has what they say.
"""

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder import index
from cls_jax.photos.folder.exchange import import_labels
from cls_jax.photos.folder.label_table import LABEL, LabelRow, append_rows
from cls_jax.photos.folder.remedies import describe_left_out
from cls_jax.photos.labeling.photos import open_session
from tests.photos.helpers import get_labels, make_folder, open_catalog, read_layout

PHOTOS = [f"photos/{i}.png" for i in range(1, 5)]


def make(root, names, **tables):
    """A folder with empty images and these tables, "__" for "/" and "_csv" for ".csv"."""
    paths = [name.replace("__", "/").rpartition("_") for name in tables]
    files = [f"{stem}.{suffix}" for stem, _, suffix in paths]
    return make_folder(root, names, zip(files, tables.values(), strict=True))


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
    table = f"file,number,label,site\n{rows}"
    open_catalog(make(tmp_path, names, train_csv=table, labels_csv=table)).train()
    assert sorted(folded) == names


def test_absolute_paths_are_those_of_these_files(tmp_path):
    root, other = (make(tmp_path / name, PHOTOS) for name in ("album", "other"))
    table = "file,label\n{0}/photos/1.png,cat\n{0}/photos/2.png,dog\n"
    make(root, (), labels_csv=table.format(root))
    assert get_labels(read_layout(root).train) == {"photos/1.png": "cat", "photos/2.png": "dog"}
    make(root, (), labels_csv=table.format(other))
    with pytest.raises(UserError, match=r"No row of labels\.csv names an image of"):
        read_layout(root)


@pytest.mark.parametrize("kind", range(4))
def test_corrected_predictions_are_labels(tmp_path, monkeypatch, kind):
    from cls_jax.photos.inference.tables import PREDICTION_TABLES, write_table

    columns = PREDICTION_TABLES[kind]
    root = make(tmp_path / "album", PHOTOS)
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
    root = make(tmp_path, [f"labeled/{name}/1.png" for name in ("cat", "dog")])
    assert describe_left_out(read_layout(root).skipped) is None
    make(root, [*(f"{i}.png" for i in range(5)), "notes.txt"])
    (root / "labeled/cat/2.png").symlink_to("/nowhere")
    assert describe_left_out(read_layout(root).skipped) == (
        "7 files are left out: outside of a class folder ('0.png', '1.png', '2.png' and 2 more); "
        "a broken link ('labeled/cat/2.png'); no image extension ('notes.txt')."
    )
