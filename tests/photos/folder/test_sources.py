"""What images come from: by a column, or by a pattern of names."""

import functools
import re

import numpy as np
import pytest
from PIL import ExifTags, Image

from cls_jax.errors import UserError
from cls_jax.photos.folder.dataset import pack_layout, unpack_layout
from cls_jax.photos.folder.sources import (
    describe_sources,
    number_sources,
    propose_by_folders,
    propose_copies,
    propose_origins,
    propose_pattern,
    search_names,
)
from cls_jax.photos.images.decode import read_origin
from tests.photos.helpers import make_folder, read_layout

propose_alike = functools.partial(propose_copies, are_alike=lambda *_: True)
NAMES = [f"images/{i}.png" for i in range(8)]
LABELS = ["cat", "dog"] * 4


def read(root, rows=None, names=NAMES, **options):
    """The layout of a folder with these names and a table. No image is opened."""
    files = {} if rows is None else {"labels.csv": "".join(",".join(row) + "\n" for row in rows)}
    return read_layout(make_folder(root, names, files), **options)


def get_sources(layout):
    """Sets of files that belong together."""
    groups = {}
    for (file, _), number in zip(layout.train, layout.sources.numbers.tolist(), strict=True):
        groups.setdefault(number if number >= 0 else file.name, set()).add(file.name)
    return sorted(map(sorted, groups.values()))


def create_table(header, cells):
    return [header, *zip(NAMES, LABELS, cells, strict=True)]


@pytest.mark.parametrize("header", ["patient", "Patient ID", "camera", "Site_ID", "video"])
def test_a_column_of_sources_is_found_by_its_header(tmp_path, header):
    cells = ["a", "a", "B", "b ", "c", "c", "", "d"]
    layout = read(tmp_path, create_table(["file", "label", header], cells))
    pairs = [NAMES[0:2], NAMES[2:4], NAMES[4:6], NAMES[6:7], NAMES[7:8]]
    assert get_sources(layout) == pairs
    assert layout.sources.origin == f"the column {header!r}"
    lines = describe_sources(layout.sources, layout.train.labels, layout.class_names)
    assert lines == [
        f"Sources:     4 by the column {header!r}, of 7 of 8 training images; labeled images of a "
        "class are from 3 to 4"
    ]
    again = unpack_layout(pack_layout(layout))
    np.testing.assert_array_equal(again.sources.numbers, layout.sources.numbers)
    assert again.sources.origin == layout.sources.origin


def test_columns_that_are_no_sources(tmp_path):
    alone = read(tmp_path / "a", create_table(["file", "label", "patient"], "abcdefgh"))
    assert alone.sources is None  # Each image has its own.
    # The only column beside the files has the classes, whatever it is called.
    layout = read(tmp_path / "b", [row[:2] for row in create_table(["file", "site"], LABELS)])
    assert (layout.class_names, layout.sources) == (("cat", "dog"), None)
    # Beside a column of words, it has the sources.
    layout = read(tmp_path / "c", create_table(["file", "what", "site"], "aabbccdd"))
    assert (layout.class_names, len(get_sources(layout))) == (("cat", "dog"), 4)
    rows = create_table(["file", "label", "where"], "aabbccdd")
    assert read(tmp_path / "d", rows).sources is None
    layout = read(tmp_path / "d", rows, source_column="where")
    assert get_sources(layout) == [NAMES[i : i + 2] for i in (0, 2, 4, 6)]
    with pytest.raises(UserError, match="no column 'who': choose --source-column from 'file'"):
        read(tmp_path / "d", rows, source_column="who")


def test_a_class_with_a_single_source_is_told(tmp_path):
    layout = read(tmp_path, create_table(["file", "label", "patient"], "ababacac"))
    lines = describe_sources(layout.sources, layout.train.labels, layout.class_names)
    assert lines[0].endswith("are from 1 to 2")
    assert lines[1].startswith("All labels of 'cat' are from one source each: the classifier may")


def test_a_pattern_of_names_says_the_sources(tmp_path):
    names = [f"{name}/P{i:02}_{k}.png" for name in ("cat", "dog") for i in range(3) for k in (1, 2)]
    layout = read(tmp_path, names=names)
    assert layout.sources is None
    assert "such as 'cat/P00_1.png' may say" in layout.proposal
    (pattern,) = (word for word in layout.proposal.split("'") if word.startswith("("))
    layout = read(tmp_path, names=names, source_pattern=pattern)
    together = [[name for name in names if f"P{i:02}" in name] for i in range(3)]
    assert get_sources(layout) == together
    assert layout.proposal == ""
    for pattern, sentence in (
        ("P(", "is no regular expression"),
        ("P.", "needs one group"),
        ("(Q)", "fits no name, such as"),
    ):
        with pytest.raises(UserError, match=sentence):
            read(tmp_path, names=names, source_pattern=pattern)


