"""Each class has a number key of its own: the same in all views, windows and sessions."""

import contextlib
import csv
import random
import time

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
from tests.conftest import one_of
from tests.outcomes import read_table
from tests.photos.labeling.pages import (
    open_labeled,
    open_unsure,
    press,
    read_decisions,
    read_name,
    show,
    wait_for_count,
)
from tests.photos.labeling.sessions import (
    CLASSES,
    create_photos,
    decide,
    open_ready,
    read_training,
)

# Whether all of an element is in the box of the list that scrolls.
IS_IN_SIGHT = """(selector) => {
  const [inner, list] = [document.querySelector(selector), document.querySelector(".classes")];
  const [box, around] = [inner, list].map((one) => one.getBoundingClientRect());
  return box.top >= around.top && box.bottom <= around.bottom;
}"""


def read_keys(session):
    return {row["name"]: row["key"] for row in views.describe(session)["classes"]}


def test_keys_are_given_in_order_and_each_to_one_class():
    names = [f"class {i}" for i in range(12)]
    keys = assign_keys(names, {"class 11": "3", "class 4": "3"}, {"class 0": "5", "gone": "1"})
    assert len(set(keys.values())) == len(keys) == 9
    assert (keys["class 4"], keys["class 0"], keys["class 1"]) == ("3", "5", "1")
    assert "class 11" not in keys
    letters = assign_keys(names, {"class 11": "k", "class 0": "k"}, {})
    assert (letters["class 0"], letters["class 1"], letters.get("class 11")) == ("k", "1", None)
    assert len(letters) == 10  # The digits stay for others.


def test_a_key_is_chosen_undone_and_known_to_the_next_session_and_to_no_training(folder, kinds):
    session = open_ready(folder, kinds)
    for image, label in enumerate(CLASSES):
        decide(session, image, label)
    before = read_training(folder)[0]
    session.change("w", set_key, "owl", "1")  # The class that had it gets the other's.
    assert read_keys(session) == {"cat": "3", "dog": "2", "owl": "1"}
    assert read_keys(open_session(folder)) == read_keys(session)
    assert read_training(folder)[0] == before
    session.change("w", rename_class, "cat", "")
    session.change("w", rename_class, "owl", "eule")
    assert read_keys(session) == {"dog": "2", "eule": "1"}
    for _ in range(2):
        session.undo("w")
    assert read_keys(session) == {"cat": "3", "dog": "2", "owl": "1"}
    session.undo("w")
    assert (
        read_keys(session)
        == read_keys(open_session(folder))
        == dict(zip(CLASSES, "123", strict=True))
    )
    for name, key in (("owl", "0"), ("owl", "12"), ("owl", ""), ("owl", "é"), ("fish", "1")):
        with pytest.raises(RefusedError):
            session.change("w", set_key, name, key)


def test_no_key_moves_while_classes_come_and_go(folder, kinds):
    session = open_ready(folder, kinds, ["a", "b", "c"])
    session.change("w", rename_class, "b", "")
    assert read_keys(session) == {"a": "1", "c": "3"}
    session.change("w", rename_class, "c", "d")
    assert read_keys(session) == {"a": "1", "d": "3"}
    session.add_class("e")
    assert read_keys(session)["e"] == "2"
    session.change("w", rename_class, "d", "a")  # A merger.
    assert read_keys(session) == {"a": "1", "e": "2"}
    many = open_ready(folder, kinds, [f"class {i}" for i in range(12)])
    many.change("w", set_key, "class 11", "1")
    keys = read_keys(many)
    assert (keys["class 11"], keys["class 0"], keys["class 1"]) == ("1", "", "2")


def test_a_class_whose_renaming_is_undone_has_its_key_again(folder, kinds):
    session = open_ready(folder, kinds)
    for image, label in enumerate(["river", "field", "river"]):
        decide(session, image, label)
    before = read_keys(session)
    for _ in range(2):
        session.change("w", rename_class, "river", "stream")
        assert read_keys(session) == {"stream": "1", "field": "2"}
        session.undo("w")
        assert read_keys(session) == read_keys(open_session(folder)) == before
    session.add_class("lake")
    assert read_keys(session) == before | {"lake": "3"}


