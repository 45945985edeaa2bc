"""Photos with several tags: what a session makes of them, and what a browser shows."""

import json

import numpy as np
import pytest

from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import Change, rename_class
from cls_jax.photos.labeling.known import find_checked
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling.pages import (
    PHONE,
    SETTLE_MS,
    catch,
    check_views,
    enter,
    hear,
    hold,
    press,
    read_all,
    read_decisions,
    read_name,
    see,
    show,
    wait_for_photo,
    wait_until,
)
from tests.photos.labeling.sessions import create_photos, fit, open_ready

TAGS = ("boots", "coat", "hat")
OPTIONS = AUTOMATIC._replace(tags=True)


def draw_truth(num_images):
    """The tags of photos, bool [B, 3]."""
    return np.random.default_rng(0).random((num_images, len(TAGS))) < 0.5


def name_tags(has):
    return ";".join(tag for tag, one in zip(TAGS, has, strict=True) if one) or ";"


def open_tagged(folder, num_images=60, class_names=TAGS):
    """A session whose photos look like the sum of their tags."""
    create_photos(folder, num_images)
    rng = np.random.default_rng(1)
    features = draw_truth(num_images) @ rng.normal(size=(len(TAGS), 32))
    features += 0.3 * rng.normal(size=features.shape)
    features = features.astype(np.float32)
    return open_ready(folder, range(num_images), class_names, features, options=OPTIONS)


@pytest.fixture
def session(folder):
    return open_tagged(folder)


def answer(session, image, label, decision="label"):
    revision = session.known.get_state(image).revision
    session.decide([Change(image, decision, label, revision)], "w")


def list_labels(session, count):
    return [session.known.get_state(i).label for i in range(count)]


def answer_some(session, images):
    """Answers by the truth and learns from that."""
    for image in images:
        answer(session, image, name_tags(draw_truth(60)[image]))
    return fit(session)


def test_a_label_is_the_tags_of_a_photo_or_none_of_them(folder, session):
    answer(session, 0, "boots;hat")
    answer(session, 1, "", "none")
    answer(session, 2, "coat;?hat")
    answer(session, 3, "", "skip")
    assert list_labels(session, 4) == ["boots;hat", ";", "?hat;coat", ""]
    assert read_decisions(folder) == [
        ("IMG_0000.png", "boots;hat", "label"),
        ("IMG_0001.png", "", "none"),
        ("IMG_0002.png", "coat;?hat", "label"),
        ("IMG_0003.png", "", "skip"),
    ]
    state = views.describe(session)
    assert [(one["name"], one["count"]) for one in state["classes"]] == [(tag, 1) for tag in TAGS]
    assert state["counts"] == {"images": 60, "labeled": 3, "none": 0, "skipped": 1}
    features = np.eye(60, dtype=np.float32)
    again = open_ready(folder, range(60), features=features, options=OPTIONS)
    assert list_labels(again, 4) == list_labels(session, 4)
    assert again.known.find_keys() == session.known.find_keys()
    with pytest.raises(RefusedError, match="no such class"):
        answer(session, 4, "boots;scarf")
    assert [*session.undo("w")] == [3]
    session.undo("w")
    assert session.known.get_state(2).decision == ""


def test_a_tag_is_renamed_merged_and_deleted_in_every_label(session):
    labels = ["boots;hat", "boots", ";", "?boots;coat", "?boots;hat"]
    for image, label in enumerate(labels):
        answer(session, image, label)

    for name, new, expected in (
        ("boots", "shoes", ["hat;shoes", "shoes", ";", "?shoes;coat", "?shoes;hat"]),
        ("shoes", "hat", ["hat", "hat", ";", "?hat;coat", "hat"]),
        ("shoes", "", ["hat", ";", ";", "coat", "hat"]),
    ):
        session.change("w", rename_class, name, new)
        assert list_labels(session, 5) == expected
        if name == "shoes":
            session.undo("w")
    session.undo("w")
    assert list_labels(session, 5) == labels


