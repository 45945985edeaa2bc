"""`cls-jax`: from a folder of images to predictions, and one line for every mistake."""

import json
import os
import shutil
import subprocess
import sys
import unittest.mock

import jax
import numpy as np
import pytest

from cls_jax.config import to_json, with_values
from cls_jax.errors import UserError
from cls_jax.parallel import distributed
from cls_jax.photos.cli import commands, console
from cls_jax.photos.folder import dataset as folder_source
from cls_jax.photos.folder.dataset import open_dataset
from cls_jax.photos.images import files as files_lib
from cls_jax.photos.images.store import get_cache_folder
from cls_jax.photos.inference import suggest
from cls_jax.photos.inference.run import load
from cls_jax.photos.inference.tables import ALL_COLUMNS, WITHOUT_ERRORS
from cls_jax.photos.plan.plan import Request, plan_run
from cls_jax.photos.plan.rules import create_folder_config
from cls_jax.photos.start.frozen import find_native_size
from cls_jax.process import run_to_end
from cls_jax.runs.folder import create_run_folder, write_result
from tests.conftest import ROOT
from tests.core.methods.tiny_model import use_tiny_model
from tests.outcomes import read_table
from tests.photos.helpers import write_images

# One network compiles in seconds, without RandAugment.
TINY = ["--method=supervised", "--steps=2", "--size=8", "--config.batch_size=4", "--config.mu=2"]
TINY += ["--config.data.pipeline=device", "--config.data.randaugment_ops=0"]
TINY += ["--config.mesh.data=1", "--config.mesh.network=1"]
SHORT = [*TINY[:1], *TINY[2:], "--minutes=1e-4"]  # 20 steps, the fewest.


def run_console(*arguments):
    """Runs the command in this process, without its set-up. Returns the exit code."""
    try:
        parsed = console.parse_arguments([str(argument) for argument in arguments])
        run_to_end(lambda: console.run(parsed))
    except SystemExit as end:
        return end.code
    return 0


def get_output(capsys, *arguments):
    """What a command prints."""
    capsys.readouterr()
    assert run_console(*arguments) == 0
    return capsys.readouterr().out


def get_error(capsys, *arguments):
    """What a command says of a mistake of its user."""
    capsys.readouterr()
    assert run_console(*arguments) == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Labeled images, many more of one class than of the other, unlabeled and test images."""
    root = tmp_path_factory.mktemp("data") / "pets"
    counts = {"labeled/ant": 2, "labeled/bee": 7, "unlabeled": 20, "test/ant": 60, "test/bee": 60}
    return write_images(root, counts | {"val/ant": 50, "val/bee": 50}, (9, 12, 3))


@pytest.fixture(autouse=True)
def cache(tmp_path, tmp_path_factory, monkeypatch):
    """Relative paths lead into the test's own folder. Caches are elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(suggest, "has_weights", lambda init: False)  # Seconds to compile.


@pytest.fixture
def tiny_network(monkeypatch):
    """A network that compiles sooner, and no reports."""
    monkeypatch.setattr("cls_jax.photos.report.after_training.draw_report", lambda run: None)
    with use_tiny_model():
        yield


def test_from_a_folder_to_predictions(images, tmp_path, capsys, monkeypatch):
    # Only the command for it draws a report, which takes seconds.
    monkeypatch.setattr("cls_jax.photos.report.after_training.draw_report", lambda run: None)
    opened, list_images = [], folder_source.list_images
    monkeypatch.setattr(
        folder_source, "list_images", lambda *a: opened.append(a) or list_images(*a)
    )
    assert run_console("train", images, *TINY) == 0
    assert len(opened) == 1
    output = capsys.readouterr().out
    workdir = tmp_path / "runs" / "pets-all-supervised-seed0"
    assert "Classes are unequal: 7 labels of 'bee' and 2 of 'ant'" in output
    assert "evaluate runs/pets-all-supervised-seed0" in output
    labeled = read_table(workdir / "labeled_files.csv")
    assert len(labeled) == 9
    assert {"file": "labeled/ant/0.png", "label": "ant"} in labeled
    assert json.loads((workdir / "calibration.json").read_text())["num_images"] == 100
    config = json.loads((workdir / "config.json").read_text())
    assert (config["num_steps"], config["model"]["depth"]) == (2, 10)
    assert config["data"]["data_dir"] == str(images)

    assert "is finished" in get_output(capsys, "train", images, *TINY)

    assert run_console("predict", workdir, images / "test", "--output", "p.csv") == 0
    rows = read_table(tmp_path / "p.csv")
    assert len(rows) == 120
    assert list(rows[0]) == list(WITHOUT_ERRORS)  # Those of one network.
    given = ("predict", workdir, images / "test/ant/0.png", "--json", "--all-columns")
    assert list(json.loads(get_output(capsys, *given))) == list(ALL_COLUMNS)

    assert "Calibrated on 100 validation images" in get_output(capsys, "evaluate", workdir)
    assert run_console("report", workdir) == 0
    assert (workdir / "report.html").exists()
    suggested = get_output(capsys, "suggest", workdir, "--count", 3).splitlines()[-3:]
    assert len({*suggested}) == 3
    assert all(name.startswith(str(images / "unlabeled")) for name in suggested)

    # Another run begins with the weights of this one.
    still = ["--config.optimizer.learning_rate=1e-12", "--config.optimizer.weight_decay=0"]
    begin = ["--workdir", "second", "--from", workdir, "--config.optimizer.frozen_stages=0"]
    assert run_console("train", images, *TINY, *still, *begin) == 0
    first, second = (load(name).networks.variables["params"] for name in (workdir, "second"))
    for name, is_same in (("stem", True), ("head", False)):  # Heads are fitted to the labels.
        kernels = (np.asarray(params[name]["kernel"]) for params in (first, second))
        assert np.allclose(*kernels, atol=1e-6 if is_same else 1e-3) == is_same


