"""Random photos are drawn evenly, asked without a guess in sight, and measured by it afterwards."""

import dataclasses
import functools
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from cls_jax.data.types import NO_IMAGES, Dataset, Split
from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.folder.catalog import read_checked
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.folder.log import compare_checks
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.inference import assessment
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import rename_class
from cls_jax.photos.labeling.known import count, find_checked, list_checked
from cls_jax.photos.labeling.next_step import find_doubtful
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.labeling.questions import Questions
from cls_jax.photos.plan.measure import count_held_out
from cls_jax.photos.start.hold_out import hold_out_images
from tests.photos.labeling.pages import (
    enter,
    hear,
    open_labeled,
    press,
    read_decisions,
    read_name,
    see,
    show,
    wait_for_other,
)
from tests.photos.labeling.sessions import (
    create_features,
    create_photos,
    decide,
    describe_some,
    fit,
    list_check,
    open_ready,
    read_training,
)

WRONG = {"a": "b", "b": "a"}


def find_right(image):
    """The class of a photo."""
    return "aab"[image % 3]


def check(session, images):
    """Gives photos their classes. Returns what is known of all random photos with an answer."""
    for image in images:
        decide(session, image, find_right(image))
    return find_checked(session.known)


def list_random(session):
    return list(session.known.sample)


@pytest.fixture(params=["", "name,class\nIMG_0000.png,a\n"], ids=["own table", "other table"])
def session(request, folder, kinds):
    """A session with a classifier of two classes and 20 random photos, with two kinds of table."""
    if request.param:
        (folder / LABELS_CSV).write_text(request.param)
    session = open_ready(folder, kinds)
    check(session, range(8))
    fit(session)
    assert session.draw_sample() == 20
    return session


@pytest.fixture
def kinds(folder):
    return create_photos(folder, 40)


def test_random_photos_are_asked_first_without_a_guess(session, folder, kinds):
    state = views.describe(session)
    assert state["sample"] == 20
    assert all(item["check"] and not item["proposals"] for item in state["next"])
    assert session.draw_sample() == 20  # The same ones.
    drawn = list_random(session)
    assert not {*drawn} & {image for images in list_check(session).values() for image in images}
    check(session, drawn[:8])
    again = open_ready(folder, kinds)  # The next session asks those that are left.
    fit(again)
    assert set(again.follow_classifier().sample) == {*drawn[8:]}
    assert again.draw_sample() == 12
    assert set(again.known.sample) == {*drawn[8:]}


def test_all_photos_without_an_answer_are_drawn_with_the_same_probability():
    shares, is_open = np.zeros(40), np.arange(40) >= 8
    for folder in range(400):
        questions = Questions()
        assert questions.draw(is_open, 20, [f"{folder}/IMG_{i:04}.png" for i in range(40)]) == 20
        assert set(questions.sample.values()) == {20 / 32}
        shares[list(questions.sample)] += 1 / 400
    assert not shares[:8].any()
    assert abs(shares[8:] - 20 / 32).max() < 0.12


def test_a_random_photo_that_is_still_open_does_not_replace_the_others(folder, kinds):
    session = open_session(folder)
    shown, *_ = session.share_out("w")  # While the photos are read.
    session.load(lambda report: describe_some(range(40), create_features(kinds)))
    assert session.draw_sample() == 20
    drawn = list_random(session)
    assert shown in drawn
    check(session, drawn[:17])
    assert session.draw_sample() == 20
    assert {*drawn[17:]} < {*list_random(session)}


def test_checks_are_labels_that_tell_how_often_the_guess_was_right(session, folder):
    images = list_random(session)
    check(session, images[:-2])
    decide(session, images[-2], "", decision="none")
    wrong = WRONG[find_right(images[-1])]
    decide(session, images[-1], wrong)
    found = find_checked(session.known)
    assert found.is_right == [True] * 18 + [False] * 2
    assert all(0.5 <= confidence <= 1 for confidence in found.confidences)
    assert fit(session).describe()["accuracy"].endswith("%), measured on 20 random photos.")
    assert (count(session.known).checks, len(list_checked(session.known))) == (20, 20)
    assert list_checked(session.known)[images[-2]] == ""
    labels, _ = read_training(folder)
    names = [f"IMG_{image:04}.png" for image in images]
    assert [labels[name] for name in names[:-2]] == [find_right(i) for i in images[:-2]]
    assert labels[names[-1]] == wrong
    assert "check 0.625 " in (folder / LABELS_CSV).read_text()
    # Also in its accuracy, as far as it has no photos for that.
    estimate = Estimate(3, 0, 70.0, 60.0, 80.0, 70.0, 10.0, 100)
    result = {f"labels_{name}": value for name, value in estimate._asdict().items()}
    data = {"name": "folder", "data_dir": str(folder), **AUTOMATIC._asdict()}
    config = ConfigDict({"data": data, "num_labels": 0})
    measured = assessment.measure_with_checks(config, result)
    assert measured["labels_checks"] == 20
    assert measured["labels_accuracy"] < 70  # Fewer were right than it was confident of.
    config.num_labels = 4
    assert assessment.measure_with_checks(config, result) == {}