def test_suggested_are_the_tags_that_are_more_probable_than_not(session):
    assert set(views.describe_photos(session)["label"]) == {-1}  # Nothing is suggested yet.
    answer_some(session, range(30))
    photos = views.describe_photos(session)
    truth = [name_tags(has) for has in draw_truth(60)]
    suggested = [photos["labels"][place] for place in photos["label"]]
    assert suggested[:30] == truth[:30]
    assert np.mean([a == b for a, b in zip(suggested[30:], truth[30:], strict=True)]) > 0.8
    for image in range(30, 60):
        proposals = views.describe_image(session.known, image)["proposals"]
        found = {one["label"]: one["probability"] for one in proposals}
        assert set(found) == set(TAGS)
        assert name_tags([found[tag] > 0.5 for tag in TAGS]) == suggested[image]
        confidence = np.prod([max(p, 1 - p) for p in found.values()])
        assert photos["confidence"][image] == pytest.approx(confidence, abs=0.001)
    rows = {row["label"]: row["images"] for row in views.describe_check(session)["rows"]}
    for label, images in rows.items():
        assert all(suggested[one["image"]] == label for one in images)
        assert all(one["proposals"][0]["probability"] >= 0.5 for one in images)
    wrong = next(images[0]["image"] for images in rows.values() if images)
    session.mark([wrong], suggested[wrong])
    shown = [one["image"] for row in views.describe_check(session)["rows"] for one in row["images"]]
    assert shown
    assert wrong not in shown
    result = views.describe_result(session)
    has = np.array([[tag in label.split(";") for tag in TAGS] for label in suggested[30:]])
    assert result["proposed"] == has.sum(axis=0).tolist()


def test_random_photos_check_all_tags_at_once_and_the_guess_is_a_label(folder, session):
    classifier = answer_some(session, range(20))
    session.follow_classifier()
    guesses = session.known.classified
    assert views.describe_result(session)["figures"] == {}  # Those that are asked are harder.
    assert session.draw_sample() == MIN_CHECKS
    assert not any(image["proposals"] for image in views.describe(session, "w")["next"])
    is_right, truth = [], draw_truth(60)
    for image in session.known.sample:
        said = session.known.rules.say(guesses.probabilities[[image]], guesses.class_names)
        answer(session, image, name_tags(truth[image]))
        mark = session.known.get_state(image)
        assert mark.check.guess == said.labels[0]
        assert mark.check.confidence == pytest.approx(said.confidences[0], abs=1e-3)
        is_right.append(mark.label == said.labels[0])
    classifier._wait()
    assert classifier.estimate().checks == MIN_CHECKS
    assert "of the other photos are tagged without a mistake" in classifier.describe()["accuracy"]
    figures = views.describe_result(session)["figures"]
    assert [*figures] == list(TAGS)
    assert all("precision about" in text for text in figures.values())
    again = find_checked(open_session(folder, (), OPTIONS).known)
    assert sorted(again.is_right) == sorted(is_right)


def test_tables_and_labels_have_the_tags_and_folders_are_refused(folder, session):
    classifier = answer_some(session, range(20))
    rows = {row["file"]: row for row in classifier.list_rows()}
    assert rows["IMG_0000.png"]["label"] == name_tags(draw_truth(60)[0])
    assert {row["source"] for row in rows.values()} == {"label", "suggested"}
    answer(session, 30, f"{TAGS[0]};?{TAGS[1]}")
    labels = json.loads(classifier.write_labels("fiftyone"))
    assert labels["classes"] == list(TAGS)  # Other programs know no open tags.
    with pytest.raises(RefusedError, match="download the table"):
        classifier.copy_by_class()
    with (folder / "IMG_0001.png").open("rb") as file, pytest.MonkeyPatch.context() as patch:
        known = session.known.relations.features.convert(lambda rows: rows[[1]])
        patch.setattr("cls_jax.photos.labeling.classifier.read_photo", lambda *_: known)
        assert set(classifier.classify(file)["label"].split(";")) <= {*TAGS, ""}
    assert views.describe(session)["command"].endswith("--tags --instant")


