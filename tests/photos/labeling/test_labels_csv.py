"""A session and other programs write to one table, also to one that another program has made."""

import collections
import concurrent.futures
import csv
import stat

import filelock
import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder import label_table
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import answers, views
from cls_jax.photos.labeling.changes import Change
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling import writers
from tests.photos.labeling.sessions import (
    create_photos,
    decide,
    open_ready,
    read_states,
    read_training,
)


@pytest.mark.parametrize("header", ["label;note;file", "kind;id;img"])
def test_a_table_of_another_program_keeps_its_columns(session, folder, kinds, header):
    table = folder / LABELS_CSV
    before = f"{header}\ncat;1;IMG_0000.png\ndog;2;IMG_0001.png"
    table.write_text(before)
    session.follow_table()
    decide(session, 1, "cat")
    decide(session, 2, "", decision="none")
    decide(session, 3, "", decision="skip")
    decide(session, 0, "dog")
    session.undo("w")
    decide(session, 2, "dog")
    rows = [row[:4] for row in csv.reader(table.read_text().split("\n"), delimiter=";")]
    assert table.read_text().startswith(f"{before}\ncat;;IMG_0001.png\n")
    assert rows[4:6] == [
        ["", "", f"IMG_000{i}.png", kind] for i, kind in ((2, "none"), (3, "skip"))
    ]
    assert rows[6:8] == [["dog", "", "IMG_0000.png"], ["cat", "", "IMG_0000.png"]]
    states = {0: ("label", "cat"), 1: ("label", "cat"), 2: ("label", "dog"), 3: ("skip", "")}
    expected = {f"IMG_000{i}.png": state for i, state in states.items()}
    assert read_states(session) == read_states(open_ready(folder, kinds)) == expected


def test_a_link_as_table_is_not_written_through(session, folder, tmp_path):
    target = tmp_path / "elsewhere.csv"
    target.write_text("file,label\n")
    (folder / LABELS_CSV).symlink_to(target)
    with pytest.raises(UserError, match="is a link"):
        decide(session, 0, "cat")
    assert target.read_text() == "file,label\n"


@pytest.mark.parametrize("base", ["", "train/"])
@pytest.mark.parametrize("is_answered_in_own_table", [False, True])
def test_an_answer_keeps_labels_of_folders(folder, capsys, base, is_answered_in_own_table):
    names = [f"{base}{kind}/{i}.png" for kind in ("cat", "dog") for i in range(8)]
    create_photos(folder, 1, ["test/cat/b.png"])
    if is_answered_in_own_table:  # With another header, and without a row so far.
        folder.joinpath(LABELS_CSV).write_text("image;class\n")
    session = open_ready(folder, create_photos(folder, len(names), names))
    assert "Every photo is labeled by its folder" in capsys.readouterr().out
    before = {name: ("label", name.split("/")[-2]) for name in names}
    assert read_states(session) == before
    decide(session, 3, "owl")
    after = before | {names[3]: ("label", "owl")}
    assert read_states(session) == after
    labels, layout = read_training(folder)
    assert labels == {name: label for name, (_, label) in after.items()}
    assert len(layout.test) == 1
    assert len(layout.warnings) == (base != "train/")  # It says which labels are folders' names.


def test_a_later_answer_counts_whatever_the_clock_says(session, folder, kinds):
    """A colleague's clock is ahead, and rows of other programs have no time or their own."""
    times = ["2999-01-01T00:00:00.5Z", "2999-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999Z"]
    rows = [f"IMG_000{i}.png,dog,label,{time}\n" for i, time in enumerate([*times, "today"])]
    (folder / LABELS_CSV).write_text("file,label,decision,time\n" + "".join(rows))
    session.follow_table()
    for image in range(4):
        decide(session, image, "cat")
        decide(session, image, "owl")
    with (folder / LABELS_CSV).open("a") as file:
        file.write("IMG_0000.png,cat\nIMG_0001.png,cat,label,2998-01-01T00:00:00Z\n")
    session.follow_table()
    expected = ["cat", "owl", "owl", "owl"]
    for one in (session, open_ready(folder, kinds)):
        assert [label for _, (_, label) in sorted(read_states(one).items())] == expected
    labels, layout = read_training(folder)
    assert [labels[f"IMG_000{i}.png"] for i in range(4)] == expected
    assert "different labels" in layout.warnings[0]


