"""Photos with several tags: what a session makes of them, and what a browser shows."""

import json

import numpy as np
import pytest

from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.labeling import grid, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import Change, rename_class
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import find_checked
from cls_jax.photos.labeling.photos import open_session
from tests.photos.labeling.pages import (
    DESKTOP,
    PHONE,
    VIEWS,
    hold,
    press,
    read_decisions,
    read_name,
    show,
)
from tests.photos.labeling.sessions import create_photos, describe_some

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
    session = open_session(folder, class_names, OPTIONS)
    session.load(lambda report: describe_some(range(num_images), features.astype(np.float32)))
    return session


def answer(session, image, label, decision="label"):
    revision = session.known.get_state(image).revision
    session.decide([Change(image, decision, label, revision)], "w")


def answer_some(session, images):
    """Answers by the truth and learns from that."""
    for image in images:
        label = name_tags(draw_truth(60)[image])
        answer(session, image, label)
    classifier = SessionClassifier(session)
    classifier._wait()
    return classifier


def test_a_label_is_the_tags_of_a_photo_or_none_of_them(folder):
    session = open_tagged(folder)
    answer(session, 0, "boots;hat")
    answer(session, 1, "", "none")
    answer(session, 2, "coat;?hat")
    answer(session, 3, "", "skip")
    assert [session.known.get_state(i).label for i in range(4)] == [
        "boots;hat",
        ";",
        "?hat;coat",
        "",
    ]
    assert read_decisions(folder) == [
        ("IMG_0000.png", "boots;hat", "label"),
        ("IMG_0001.png", "", "none"),
        ("IMG_0002.png", "coat;?hat", "label"),
        ("IMG_0003.png", "", "skip"),
    ]
    state = views.describe(session)
    assert {one["name"]: one["count"] for one in state["classes"]} == dict(
        zip(TAGS, (1, 1, 1), strict=True)
    )
    assert state["counts"] == {"images": 60, "labeled": 3, "none": 0, "skipped": 1}
    again = open_session(folder, (), OPTIONS)
    again.load(lambda report: describe_some(range(60), np.eye(60, dtype=np.float32)))
    assert [again.known.get_state(i).label for i in range(4)] == ["boots;hat", ";", "?hat;coat", ""]
    assert again.known.find_keys() == session.known.find_keys()
    with pytest.raises(RefusedError, match="no such class"):
        answer(session, 4, "boots;scarf")
    undone = session.undo("w")
    assert [*undone] == [3]
    session.undo("w")
    assert session.known.get_state(2).decision == ""


def test_a_tag_is_renamed_merged_and_deleted_in_every_label(folder):
    session = open_tagged(folder)
    labels = ["boots;hat", "boots", ";", "?boots;coat", "?boots;hat"]
    for image, label in enumerate(labels):
        answer(session, image, label)

    def read():
        return [session.known.get_state(i).label for i in range(len(labels))]

    session.change("w", rename_class, "boots", "shoes")
    assert read() == ["hat;shoes", "shoes", ";", "?shoes;coat", "?shoes;hat"]
    session.change("w", rename_class, "shoes", "hat")
    assert read() == ["hat", "hat", ";", "?hat;coat", "hat"]
    session.undo("w")
    session.change("w", rename_class, "shoes", "")
    assert read() == ["hat", ";", ";", "coat", "hat"]
    session.undo("w")
    session.undo("w")
    assert read() == labels


def test_suggested_are_the_tags_that_are_more_probable_than_not(folder):
    session = open_tagged(folder)
    assert set(grid.describe_photos(session)["label"]) == {-1}  # Nothing is suggested yet.
    answer_some(session, range(30))
    photos = grid.describe_photos(session)
    truth = [name_tags(has) for has in draw_truth(60)]
    suggested = [photos["labels"][place] for place in photos["label"]]
    assert suggested[:30] == truth[:30]
    assert np.mean([a == b for a, b in zip(suggested[30:], truth[30:], strict=True)]) > 0.8
    for image in range(30, 60):
        found = {
            p["label"]: p["probability"]
            for p in views.describe_image(session.known, image)["proposals"]
        }
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


def test_random_photos_check_all_tags_at_once_and_the_guess_is_a_label(folder):
    session = open_tagged(folder)
    classifier = answer_some(session, range(20))
    session.follow_classifier()
    guesses = session.known.classified
    assert views.describe_result(session)["figures"] == {}  # Those that are asked are harder.
    assert session.draw_sample() == MIN_CHECKS
    is_right = []
    for image in views.describe(session, "w")["next"]:
        assert image["proposals"] == []
    truth = draw_truth(60)
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


