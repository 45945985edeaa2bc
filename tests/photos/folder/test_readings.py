"""What the tables and folders of a user say: one row for each, read or asked about."""

import itertools
import json
import re
from typing import Any, NamedTuple

import pytest

from cls_jax.errors import UserError
from tests.photos.folder import public_layouts
from tests.photos.helpers import make_folder, read_layout

PHOTOS = "photos/1.png photos/2.png photos/3.png photos/4.png"
# Of the first three.
ROWS = "1.png,cat\n2.png,dog\n3.png,cat\n"
RIGHT = {"photos/1.png": "cat", "photos/2.png": "dog", "photos/3.png": "cat"}
SORTED = " ".join(f"{name}/{i}.png" for name in ("cat", "dog") for i in range(6))
BY_FOLDER = {name: name[:3] for name in SORTED.split()}
FLAT = " ".join(f"{i}.png" for i in range(12))
NUMBERED = " ".join(f"images/{i:05}.jpg" for i in range(1, 7))
NAMES = ("cat", "dog", "big owl")


class Read(NamedTuple):
    """A folder that has one reading."""

    images: str  # Their names, with "+" for a space.
    files: dict[str, str]
    # Image → label of training images with one, after a star of validation and test images.
    labels: dict[str, str]
    table: str = ""  # A part of what the plan says of the tables.
    warnings: tuple[str, ...] = ()  # A part of each.
    options: dict[str, Any] = {}  # noqa: RUF012


class Asked(NamedTuple):
    """A folder about which the user is asked."""

    images: str
    files: dict[str, str]
    sentence: str  # A pattern.
    options: dict[str, Any] = {}  # noqa: RUF012


def write(header, values, images=SORTED):
    """A table of images with a value for each, or the values in turn."""
    rows = zip(images.split(), itertools.cycle(values))
    return "\n".join([header, *(f"{name},{value}" for name, value in rows), ""])


def read_columns(content, file, label):
    """That these columns of a table have the files and the classes."""
    header = content.split("\n")[0].replace(";", ",").split(",")
    names = ["column {}" if "1.png" in header else header[k] for k in (file, label)]
    of_files, of_classes = (
        name.format(k + 1) for name, k in zip(names, (file, label), strict=True)
    )
    sentence = f"labels.csv: files in {of_files}, classes in {of_classes}; 3 of 3 rows found."
    return Read(PHOTOS, {"labels.csv": content}, RIGHT, sentence)


def label_third(label, *, table="labels.csv", header="file,label"):
    """A table in which two images have classes and the third one has this."""
    return {table: f"{header}\n1.png,a\n2.png,b\n3.png,{label}\n"}


def write_votes(header, who):
    """A table of one person's labels."""
    rows = [f"{i}.png,person{who},{of[who]}" for i, of in enumerate(VOTES) if len(of) > who]
    return "\n".join([f"image,{header},label", *rows, ""])


