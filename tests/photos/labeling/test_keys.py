"""Each class has a number key of its own: the same in all views, windows and sessions."""

import contextlib
import functools
import random

import pytest

from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import (
    Change,
    ConflictError,
    describe_class,
    rename_class,
    set_example,
    set_key,
)
from cls_jax.photos.labeling.classes import assign_keys
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling.pages import (
    choose,
    hear,
    hold,
    press,
    read_decisions,
    read_name,
    see,
    show,
    wait_for_count,
    wait_for_photo,
)
from tests.photos.labeling.sessions import (
    CLASSES,
    change,
    create_photos,
    decide,
    decide_all,
    open_ready,
    read_training,
)

# Whether all of an element is in the box of the list that scrolls.
IS_IN_SIGHT = """(selector) => {
  const [inner, list] = [document.querySelector(selector), document.querySelector(".classes")];
  const [box, around] = [inner, list].map((one) => one.getBoundingClientRect());
  return box.top >= around.top && box.bottom <= around.bottom;
}"""


def read_keys(session, of_used=False):
    """The key of each class, or of those that photos have."""
    rows = views.describe(session)["classes"]
    return {row["name"]: row["key"] for row in rows if row["count"] or not of_used}


def test_a_key_is_no_label_and_only_a_digit_or_a_letter(folder, kinds):
    session = decide_all(open_ready(folder, kinds), CLASSES)
    before = read_training(folder)[0]
    session.change("w", set_key, "owl", "1")
    assert read_training(folder)[0] == before
    assert "\n1,owl,key," in (folder / LABELS_CSV).read_text()
    for name, key in (("owl", "0"), ("owl", "12"), ("owl", ""), ("owl", "é"), ("fish", "1")):
        with pytest.raises(RefusedError):
            session.change("w", set_key, name, key)


@pytest.mark.parametrize(
    ("names", "chosen", "former", "keys"),
    [
        # In order. Of two classes that claim a key, the first has it.
        (
            *("abcdefghijkl", {"l": "3", "e": "3"}, {"a": "5", "gone": "1"}),
            dict(zip("eabcdfghi", "351246789", strict=True)),
        ),
        (
            *("abcdefghijkl", {"l": "k", "a": "k"}, {}),
            dict(zip("abcdefghij", "k123456789", strict=True)),  # The digits stay for others.
        ),
        # A class with a digit for a name has this key or none.
        ("0123456789", {}, {}, {key: key for key in "123456789"}),
        (["cat", "0", "2", "1"], {}, {"cat": "1"}, {"cat": "1", "2": "2"}),
        (["cat", "3"], {}, {}, {"cat": "1", "3": "3"}),
        (["cat", "3"], {"cat": "3", "3": "1"}, {}, {"cat": "3", "3": "1"}),
    ],
)
def test_each_key_is_given_to_one_class(names, chosen, former, keys):
    assert assign_keys(names, chosen, former) == keys


def label(*labels):
    return lambda session: decide_all(session, labels)


rename, give_key = (functools.partial(change, plan) for plan in (rename_class, set_key))


def add(name):
    return lambda session: session.add_class(name)


def skip(image):
    return lambda session: decide(session, image, "", decision="skip")


def undo(session):
    session.undo("w")


COME_AND_GO = [rename("b", ""), rename("c", "d"), add("e"), rename("d", "a")]
RIVER = label("river", "field", "river")
TWELVE = [f"class {i:02}" for i in range(12)]
BACKWARDS = label(*CLASSES[::-1])
CHOSEN = [label(*CLASSES), give_key("owl", "1"), rename("cat", ""), rename("owl", "eule")]


