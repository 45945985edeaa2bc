"""The page lists the runs of its folder, and predicts with the one that a terminal would use."""

import os
import pathlib
import threading

import pytest

from cls_jax.config import to_json, with_values
from cls_jax.photos.inference.list_runs import RUNS, find_newest
from cls_jax.photos.labeling import trained, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.runs import FolderRuns
from cls_jax.photos.labeling.session import JAX_THREAD
from cls_jax.photos.labeling.training import Training
from cls_jax.runs.folder import CONFIG, write_result
from cls_jax.runs.metrics import METRICS
from tests.conftest import load_config, one_of
from tests.photos.labeling.pages import DESKTOP, PHONE, open_labeled, show
from tests.photos.labeling.sessions import decide, open_ready
from tests.photos.labeling.test_views import StubNetworks

pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_run(name, folder, time, predictor="trained", num_labels=9, is_finished=True):
    """What a list reads of a run. Its networks are stubs."""
    workdir = RUNS / name
    workdir.mkdir(parents=True)
    values = {"data.name": "folder", "data.data_dir": str(folder)}
    (workdir / CONFIG).write_text(to_json(with_values(load_config("folder", "all"), values)))
    result = {"step": 1, "test_accuracy": None, "num_labels": num_labels, "predictor": predictor}
    result["predictor_gain_images"] = 20  # That have chosen it.
    if is_finished:
        write_result(workdir, result)
    (workdir / METRICS).touch()
    (workdir / "report.html").write_text(f"<title>{name}</title>")
    for path in workdir.iterdir():
        os.utime(path, (time, time))
    return workdir


def test_the_runs_of_a_folder_are_listed_used_and_deleted(folder, kinds, tmp_path):
    older, newer = (write_run(name, folder, time) for name, time in (("a", 1000), ("b", 2000)))
    other = write_run("other", tmp_path / "elsewhere", 1500)
    (RUNS / "notes").mkdir()
    found = FolderRuns(folder)
    assert [row["name"] for row in found.describe()] == ["runs/b", "runs/a"]
    assert [row["is_used"] for row in found.describe()] == [True, False]
    assert found.find_used() == newer == find_newest()
    found.use("runs/a")  # In a terminal, too.
    assert found.find_used() == older == find_newest()
    found.delete("runs/a")
    assert not older.exists()
    assert found.find_used() == newer
    for name in ("runs/a", "runs/other", "runs/notes", str(other), "runs/../runs/b", "", "runs"):
        for act in (found.use, found.delete):
            with pytest.raises(RefusedError, match="no such run"):
                act(name)
    assert newer.exists()
    assert other.exists()


def test_a_training_that_did_not_help_takes_no_place_and_its_labels_count(folder, kinds, tmp_path):
    """Nor does one that was stopped. Unless a person says so."""
    found = FolderRuns(folder)
    stopped = write_run("stopped", folder, 400, is_finished=False)
    assert found.find_used() == find_newest() == stopped  # There is no other one.
    saved = write_run("saved", folder, 500, predictor=None, num_labels=86)
    in_vain = write_run("in-vain", folder, 1000, predictor="instant", num_labels=66)
    write_run("unfinished", folder, 1500, is_finished=False)
    write_run("elsewhere", tmp_path / "elsewhere", 200)
    assert found.find_used() == find_newest() == saved
    assert [row["name"] for row in found.describe() if row["is_used"]] == ["runs/saved"]
    found.use("runs/in-vain")
    assert found.find_used() == find_newest() == in_vain
    found.use("runs/saved")
    assert found.find_used() == find_newest() == saved
    more = write_run("more", folder, 2e9, predictor="instant", num_labels=99)
    assert found.find_used() == find_newest() == more  # Better than what has learned fewer.
    helped = write_run("helped", folder, 3e9, num_labels=66)
    assert found.find_used() == find_newest() == helped


def wait_for_threads():
    for thread in [one for one in threading.enumerate() if one.name == JAX_THREAD]:
        thread.join()


def test_a_page_that_is_opened_again_predicts_with_the_run_in_use(folder, kinds, monkeypatch):
    loaded = []

    def load(run):
        loaded.append(pathlib.Path(run).name)
        return StubNetworks()

    monkeypatch.setattr(trained, "load", load)
    write_run("trained", folder, 2000)
    write_run("instant", folder, 1000, predictor="instant")
    session = open_ready(folder, kinds)
    for image in range(9):
        decide(session, image, "abc"[kinds[image]])
    session = open_ready(folder, kinds)  # Another session.
    runs = Training(folder)
    networks = trained.TrainedNetworks(session, runs.find_used_run)
    classifier = SessionClassifier(session, networks)
    classifier._wait()

    def name_photos():
        networks.follow()
        wait_for_threads()
        views.describe_check(session)
        return {row["label"] for row in classifier.list_rows()[9:28]}

    assert name_photos() == {"c"}, networks.message  # As the stub says.
    runs.use("runs/instant")
    assert name_photos() == {"a", "b", "c"}
    runs.use("runs/trained")
    assert name_photos() == {"c"}
    runs.delete("runs/trained")
    assert name_photos() == {"a", "b", "c"}
    assert loaded == ["trained"] * 2


def test_networks_of_an_earlier_session_that_miss_ten_answers_are_not_used(
    folder, kinds, monkeypatch
):
    monkeypatch.setattr(trained, "load", lambda run: StubNetworks())
    write_run("trained", folder, 2000, num_labels=9)
    session = open_ready(folder, kinds)
    for image in range(19):
        decide(session, image, "abc"[kinds[image]])
    session = open_ready(folder, kinds)
    networks = trained.TrainedNetworks(session, Training(folder).find_used_run)
    networks.follow()
    wait_for_threads()
    assert networks.find("abc") is None


@pytest.mark.parametrize("viewport", one_of(DESKTOP, PHONE))
def test_runs_are_looked_at_used_and_deleted_on_the_page(visit, folder, axe, viewport):
    session = open_labeled(folder, 24)
    older, newer = (
        write_run(name, folder, time, predictor="instant")
        for name, time in (("a", 1000), ("b", 2000))
    )
    with visit(session, viewport, Training(folder)) as page:
        show(page, "result")
        page.wait_for_selector(".runs li:nth-child(2)")
        page.evaluate(axe)
        assert page.evaluate("axe.run()")["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.locator(".runs .used .name").inner_text() == "runs/b"
        with page.context.expect_page() as opened:
            page.get_by_label("Report: runs/a").press("Enter")
        opened.value.wait_for_load_state()
        assert opened.value.title() == "a"
        page.get_by_label("Use: runs/a").press("Enter")
        page.wait_for_selector(".runs .used .name:text-is('runs/a')")
        assert find_newest() == older
        page.wait_for_timeout(700)  # A second key means the same for 600.
        page.get_by_label("Delete: runs/b").press("Enter")
        page.get_by_label("Delete for good: runs/b").press("Enter")
        page.wait_for_timeout(700)
        assert newer.exists()  # The first press asks.
        page.get_by_label("Delete for good: runs/b").press("Enter")
        page.wait_for_selector(".toast:has-text('runs/b deleted')")
        page.wait_for_function("() => document.querySelectorAll('.runs li').length === 1")
        assert not newer.exists()
