"""Tables that other programs wrote: each label belongs to the file that its row means, or to none.

The files are `photos/1.png` to `photos/4.png`, unless a test says otherwise.
"""

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.unread import describe_left_out
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
    ("content", "columns"),
    {
        # The number of a row, or a column that names a few files by chance, is not the file.
        "id,img_path,label\n3,photos/1.png,cat\n1,photos/2.png,dog\n2,photos/3.png,cat\n": (1, 2),
        "label,photo,id\ncat,1.png,3\ndog,2.png,1\ncat,3.png,2\n": (1, 0),
        ",url,kind\n0,1.png,cat\n1,2.png,dog\n2,3.png,cat\n": (1, 2),
        "id,name,label\nx,1,cat\ny,2,dog\nz,3,cat\n": (1, 2),
        "id,name\n1,cat\n2,dog\n3,cat\n": (0, 1),
        "image,thumbnail,label\n1.png,4.png,cat\n2.png,4.png,dog\n3.png,4.png,cat\n": (0, 2),
        "filename,picture,class\nA.jpg,1.png,cat\nB.jpg,2.png,dog\nC.jpg,3.png,cat\n": (1, 2),
        "file,label,\n1.png,cat,\n2.png,dog,\n3.png,cat,,\n": (0, 1),
        # Classes by their header, or in the only other column.
        "file,label,class_name\n1.png,cat,a\n2.png,dog,b\n3.png,cat,a\n": (0, 1),
        "file,what\n1.png,cat\n2.png,dog\n3.png,cat\n": (0, 1),
        # Words beside fractions, as programs write predictions.
        "file;Klasse;Konfidenz\n1.png;cat;0,9\n2.png;dog;0,75\n3.png;cat;1\n": (0, 1),
        "file,score,prediction\n1.png,0.93,cat\n2.png,1.0,dog\n3.png,5e-2,cat\n": (0, 2),
        "file,kind,sure,p\n1.png,cat,93%,.9\n2.png,dog,7 %,.1\n3.png,cat,,.5\n": (0, 1),
        # Without a header, and with those of pandas.
        "a,1.png,cat\na,2.png,dog\nb,3.png,cat\n": None,
        "0,1\n1.png,cat\n2.png,dog\n3.png,cat\n": (0, 1),
        "1.png,cat\n2.png,dog\n3.png,cat\n": (0, 1),
        # Delimiters within cells.
        'file;label;note\n1.png;cat;"a,b,c;d"\n2.png;dog;,,\n3.png;cat;\n': (0, 1),
        # Lists and objects with a single class.
        'image,choice\n1.png,cat\n2.png,"{""choices"": [""dog""]}"\n3.png,"[\'cat\']"\n': (0, 1),
    }.items(),
)
def test_files_and_classes_are_found_in_columns(root, content, columns):
    if columns is None:
        with pytest.raises(UserError, match=r"classes in 'column 1', 'column 3': pass --label-col"):
            read(root, content)
        layout = read(root, content, label_column="3")
    else:
        layout = read(root, content)
        header = content.split("\n")[0].replace(";", ",").split(",")
        has_header = "1.png" not in header
        names = [header[k] if has_header else f"column {k + 1}" for k in columns]
        sentence = f"labels.csv: files in {names[0]}, classes in {names[1]}; 3 of 3 rows found."
        assert layout.table == sentence
    assert get_labels(layout.train) == RIGHT
    assert len(layout.train) == 4


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("file,x,y\n1.png,1,2\n2.png,3,4\n", {}, r"classes in 'x', 'y': pass --label-column"),
        ("file,label\n1.png,1.png\n2.png,3.png\n", {}, r"has names of images, such as '1.png'"),
        (
            "species,file,class\nelk,1.png,mammal\nfox,2.png,mammal\nowl,3.png,bird\n",
            {},
            "'class', 'species': pass",
        ),
        (
            "a,b,label\n1.png,2.png,cat\n2.png,1.png,dog\n",
            {},
            r"different images in 'a' and 'b': pass --file-column",
        ),
        ("who,what,label\nx,y,cat\n", {}, r"'who', 'what', 'label'\) names images"),
        ("file\n1.png\n", {}, "has no column of classes"),
        ("file,label\n1.png,cat\n", {"label_column": "kind"}, "no column 'kind': choose --label"),
        ("file,label\n1.png,cat\n", {"label_column": "file"}, "has names of images"),
        (
            "file,label\n1.png,cat\n",
            {"file_column": "label", "label_column": "label"},
            "both the files and the classes",
        ),
        # Several classes of an image.
        ("file,label\n1.png,cat;dog\n2.png,dog\n", {}, r"several classes, 'cat', 'dog'"),
        ("file,label\n1.png,cat|indoor\n2.png,dog\n", {}, r"several classes, 'cat', 'indoor'"),
        ('file,label\n1.png,"cat, dog"\n2.png,dog\n3.png,cat\n', {}, "several classes"),
        ("file;label\n1.png;['cat', 'dog']\n2.png;dog\n", {}, "several classes"),
        ('file,label\n1.png,"[{""x"": 1}]"\n2.png,dog\n', {}, r"in place of a class"),
        ('file,label\n1.png,"cat, big"\n2.png,cat\n', {}, "several classes, 'cat', 'big'"),
        ("file,label\n1.png,cat+dog\n2.png,dog\n3.png,cat\n", {}, "several classes"),
        ("file,label\n1.png,cat,dog\n2.png,dog\n", {}, r"row of 3 cells, '1.png', 'cat', 'dog'"),
        ("1.png,cat\n2.png,dog,cat\n", {}, r"but 2 columns: a cell with a ',' in it needs quotes"),
        # Beside the classes, only fractions are confidences.
        ("file,Tier,Alter\n1.png,elk,3\n2.png,fox,4\n", {}, r"classes in 'Tier', 'Alter': pass"),
        ("file,Tier,Sex\n1.png,elk,m\n2.png,fox,f\n", {}, r"classes in 'Tier', 'Sex': pass"),
        ("file,age,score\n1.png,31,0.9\n2.png,40,0.7\n", {}, r"classes in 'age', 'score': pass"),
        ("file,Tier,seen\n1.png,elk,0\n2.png,fox,1\n", {}, r"classes in 'Tier', 'seen': pass"),
        ("file,Tier,cm\n1.png,elk,2.5\n2.png,fox,0.7\n", {}, r"classes in 'Tier', 'cm': pass"),
        ("1.png,0,1\n2.png,1,0\n", {}, r"column of 0 and 1 for each of 'column 2', 'column 3'"),
        ("file,cat,dog\n1.png,1,1\n2.png,1,0\n", {}, "gives '1.png' several classes, 'cat', 'dog'"),
        ("file,label,label\n1.png,a,a\n2.png,b,a\n", {}, r"classes in 'label', 'label': pass"),
        ("file,labels\n1.png,cat big\n2.png,cat\n", {}, "several classes, 'cat', 'big'"),
        # Parts of the data.
        ("file,label,split\n1.png,cat,A\n2.png,dog,train\n", {}, "'A' in the column 'split'"),
        (
            "file,label,is_valid\n1.png,cat,1\n2.png,dog,1\n",
            {},
            "2 of 2 rows of labels.csv would be held out",
        ),
        (
            "file,label,split,is_valid\n1.png,cat,test,1\n2.png,dog,train,0\n3.png,cat,train,0\n",
            {},
            "test and validation images at once",
        ),
    ],
)
def test_what_is_not_clear_is_asked(root, content, options, sentence):
    with pytest.raises(UserError, match=sentence):
        read(root, content, **options)