@pytest.mark.parametrize("method", ["cls", "freematch"])
def test_a_run_keeps_what_was_chosen_when_it_started(images, tmp_path, method):
    """FreeMatch has no `method.weak_pass`, which is chosen for methods that have it."""
    settings, workdir = {"num_steps": 2}, tmp_path / "run"

    def plan(**changes):
        values = settings | {key.replace("__", "."): value for key, value in changes.items()}
        return plan_run(Request(images, method=method, workdir=workdir, settings=values)).config

    # As if a machine of another size had chosen it.
    config = with_values(plan(), {"model.bn_momentum": 0.5})
    workdir.mkdir()
    (workdir / "config.json").write_text(to_json(config))
    assert to_json(plan()) == to_json(config)
    assert plan(model__bn_momentum=0.6).model.bn_momentum == 0.6


@pytest.mark.parametrize(
    ("settings", "own_size", "stem"),
    [({"data.channels": 1}, 64, "small"), ({"data.image_size": 96}, 96, "imagenet")],
)
def test_a_run_begins_in_the_form_of_another(images, tmp_path, settings, own_size, stem):
    config = create_folder_config(str(images), "cls")
    config.update_from_flattened_dict(settings)
    (tmp_path / "first").mkdir()
    (tmp_path / "first/config.json").write_text(to_json(config))
    for instant in (False, True):
        begun = plan_run(Request(images, start_from=tmp_path / "first", instant=instant)).config
        assert (begun.data.image_size, begun.data.channels) == (own_size, config.data.channels)
        assert (begun.model.stem, find_native_size(begun)) == (stem, own_size)


def test_default_name_is_numbered_where_it_belongs_to_other_data(images, tmp_path, capsys):
    """A finished run must not answer for another folder, nor for labels that were added."""
    name = "pets-all-cls-seed0"

    def finish(plan):
        plan.workdir.mkdir(parents=True)
        create_run_folder(plan.workdir, plan.config, np.arange(9), open_dataset(plan.config))
        write_result(plan.workdir, {"step": 2, "test_accuracy": 90.0})

    one = shutil.copytree(images, tmp_path / "one" / "pets")
    finish(plan_run(Request(one)))
    assert plan_run(Request(one)).workdir.name == name
    (one / "unlabeled" / "0.png").rename(one / "labeled" / "ant" / "new.png")
    grown = plan_run(Request(one))
    assert grown.workdir.name == f"{name}-2"
    said = capsys.readouterr().out
    assert f"have changed since the run in runs/{name}, so this run is in" in said
    with pytest.raises(UserError, match="choose a new --workdir, and add --from runs/pets-all"):
        plan_run(Request(one, workdir=f"runs/{name}"))

    assert plan_run(Request(one, again=True)).workdir == grown.workdir  # It can be resumed.
    finish(grown)
    assert plan_run(Request(one)).workdir == grown.workdir
    assert plan_run(Request(one, again=True)).workdir.name == f"{name}-3"
    # The same data elsewhere, while the first folder is still there, is a run of its own.
    other = shutil.copytree(images, tmp_path / "two" / "pets")
    assert plan_run(Request(other)).workdir.name == f"{name}-3"
    # A folder that was moved is the same data.
    one.rename(tmp_path / "pets")
    assert plan_run(Request(tmp_path / "pets")).workdir == grown.workdir
    begun = plan_run(Request(other, settings={"seed": 1}, start_from=grown.workdir))
    assert begun.config.model.init == str(grown.workdir.resolve())