@pytest.mark.parametrize("change", ["delete", "skip", "none", "rename and delete"])
def test_checks_survive_what_is_undone(session, folder, kinds, change):
    images = list_random(session)
    decide(session, images[0], "", decision="none")
    check(session, images[1:])
    name = "a"
    if change == "rename and delete":
        session.change("w", rename_class, "a", "c")
        name = "c"
    before = find_checked(session.known)
    assert len(before.is_right) == 20
    if change in ("skip", "none"):
        image = next(i for i in images if views.describe_image(session.known, i)["label"] == name)
        decide(session, image, "", decision=change)
    else:
        session.change("w", rename_class, name, "")
    assert find_checked(session.known) != before
    session.undo("w")
    for found in (
        find_checked(session.known),
        find_checked(open_ready(folder, kinds).known),
        compare_checks(read_checked(folder, AUTOMATIC)),
    ):
        assert sum(found.is_right) == sum(before.is_right)
        confidences = sorted(found.confidences), sorted(before.confidences)
        np.testing.assert_allclose(*confidences, atol=1e-4)


def test_guesses_that_were_wrong_add_photos_to_look_at(session, folder):
    for place, image in enumerate(list_random(session)):
        right = find_right(image)
        decide(session, image, right if place % 2 else WRONG[right])
    classifier = fit(session)
    alone = classifier._wait().inferred.estimate
    found, without = (
        find_doubtful(session, 90, estimate)[0] for estimate in (classifier.estimate(), alone)
    )
    assert find_doubtful(session, 90) == ([], "Not known yet: check 20 random photos first.")
    assert len(found) > len(without)
    assert found[: len(without)] == without


def test_corrections_count_and_undone_or_renamed_checks_stay_true(session):
    first, second, *_ = list_random(session)
    right = find_right(first)
    undo = functools.partial(session.undo, "w")
    for act, expected in (
        (lambda: decide(session, first, WRONG[right]), [False]),
        (lambda: decide(session, first, right), [True]),  # It was a mistake.
        (lambda: session.change("w", rename_class, right, "c"), [True]),
        (undo, [True]),
        (lambda: decide(session, second, "d"), [True, False]),
        (undo, [True]),
        (lambda: decide(session, second, "", decision="skip"), [True]),
    ):
        act()
        assert find_checked(session.known).is_right == expected