def test_tables_and_labels_have_the_tags_and_folders_are_refused(folder):
    session = open_tagged(folder)
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
    command = views.describe(session)["command"]
    assert command.endswith("--tags --instant")


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


def test_keys_set_tags_and_enter_confirms_them(visit, folder):
    session = open_tagged(folder)
    with visit(session) as page:
        first = read_name(page)
        page.keyboard.press("Enter")  # Nothing is set.
        page.wait_for_selector(".toast:has-text('press 0')")
        page.keyboard.press("1")
        page.wait_for_selector("#status:text-is('boots: set.')", state="attached")
        page.keyboard.press("3")
        page.wait_for_selector(".class[aria-pressed=true] >> nth=1")
        page.keyboard.press("3")  # Takes it away again.
        assert read_pressed(page) == ["boots"]
        page.keyboard.type("scarf")
        page.keyboard.press("Enter")  # A new one.
        assert read_name(page) == first
        assert read_pressed(page) == ["boots", "scarf"]
        page.wait_for_timeout(700)  # A second Enter means the same.
        press(page, "Enter")
        assert read_decisions(folder) == [(first, "boots;scarf", "label")]
        second = press(page, "0")
        assert read_decisions(folder)[1:] == [(second, "", "none")]
        assert page.locator("#strip").inner_text().split("\n") == ["none of these", "boots, scarf"]
        page.keyboard.press("Control+z")
        page.wait_for_function(
            "name => document.querySelector('figcaption').textContent.startsWith(name)", arg=second
        )
        assert session.known.get_state(session.known.index[second]).decision == ""


def test_the_first_tags_are_typed(visit, folder):
    session = open_tagged(folder, class_names=())
    with visit(session) as page:
        first = read_name(page)
        for name in ("hat", "boots"):
            page.keyboard.type(name)
            page.keyboard.press("Enter")
        session.mark([59], "")  # The page is updated meanwhile.
        page.wait_for_timeout(2500)
        press(page, "Enter")
        assert session.known.get_state(session.known.index[first]).label == "boots;hat"


def test_suggested_tags_are_set_and_say_so_until_they_are_confirmed(visit, folder):
    session = open_tagged(folder)
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
        page.keyboard.press(key)
        page.wait_for_selector(".class[aria-pressed=true]:not(.guess)")
        press(page, "Enter")
        wanted = ";".join(sorted([*suggested, TAGS[int(key) - 1]]))
        assert session.known.get_state(session.known.index[name]).label == wanted


def test_tags_that_were_set_stay_while_another_view_is_shown_and_not_for_another_photo(
    visit, folder
):
    session = open_tagged(folder)
    with visit(session) as page:
        other = press(page, "1", "Enter")
        name = read_name(page)
        page.keyboard.press("2")
        page.wait_for_selector(".class[aria-pressed=true]")
        show(page, "result")
        show(page, "next")
        assert (read_name(page), read_pressed(page)) == (name, ["coat"])
        page.locator("#strip button").click()
        page.wait_for_selector(f".toast:text-is('The tags of {name} were not saved.')")
        assert (read_name(page), read_pressed(page)) == (other, ["boots"])


def test_an_undo_takes_back_the_tags_that_are_not_confirmed_before_the_last_answer(visit, folder):
    session = open_tagged(folder)
    with visit(session) as page:
        first = read_name(page)
        page.keyboard.press("1")
        page.wait_for_selector(".class[aria-pressed=true]")
        press(page, "Enter")
        page.wait_for_selector(".photo[aria-busy=false]")
        page.keyboard.press("2")
        page.keyboard.press("3")
        page.wait_for_selector(".class[aria-pressed=true] >> nth=1")
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:text-is('Tags as they were.')")
        assert read_pressed(page) == []
        assert read_decisions(folder) == [(first, "boots", "label")]
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:has-text('no longer boots')")