def test_a_label_is_written_split_and_changed_as_a_text(call_module):
    code = """(module, hasTags) => {
      module.choose(hasTags);
      const { kind: { split, write }, put } = module;
      const labels = ["", ";", "boots;hat", "?coat;boots", "?coat;?hat"];
      const put3 = (label, ...rest) => put(label, ...rest, ["boots", "coat", "hat"]);
      const cases = [["", "coat", true], ["?hat;boots", "hat", true], ["boots", "boots", false]];
      return [labels.map(split), labels.map(write), cases.map((one) => put3(...one))];
    }"""
    names, texts, changed = call_module("kinds.js", code, True)
    assert names == [[], [], ["boots", "hat"], ["boots"], []]
    assert texts == ["", "none of these", "boots, hat", "boots, others open", "others open"]
    assert changed == ["?boots;?hat;coat", "boots;hat", ";"]
    names, texts, _ = call_module("kinds.js", code, False)
    assert names == [[], [";"], ["boots;hat"], ["?coat;boots"], ["?coat;?hat"]]
    assert texts == ["", ";", "boots;hat", "?coat;boots", "?coat;?hat"]


def wait_for_tags(page, count):
    """Waits until this many tags are set."""
    page.wait_for_selector(f".class[aria-pressed=true] >> nth={count - 1}")


def test_keys_set_tags_which_enter_confirms_and_undo_takes_back(visit, folder, session):
    with visit(session) as page:
        first = read_name(page)
        hear(page, "press 0", "Enter")  # Nothing is set.
        page.keyboard.press("1")
        page.wait_for_selector("#status:text-is('boots: set.')", state="attached")
        page.keyboard.press("3")
        wait_for_tags(page, 2)
        page.keyboard.press("3")  # Takes it away again.
        assert read_pressed(page) == ["boots"]
        enter(page, "scarf")  # A new one.
        assert (read_name(page), read_pressed(page)) == (first, ["boots", "scarf"])
        page.wait_for_timeout(SETTLE_MS)
        press(page, "Enter")
        second = press(page, "0")
        assert read_decisions(folder) == [(first, "boots;scarf", "label"), (second, "", "none")]
        assert page.locator("#strip").inner_text().split("\n") == ["none of these", "boots, scarf"]
        # What is set stays while another view is shown, and is not for another photo.
        name = read_name(page)
        page.keyboard.press("2")
        wait_for_tags(page, 1)
        show(page, "result")
        show(page, "next")
        assert (read_name(page), read_pressed(page)) == (name, ["coat"])
        page.locator("#strip button").last.click()
        hear(page, f"The tags of {name} were not saved.")
        assert (read_name(page), read_pressed(page)) == (first, ["boots", "scarf"])
        page.keyboard.press("2")
        page.keyboard.press("3")
        wait_for_tags(page, 4)
        hear(page, "Tags as they were.", "Control+z")  # Before the last answer.
        assert read_pressed(page) == ["boots", "scarf"]
        assert len(read_decisions(folder)) == 2
        hear(page, f"{second} is no longer none of these", "Control+z")
        wait_for_photo(page, second)
        assert session.known.get_state(session.known.index[second]).decision == ""


def test_the_first_tags_are_typed(visit, folder):
    session = open_tagged(folder, class_names=())
    with visit(session) as page:
        first = read_name(page)
        enter(page, "hat")
        enter(page, "boots")
        session.mark([59], "")  # The page is updated meanwhile.
        page.wait_for_timeout(2500)
        press(page, "Enter")
        assert session.known.get_state(session.known.index[first]).label == "boots;hat"


def test_suggested_tags_are_set_and_say_so_until_they_are_confirmed(visit, session):
    answer_some(session, range(30))
    session.follow_classifier()
    with visit(session) as page:
        name = read_name(page)
        proposals = views.describe_image(session.known, session.known.index[name])["proposals"]
        suggested = sorted(p["label"] for p in proposals if p["probability"] > 0.5)
        assert read_pressed(page) == suggested
        guesses = page.locator(".class.guess").all_inner_texts()
        assert len(guesses) == len(suggested)
        assert all("suggested" in text for text in guesses)
        key = str(1 + TAGS.index(next(tag for tag in TAGS if tag not in suggested)))
        see(page, ".class[aria-pressed=true]:not(.guess)", key)
        press(page, "Enter")
        wanted = ";".join(sorted([*suggested, TAGS[int(key) - 1]]))
        assert session.known.get_state(session.known.index[name]).label == wanted