def test_dry_run_tells_the_cost_and_writes_nothing(images, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in images.rglob("*")}
    output = get_output(capsys, "train", images, "--dry-run", *TINY)
    for passage in (
        "9 labeled, 20 unlabeled, 100 validation and 120 test images; 2 classes",
        "supervised, 1 x WRN-10-1 at 8 pixels, with all labels",
        *("GiB on each device", "s per step"),
    ):
        assert passage in output
    assert not list(tmp_path.iterdir())
    assert {path: path.stat().st_mtime_ns for path in images.rglob("*")} == before


def test_cache_is_shown_and_cleared_where_links_lead(images, tmp_path, capsys):
    folder, disk = get_cache_folder(), tmp_path / "disk"
    folder.rename(disk)
    folder.symlink_to(disk)
    open_dataset(create_folder_config(str(images), "supervised"))
    (folder.parent / "jit_step-cache").write_bytes(bytes(20_000_000))
    shown = " ".join(get_output(capsys, "cache").split())
    assert f"Images: 0.00 GB in {folder} Features: 0.00 GB in {folder}" in shown
    assert f"Programs: 0.02 GB in {folder.parent}" in shown
    assert len([*disk.glob("*.sqlite")]) == 1
    assert run_console("cache", "--clear") == 0
    assert [path.name for path in (*disk.iterdir(), *folder.parent.iterdir())] == ["lock", "store"]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([], "required: VERB: see cls-jax --help"),
        (["train"], "required: FOLDER: see cls-jax train --help"),
        (["train", "x", "--wrkdir=3"], "Unexpected argument '--wrkdir=3': see"),
        (["train", "x", "--lr=3"], "did you mean --config.optimizer.learning_rate=3?): see"),
        (["train", "nothing"], "nothing is not a folder. Pass a folder"),
        (["train", "IMAGES", "--method", "fixmatsch"], "choose one of"),
        (["train", "IMAGES", "--config.sead=1"], 'Did you mean "seed"'),
        (["train", "IMAGES", "--config.seed"], "--config.seed needs a value"),
        (["train", "IMAGES", "--minutes=0"], "must be positive and below 1,000,000, not 0"),
        (["train", "IMAGES", *SHORT, "--config.optimizer.warmup_steps=30"], "covers all"),
        (["train", "IMAGES", "--config.model.init_head=probe"], "set model.init, or model.init_h"),
        (["train", "IMAGES", "--from", "nothing"], "nothing is not the folder of a run"),
        (["train", "IMAGES", "--config.model.init=builtin:x"], "choose builtin:efficientnet_lite0"),
        (["train", "IMAGES", "--instant", "--config.model.init=builtin:x"], "no weights builtin:x"),
        (["train", "IMAGES", "--instant", "--config.model.init="], "needs the features"),
        (["train", "IMAGES", "--instant", "--config.data.mean=(0.5,)"], "set both"),
        (["predict", "RUN"], "There is no file or folder RUN: check its spelling"),
        (["predict", "RUN", "x" * 300], "There is no file x"),
        (["predict", "x" * 300, "IMAGES"], "cannot be used (File name too long)"),
        (["train", "IMAGES", "--again", "--workdir=x"], "Remove --workdir"),
        (["predict", "RUN", "x", "--config.seed=1"], "Unexpected argument"),
        (["report", "runs/a", "runs/b"], "Unexpected argument 'runs/b'"),
        (["suggest", "IMAGES", "--count", "0"], "--count must be at least 1"),
        (["suggest", "IMAGES", "--output", "x.txt"], "does not end in .csv or .parquet"),
    ],
)
def test_user_errors_print_one_line(images, tmp_path, capsys, arguments, remedy):
    assert run_console(*(images if name == "IMAGES" else name for name in arguments)) == 2
    output, error = capsys.readouterr()
    (line,) = error.strip().splitlines()
    assert line.startswith("Error: ")
    assert remedy in line
    assert output == ""
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_listed_is_named(images, monkeypatch, capsys):
    refuse = unittest.mock.Mock(side_effect=PermissionError(13, "Permission denied", str(images)))
    monkeypatch.setattr(os, "scandir", refuse)
    for verb in (["predict", "RUN"], ["train"], ["suggest"], ["label", "--no-browser"]):
        assert f"{images} cannot be read: Permission denied" in get_error(capsys, *verb, images)