def test_a_tag_that_is_deleted_says_how_many_photos_had_it_and_comes_back(visit, folder):
    session = open_tagged(folder, 6)
    for image, label in enumerate(("boots;coat", "boots", "?boots;hat")):
        answer(session, image, label)
    with visit(session) as page:
        show(page, "classes")
        page.get_by_role("button", name="Delete boots").click()
        page.wait_for_selector(".toast:has-text('boots deleted. 2 photos had it.')")
        page.locator("#undo").click()
        page.wait_for_selector(".toast:text-is('Undone: boots is a tag again.')")
        assert page.get_by_role("textbox", name="Name of a new tag").count() == 1
        show(page, "result")
        assert page.get_by_role("region", name="Tables").count() == 1
        assert not page.locator("#unsure, #train, #minutes").filter(visible=True).count()


def test_a_tag_far_down_the_list_is_in_sight_once_it_is_set_and_no_row_moves(visit, folder):
    names = [f"a rather long name of a tag, number {i}, of many words" for i in range(30)]
    session = open_tagged(folder, 6, names)
    with visit(session, PHONE) as page:
        page.wait_for_selector(".photo[aria-busy=false]")

        def read_tops():
            return page.locator(".class").evaluate_all("(all) => all.map((one) => one.offsetTop)")

        before = read_tops()
        page.keyboard.type("/number 29")
        page.wait_for_selector(".enter:has-text('number 29')")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        button = page.locator(".class[aria-pressed=true]")
        button.wait_for()
        box, shown = button.bounding_box(), page.locator(".classes").bounding_box()
        assert shown["y"] <= box["y"] + 1
        assert box["y"] + box["height"] <= shown["y"] + shown["height"] + 1
        assert read_tops() == before


def test_in_the_grid_a_key_gives_photos_a_tag_and_takes_it_away_again(visit, folder):
    session = open_tagged(folder, 6)
    answer(session, 2, "coat")

    def read_labels():
        return [session.known.get_state(i).label for i in range(3)]

    with visit(session) as page:
        show(page, "photos")
        for name in ("IMG_0000.png", "IMG_0001.png", "IMG_0002.png"):
            page.locator(f".cell[title='{name}']").click()
        for key, text in (("1", "boots"), ("2", "coat"), ("2", "not coat")):
            page.keyboard.press(key)
            page.wait_for_selector(f".toast:has-text('3 photos: {text}.')")
            page.wait_for_selector(".selected-count:has-text('3 selected')")
        assert read_labels() == ["?hat;boots", "?hat;boots", "boots"]
        release = hold(page, "photos")
        page.keyboard.press("Control+z")
        page.wait_for_selector(".toast:has-text('Undone')")
        assert read_labels() == ["?hat;boots;coat", "?hat;boots;coat", "boots;coat"]
        # The next key need not wait until the photos are loaded again.
        page.keyboard.press("0")
        page.wait_for_selector(".toast:has-text('3 photos: none of these')")
        assert read_labels() == [";", ";", ";"]
        release()


def test_a_key_is_for_the_tags_as_they_are_and_not_for_an_older_list(visit, folder):
    session, held = open_tagged(folder, 6), []
    with visit(session) as page:
        show(page, "photos")
        page.locator(".cell[title='IMG_0000.png']").click()

        def hold_first(route):
            if held:
                route.continue_()
            else:
                held.append((route, route.fetch()))

        page.route("**/api/photos", hold_first)
        page.keyboard.press("1")
        page.wait_for_selector(".toast:has-text('boots.')")
        while not held:
            page.wait_for_timeout(20)
        page.keyboard.press("2")
        page.wait_for_selector(".toast:has-text('coat.')")
        page.wait_for_timeout(300)
        ((route, response),) = held
        route.fulfill(response=response)
        page.wait_for_timeout(300)
        page.keyboard.press("2")
        page.wait_for_selector(".toast:has-text('not coat.')")
    assert session.known.get_state(0).label == "?hat;boots"


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_about_tags_and_nothing_is_cut_off(visit, folder, axe, viewport):
    session = open_tagged(folder)
    answer_some(session, range(30))
    answer(session, 30, "coat;?hat")
    with visit(session, viewport) as page:
        page.evaluate(axe)
        for button in page.locator(".class, .others button:visible").all():
            box = button.bounding_box()
            assert box["y"] + box["height"] <= viewport["height"]
        for view in VIEWS:
            show(page, view)
            if view == "photos":
                page.locator(".cell").first.click()
                page.wait_for_selector(".selected-count:has-text('1 selected')")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                found = page.evaluate("axe.run()")["violations"]
                assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], view


def read_pressed(page):
    """The tags that are set."""
    buttons = page.locator(".class[aria-pressed=true]")
    return sorted(buttons.evaluate_all("(all) => all.map(({ dataset }) => dataset.name)"))