def test_columns_that_the_user_names_count(root):
    content = "a,b,label,kind\n1.png,2.png,x,cat\n2.png,1.png,x,dog\n3.png,3.png,y,cat\n"
    layout = read(root, content, file_column="a", label_column="kind")
    assert get_labels(layout.train) == RIGHT
    layout = read(root, content, file_column="2", label_column="LABEL")
    assert get_labels(layout.train)["photos/3.png"] == "y"


@pytest.mark.parametrize(
    ("column", "parts"),
    [
        ("split,train,train,test,val", "test and validation"),
        ("Subset,TRAIN,TRAIN,VALIDATION,dev", "validation"),
        ("is_test,False,False,True,True", "test"),
        ("test,0,0,1,1", "test"),
        ("is_valid,0.0,0,1.0,1", "validation"),
        ("division,training,,test,test", "test"),
    ],
)
def test_rows_of_other_parts_are_never_trained_on(root, column, parts):
    header, *marks = column.split(",")
    labels = ["cat", "dog", "cat", "dog"]
    lines = [f"{i + 1}.png,{labels[i]},{mark}" for i, mark in enumerate(marks)]
    layout = read(root, "\n".join([f"file,label,{header}", *lines]))
    assert get_labels(layout.train) == {"photos/1.png": "cat", "photos/2.png": "dog"}
    assert len(layout.train) == 2
    held_out = get_labels(layout.test) | get_labels(layout.validation)
    assert held_out == {"photos/3.png": "cat", "photos/4.png": "dog"}
    assert f"classes in label, {parts} images in {header}; 4 of 4" in layout.table


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