def test_a_tag_that_is_deleted_says_how_many_photos_had_it_and_comes_back(visit, folder):
    session = open_tagged(folder, 6)
    for image, label in enumerate(("boots;coat", "boots", "?boots;hat")):
        answer(session, image, label)
    with visit(session) as page:
        show(page, "classes")
        page.get_by_role("button", name="Delete boots").click()
        hear(page, "boots deleted. 2 photos had it.")
        page.locator("#undo").click()
        hear(page, "Undone: boots is a tag again.")
        assert page.get_by_role("textbox", name="Name of a new tag").count() == 1
        show(page, "result")
        assert page.get_by_role("region", name="Tables").count() == 1
        assert not page.locator("#unsure, #train, #minutes").filter(visible=True).count()


def test_a_tag_far_down_the_list_is_in_sight_once_it_is_set_and_no_row_moves(visit, folder):
    names = [f"a rather long name of a tag, number {i}, of many words" for i in range(30)]
    with visit(open_tagged(folder, 6, names), PHONE) as page:
        page.wait_for_selector(".photo[aria-busy=false]")
        before = read_all(page, ".class", "offsetTop")
        page.keyboard.type("/number 29")
        page.wait_for_selector(".enter:has-text('number 29')")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        button = page.locator(".class[aria-pressed=true]")
        button.wait_for()
        box, shown = button.bounding_box(), page.locator(".classes").bounding_box()
        assert shown["y"] <= box["y"] + 1
        assert box["y"] + box["height"] <= shown["y"] + shown["height"] + 1
        assert read_all(page, ".class", "offsetTop") == before


def test_in_the_grid_a_key_gives_photos_a_tag_and_takes_it_away_again(visit, folder):
    session = open_tagged(folder, 6)
    answer(session, 2, "coat")
    with visit(session) as page:
        show(page, "photos")
        for name in ("IMG_0000.png", "IMG_0001.png", "IMG_0002.png"):
            page.locator(f".cell[title='{name}']").click()
        for key, text in (("1", "boots"), ("2", "coat"), ("2", "not coat")):
            hear(page, f"3 photos: {text}.", key)
            page.wait_for_selector(".selected-count:has-text('3 selected')")
        assert list_labels(session, 3) == ["?hat;boots", "?hat;boots", "boots"]
        with hold(page, "api/photos"):
            hear(page, "Undone", "Control+z")
            assert list_labels(session, 3) == ["?hat;boots;coat", "?hat;boots;coat", "boots;coat"]
            # The next key need not wait until the photos are loaded again.
            hear(page, "3 photos: none of these", "0")
            assert list_labels(session, 3) == [";", ";", ";"]
        # A key is for the tags as they are, and not for an older list.
        page.keyboard.press("Escape")
        page.locator(".cell[title='IMG_0003.png']").click()
        held = catch(page, "**/api/photos", times=1)
        hear(page, "boots.", "1")
        wait_until(page, lambda: held)
        older = held[0].fetch()
        hear(page, "coat.", "2")
        page.wait_for_timeout(300)
        held[0].fulfill(response=older)
        page.wait_for_timeout(300)
        hear(page, "not coat.", "2")
    assert session.known.get_state(3).label == "?hat;boots"


def test_axe_finds_nothing_about_tags_and_nothing_is_cut_off(visit, axe, session):
    answer_some(session, range(30))
    answer(session, 30, "coat;?hat")
    with visit(session, PHONE) as page:
        check_views(page, axe, PHONE)


def read_pressed(page):
    """The tags that are set."""
    buttons = page.locator(".class[aria-pressed=true]")
    return sorted(buttons.evaluate_all("(all) => all.map(({ dataset }) => dataset.name)"))