def test_a_lock_of_another_program_delays_an_answer_and_nothing_else(session, folder, monkeypatch):
    monkeypatch.setattr(answers, "_LOCK_SECONDS", 1.0)
    change = [Change(0, "label", "cat", 0)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with filelock.FileLock(folder / ".labels.csv.lock"):
            decision = pool.submit(session.decide, change, "w")
            concurrent.futures.wait([decision], timeout=0.2)
            views.describe(session)
            session.follow_table()
            assert not decision.done()
            with pytest.raises(UserError, match=r"another program is writing to labels\.csv"):
                decision.result()
        pool.submit(session.decide, change, "w").result()
    assert read_states(session) == {"IMG_0000.png": ("label", "cat")}


@pytest.mark.parametrize(
    "torn", ["IMG_0009.png", 'IMG_0009.png,"ca', "IMG_0009.png,cat\n\n", '5" x,d']
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_answers_follow_a_row_that_a_crash_has_cut_short(session, folder, kinds, torn, encoding):
    start = f"file,label\nIMG_0000.png,dog\n{torn}".encode(encoding)
    (folder / LABELS_CSV).write_bytes(start)
    decide(session, 1, "Bär")
    decide(session, 2, "", decision="none")
    assert (folder / LABELS_CSV).read_bytes().startswith(start)
    states = read_states(open_ready(folder, kinds))
    states.pop("IMG_0009.png", None)
    answers = [("label", "dog"), ("label", "Bär"), ("none", "")]
    assert list(states.values()) == answers


def test_rows_appended_at_the_same_moment_are_read(session, folder, monkeypatch):
    decide(session, 0, "cat")
    append = label_table.append_rows

    def append_after_another(path, rows, *known):
        with path.open("a") as file:
            file.write(f"IMG_0001.png,dog,label,{label_table.find_next_time('')}\n")
        return append(path, rows, *known)

    monkeypatch.setattr(label_table, "append_rows", append_after_another)
    decide(session, 2, "cat")
    session.follow_table()
    assert read_states(session)["IMG_0001.png"] == ("label", "dog")


TOO_MANY = "\n".join(["file,label", *(f"IMG_{i % 30:04}.png,{i}" for i in range(1100))])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("one,two,three\n1,2,3\n", "'one', 'two', 'three'\\) names images"),
        (TOO_MANY, "more than 1,000 classes"),
    ],
)
def test_a_table_that_breaks_meanwhile_is_not_written_to(session, folder, table, message):
    decide(session, 0, "cat")
    (folder / LABELS_CSV).write_text(table)
    for _ in range(2):
        with pytest.raises(UserError, match=message):
            decide(session, 1, "cat")
    with pytest.raises(UserError, match=message):
        open_session(folder)
    assert (folder / LABELS_CSV).read_text() == table
    assert read_states(session) == {"IMG_0000.png": ("label", "cat")}
    (folder / LABELS_CSV).write_text("file,label\nIMG_0002.png,dog\n")
    decide(session, 1, "cat")
    assert set(read_states(session)) == {"IMG_0001.png", "IMG_0002.png"}


@pytest.mark.parametrize(
    "name", ["cat;dog", "a, b", "None", "null", '["a"]', "cat/dog", "black cat"]
)
@pytest.mark.parametrize("header", ["name,class", "name,labels"])
def test_a_table_of_another_program_keeps_every_class(folder, name, header):
    kinds = create_photos(folder, 12)
    table = f"{header}\nIMG_0000.png,a\nIMG_0001.png,b\n"
    (folder / LABELS_CSV).write_text(table)
    session = open_ready(folder, kinds)
    decide(session, 3, name)
    decide(session, 4, name)
    session.undo("w")
    assert (folder / LABELS_CSV).read_text().startswith(table)
    marks = open_ready(folder, kinds).known.marks
    assert marks.get("IMG_0003.png").label == name
    assert marks.get("IMG_0004.png").label == ""
    assert read_training(folder)[0]["IMG_0003.png"] == name


def test_no_answer_is_lost_or_on_another_file(start_program, folder, kinds):
    """Three programs answer at a time and are killed at random, into a table of two columns."""
    table = folder / LABELS_CSV
    table.write_text("file,label\nIMG_0000.png,cat by me\nIMG_0001.png,dog by me\n")
    table.chmod(0o640)
    reported = writers.run_and_kill(start_program, folder, num_answers=25, num_kills=9)
    _, *rows = csv.reader(table.read_text().splitlines())
    assert {len(row) for row in rows} <= {2, 4}
    saved = collections.Counter((row[0], row[1]) for row in rows)
    assert len(reported) > 50
    assert not collections.Counter(map(tuple, reported)) - saved
    kind_of = dict(zip(sorted(writers.NAMES), kinds, strict=True))
    assert all(label.split(" ")[0] in ("", writers.CLASSES[kind_of[name]]) for name, label in saved)
    last = {name: label for name, label, *_ in rows}  # The last row of each file counts.
    states = read_states(open_ready(folder, kinds))
    assert {name: states[name][1] for name in last} == last
    labels, _ = read_training(folder)
    labeled = {name: label for name, label in labels.items() if label}
    assert labeled == {name: label for name, label in last.items() if label}
    assert stat.S_IMODE(table.stat().st_mode) == 0o640