TWO = {"photos/1.png": "a", "photos/2.png": "b"}
ONE_HOT = "filename, red, blue\n1.png,1,0\n2.png,0,1\n3.png,0,0\n"
VOTES = [("hat", "hat", "hat"), ("shoes", "hat", "shoes"), ("Shoes", "shoes"), ("hat", "shoes")]
SHARES = ["0.67,0.33,0", "1,0,0", "0.1,0.9,0", "0.2,0.2,0.6", "0.5,0.4,0.1", "0,1,0"]
SIDECARS = {"a/0.cls": "x", "a/1.cls": "y", "b/0.cls": "y"}
TAGS = {"tags": True}
MIXED = "cat_1.jpg Dog_2.jpg 3.jpg unlabeled/dog_4.jpg test/cat_5.jpg"
NAMED = {"cat_1.jpg": "cat", "Dog_2.jpg": "Dog", "*test/cat_5.jpg": "cat"}
PATTERN = {"label_pattern": r"([A-Za-z]+)_\d"}
BY_X = {"labels": "x.csv"}
X_CSV = {"x.csv": f"file,label\n{ROWS}"}
# Files with the names of numbered classes.
CLASS_NAMES = {
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

READ = {
    # What the user says: a pattern, and a file, which adds to labeled folders.
    "a pattern": Read(MIXED, {}, NAMED, ": classes of 3 of 4 files.", options=PATTERN),
    "a pattern, before any table": Read(
        MIXED, {"x.csv": "file,label\ncat_1.jpg,x\nDog_2.jpg,y\n"}, NAMED, options=PATTERN
    ),
    **{
        f"labeled folders and {name}": Read(
            "labeled/hat/0.jpg labeled/hat/1.jpg labeled/shoes/0.jpg unlabeled/2.jpg",
            {name: "file,label\nunlabeled/2.jpg,hat\nlabeled/hat/0.jpg,shoes\n"},
            {f"labeled/{name}.jpg": name[:-2] for name in ("hat/1", "shoes/0")}
            | {"labeled/hat/0.jpg": "shoes", "unlabeled/2.jpg": "hat"},
            warnings=warnings,
            options=options,
        )
        for name, warnings, options in (
            ("labels.csv", ("1 image has another class in labels.csv than by its folder",), {}),
            ("x.csv", (), BY_X),
        )
    },
    # Which columns have files and classes. The number of a row, or a column that names a few files
    # by chance, is not the file.
    **{
        f"columns of {content.splitlines()[0]}": read_columns(content, *places)
        for content, places in {
            "id,img_path,label\n3,photos/1.png,cat\n1,photos/2.png,dog\n2,photos/3.png,cat\n": (
                *(1, 2),
            ),
            "label,photo,id\ncat,1.png,3\ndog,2.png,1\ncat,3.png,2\n": (1, 0),
            ",url,kind\n0,1.png,cat\n1,2.png,dog\n2,3.png,cat\n": (1, 2),
            "id,name,label\nx,1,cat\ny,2,dog\nz,3,cat\n": (1, 2),
            "id,name\n1,cat\n2,dog\n3,cat\n": (0, 1),
            "image,thumbnail,label\n1.png,4.png,cat\n2.png,4.png,dog\n3.png,4.png,cat\n": (0, 2),
            "filename,picture,class\nA.jpg,1.png,cat\nB.jpg,2.png,dog\nC.jpg,3.png,cat\n": (1, 2),
            "file,label,\n1.png,cat,\n2.png,dog,\n3.png,cat,,\n": (0, 1),
            # Classes by their header, or in the only other column.
            "file,label,class_name\n1.png,cat,a\n2.png,dog,b\n3.png,cat,a\n": (0, 1),
            "file,what\n1.png,cat\n2.png,dog\nfile,label\n3.png,cat\n": (0, 1),  # Two tables.
            # Words beside fractions, as programs write predictions.
            "file;Klasse;Konfidenz\n1.png;cat;0,9\n2.png;dog;0,75\n3.png;cat;1\n": (0, 1),
            "file,score,prediction\n1.png,0.93,cat\n2.png,1.0,dog\n3.png,5e-2,cat\n": (0, 2),
            "file,kind,sure,p\n1.png,cat,93%,.9\n2.png,dog,7 %,.1\n3.png,cat,,.5\n": (0, 1),
            # Without a header, and with those of pandas.
            "0,1\n1.png,cat\n2.png,dog\n3.png,cat\n": (0, 1),
            "1.png,cat\n2.png,dog\n3.png,cat\n": (0, 1),
            # Delimiters within cells.
            'file;label;note\n1.png;cat;"a,b,c;d"\n2.png;dog;,,\n3.png;cat;\n': (0, 1),
            # Lists and objects with a single class.
            'image,choice\n1.png,cat\n2.png,"{""choices"": [""dog""]}"\n3.png,"[\'cat\']"\n': (
                *(0, 1),
            ),
        }.items()
    },
    "a column by its number": Read(
        PHOTOS,
        {"labels.csv": "a,1.png,cat\na,2.png,dog\nb,3.png,cat\n"},
        RIGHT,
        options={"label_column": "3"},
    ),
    "columns by their headers": Read(
        PHOTOS,
        {"labels.csv": "a,b,label,kind\n1.png,2.png,x,cat\n2.png,1.png,x,dog\n3.png,3.png,y,cat\n"},
        RIGHT,
        options={"file_column": "a", "label_column": "kind"},
    ),
    "columns by number and by a header in capitals": Read(
        PHOTOS,
        {"labels.csv": "a,b,label\n1.png,2.png,dog\n2.png,1.png,cat\n3.png,3.png,cat\n"},
        RIGHT,
        options={"file_column": "2", "label_column": "LABEL"},
    ),
    **{
        f"a line that tells Excel the delimiter {sign}": Read(
            PHOTOS,
            {"labels.csv": f"sep=,\nfile,label\n{ROWS}".replace(",", sign)},
            RIGHT,
            "labels.csv: files in file, classes in label; 3 of 3 rows found.",
        )
        for sign in ",;"
    },
    # Parts of the data.
    **{
        f"parts in {column}": Read(
            PHOTOS,
            {
                "labels.csv": "\n".join(
                    [
                        f"file,label,{column.split(',')[0]}",
                        *(
                            f"{i}.png,{'dog' if i % 2 == 0 else 'cat'},{mark}"
                            for i, mark in enumerate(column.split(",")[1:], 1)
                        ),
                        "",
                    ]
                )
            },
            {"photos/1.png": "cat", "photos/2.png": "dog"}
            | {"*photos/3.png": "cat", "*photos/4.png": "dog"},
            f"classes in label, {parts} images in {column.split(',')[0]}; 4 of 4",
        )
        for column, parts in {
            "split,train,train,test,val": "test and validation",
            "Subset,TRAIN,TRAIN,VALIDATION,dev": "validation",
            "is_test,False,False,True,True": "test",
            "test,0,0,1,1": "test",
            "is_valid,0.0,0,1.0,1": "validation",
            "division,training,,test,test": "test",
            "Usage,Training,Training,PublicTest,PrivateTest": "test",
        }.items()
    },
    "tables for each part": Read(
        PHOTOS,
        {"labels_train.csv": "id,label\n1,a\n2,b\n", "labels_val.csv": "id,label\n3,b\n4,a\n"},
        TWO | {"*photos/3.png": "b", "*photos/4.png": "a"},
        "labels_val.csv: files in id, classes in label, validation images; 2 of 2",
    ),
    # No label, and names that resemble such words or each other.
    **{
        f"{word} means no label": Read(
            *(PHOTOS, label_third(word), TWO),
            warnings=(f"1 row of labels.csv has no label, because it says {word!r}.",),
        )
        for word in ("??", "#REF!", "#NAME?", "N/A", "No label")
    },
    **{
        f"{word} may mean no label": Read(
            *(PHOTOS, label_third(word), TWO | {"photos/3.png": word}),
            warnings=(f"{word!r} counts as a class",),
        )
        for word in ("-", "--", "-1", "-1.0", "n.a.", "not_labeled_yet", "untagged")
    },
    **{
        names: Read(
            names,
            {},
            {
                name.replace("+", " "): label.replace("+", " ")
                for name, label in zip(names.split(), labels.split(), strict=True)
            },
            warnings=warnings,
        )
        for names, labels, warnings in (
            *(
                (names, labels, ("count as different classes",))
                for names, labels in (
                    ("black+cat/1.png black_cat/2.png dog/3.png", "black+cat black_cat dog"),
                    ("t-shirt/1.png T+Shirt/2.png dog/3.png", "t-shirt T+Shirt dog"),
                )
            ),
            ("❤/1.png ❤\ufe0f/2.png dog/3.png", "❤ ❤ dog", ("count as one class",)),
            ("ｃａｔ/1.png cat/2.png dog/3.png", "cat cat dog", ("count as one class",)),
            ("1/1.png 2/2.png 1-2/3.png", "1 2 1-2", ()),
            ("C/1.png C#/2.png F#/3.png", "C C# F#", ()),
        )
    },
    # Columns for each class, votes and shares.
    **{
        f"a column for each class in {name}": Read(
            PHOTOS,
            {name: ONE_HOT},
            {"photos/1.png": "red", "photos/2.png": "blue"},
            "files in filename, classes in 2 columns of 0 and 1; 3 of 3 rows",
            (" has no 1, and so no label.",),
        )
        for name in ("labels.csv", "_classes.csv")
    },
    "the largest share, if it clearly leads": Read(
        FLAT[: len("0.png ") * 6 - 1],
        {
            "labels.csv": "image,hat,shoes,skirt\n"
            + "".join(f"{i}.png,{row}\n" for i, row in enumerate(SHARES))
        },
        {f"{i}.png": ("hat", "hat", "shoes", "skirt", "", "shoes")[i] for i in (0, 1, 2, 3, 5)},
        "3 columns of shares, of which the largest counts",
        ("The shares in labels.csv differ about 1 image, such as '4.png': the class of a clear",),
    ),
    "one of several columns of numbers": Read(
        "0.png 1.png",
        {"labels.csv": "image,hat,shoes\n0.png,0.1,0.9\n1.png,0.5,0.5\n"},
        {"0.png": "0.1", "1.png": "0.5"},
        warnings=("are numbers, such as '0.1'",),
        options={"label_column": "hat"},
    ),
    **{
        f"the majority of each {header}": Read(
            FLAT[: len("0.png ") * 4 - 1],
            # Tables of three people, one after another.
            {"labels.csv": "".join(write_votes(header, who) for who in (2, 0, 1))},
            {"0.png": "hat", "1.png": "shoes", "2.png": "shoes"},
            warnings=("The people in labels.csv differ about 2 images, such as '1.png'",),
        )
        for header in ("annotator", "worker_id", "Created by")
    },
    # Class folders, and tables beside them.
    "class folders and a table that differs about one image": Read(
        "cat/1.png dog/2.png",
        {"other.csv": "file,label\n1.png,cat\n2.png,owl\n"},
        {"cat/1.png": "cat", "dog/2.png": "dog"},
        warnings=(
            "1 image has another class in other.csv than by the folder, such as 'dog/2.png': the "
            "folders count.",
        ),
    ),
    "class folders that the user chooses": Read(
        "cat/1.png dog/2.png",
        {"other.csv": "file,label\n1.png,a\n2.png,b\n"},
        {"cat/1.png": "cat", "dog/2.png": "dog"},
        options={"layout": "classes"},
    ),
    "labels.csv beside class folders": Read(
        "cat/1.png dog/2.png",
        {"labels.csv": "file,label\n1.png,a\n2.png,b\n"},
        {"cat/1.png": "a", "dog/2.png": "b"},
    ),
    "labels.csv that contradicts class folders and leaves some out": Read(
        "a/1.png a/2.png b/3.png b/4.png unlabeled/5.png test/a/6.png",
        {"labels.csv": "file,label\na/1.png,b\na/2.png,a\nb/3.png,b\n"},
        {"a/1.png": "b", "a/2.png": "a", "b/3.png": "b", "*test/a/6.png": "a"},
        warnings=(
            "1 image has another class in labels.csv than by its folder, such as 'a/1.png'",
            "1 image in a folder is unlabeled, such as 'b/4.png'",
        ),
    ),
    "a table beside labeled folders": Read(
        "labeled/hat/0.jpg labeled/shoes/1.jpg unlabeled/2.jpg unlabeled/3.jpg",
        {"extra.csv": "file,label\nunlabeled/2.jpg,hat\nunlabeled/3.jpg,shoes\n"},
        {"labeled/hat/0.jpg": "hat", "labeled/shoes/1.jpg": "shoes"},
        warnings=("extra.csv has classes of 2 unlabeled images, such as 'unlabeled/2.jpg', and",),
    ),
    "a table that the user names and class folders that it leaves out": Read(
        "hat/0.jpg hat/1.jpg shoes/2.jpg shoes/3.jpg test/hat/4.jpg",
        {"extra.csv": "file,label\nhat/0.jpg,cap\nshoes/2.jpg,boots\n"},
        {"hat/0.jpg": "cap", "shoes/2.jpg": "boots"},
        warnings=(
            "2 images in folders are unlabeled, such as 'hat/1.jpg', since extra.csv does not name",
            "test/ has 1 class that no labeled image has",
        ),
        options={"labels": "extra.csv"},
    ),
    "labels.csv before another table": Read(
        PHOTOS, {"a.csv": f"file,label\n{ROWS}", "labels.csv": f"file,label\n{ROWS}"}, RIGHT
    ),
    **{
        f"{one} and {two} beside a table": Read(
            f"{one}/1.png {one}/2.png {two}/3.png",
            {
                "train.csv": "image,label\n1.png,a\n2.png,b\n",
                "sample_submission.csv": "image,label\n3.png,a\n",
            },
            {f"{one}/1.png": "a", f"{one}/2.png": "b"},
            "train.csv: ",
        )
        for one, two in (("photos_part_1", "photos_part_2"), ("train_images", "test_images"))
    },
    "photos_part_1 and photos_part_2 alone": Read(
        "photos_part_1/1.png photos_part_2/3.png",
        {},
        {"photos_part_1/1.png": "photos_part_1", "photos_part_2/3.png": "photos_part_2"},
    ),
    **{
        f"class folders and a table of {header}": Read(
            SORTED, {"metadata.csv": write(header, values)}, BY_FOLDER
        )
        for header, values in {
            "file,age": [0, 1, 2],
            "file,born": [1998, 2010, 2021],
            "file,x": [0.5, 1, 2],
        }.items()
    },
    "class folders and a table of one class": Read(
        SORTED,
        {"submission.csv": write("file,label", ["0"])},
        BY_FOLDER,
        warnings=("12 images have another class in submission.csv than by",),
    ),
    "a table of classes before one of ages": Read(
        FLAT,
        {
            "ages.csv": write("file,age", [3, 4, 5], FLAT),
            "classes.csv": write("file,label", "ab", FLAT),
        },
        {name: "ab"[i % 2] for i, name in enumerate(FLAT.split())},
    ),
    "a table of ages alone": Read(  # What else?
        FLAT,
        {"ages.csv": write("file,age", [3, 4, 5], FLAT)},
        {name: "345"[i % 3] for i, name in enumerate(FLAT.split())},
    ),
    # Files about an image each.
    **{
        f"class folders and files that say {labels}": Read(
            "a/0.jpg a/1.jpg b/0.jpg b/1.jpg",
            {
                f"{name}.cls": label
                for name, label in zip(("a/0", "a/1", "b/0", "b/1"), labels.split(), strict=True)
            },
            {"a/0.jpg": "a", "a/1.jpg": "a", "b/0.jpg": "b", "b/1.jpg": "b"},
            warnings=warnings,
        )
        for labels, warnings in {
            "a a b b": (),  # As by folder.
            "a b b b": ("1 image has another class in a/*.cls than by the folder, such as 'a/1",),
            "n01 n01 n02 n02": (),  # Other names for the same classes.
            "thing thing thing thing": (),  # A detector without classes.
            "a;b a b b": (),  # What cannot be read says nothing.
        }.items()
    },
    "files about images of two folders that are no classes": Read(
        "images_1/0.jpg images_1/1.jpg images_2/0.jpg images_2/1.jpg",
        {
            "labels.csv": "file,label,decision,time\n",
            **{"images_1/0.cls": "x", "images_1/1.cls": "y", "images_2/0.cls": "y"},
            "images_2/1.cls": "",
        },
        {"images_1/0.jpg": "x", "images_1/1.jpg": "y", "images_2/0.jpg": "y"},
        "images_1/*.cls: files in file, classes in label; 2 of 2 rows",
    ),
    **{
        f"a list of bare numbers with {sign!r}": Read(
            NUMBERED,
            {"list.txt": "".join(f"{i:05}{sign}{3 + i % 2}\n" for i in range(1, 7))},
            {f"images/{i:05}.jpg": str(3 + i % 2) for i in range(1, 7)},
            "list.txt: files in column 1, classes in column 2; 6 of 6 rows found.",
        )
        for sign in ", \t"
    },
    # Two readings of folders, as the user has chosen.
    **{
        f"{names} as {layout}": Read(names, {}, labels, options={"layout": layout})
        for names, layout, labels in (
            (
                "bus/1.png car/2.png train/3.png train/4.png train/old/5.png train/new/6.png",
                "classes",
                {"bus/1.png": "bus", "car/2.png": "car"}
                | {f"train/{name}.png": "train" for name in ("3", "4", "old/5", "new/6")},
            ),
            (
                "bus/1.png car/2.png train/3.png train/4.png train/old/5.png train/new/6.png",
                "splits",
                {"train/old/5.png": "old", "train/new/6.png": "new"},
            ),
            (
                "cat/1.png dog/2.png Test/3.png Test/owl/4.png",
                "classes",
                {"cat/1.png": "cat", "dog/2.png": "dog"}
                | {"Test/3.png": "Test", "Test/owl/4.png": "Test"},
            ),
            (
                "bus/1.png car/2.png train/old/3.png train/new/4.png",
                "splits",
                {"train/old/3.png": "old", "train/new/4.png": "new"},
            ),
        )
    },
    "`val/` has a class, so these are no classes": Read(
        "cat/1.png dog/2.png val/3.png val/cat/4.png test/5.png",
        {},
        {"cat/1.png": "cat", "dog/2.png": "dog", "*val/cat/4.png": "cat"},
    ),
    # Numbers as classes get names from a file that fits all of them.
    **{
        f"names of {zeros}1 in {name}": Read(
            " ".join(f"{zeros}{i}/{i}.png" for i in range(3)),
            {name: content},
            {f"{zeros}{i}/{i}.png": NAMES[i] for i in range(3)},
            f"{name}: names of 3 classes, from 0 = cat to 2 = big owl.",
        )
        for name, content in CLASS_NAMES.items()
        for zeros in ("", "0000")
    },
    **{
        f"names of numbers in {table}": Read(
            "photos/0.png photos/1.png photos/2.png photos/3.png",
            {
                table: "file,label\n0.png,0\n1.png,1.0\n2.png,2\n3.png,2\n",
                "classes.txt": CLASS_NAMES["classes.txt"],
            },
            {f"photos/{i}.png": NAMES[min(i, 2)] for i in range(4)},
            "4 of 4 rows found. classes.txt: names of 3 classes, from 0 = ",
        )
        for table in ("labels.csv", "train.csv")
    },
    **{
        f"{labels} keep their numbers beside {files}": Read(
            " ".join(f"{label}/{label}.png" for label in labels),
            files,
            {f"{label}/{label}.png": label for label in labels},
            warnings=warnings,
        )
        for labels, files, warnings in (
            ("012", {"classes.txt": "cat\ndog\n"}, ("'classes.txt' does not name the classes",)),
            # 0 or 1 may be the first.
            ("12", {"classes.txt": "a\nb\nc\n"}, ("'classes.txt' does not name the classes",)),
            ("012", {"map.json": '{"0": "cat", "1": "dog"}'}, ()),
            ("012", {"classes.txt": "cat\ncat\ndog\n"}, ("does not name the classes",)),
            (
                "01",
                {"a.json": '{"0": "cat", "1": "dog"}', "b.json": '{"0": "dog", "1": "cat"}'},
                ("Both 'a.json' and 'b.json' have names",),
            ),
            ("012", {"README.txt": "Cats.\nDogs.\nOwls.\n"}, ()),
            ("012", {"x.yaml": "a: [", "x.json": "{", "x.txt": "\0"}, ()),
            ("01a", {"classes.txt": "cat\ndog\nowl\n"}, ()),
        )
    },
    # Several tags.
    "a semicolon alone is none of the tags": Read(
        "0.png 1.png 2.png 3.png",
        {"x.csv": "file,label\n0.png,cat;dog\n1.png,;\n2.png,cat\n3.png,\n"},
        {"0.png": "cat;dog", "1.png": ";", "2.png": "cat"},
        options=TAGS,
    ),
    **{
        f"a separator at the end of a cell, with {options}": Read(
            "0.png 1.png 2.png",
            {"x.csv": "file,label\n0.png,cat; \n1.png,dog|\n2.png,cat\n"},
            {"0.png": "cat", "1.png": "dog", "2.png": "cat"},
            options=options,
        )
        for options in ({}, TAGS)
    },
    "lists of one column are split by one separator": Read(
        "0.png 1.png 2.png",
        {"x.csv": 'file,tags\n0.png,"living room, old"\n1.png,old\n2.png,living room\n'},
        {"0.png": "living room;old", "1.png": "old", "2.png": "living room"},
        options=TAGS,
    ),
    "tags of several people are those of most": Read(
        "0.png 1.png",
        {
            "x.csv": "file,annotator,label\n0.png,a,cat;dog\n0.png,b,cat\n0.png,c,cat;dog\n"
            "1.png,a,dog\n1.png,b,cat;dog\n"
        },
        {"0.png": "cat;dog", "1.png": "dog"},
        options=TAGS,
    ),
    "sources in training and test": Read(
        PHOTOS,
        {
            "labels.csv": "file,label,patient,split\n1.png,cat,a,train\n2.png,dog,b,train\n"
            "3.png,cat,a,test\n4.png,dog,b,test\n"
        },
        {"photos/1.png": "cat", "photos/2.png": "dog"}
        | {"*photos/3.png": "cat", "*photos/4.png": "dog"},
        warnings=("2 test images are from sources that training images have, too",),
    ),
    "a class called train beside others": Read(
        PHOTOS,
        {"labels.csv": "file,kind\n1.png,bus\n2.png,train\n3.png,bus\n4.png,train\n"},
        {f"photos/{i}.png": label for i, label in enumerate(("bus", "train") * 2, 1)},
    ),
    # The file that a row means, whoever wrote its name.
    **{
        f"names as {cells}": Read(
            names,
            {"labels.csv": f"image,label\n{cells.format(1)},cat\n{cells.format(2)},dog\n"},
            {
                name.replace("+", " "): label
                for name, label in zip(names.split(), ("cat", "dog"), strict=False)
            },
            # The folders of another machine are left out.
            warnings=("looked up without it",)
            * cells.startswith(("/home", "file:", "https:", "C:")),
        )
        for names, cells in (
            (PHOTOS, "/home/ann/album/photos/{}.png"),
            (PHOTOS, "C:\\Users\\ann\\photos\\{}.png"),
            (PHOTOS, "/home/ann/elsewhere/{}.png"),
            (PHOTOS, "album/photos/{}.png"),
            (PHOTOS, "../album/photos/{}.png"),
            (PHOTOS, "photos//{}.png"),
            (PHOTOS, "photos/../photos/./{}.png"),
            (PHOTOS, "file:///home/ann/album/photos/{}.png"),
            (PHOTOS, "https://example.org/data/{}.png?raw=1"),
            (PHOTOS, "s3://bucket/album/photos/{}"),
            (PHOTOS, "/data/upload/7/0123abcd-{}.png"),
            (PHOTOS, "/data/local-files/?d=album%2Fphotos%2F{}.png"),
            ("my+cat+1.png my+cat+2.png my+cat+3.png", "my%20cat%20{}.png"),
        )
    },
    "the file of a row is gone, and the next row names another one of its name": Read(
        "photos/1.png photos/2.png more/3.png",
        {"labels.csv": "file,label\n1.png,cat\nphotos/1.png,dog\nphotos/2.png,cat\n"},
        {"photos/1.png": "dog", "photos/2.png": "cat"},
        warnings=("such as '1.png', which fits no image", "such as 'more/3.png', since"),
    ),
    "rows that name files exactly, beside one in another folder": Read(
        PHOTOS,
        {"labels.csv": "file,label\nphotos/1.png,cat\nold/2.png,dog\nphotos/3.png,dog\n"},
        {"photos/1.png": "cat", "photos/3.png": "dog"},
        warnings=("such as 'old/2.png', which fits no image",),
    ),
    "a column that the user chooses of several": Read(
        public_layouts.HAM_IMAGES,
        {"HAM10000_metadata.csv": public_layouts.HAM},
        dict(zip(public_layouts.HAM_IMAGES.split(), ["nv", "mel"] * 2, strict=True)),
        options={"label_column": "dx"},
    ),
    **{title: Read(*case) for title, case in public_layouts.READ.items()},
}


def ask(content, sentence, **options):
    """About a table of the photos."""
    return Asked(PHOTOS, {"labels.csv": content}, sentence, options)


ASKED = {
    **{
        f"the pattern {pattern}": Asked(MIXED, {}, sentence, {"label_pattern": pattern})
        for pattern, sentence in {
            "(": r"--label-pattern .*is no regular expression \(.*\): write one such as '\(\[\^/\]",
            "cat": r"--label-pattern .*needs one group, in parentheses, for the class",
            "(owl)": r"--label-pattern '\(owl\)' fits no name, such as '3.jpg'",
            "(cat)": r"only the class 'cat', but .*: change the pattern of --label-pattern",
        }.items()
    },
    "a file beside labels.csv": Asked(
        PHOTOS,
        X_CSV | {"labels.csv": X_CSV["x.csv"]},
        r"labels.csv has labels, too: rename it, .*--labels x.csv",
        BY_X,
    ),
    "a file and a pattern": Asked(
        PHOTOS, X_CSV, "--labels and --label-pattern both say", BY_X | PATTERN
    ),
    "a file about other images": Asked(
        PHOTOS, {"x.csv": "file,label\n1.jpeg,a\n"}, "No row of x.csv names an image", BY_X
    ),
    "a damaged file": Asked(
        PHOTOS, {"x.json": "{"}, "x.json cannot be read as labels", {"labels": "x.json"}
    ),
    "several columns": ask("file,x,y\n1.png,1,2\n2.png,3,4\n", r"in 'x', 'y': pass --label-column"),
    "several columns without headers": ask(
        "a,1.png,cat\na,2.png,dog\nb,3.png,cat\n", r"classes in 'column 1', 'column 3': pass"
    ),
    "names as classes": ask("file,label\n1.png,1.png\n2.png,3.png\n", r"has names of images, such"),
    "several usual headers": ask(
        "species,file,class\nelk,1.png,mammal\nfox,2.png,mammal\nowl,3.png,bird\n",
        "'class', 'species': pass",
    ),
    "two columns of files": ask(
        "a,b,label\n1.png,2.png,cat\n2.png,1.png,dog\n",
        r"different images in 'a' and 'b': pass --file-column",
    ),
    "no column of files": ask(
        "who,what,label\nx,y,cat\n", r"'who', 'what', 'label'\) names images"
    ),
    "no column of classes": ask("file\n1.png\n", "has no column of classes"),
    "a header that is not there": ask(
        "file,label\n1.png,cat\n", "no column 'kind': choose --label", label_column="kind"
    ),
    "files as classes": ask("file,label\n1.png,cat\n", "has names of images", label_column="file"),
    "one column for both": ask(
        "file,label\n1.png,cat\n",
        "both the files and the classes",
        **{"file_column": "label", "label_column": "label"},
    ),
    # Several classes of an image.
    **{
        content: ask(content, sentence)
        for content, sentence in {
            "file,label\n1.png,cat;dog\n2.png,dog\n": r"several classes, 'cat', 'dog'",
            "file,label\n1.png,cat|indoor\n2.png,dog\n": r"several classes, 'cat', 'indoor'",
            'file,label\n1.png,"cat, dog"\n2.png,dog\n3.png,cat\n': "several classes",
            "file;label\n1.png;['cat', 'dog']\n2.png;dog\n": "several classes",
            'file,label\n1.png,"[{""x"": 1}]"\n2.png,dog\n': r"in place of a class",
            'file,label\n1.png,"cat, big"\n2.png,cat\n': "several classes, 'cat', 'big'",
            "file,label\n1.png,cat+dog\n2.png,dog\n3.png,cat\n": "several classes",
            "file,label\n1.png,cat,dog\n2.png,dog\n": r"row of 3 cells, '1.png', 'cat', 'dog'",
            "1.png,cat\n2.png,dog,cat\n": r"but 2 columns: a cell with a ',' in it needs quotes",
            # Beside the classes, only fractions are confidences.
            "file,Tier,Alter\n1.png,elk,3\n2.png,fox,4\n": r"classes in 'Tier', 'Alter': pass",
            "file,Tier,Sex\n1.png,elk,m\n2.png,fox,f\n": r"classes in 'Tier', 'Sex': pass",
            "file,age,score\n1.png,31,0.9\n2.png,40,0.7\n": r"classes in 'age', 'score': pass",
            "file,Tier,seen\n1.png,elk,0\n2.png,fox,1\n": r"classes in 'Tier', 'seen': pass",
            "file,Tier,cm\n1.png,elk,2.5\n2.png,fox,0.7\n": r"classes in 'Tier', 'cm': pass",
            "file,hat,shoes\n1.png,0.1,0.2\n2.png,0.2,0.2\n": "classes in 'hat', 'shoes': pass",
            "1.png,0,1\n2.png,1,0\n": r"column of 0 and 1 for each of 'column 2', 'column 3'",
            "file,cat,dog\n1.png,1,1\n2.png,1,0\n": "gives '1.png' several classes, 'cat', 'dog'",
            "file,label,label\n1.png,a,a\n2.png,b,a\n": r"classes in 'label', 'label': pass",
            "file,labels\n1.png,cat big\n2.png,cat\n": "several classes, 'cat', 'big'",
            # Parts of the data.
            "file,label,split\n1.png,cat,A\n2.png,dog,train\n": "'A' in the column 'split'",
            "file,label,Usage\n1.png,a,Training\n2.png,b,PublicTest\n3.png,a,extra\n": (
                "'extra' in the column 'Usage'"
            ),
            "file,label,is_valid\n1.png,cat,1\n2.png,dog,1\n": (
                "2 of 2 rows of labels.csv would be held out"
            ),
            "file,label,split,is_valid\n1.png,cat,test,1\n2.png,dog,train,0\n3.png,cat,train,0\n": (
                "test and validation images at once"
            ),
        }.items()
    },
    # No table of labels: what we write, what is about something else, and other files.
    **{
        content: Asked(
            PHOTOS,
            {"other.csv": content},
            r"if 'other.csv' has the labels, pass --labels \S+other.csv",
        )
        for content in (
            "file,label,confidence,unknown\n1.png,cat,0.9,0\n2.png,dog,0.8,0\n",
            "file,label,source,probability\n1.png,a,label,\n2.png,b,unsure,1\n",
            "file,label,weight\n1.png,cat,0.9\n2.png,dog,1.0\n",
            "rank,file,label,suggested,quality\n1,1.png,a,b,.1\n2,2.png,b,a,.2\n",
            "rank,score,file\n1,0.5,1.png\n2,0.5,2.png\n",
            "step,loss\n1,a\n2,b\n3,a\n4,a\n",
            "file\n1.png\n2.png\n",
            "file,label\nx.png,cat\ny.png,dog\n",
            "Photos of cats, dogs and\nothers, by Ann.\n",
        )
    },
    # Two readings.
    **{
        f"{one} and {two}": Asked(
            "x/1.png x/2.png" if "/" in two else PHOTOS,
            {one: f"file,label\n{ROWS}", two: f"file,label\n{ROWS}"},
            f"Both '{one}' and '{two}' name images",
        )
        for one, two in (("a.csv", "b.csv"), ("a.csv", "x/a.csv"))
    },
    "tables of two parts about the same images": Asked(
        PHOTOS,
        {"labels_train.csv": "id,label\n1,a\n2,b\n", "labels_val.csv": "id,label\n1,a\n"},
        r"Both 'labels_train.csv' and 'labels_val.csv' name",
    ),
    "class folders and a table with other classes": Asked(
        "cat/1.png dog/2.png",
        {"other.csv": "file,label\n1.png,a\n2.png,b\n"},
        r"class 'cat' by its folder and 'a' in other.csv: pass",
    ),
    **{
        f"class folders and numbers called {header}": Asked(
            SORTED,
            {"meta.csv": write(f"file,{header}", [0, 1, 2])},
            r"has the class 'cat' by its folder and '0' in meta.csv",
        )
        for header in ("label", "level")
    },
    "class folders and a file about each image with other classes": Asked(
        "a/0.jpg b/0.jpg a/1.jpg b/1.jpg",
        SIDECARS | {"b/1.cls": "x"},
        r"'a/0.jpg' has the class 'a' by its folder and 'x' in a/",
    ),
    "files about an image each, and a table": Asked(
        "images_1/0.jpg images_1/1.jpg",
        {
            **{"images_1/0.cls": "x", "images_1/1.cls": "y"},
            "x.csv": "file,label\nimages_1/0.jpg,x\nimages_1/1.jpg,y\n",
        },
        r"Both 'x.csv' and .*: pass --labels .* or move images_1",
    ),
    **{
        f"a list of bare numbers {pairs}": Asked(
            NUMBERED,
            {"list.txt": "".join(f"{file} {label}\n" for file, label in pairs)},
            "only the class 'images'",
        )
        for pairs in (
            [("00001", 3), ("00002", 3), ("00009", 4)],  # One names no file.
            [(f"{i:05}", i) for i in range(1, 7)],  # Its rows are numbered.
            [("00001", 33), ("00002", 47), ("00003", 21)],  # Ages, say.
        )
    },
    **{
        names: Asked(names, {}, r"in two ways: .* pass --layout classes or --layout spl")
        for names in (
            "bus/1.png car/2.png train/3.png train/4.png train/old/5.png train/new/6.png",
            "cat/1.png dog/2.png Test/3.png Test/owl/4.png",
            "bus/1.png car/2.png train/old/3.png train/new/4.png",
        )
    },
    **{title: Asked(*case) for title, case in public_layouts.ASKED.items()},
}


def read(folder, case):
    names = [name.replace("+", " ") for name in case.images.split()]
    return read_layout(make_folder(folder / "album", names, case.files), **case.options)


@pytest.mark.parametrize("title", READ)
def test_a_folder_with_one_reading_is_read(tmp_path, title):
    case = READ[title]
    layout = read(tmp_path, case)
    found = {file.name: label for file, label in layout.train if label}
    found |= {f"*{file.name}": label for file, label in (*layout.validation, *layout.test)}
    assert found == case.labels
    assert case.table in layout.table
    assert not [name for name, _ in layout.skipped if f"{name}: " in layout.table]
    said = zip(case.warnings, layout.warnings, strict=True)
    assert [part for part, warning in said if part not in warning] == []


@pytest.mark.parametrize("title", ASKED)
def test_what_is_not_clear_is_asked(tmp_path, title):
    case = ASKED[title]
    with pytest.raises(UserError) as error:
        read(tmp_path, case)
    assert re.search(case.sentence, str(error.value))