@pytest.mark.parametrize("first", ["label", "none", "skip"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_random_photo_stays_one_however_it_comes_back(session, folder, kinds, first, restarts):
    """Its second answer is compared with the first guess, which has not learned the first one."""
    image, other, *_ = list_random(session)
    check(session, [other])
    decide(session, image, find_right(image) if first == "label" else "", decision=first)
    fit(session)  # Of all answers.
    if restarts:
        session = open_ready(folder, kinds)
        fit(session)
    session.undo("w")
    described = views.describe_image(session.known, image)
    assert (described["check"], described["proposals"]) == (True, [])
    assert check(session, [image]).is_right == [True, True]
    assert len(check(session, session.known.sample.keys() - {image, other}).is_right) >= 20


def test_two_windows_check_all_random_photos_though_one_of_them_stops(session):
    def check(window):
        item = views.describe(session, window)["next"][0]
        if item["check"]:
            decide(session, item["image"], find_right(item["image"]), window)
        return item["image"], item["check"]

    first, second = check("one"), check("two")
    assert first != second
    shown = views.describe(session, "one")["next"][0]["image"]
    for _ in range(17):
        assert check("two")[0] != shown
    assert check("two") == (shown, True)  # The last one, which the other window still shows.
    assert len(find_checked(session.known).is_right) == 20
    assert views.describe(session, "two")["sample"] == 0
    assert check("two")[1] is False


def test_a_random_photo_that_is_skipped_is_replaced(session):
    skipped = views.describe(session)["next"][0]["image"]
    decide(session, skipped, "", decision="skip")
    assert views.describe(session)["sample"] == 20
    assert len(check(session, {*list_random(session)} - {skipped}).is_right) == 20
    decide(session, 39, "", decision="skip")  # Another photo.
    assert views.describe(session)["sample"] == 0


def test_without_a_classifier_random_photos_are_labels_only(folder, kinds):
    session = open_ready(folder, kinds)
    session.draw_sample()
    assert check(session, list_random(session)[:1]).is_right == []
    for image in range(40):
        decide(session, image, "", decision="none")
    with pytest.raises(RefusedError, match="All photos have an answer"):
        session.draw_sample()


def test_checked_photos_are_kept_out_of_both_classifiers(session, folder, tmp_path):
    """Only those, and never the last label of a class: so does the plan say."""
    images = list_random(session)
    check(session, images[1:])
    decide(session, images[0], "c")  # The only one of its class.
    labels, layout = read_training(folder)
    files = sorted(labels, key=lambda name: (labels[name] == "", name))
    classes = np.array(["abc".find(labels[name] or "?") for name in files])
    pixels = np.zeros((len(files), 1, 1, 3), np.uint8)
    dataset = Dataset("photos", tuple("abc"), Split(pixels, classes, tuple(files)), NO_IMAGES, ())

    def hold_out(share):
        data = {"name": "folder", "data_dir": str(folder), "validation": share}
        config = ConfigDict({"data": data | AUTOMATIC._asdict(), "model": {"init": ""}, "seed": 0})
        validation = hold_out_images(tmp_path / "run", config, dataset).validation
        plan = types.SimpleNamespace(config=config, summary=types.SimpleNamespace(layout=layout))
        assert count_held_out(plan) == tuple(np.bincount(validation.labels, minlength=3))
        return set(validation.files)

    expected = [f"IMG_{image:04}.png" for image in images[1:]]
    assert hold_out(0.9) == {*expected}
    assert hold_out(5 / 28) == {*expected[-5:]}  # The newest.
    assert hold_out(0.5) <= {*expected}


def test_labeling_starts_while_photos_are_read_and_goes_on_with_the_same_one(visit, folder, kinds):
    session = open_session(folder)
    session._known = dataclasses.replace(session.known, progress=(4, 40))
    with visit(session) as page:
        names = [read_name(page)]
        enter(page, "/rose/red")  # A slash before the first class is no part of its name.
        wait_for_other(page, names[0])
        names.append(press(page, "1"))
        assert page.locator("#count").inner_text() == "2 of 40 labeled · reading the photos: 10%"
        assert "random photo" in page.locator(".panel .hint").inner_text()
        shown = read_name(page)
        session.load(lambda report: describe_some(range(40), create_features(kinds)))
        page.wait_for_selector("#count:text-matches('labeled$')")
        assert read_name(page) == shown
        names.append(press(page, "1"))
    assert [row[:2] for row in read_decisions(folder)] == [(name, "rose/red") for name in names]


def test_random_photos_are_asked_without_a_guess_in_sight_and_the_result_says_what_came_of_it(
    visit, folder
):
    session = open_labeled(folder, 28)
    with visit(session) as page:
        show(page, "result")
        page.locator("button:text-is('Check 20 random photos'):enabled").press("Enter")
        page.wait_for_selector(".panel .hint:has-text('20 random photos left to check')")
        assert page.locator(".class.proposed").count() == 0
        first = read_name(page)
        page.keyboard.press("Escape")  # Otherwise Enter would be for the button, which is gone.
        hear(page, "No class is proposed", "Enter")
        for image in session.known.sample:
            if image != session.known.index[first]:
                decide(session, image, "cat", "other")
        page.wait_for_selector(".panel .hint:has-text('1 random photo left')")
        see(page, "h2:text-is('Result')", "1")
        page.wait_for_selector(".about:text-matches('When you checked them, [0-9]+ of 20 were')")
    answer, *_ = (row for row in read_decisions(folder) if row[0] == first)
    assert (answer[1], answer[2].split()[0]) == ("cat", "check")