@pytest.mark.parametrize(
    ("names", "steps", "expected"),
    [
        ("abc", COME_AND_GO[:1], {"a": "1", "c": "3"}),
        ("abc", COME_AND_GO[:2], {"a": "1", "d": "3"}),
        ("abc", COME_AND_GO[:3], {"a": "1", "d": "3", "e": "2"}),
        ("abc", COME_AND_GO, {"a": "1", "e": "2"}),  # A merger.
        ("", [RIVER, rename("river", "stream")], {"stream": "1", "field": "2"}),
        ("", [RIVER, rename("river", "stream"), undo] * 2, {"river": "1", "field": "2"}),
        (
            "",
            [RIVER, rename("river", "stream"), undo, add("lake")],
            {"river": "1", "field": "2", "lake": "3"},
        ),
        ("", [label(*"abcd"), skip(0), skip(2)], {"a": "1", "b": "2", "c": "3", "d": "4"}),
        # The table alone would give them in the order of the first labels.
        (CLASSES, [BACKWARDS], {"cat": "1", "dog": "2", "owl": "3"}),
        ("", [BACKWARDS], {"owl": "1", "dog": "2", "cat": "3"}),
        ("", [BACKWARDS, rename("owl", "eule")], {"eule": "1", "dog": "2", "cat": "3"}),
        ("", [add("new"), BACKWARDS], {"new": "1", "owl": "2", "dog": "3", "cat": "4"}),
        (
            "",
            [BACKWARDS, rename("owl", ""), lambda session: decide(session, 5, "new")],
            {"new": "1", "dog": "2", "cat": "3"},
        ),
        ("", [BACKWARDS, give_key("dog", "1"), undo], {"owl": "1", "dog": "2", "cat": "3"}),
        # The class that had the key gets the other's.
        ("", CHOSEN[:2], {"cat": "3", "dog": "2", "owl": "1"}),
        ("", CHOSEN, {"dog": "2", "eule": "1"}),
        ("", [*CHOSEN, undo, undo], {"cat": "3", "dog": "2", "owl": "1"}),
        ("", [*CHOSEN, undo, undo, undo], {"cat": "1", "dog": "2", "owl": "3"}),
        (
            TWELVE,
            [give_key("class 11", "1")],
            dict(zip(TWELVE, ["", *"23456789", "", "", "1"], strict=True)),
        ),
        # A deleted class leaves its key to none that had no key.
        (
            TWELVE,
            [label(*TWELVE), rename(TWELVE[0], "")],
            dict(zip(TWELVE[1:], [*"23456789", "", "", ""], strict=True)),
        ),
        (
            TWELVE,
            [label(*TWELVE), rename(TWELVE[0], ""), add("new")],
            dict(zip([*TWELVE[1:], "new"], [*"23456789", "", "", "", "1"], strict=True)),
        ),
    ],
)
def test_the_next_session_gives_the_same_keys_whatever_came_before(
    folder, kinds, names, steps, expected
):
    session = open_ready(folder, kinds, names)
    for step in steps:
        step(session)
        assert len(read_keys(session)) > 0
    assert read_keys(session) == expected
    used = read_keys(session, of_used=True)
    assert read_keys(open_ready(folder, kinds)) == used
    for given in (["other", *sorted(used)], sorted(used)[::-1]):
        assert read_keys(open_ready(folder, kinds, given)).items() >= used.items()


@pytest.mark.parametrize("seed", range(12))
def test_no_key_changes_its_class_by_itself_whatever_is_done(folder, kinds, seed):
    """Only `set_key` and undoing change it, and the next session gives used classes the same."""
    rng = random.Random(seed)
    names = [*"abcdefghijklmn", *"0123"]
    session = open_ready(folder, kinds, rng.sample(names, rng.choice([0, 3, 12])))
    for _ in range(25):
        before = read_keys(session)
        action = rng.choice(["label"] * 6 + ["delete", "rename", "undo", "undo", "add", "key"])
        name, new, image = rng.choice(list(before) or names), rng.choice(names), rng.randrange(30)
        with contextlib.suppress(RefusedError):  # Not all of this makes sense.
            if action == "label":
                revision = views.describe_image(session.known, image)["revision"]
                session.decide([Change(image, "label", new, revision)], "w", True)
            elif action in ("delete", "rename"):
                session.change("w", rename_class, name, "" if action == "delete" else new)
            elif action == "undo":
                session.undo("w")
            elif action == "add":
                session.add_class(new)
            elif rng.random() < 0.3:
                session.change("w", set_key, name, rng.choice("123456789"))
        after = read_keys(session)
        if action not in ("undo", "key"):
            assert {k: after[k] for k in before if k in after}.items() <= before.items()
        assert read_keys(open_session(folder)) == read_keys(session, of_used=True)


@pytest.mark.parametrize(
    ("table", "names", "labels"),
    [
        ("", (), "cabcab"),  # The table gives the same ones by itself.
        ("file,label\nIMG_0000.png,cat\n", CLASSES, CLASSES[::-1]),  # Of another program.
    ],
)
def test_keys_that_nobody_chose_are_not_written(folder, kinds, table, names, labels):
    if table:
        (folder / LABELS_CSV).write_text(table)
    decide_all(open_ready(folder, kinds, names), labels)
    assert ",key" not in (folder / LABELS_CSV).read_text()


USES = {
    "nothing": lambda session: None,
    "label": lambda session: decide(session, 2, "Shirt", "other"),
    "description": change(describe_class, "Shirt", "with buttons", window="other"),
    "example": change(set_example, 0, window="other"),
    "key": change(set_key, "Shirt", "7", window="other"),
}


@pytest.mark.parametrize("use", USES)
def test_the_undo_of_an_answer_takes_back_the_class_that_it_added(session, use):
    """If nothing else has it. Its key is then the next one's."""
    session.decide([Change(0, "label", "Shirt ", 0), Change(1, "label", "Shirt ", 0)], "w", True)
    assert read_keys(session) == {"cat": "1", "dog": "2", "Shirt": "3"}
    USES[use](session)
    session.undo("w")
    assert ("Shirt" in read_keys(session)) == (use != "nothing")
    session.decide([Change(0, "label", "coat", 2)], "w", True)
    assert read_keys(session)["coat"] == ("3" if use in ("nothing", "key") else "4")


