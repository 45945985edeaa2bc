"""Tables that other programs wrote: each label belongs to the file that its row means, or to none.

The files are `photos/1.png` to `photos/4.png`, unless a test says otherwise.
"""

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.remedies import describe_left_out
from tests.photos.helpers import get_labels, make_folder, place, read_layout

NAMES = [f"photos/{i}.png" for i in range(1, 5)]
RIGHT = {"photos/1.png": "cat", "photos/2.png": "dog", "photos/3.png": "cat"}


def read(root, content, names=NAMES, **options):
    """The layout of a folder with these names. No image is opened."""
    files = {} if content is None else {"labels.csv": content}
    return read_layout(make_folder(root, names, files), **options)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "around" / "album"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("names", "cells"),
    [
        # The whole path on this machine, on another one, and from the folder around.
        (NAMES, "{root}/photos/{i}.png"),
        (NAMES, "/home/ann/album/photos/{i}.png"),
        (NAMES, "C:\\Users\\ann\\photos\\{i}.png"),
        (NAMES, "/home/ann/elsewhere/{i}.png"),
        (NAMES, "album/photos/{i}.png"),
        (NAMES, "../album/photos/{i}.png"),
        (NAMES, "photos//{i}.png"),
        (NAMES, "photos/../photos/./{i}.png"),
        (NAMES, "file:///home/ann/album/photos/{i}.png"),
        (NAMES, "https://example.org/data/{i}.png?raw=1"),
        (NAMES, "s3://bucket/album/photos/{i}"),
        (NAMES, "/data/upload/7/0123abcd-{i}.png"),
        (NAMES, "/data/local-files/?d=album%2Fphotos%2F{i}.png"),
        ([f"my cat {i}.png" for i in range(1, 5)], "my%20cat%20{i}.png"),
    ],
)
def test_names_are_found_however_they_are_written(root, names, cells):
    rows = [f"{cells.format(root=root, i=i)},{label}" for i, label in ((1, "cat"), (2, "dog"))]
    layout = read(root, "\n".join(["image,label", *rows]), names)
    assert get_labels(layout.train) == dict(zip(names, ["cat", "dog"], strict=False))
    # A warning says that the folders of another machine are left out.
    is_told = cells.startswith(("/home", "file:", "https:", "C:"))
    assert any("looked up without it" in text for text in layout.warnings) == is_told


def test_a_row_never_labels_another_file(root, tmp_path):
    # The file of the first row is gone: the second row names the other one.
    content = "file,label\n1.png,cat\nphotos/1.png,dog\nphotos/2.png,cat\n"
    layout = read(root, content, ["photos/1.png", "photos/2.png", "more/3.png"])
    assert get_labels(layout.train) == {"photos/1.png": "dog", "photos/2.png": "cat"}
    # It exists elsewhere.
    put = [place(tmp_path / "other", f"{i}.png") for i in (1, 2)]
    for path in put:
        path.touch()
    rows = [f"{path},{label}" for path, label in zip(put, ("cat", "dog"), strict=True)]
    with pytest.raises(UserError, match=r"No row of labels\.csv names an image of"):
        read(root, "\n".join(["file,label", *rows]))
    # Some rows name a file exactly, so that folders of another machine are no explanation.
    content = "file,label\nphotos/1.png,cat\nold/2.png,dog\nphotos/3.png,dog\n"
    assert "photos/2.png" not in get_labels(read(root, content).train)


@pytest.mark.parametrize("kind", range(4))
def test_corrected_predictions_are_labels(root, monkeypatch, kind):
    from cls_jax.photos.inference.tables import PREDICTION_TABLES, write_table

    columns = PREDICTION_TABLES[kind]
    monkeypatch.chdir(root.parent)
    rows = [
        {"file": f"album/photos/{i}.png", "label": label, "confidence": 0.5, "top5": "cat:1;dog:0"}
        | {"second_label": "dog", "second_confidence": 0.25, "unknown": 0.5}
        for i, label in ((1, "cat"), (2, "dog"), (3, "cat"))
    ]
    rows.append({"file": "album/photos/4.png", "error": "damaged"})
    write_table(root / "labels.csv", columns, rows)
    layout = read(root, None)
    assert get_labels(layout.train) == RIGHT
    # A spreadsheet may write semicolons and a mark of UTF-8.
    text = (root / "labels.csv").read_text("utf-8-sig").replace("cat:1;dog:0", "").replace(",", ";")
    assert get_labels(read(root, "\ufeff" + text).train) == RIGHT


def test_a_plan_says_how_many_files_are_left_out_and_why(root):
    names = [f"labeled/{name}/1.png" for name in ("cat", "dog")]
    assert describe_left_out(read(root, None, names).skipped) is None
    for i in range(5):
        place(root, f"{i}.png").touch()
    place(root, "notes.txt").touch()
    (root / "labeled/cat/2.png").symlink_to("/nowhere")
    assert describe_left_out(read(root, None, names).skipped) == (
        "7 files are left out: outside of a class folder ('0.png', '1.png', '2.png' and 2 more); "
        "a broken link ('labeled/cat/2.png'); no image extension ('notes.txt')."
    )