def test_no_key_moves_between_sessions_when_a_class_has_lost_its_photos(folder, kinds):
    session = open_ready(folder, kinds)
    for image, label in enumerate("abcd"):
        decide(session, image, label)
    assert read_keys(session) == {"a": "1", "b": "2", "c": "3", "d": "4"}
    for image in (0, 2):
        decide(session, image, "", decision="skip")
    again = open_ready(folder, kinds)
    assert read_keys(again) == {"b": "2", "d": "4"}
    again.add_class("e")  # Gets the first that is free.
    assert read_keys(again) == {"b": "2", "d": "4", "e": "1"}


def test_a_class_with_a_digit_for_a_name_has_this_key_or_none():
    digits = [str(digit) for digit in range(10)]
    assert assign_keys(digits, {}, {}) == {key: key for key in "123456789"}
    assert assign_keys(["cat", "0", "2", "1"], {}, {"cat": "1"}) == {"cat": "1", "2": "2"}
    assert assign_keys(["cat", "3"], {}, {}) == {"cat": "1", "3": "3"}
    assert assign_keys(["cat", "3"], {"cat": "3", "3": "1"}, {}) == {"cat": "3", "3": "1"}


def test_a_deleted_class_leaves_its_key_to_no_other_one_in_this_session_and_the_next(folder, kinds):
    names = [f"class {i:02}" for i in range(12)]
    session = open_ready(folder, kinds, names)
    for image, name in enumerate(names):
        decide(session, image, name)
    before = read_keys(session)
    assert [before[name] for name in names] == [*"123456789", "", "", ""]
    session.change("w", rename_class, names[0], "")
    del before[names[0]]
    for again in (session, open_ready(folder, kinds), open_ready(folder, kinds, names[::-1])):
        keys = read_keys(again)
        assert {name: keys[name] for name in before} == before
    session.add_class("new")  # It was none, so no key changes its meaning.
    assert read_keys(session)["new"] == "1"


@pytest.mark.parametrize("change", ["order", "rename", "unused", "deleted", "chosen and undone"])
def test_the_next_session_gives_the_same_keys_whatever_came_before(folder, kinds, change):
    """Though the table alone would give them in the order of the first labels."""
    session = open_ready(folder, kinds, CLASSES if change == "order" else ())
    if change == "unused":
        session.add_class("never used")
        read_keys(session)
    for image, label in enumerate(CLASSES[::-1]):
        decide(session, image, label)
        read_keys(session)
    if change == "rename":
        session.change("w", rename_class, "owl", "eule")
    elif change == "deleted":
        session.change("w", rename_class, "owl", "")
        decide(session, 5, "new")
    elif change == "chosen and undone":
        session.change("w", set_key, "dog", "1")
        session.undo("w")
    used = {name: key for name, key in read_keys(session).items() if name != "never used"}
    assert len(set(used.values())) == 3
    assert read_keys(open_ready(folder, kinds)) == used
    assert read_keys(open_ready(folder, kinds, ["other", *CLASSES])).items() >= used.items()


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
        rows = views.describe(session)["classes"]
        used = {row["name"]: row["key"] for row in rows if row["count"]}
        assert read_keys(open_session(folder)) == used


def test_keys_that_the_table_gives_by_itself_are_not_written(folder, kinds):
    session = open_ready(folder, kinds)
    for image, label in enumerate([*"cab", *"cab"]):
        decide(session, image, label)
    session.undo("w")
    assert read_keys(session) == read_keys(open_session(folder)) == {"c": "1", "a": "2", "b": "3"}
    assert {row["decision"] for row in read_table(folder / LABELS_CSV)} == {"label", "undo"}