@pytest.mark.parametrize(
    ("propose", "names"),
    [
        (propose_pattern, ["cat1.png", "cat2.png", "dog1.png", "dog2.png"]),
        (propose_pattern, ["IMG_0001.png", "IMG_0002.png", "IMG_0003.png"]),
        (propose_pattern, ["cat_1_1.png", "cat_1_2.png", "dog_1_1.png", "dog_1_2.png"]),
        (propose_pattern, ["a.png", "b.png"]),
        (propose_pattern, []),
        # Numbered photos are no copies, even if they look alike.
        (propose_alike, ["cat/IMG-1.png", "cat/IMG-2.png", "dog/IMG-3.png", "dog/IMG-4.png"]),
        (propose_alike, [f"{name}/photo ({i}).png" for name in ("cat", "dog") for i in (1, 2)]),
        (propose_alike, ["cat/a.png", "cat/a-1.png", "cat/b.png", "cat/b-1.png", *"cdefgh"]),
        (propose_alike, ["cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png"]),
    ],
)
def test_other_names_propose_nothing(propose, names):
    assert propose(names) is None


COPIES = {
    "Roboflow": ("_jpg.rf.1ab4f", "_jpg.rf.2ab4f", "_jpg.rf.3ab4f"),
    "_aug": ("", "_aug"),
    "_aug_3": ("_aug_0", "_aug_1", "_aug_2"),
    "-1": ("", "-1", "-2"),
    "(2)": ("", " (2)"),
    "copy": ("", " copy", " copy 2"),
    "Copy": ("", " - Copy", " - Copy (2)"),
}


@pytest.mark.parametrize("ends", COPIES.values(), ids=COPIES)
def test_names_of_copies_propose_their_photo_if_they_look_alike(ends):
    tops = "train/cat", "train/dog"
    for photo in ("{0}{1}", "photo{1}"):  # Unique, or numbered in each folder.
        photos = [f"{top}/{photo.format(top[-3:], i)}" for i in range(4) for top in tops]
        names = [f"{photo}{end}.jpg" for photo in photos for end in ends]
        names += ["train/cat/other.jpg"]
        sentence = propose_copies(names, lambda name, _: int(re.search(r"\d", name)[0]) % 2 == 0)
        (pattern,) = (word for word in sentence.split("'") if word.startswith("(?i)"))
        sources = number_sources(names, search_names(names, pattern))
        assert sources.tolist() == [*np.repeat(np.arange(8), len(ends)), 8]
        is_sure = "rf" in ends[0]
        assert (propose_copies(names, lambda *_: False) is not None) == is_sure
        assert propose_copies(names[:: len(ends)], lambda *_: True) is None  # None has two.


def test_a_level_of_folders_is_proposed_and_never_taken(tmp_path):
    """Below the classes, where folders have them, or above the images, where a table does."""
    names = [
        f"{top}{name}/site{site}/{i}.png"
        for top in ("", "labeled/")
        for name, sites in (("cat", (1, 2, 3)), ("dog", (2, 3)))
        for site in sites
        for i in range(4)
    ]
    plain, nested = names[: len(names) // 2], names[len(names) // 2 :]
    for folder, files, pattern in (
        ("a", plain, "^[^/]+/([^/]+)/"),
        ("b", nested, "^[^/]+/[^/]+/([^/]+)/"),
    ):
        layout = read(tmp_path / folder, names=files, layout="classes")
        assert layout.sources is None
        assert f"with --source-pattern '{pattern}', images" in layout.proposal
        assert layout.proposal.endswith("(3 names, 2 to 3 in a class).")
        taken = read(tmp_path / folder, names=[], source_pattern=pattern, layout="classes")
        assert len(get_sources(taken)) == 3
    names = [f"site{i // 4}/{i}.png" for i in range(12)]
    rows = [["file", "label"], *zip(names, LABELS + LABELS, strict=False)]
    layout = read(tmp_path / "c", rows, names)
    assert "such as 'site0' may say" in layout.proposal
    assert "'^([^/]+)/'" in layout.proposal


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"], [0, 0, 1, 1]),
        (
            ["train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "train/dog/2.png"],
            [0, 0, 1, 1],
        ),
        (["1.png", "2.png", "a/3.png", "b/4.png"], [0, 0, 1, 1]),
        (["images/a/1.png", "images/b/1.png", "images/c/1.png"], [0, 0, 1]),  # One image each.
        # Parts of the data, and spellings of a class.
        (
            ["labeled/a/1.png", "labeled/b/2.png", "unlabeled/3.png", "unlabeled/4.png"],
            [0, 1, 0, 1],
        ),
        (
            ["1/a.png", "1.0/a.png", "1.0/b.png", "2/a.png", "2/b.png", "2/c.png"],
            [0, 0, 0, 1, 1, 1],
        ),
        ([], []),
    ],
)
def test_other_folders_propose_nothing(names, labels):
    assert propose_by_folders(names, np.array(labels, int)) is None


def test_cameras_are_proposed_by_their_serial_numbers(tmp_path):
    exif = Image.Exif()
    for i, serial in enumerate([" 0042 ", "0043", "0042", "0043", ""]):
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.BodySerialNumber] = serial
        Image.new("RGB", (40, 40)).save(tmp_path / f"{i}.jpg", exif=exif)
    (tmp_path / "5.jpg").write_text("no image")
    origins = [read_origin(path) for path in sorted(tmp_path.iterdir())]
    assert [number for _, number in origins] == ["0042", "0043", "0042", "0043", "", ""]
    assert "4 of 6 sampled images name their camera, of which there are 2" in propose_origins(
        origins
    )
    for few in (["a", "a", "a"], ["a", "b", "c"], ["a", "a", "b", "b", *[""] * 5], []):
        assert propose_origins([("camera", number) for number in few]) is None