@pytest.mark.parametrize(
    ("names", "classes", "splits"),
    [
        (
            "bus/1.png car/2.png train/3.png train/4.png train/old/5.png train/new/6.png",
            {"bus/1.png": "bus", "car/2.png": "car"}
            | {f"train/{name}.png": "train" for name in ("3", "4", "old/5", "new/6")},
            {"train/old/5.png": "old", "train/new/6.png": "new"},
        ),
        (
            "cat/1.png dog/2.png Test/3.png Test/owl/4.png",
            {
                "cat/1.png": "cat",
                "dog/2.png": "dog",
                "Test/3.png": "Test",
                "Test/owl/4.png": "Test",
            },
            {"cat/1.png": "cat", "dog/2.png": "dog"},
        ),
        (
            "bus/1.png car/2.png train/old/3.png train/new/4.png",
            {"bus/1.png": "bus", "car/2.png": "car"}
            | dict.fromkeys(["train/old/3.png", "train/new/4.png"], "train"),
            {"train/old/3.png": "old", "train/new/4.png": "new"},
        ),
        (
            "cat/1.png dog/2.png val/3.png val/cat/4.png test/5.png",
            None,
            {"cat/1.png": "cat", "dog/2.png": "dog"},
        ),
    ],
)
def test_two_readings_of_a_folder_are_said_and_asked(root, names, classes, splits):
    if classes is None:  # `val/` has a class, so these are no classes.
        assert get_labels(read(root, None, names.split()).train) == splits
        return
    with pytest.raises(UserError, match=r"in two ways: .* pass --layout classes or --layout spl"):
        read(root, None, names.split())
    assert get_labels(read(root, None, [], layout="classes").train) == classes
    layout = read(root, None, [], layout="splits")
    assert get_labels(layout.train) == splits
    # Whatever is left out is named.
    sentence = describe_left_out(layout.skipped)
    num_left_out = len(names.split()) - len(splits)
    assert sentence.startswith(f"{num_left_out} files are left out: ")


def test_a_plan_says_how_many_files_are_left_out_and_why(root):
    names = [f"labeled/{name}/1.png" for name in ("cat", "dog")]
    assert describe_left_out(read(root, None, names).skipped) is None
    for i in range(5):
        place(root, f"{i}.png").touch()
    place(root, "notes.txt").touch()
    (root / "labeled/cat/2.png").symlink_to("/nowhere")
    assert describe_left_out(read(root, None, names).skipped) == (
        "7 files are left out: 5 are outside of a class folder ('0.png', '1.png', '2.png', …); 1 "
        "is a broken link ('labeled/cat/2.png'); 1 has no image extension ('notes.txt')."
    )


def test_reasons_agree_in_number_with_the_files_that_are_left_out(root):
    def describe(count, reason):
        return describe_left_out([(f"{i}", reason) for i in range(count)])

    assert describe(1, "no image extension; supported: .jpg") == (
        "1 file is left out: it has no image extension ('0')."
    )
    assert describe(2, "no image extension") == (
        "2 files are left out: they have no image extension ('0', '1')."
    )
    for reason, plural in (
        ("a broken link", "broken links"),
        ("not a file", "not files"),
        ("a test image outside of a class folder", "test images outside of a class folder"),
        ("a file that cannot be read: busy", "files that cannot be read: busy"),
        ("marked as no class in labels.csv", "marked as no class in labels.csv"),
    ):
        assert f"it is {reason} (" in describe(1, reason)
        assert f"they are {plural} (" in describe(2, reason)