def test_keys_that_nobody_chose_are_not_written_into_a_table_of_another_program(folder, kinds):
    (folder / LABELS_CSV).write_text("file,label\nIMG_0000.png,cat\n")
    session = open_ready(folder, kinds, CLASSES)
    for image, label in enumerate(CLASSES[::-1], 1):
        decide(session, image, label)
    rows = csv.reader((folder / LABELS_CSV).read_text().splitlines())
    assert {len(row) for row in rows} == {2}


@pytest.mark.parametrize("use", ["", "label", "describe", "example", "key"])
def test_the_undo_of_an_answer_takes_back_the_class_that_it_added(folder, kinds, use):
    """If nothing else has it. Its key is then the next one's."""
    session = open_ready(folder, kinds, ["cat", "dog"])
    session.decide([Change(0, "label", "Shirt ", 0), Change(1, "label", "Shirt ", 0)], "w", True)
    assert read_keys(session) == {"cat": "1", "dog": "2", "Shirt": "3"}
    if use == "label":
        decide(session, 2, "Shirt", "other")
    elif use == "describe":
        session.change("other", describe_class, "Shirt", "with buttons")
    elif use == "example":
        session.change("other", set_example, 0)
    elif use == "key":
        session.change("other", set_key, "Shirt", "7")
    session.undo("w")
    assert ("Shirt" in read_keys(session)) == bool(use)
    session.decide([Change(0, "label", "coat", 2)], "w", True)
    assert read_keys(session)["coat"] == ("4" if use not in ("", "key") else "3")


def test_an_answer_that_is_refused_adds_no_class(folder, kinds):
    session = open_ready(folder, kinds, ["cat", "dog"])
    decide(session, 0, "cat")
    with pytest.raises(ConflictError, match=r"^IMG_0000.* was labeled in the meantime"):
        session.decide([Change(0, "label", "owl", 0)], "w", True)
    with pytest.raises(ConflictError, match=r"^None of the 2 photos was labeled: IMG_0000"):
        session.decide([Change(i, "label", "owl", 0) for i in range(2)], "w", True)
    with pytest.raises(RefusedError, match="no label"):
        session.decide([Change(1, "label", "owl", 0), Change(2, "label", "No label", 0)], "w", True)
    with pytest.raises(RefusedError, match="no such class"):
        session.decide([Change(1, "label", "owl", 0)], "w")
    assert list(read_keys(session)) == ["cat", "dog"]


def test_a_key_means_the_same_class_in_every_view(visit, folder):
    """Also with more classes than keys, whose order stays."""
    names = [*CLASSES, *(f"class {i}" for i in range(10))]
    session = open_ready(folder, create_photos(folder, 30), names)
    for image in range(6):
        decide(session, image, CLASSES[image % 3], "other")
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
            shown = page.locator(f".class:has(kbd:text-is('{key}')) .name").inner_text()
            assert shown == label
            expected.append((press(page, key), label))
        assert orders == [orders[0]] * 4
        assert sorted(orders[0]) == sorted(names)
        show(page, "photos")
        for key, label in (("1", "cat"), ("2", "class 9"), ("9", "class 5"), ("k", "class 8")):
            cell = page.locator(".cell[data-decision='']").first
            name = cell.get_attribute("aria-label").split(",")[0]
            cell.click()
            page.keyboard.press(key)
            page.wait_for_selector(f".cell[aria-label^='{name}, {label}, your answer']")
            expected.append((name, label))
    answers = [row[:2] for row in read_decisions(folder) if row[2] == "label"]
    assert answers[6:] == expected


@pytest.mark.parametrize("way", one_of("arrow", "button", "strip"))
def test_what_was_typed_for_a_photo_is_not_given_to_the_next_one(visit, folder, way):
    session = open_labeled(folder, 20)
    with visit(session) as page:
        name = read_name(page)
        page.keyboard.type("fox")
        if way == "button":
            page.get_by_role("button", name="Skip").click()
        elif way == "arrow":
            page.locator(".photo").click()
            page.keyboard.press("ArrowLeft")
        else:
            page.locator("#strip button").first.click()
        page.wait_for_function(
            "name => !document.querySelector('figcaption').textContent.startsWith(name)", arg=name
        )
        shown = read_name(page)
        assert page.locator(".chooser .search").input_value() == ""
        page.keyboard.press("1")
        page.wait_for_function(
            "name => !document.querySelector('figcaption').textContent.startsWith(name)", arg=shown
        )
    assert read_decisions(folder)[-1] == (shown, "cat", "label")


