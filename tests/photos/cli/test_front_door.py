"""What a new user meets first: the newest run, the pages, and what a missing extra comes to."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys

import pytest
from PIL import Image

from cls_jax.config import create_config
from cls_jax.errors import UserError
from cls_jax.extras import MODULES, check_extra, is_installed
from cls_jax.photos.cli import commands, console
from cls_jax.photos.inference.list_runs import find_newest, is_run, list_runs
from cls_jax.photos.plan.describe import list_notices
from cls_jax.photos.plan.measure import gather_facts
from cls_jax.photos.plan.plan import Request, plan_run
from cls_jax.photos.shell import write_command
from tests.documented import NOT_RUN, SMALLER, find_commands
from tests.photos.cli.test_console import get_error, get_output, run_console
from tests.photos.helpers import write_images


@pytest.fixture
def bare(monkeypatch):
    """An installation that has no extra."""
    brought = {module for modules in MODULES.values() for module in modules}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in brought else find(name)
    )


@pytest.fixture
def runs(trained_run, tmp_path, monkeypatch):
    """Two runs below the current folder, and what is none."""
    monkeypatch.chdir(tmp_path)
    for name, time in (("older", 1_000), ("newer", 2_000)):
        folder = tmp_path / "runs" / name
        shutil.copytree(trained_run, folder)
        for path in (folder, *folder.glob("*")):
            os.utime(path, (time, time))
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_runs_are_listed_with_their_results_the_newest_first(runs, capsys):
    assert [run.workdir.name for run in list_runs()] == ["newer", "older"]
    header, newer, _ = get_output(capsys, "runs").splitlines()
    assert header.split() == ["run", "dataset", "method", "labels", "accuracy", "changed", "size"]
    accuracy = json.loads((runs / "newer" / "result.json").read_text())["test_accuracy"]
    assert newer.split()[:6] == ["runs/newer", "digits", "cls", "20", f"{accuracy:.1f}%", "(test)"]
    (runs / "older" / "config.json").write_text("{")
    (runs / "newer" / "result.json").unlink()
    _, *rows = get_output(capsys, "runs", runs).splitlines()
    assert {
        word: name
        for name in ("older", "newer")
        for word in ("damaged", "not finished")
        if any(name in row and word in row for row in rows)
    } == {"damaged": "older", "not finished": "newer"}


def test_without_runs_a_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "There is no run in" in get_output(capsys, "runs")
    with pytest.raises(UserError, match="train one, or pass the folder of a run first"):
        find_newest()
    assert run_console("report") == 2
    assert "There is no file or folder nowhere" in get_error(capsys, "runs", "nowhere")


def test_a_page_of_another_name_is_proposed(capsys):
    for name in ("lable", "label"):
        assert f"no page {name}: did you mean labeling? There are" in get_error(
            capsys, "help", name
        )
    assert "no page xyz: choose one of architecture, " in get_error(capsys, "help", "xyz")


def test_the_newest_run_is_used_where_none_is_named(runs, capsys):
    Image.new("L", (8, 8)).save("a.png")
    assert is_run("runs/newer")
    for words, run in (
        (["a.png"], "runs/newer"),
        (["runs/older", "a.png"], "runs/older"),
        (["--json", "a.png"], "runs/newer"),
        (["runs/older", "--json", "a.png"], "runs/older"),
        (["--json", "runs/older", "a.png"], "runs/older"),
        (["a.*"], "runs/newer"),
    ):
        parsed = console.parse_arguments(["predict", *words])
        chosen, images = commands._choose_run([parsed.run, *parsed.images])
        assert (str(chosen), len(images)) == (run, 1)
        assert ("Run: runs/newer" in capsys.readouterr().err) == (run == "runs/newer")
    assert "runs/other" in get_error(
        capsys, "predict", "runs/other", "a.png"
    )  # A run that is not there.
    assert "Pass images, too" in get_error(capsys, "predict", "runs/older")
    pathlib.Path("more_photos").mkdir()
    sentence = "There is no file or folder more_photso: did you mean more_photos?"
    assert sentence in get_error(capsys, "predict", "more_photso")
    assert "Pass the folder to write, too" in get_error(capsys, "export", "runs/older")


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (["report", "--no-images", "runs/a"], {"run": "runs/a"}),
        (["evaluate", "runs/a", "--photos", "data", "new"], {"run": "runs/a", "folder": "new"}),
        (["export", "--device", "cpu", "runs/a", "out"], {"run": "runs/a", "output": "out"}),
        (["export", "runs/a", "--device", "cpu", "out"], {"run": "runs/a", "output": "out"}),
        (["predict", "runs/a", "--json", "b", "c"], {"run": "runs/a", "images": ["b", "c"]}),
        (["report"], {"run": None}),
    ],
)
def test_places_may_follow_an_option(words, places):
    assert places.items() <= vars(console.parse_arguments(words)).items()


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "about 98% (expected before training)"),
        ({"predictor": "instant"}, "about 98% (expected)"),
        ({"method": "instant"}, "about 98% (expected)"),
        (
            {"predictor": "trained", "validation_accuracy": 95.0},
            "95.0% (validation)",
        ),
        (
            {"predictor": "trained", "validation_accuracy": 95.0}
            | {"predictor_gain_images": 20, "predictor_right_trained": 18}
            | {"predictor_images": "random"},
            "about 90% (expected)",
        ),
        (
            {"predictor": "instant", "validation_accuracy": 90.0}
            | {"validation_accuracy_instant": 85.0},
            "about 98% (expected)",
        ),
        (
            {"method": "instant", "labels_sources": 8.0, "labels_accuracy_new_sources": 61.4},
            "about 98% (expected; on new sources about 61%)",
        ),
        ({"method": "instant", "labels_sources": 3.0}, "about 98% (expected)"),
        ({"test_accuracy": 97.0}, "97.0% (test)"),
        ({"labels_accuracy": None}, ""),  # Too early to say.
        ({"labels_accuracy": None, "validation_accuracy": 95.0}, "95.0% (validation)"),
    ],
)
def test_runs_without_test_images_show_the_accuracy_to_expect(runs, capsys, changes, shown):
    path = runs / "newer" / "result.json"
    result = {"step": 6, "num_labels": 20, "method": "cls", "test_accuracy": None}
    result |= {"labels_classes": 10.0, "labels_classes_with_one_label": 0.0}
    result |= {"labels_accuracy": 98.2, "labels_accuracy_low": 90.0, "labels_accuracy_high": 100.0}
    path.write_text(json.dumps(result | changes))
    (newer, _) = sorted(list_runs(), key=lambda run: run.workdir.name)
    assert newer.accuracy == shown
    assert shown in get_output(capsys, "runs")


def test_a_run_that_changes_while_it_is_listed_is_listed(runs, monkeypatch):
    monkeypatch.setattr(os, "walk", lambda folder: [(folder, [], ["gone", "config.json"])])
    (_, older) = list_runs()
    assert older.num_bytes == (runs / "older" / "config.json").stat().st_size


def test_every_page_can_be_printed(capsys):
    """Also of an installed wheel: `make doors` prints one."""
    names = get_output(capsys, "help").split()
    assert {"own_images", "installation", "configuration"} <= set(names)
    for name in ("own_images", "docs/own_images.md"):
        assert get_output(capsys, "help", name).startswith("# ")


def test_printed_commands_run_in_the_shell_that_printed_them(tmp_path, monkeypatch):
    """After `make demo` the environment's programs are not on the path."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for program, start in (
        ("main.py", ".venv/bin/python -m cls_jax"),
        ("/somewhere/cls-jax", ".venv/bin/cls-jax"),
    ):
        monkeypatch.setattr(sys, "argv", [program])
        assert write_command(["report", "runs/a b"]) == f"{start} report 'runs/a b'"
    for name in ("python", "cls-jax"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert write_command(["report", "runs/a"]) == "cls-jax report runs/a"


def test_every_extra_has_its_sentence(bare):
    for extra in MODULES:
        assert not is_installed(extra)
        with pytest.raises(UserError) as raised:
            check_extra(extra, "It", "do without")
        sentence = f"It needs the extra {extra}: pip install '.[{extra}]', or do without."
        assert str(raised.value) == sentence
    with pytest.raises(UserError, match=r"extras label and tf: pip install '\.\[label,tf\]'\.$"):
        check_extra("label,tf", "It")


def test_the_pipeline_is_one_that_is_there(bare):
    assert create_config("40").data.pipeline == "device"


def test_a_pipeline_of_tfdata_is_the_default_with_tensorflow():
    pytest.importorskip("tensorflow")
    assert create_config("40").data.pipeline == "tfdata"


@pytest.fixture
def photos(tmp_path):
    counts = {"labeled/cat": 1, "labeled/dog": 1, "unlabeled": 2}
    return write_images(tmp_path / "photos", counts, (40, 40, 3))


def test_missing_weights_are_named_with_what_is_lost(bare, photos):
    plan = plan_run(Request(photos, settings={"num_steps": 2}))
    (sentence,) = [one for one in list_notices(plan, gather_facts(plan)) if "pretrained" in one]
    assert "far less accurate on photos: pip install '.[pretrained]'." in sentence
    plan = plan_run(Request(photos, settings={"num_steps": 2, "model.init": ""}))
    notices = list_notices(plan, gather_facts(plan))
    assert not any("pretrained" in one for one in notices)  # As the user wants it.


def test_needs_are_checked_before_images_are_looked_at(bare, photos, tmp_path):
    for settings, extra in (
        ({"data.pipeline": "tfdata"}, "tf"),
        ({"model.init": "hf:a/b"}, "pretrained"),
    ):
        with pytest.raises(UserError, match=f"needs the extra {extra}"):
            plan_run(Request(photos, settings={"num_steps": 2, **settings}))
    with pytest.raises(UserError, match=r"^An instant classifier needs the extra pretrained"):
        plan_run(Request(tmp_path / "not there", instant=True))
    assert run_console("pack", "not there", "packed") == 2


@pytest.mark.parametrize("command", find_commands(), ids=lambda one: f"{one.page}: {one.text}")
def test_documented_commands_have_the_options_of_their_program(command, tmp_path, capsys):
    """`make doors` runs them."""
    words = command.text.split()
    if words[0] == "cls-jax":
        console.parse_arguments(words[1:])
    assert command.reason or words[0] in ("cls-jax", "python")


def test_no_documented_command_is_left_out_for_a_reason_that_is_gone():
    texts = [one.text for one in find_commands()]
    for pattern in (*NOT_RUN, *SMALLER):
        assert any(re.search(pattern, text) for text in texts), pattern