@pytest.mark.slow
def test_a_packed_folder_takes_the_place_of_the_folder(
    images, tmp_path, monkeypatch, capsys, tiny_network
):
    module = pytest.importorskip("array_record.python.array_record_module")
    packed = tmp_path / "out" / "pets"
    assert run_console("pack", images, packed) == 0
    num_images = sum(path.suffix == ".png" for path in images.rglob("*"))
    assert f"{num_images} images in 1 file:" in capsys.readouterr().out
    with monkeypatch.context() as patch:  # Its images are decoded when a batch needs them.
        patch.setattr(files_lib, "decode_image", None)
        folder_source.load_folder(create_folder_config(str(packed), "cls").data)
    ours, theirs = (
        open_dataset(create_folder_config(str(root), "cls")) for root in (packed, images)
    )
    assert (ours.train.files, ours.test.files) == (theirs.train.files, theirs.test.files)
    assert ours.fingerprint == theirs.fingerprint
    np.testing.assert_array_equal(ours.train.images[:], theirs.train.images[:])
    assert run_console("train", packed, *TINY) == 0
    assert run_console("predict", "runs/pets-all-supervised-seed0", packed / "test/ant/3.png") == 0
    assert run_console("suggest", packed, "--count", 2) == 0
    with (packed / "images-00000.array_record").open("r+b") as shard:
        shard.seek(1000)
        shard.write(bytes(99))
    run, *_ = (tmp_path / "runs").iterdir()
    assert "1 of them could not be read" in get_output(
        capsys, "predict", run, packed, "--output", "damaged.csv"
    )

    refuse = unittest.mock.Mock(side_effect=RuntimeError("write() failed: No space left on device"))
    pairs = {(images, packed): "is not empty", (run, "x"): "no image", (packed, "x"): "copy it"}
    with monkeypatch.context() as patch:
        patch.setattr(module, "ArrayRecordWriter", refuse)
        for arguments, why in (pairs | {(images, "y"): "free disk space"}).items():
            assert why in get_error(capsys, "pack", *arguments)
    (packed / "packed_images.npz").write_bytes(b"?")
    assert "pack the folder again" in get_error(capsys, "train", packed, *TINY)
    (table := tmp_path / "flat").mkdir()
    shutil.copy(images / "unlabeled" / "0.png", table)
    shutil.copy(images / "unlabeled" / "1.png", table / "b.png")
    (table / "Labels.csv").write_text("file,label\n0.png,ant\nb.png,bee\n")
    assert run_console("pack", table, "flat2") == 0
    assert open_dataset(create_folder_config("flat2", "cls")).class_names == ("ant", "bee")
    assert "not packed" not in capsys.readouterr().err
    shutil.copytree(table, tmp_path / "nested" / "deep")
    assert run_console("pack", tmp_path / "nested", "nested2") == 0
    assert "2 labels are in files that are not packed" in capsys.readouterr().err


def test_training_takes_its_place_among_processes_and_other_verbs_refuse_one(monkeypatch, capsys):
    places = []
    monkeypatch.setattr(distributed, "initialize_distributed", lambda **own: places.append(own))
    monkeypatch.setattr(commands, "train", lambda folder, **_: None)
    place = ["--coordinator_address=host:1", "--num_processes=4", "--process_id=3"]
    assert run_console("train", "photos", *place) == 0
    assert [tuple(place.values()) for place in places] == [("host:1", 4, 3)]
    monkeypatch.setattr(console, "_has_others", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for arguments in (["predict", "RUN", "x"], ["report", "RUN"], ["evaluate", "RUN", "FOLDER"]):
        assert "runs in a single process" in get_error(capsys, *arguments)


def test_device_is_chosen_before_jax_is_loaded_which_a_user_may_stop(monkeypatch, capsys):
    seen = []

    def stop():
        seen.append(os.environ["JAX_PLATFORMS"])
        raise KeyboardInterrupt

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(sys, "argv", ["cls-jax", "cache", "--device", "gpu"])
    monkeypatch.setattr(console, "prepare_process", stop)
    with pytest.raises(SystemExit, match="130"):
        console.main()
    assert seen == ["cuda"]
    assert capsys.readouterr().err == "Stopped.\n"


def test_module_is_the_command_and_its_version_needs_no_jax():
    command = [sys.executable, "-X", "importtime", "-m", "cls_jax", "--version"]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert outcome.stdout.startswith("cls-jax ")
    assert "| jax\n" not in outcome.stderr