def test_arrow_keys_go_through_all_earlier_answers_and_back(visit, folder):
    session = open_ready(folder, create_photos(folder, 40), CLASSES)
    for image in range(30):  # More than the strip shows.
        decide(session, image, CLASSES[image % 3])
    with visit(session) as page:
        question = read_name(page)

        def go(key, name):
            page.keyboard.press(key)
            page.wait_for_function(
                "name => document.querySelector('figcaption').textContent.startsWith(name)",
                arg=name,
            )
            return page.locator("figcaption").inner_text()

        for image in reversed(range(30)):
            caption = go("ArrowLeft", f"IMG_{image:04}.png")
            assert caption.endswith(f"currently {CLASSES[image % 3]}")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(".toast:has-text('no earlier answer')")
        for image in range(1, 30):
            go("ArrowRight", f"IMG_{image:04}.png")
        go("ArrowRight", question)
        go("ArrowLeft", "IMG_0029.png")
        go("ArrowLeft", "IMG_0028.png")
        assert read_name(page) == "IMG_0028.png"
        press(page, "3")  # Changes this answer, and goes on with the question.
        assert read_name(page) == question
    assert read_decisions(folder)[30:] == [("IMG_0028.png", "owl", "label")]


def test_each_undo_is_done_though_another_one_is_being_saved(visit, folder):
    with visit(open_ready(folder, create_photos(folder, 12), CLASSES)) as page:
        names = [press(page, key) for key in "1231"]

        def delay(route):
            time.sleep(0.2)
            route.continue_()

        page.route("**/api/undo", delay)
        for _ in range(3):
            page.keyboard.press("Control+z")
        wait_for_count(page, "1")
        page.wait_for_timeout(300)
        assert page.locator("#count").inner_text() == "1 of 12 labeled"
    undone = [row[0] for row in read_decisions(folder) if row[2] == "undo"]
    assert undone == names[:0:-1]


def test_the_first_photo_to_look_at_has_the_focus(visit, folder):
    with visit(open_unsure(folder, 60)) as page:
        show(page, "result")
        page.wait_for_selector(".about:has-text('Learned from')")
        page.select_option("#target", "98")
        look = page.locator("button:has-text('Look at these'):enabled")
        look.dblclick(delay=20)  # The second click may hit a photo.
        page.wait_for_selector("h2:has-text('Photos to look at')")
        page.wait_for_timeout(300)
        assert page.locator("figcaption").count() == 0  # It is not opened.
        page.keyboard.press("Escape")
        show(page, "result")
        look.wait_for()
        page.wait_for_timeout(700)
        look.click()
        page.wait_for_selector("h2:has-text('Photos to look at')")
        first = page.wait_for_selector(".cell:focus img")
        assert page.locator(".cell:focus").get_attribute("data-place") == "0"
        assert first.is_visible()
        # What a key will do is seen: the ring and the panel say for which photo it is.
        assert page.locator(".cell[aria-current=true]").get_attribute("data-place") == "0"
        name = page.locator(".cell:focus").get_attribute("title")
        assert page.locator(".selected-count").inner_text() == name
        assert page.locator("[data-part=confirm]").is_enabled()
        page.keyboard.press("Enter")
        wait_for_count(page, "7")
        assert page.locator(".cell:focus").get_attribute("data-place") == "1"


def test_the_row_of_a_key_names_the_class_and_the_digit(folder, kinds):
    session = open_ready(folder, kinds, ["cat", "dog"])
    session.change("w", set_key, "dog", "7")
    last = (folder / LABELS_CSV).read_text().splitlines()[-1]
    assert last.split(",")[:3] == ["7", "dog", "key"]