def test_an_answer_that_is_refused_adds_no_class_nor_does_one_with_a_known_class(session):
    decide(session, 0, "cat")
    for labels, adds, error, why in (
        ({0: "owl"}, True, ConflictError, r"^IMG_0000.* was labeled in the meantime"),
        ({0: "owl", 1: "owl"}, True, ConflictError, "^None of the 2 photos was labeled: IMG_0000"),
        ({1: "owl", 2: "No label"}, True, RefusedError, "no label"),
        ({1: "DOG"}, True, RefusedError, "There is already a class named dog"),
        ({1: "owl"}, False, RefusedError, "no such class"),
    ):
        changes = [Change(image, "label", label, 0) for image, label in labels.items()]
        with pytest.raises(error, match=why):
            session.decide(changes, "w", adds)
    session.decide([Change(1, "label", "dog ", 0)], "w", True)
    assert list(read_keys(session)) == ["cat", "dog"]


def test_a_key_means_the_same_class_in_every_view(visit, folder):
    """Also with more classes than keys, whose order stays."""
    names = [*CLASSES, *(f"class {i}" for i in range(10))]
    session = decide_all(open_ready(folder, create_photos(folder, 30), names), CLASSES * 2, "other")
    with visit(session) as page:
        show(page, "classes")
        assert page.get_by_label("Key of class 9").input_value() == ""
        page.get_by_label("Key of class 9").focus()
        page.get_by_label("Key of class 9").select_option("2")
        page.wait_for_selector(
            ".class-row:last-child option[selected]:has-text('Key 2')", state="attached"
        )
        page.wait_for_function("() => document.activeElement.id === 'key-12'")
        assert read_keys(session)["class 9"] == "2"
        page.get_by_label("Key of class 8").select_option("k")  # A letter that a person chooses.
        page.wait_for_selector("option[selected]:has-text('Key k')", state="attached")
        assert read_keys(session)["dog"] == ""
        expected, orders = [], []
        show(page, "next")
        for key, label in (("1", "cat"), ("2", "class 9"), ("9", "class 5"), ("k", "class 8")):
            read_name(page)
            orders.append(page.locator(".class .name").all_inner_texts())
            # The proposed class stays in sight in a list that is longer than the window.
            assert page.locator(".class.proposed").count() == 1
            assert page.evaluate(IS_IN_SIGHT, ".class.proposed")
            assert page.inner_text(f".class:has(kbd:text-is('{key}')) .name") == label
            expected.append((press(page, key), label))
        assert orders == [orders[0]] * 4
        assert sorted(orders[0]) == sorted(names)
        show(page, "photos")
        for key, label in (("1", "cat"), ("2", "class 9"), ("9", "class 5"), ("k", "class 8")):
            (name,) = choose(page, 0)
            see(page, f".cell[aria-label^='{name}, {label}, your answer']", key)
            expected.append((name, label))
    answers = [row[:2] for row in read_decisions(folder) if row[2] == "label"]
    assert answers[6:] == expected


def test_arrow_keys_go_through_all_earlier_answers_and_back(visit, folder):
    session = open_ready(folder, create_photos(folder, 40), CLASSES)
    with visit(decide_all(session, CLASSES * 9)) as page:  # More than the strip shows.
        question = read_name(page)

        def go(key, image):
            page.keyboard.press(key)
            wait_for_photo(page, f"IMG_{image:04}.png")
            return page.locator("figcaption").inner_text()

        for image in range(26, 2, -1):
            assert go("ArrowLeft", image).endswith(f"currently {CLASSES[image % 3]}")
        read_name(page)
        with hold(page, "api/earlier/*"):
            page.keyboard.press("ArrowLeft")
            hear(page, "press again", "3")  # No key is for the photo that is left.
        for image in (2, 1, 0):
            wait_for_photo(page, f"IMG_{image:04}.png")
            page.keyboard.press("ArrowLeft")
        hear(page, "no earlier answer")
        assert len(read_decisions(folder)) == 27
        for image in range(1, 27):
            go("ArrowRight", image)
        page.keyboard.press("ArrowRight")
        wait_for_photo(page, question)
        go("ArrowLeft", 26)
        go("ArrowLeft", 25)
        press(page, "3")  # Changes this answer, and goes on with the question.
        assert read_name(page) == question
    assert read_decisions(folder)[27:] == [("IMG_0025.png", "owl", "label")]


def test_each_undo_is_done_though_another_one_is_being_saved(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 12), CLASSES)) as page:
        names = [press(page, key) for key in "1231"]
        with hold(page, "api/undo"):
            for _ in range(3):
                page.keyboard.press("Control+z")
        wait_for_count(page, "1")
        page.wait_for_timeout(300)
        assert page.locator("#count").inner_text() == "1 of 12 labeled"
    undone = [row[0] for row in read_decisions(folder) if row[2] == "undo"]
    assert undone == names[:0:-1]
