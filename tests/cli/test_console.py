"""`cls-jax`: from a folder of images to predictions, and one line for every mistake."""

import json
import os
import shutil
import subprocess
import sys
import types
from collections import Counter

import jax
import numpy as np
import pytest
from PIL import Image

from cls_jax.cli import commands, console, plan
from cls_jax.cli.plan import open_run, plan_run
from cls_jax.cli.process import run_to_end
from cls_jax.config import to_json
from cls_jax.config.from_folder import Resources, create_folder_config, find_own_image_size
from cls_jax.data.datasets import load_dataset
from cls_jax.data.images import files as files_lib
from cls_jax.data.images.store import get_cache_folder
from cls_jax.data.sources import folder as folder_source
from cls_jax.data.sources.folder import summarize_folder
from cls_jax.errors import UserError
from cls_jax.inference import classifier, evaluate_run, suggest
from cls_jax.parallel import distributed
from cls_jax.runs.folder import create_run_folder, write_result
from cls_jax.training import loop
from tests.conftest import ROOT, create_tiny_config
from tests.outcomes import read_table

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


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Labeled images, many more of one class than of the other, unlabeled and test images."""
    root = tmp_path_factory.mktemp("data") / "pets"
    rng = np.random.default_rng(0)
    counts = {"labeled/ant": 2, "labeled/bee": 7, "unlabeled": 20, "test/ant": 60, "test/bee": 60}
    counts |= {"val/ant": 50, "val/bee": 50}
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True)
        for i, pixels in enumerate(rng.integers(0, 256, (count, 9, 12, 3), dtype=np.uint8)):
            Image.fromarray(pixels).save(root / folder / f"{i}.png")
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, tmp_path_factory, monkeypatch):
    """Relative paths lead into the test's own folder. Caches are elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(suggest, "is_installed", lambda init: False)  # Seconds to compile.


@pytest.fixture
def calls(monkeypatch):
    """How often a command lists a folder, loads a dataset and restores a checkpoint."""
    calls = Counter()

    def count(module, name):
        original = getattr(module, name)

        def counted(*args):
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(module, name, counted)

    count(folder_source, "list_images")
    count(evaluate_run, "load_dataset")
    count(loop, "load_dataset")
    count(classifier, "restore_run")
    count(evaluate_run, "restore_run")
    return calls


def test_from_a_folder_to_predictions(images, tmp_path, capsys, calls):
    assert run_console("train", images, *TINY) == 0
    assert calls == {"list_images": 1, "load_dataset": 1}  # Its report needs no checkpoint.
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

    assert run_console("train", images, *TINY) == 0
    assert "is finished" in capsys.readouterr().out

    assert run_console("predict", workdir, images / "test", "--output", "p.csv") == 0
    assert calls["restore_run"] == 1
    rows = read_table(tmp_path / "p.csv")
    assert len(rows) == 120
    assert all(0.5 <= float(row["calibrated_confidence"]) <= 1 for row in rows)

    assert run_console("evaluate", workdir) == 0
    assert "Calibrated on 100 validation images" in capsys.readouterr().out
    assert run_console("report", workdir) == 0
    assert run_console("suggest", workdir, "--count", 3) == 0
    suggested = capsys.readouterr().out.splitlines()[-3:]
    assert len({*suggested}) == 3
    assert all(name.startswith(str(images / "unlabeled")) for name in suggested)

    # Another run begins with the weights of this one.
    still = ["--config.optimizer.learning_rate=1e-12", "--config.optimizer.weight_decay=0"]
    begin = ["--workdir", "second", "--from", workdir, "--config.optimizer.frozen_stages=0"]
    assert run_console("train", images, *TINY, *still, *begin) == 0
    first, second = (classifier.load(name).networks["params"] for name in (workdir, "second"))
    kernels = second["stem"]["kernel"], first["stem"]["kernel"]
    np.testing.assert_allclose(*map(np.asarray, kernels), atol=1e-6)
    head = (params["head"]["kernel"] for params in (first, second))
    assert not np.allclose(*map(np.asarray, head), atol=1e-3)  # Fitted to the labels.


@pytest.mark.parametrize("method", ["cls", "freematch"])
def test_a_run_keeps_what_was_chosen_when_it_started(images, tmp_path, method):
    """FreeMatch has no `method.weak_pass`, which is chosen for methods that have it."""
    settings, workdir = {"num_steps": 2}, tmp_path / "run"
    plan = plan_run(images, method, workdir, settings)
    chosen = plan.config.model.bn_momentum
    plan.config.model.bn_momentum = 0.5  # As if a machine of another size had chosen it.
    workdir.mkdir()
    (workdir / "config.json").write_text(to_json(plan.config))
    assert to_json(plan_run(images, method, workdir, settings).config) == to_json(plan.config)
    changed = plan_run(images, method, workdir, settings | {"model.bn_momentum": 0.6})
    assert 0.5 != changed.config.model.bn_momentum == 0.6 != chosen


def test_what_the_program_chooses_fits_what_was_set(images, monkeypatch):
    """It was refused before the choice, or the run could not be opened after it."""
    monkeypatch.setattr(plan, "find_resources", lambda: Resources(False, 2**34, False, True))
    summary = summarize_folder(images)._replace(sizes=np.full((9, 2), 500))
    monkeypatch.setattr(plan, "summarize_folder", lambda folder: summary)
    settings = {"num_steps": 4, "model.init_head": "probe", "accumulate_steps": 3}
    config = plan_run(images, settings=settings).config
    assert (config.model.init_head, config.model.name) == ("probe", "efficientnet_lite0")
    assert config.batch_size == 6
    with pytest.raises(UserError, match="too large for optimizer"):
        plan_run(images, settings={"num_steps": 4, "optimizer.learning_rate": 0.03})


@pytest.mark.parametrize(
    ("settings", "own_size", "stem"),
    [({"data.channels": 1}, 64, "small"), ({"data.image_size": 96}, 96, "imagenet")],
)
def test_a_run_begins_in_the_size_channels_and_stem_of_the_run_it_begins_from(
    images, tmp_path, settings, own_size, stem
):
    config = create_folder_config(str(images), "cls")
    config.update_from_flattened_dict(settings)
    (tmp_path / "first").mkdir()
    (tmp_path / "first/config.json").write_text(to_json(config))
    for instant in (False, True):
        begun = plan_run(images, start_from=tmp_path / "first", instant=instant).config
        assert (begun.data.image_size, begun.data.channels) == (own_size, config.data.channels)
        assert (begun.model.stem, find_own_image_size(begun)) == (stem, own_size)


def test_default_name_is_numbered_where_it_belongs_to_other_data(images, tmp_path, capsys):
    """A finished run must not answer for another folder, nor for labels that were added."""

    def finish(plan):
        plan.workdir.mkdir(parents=True)
        create_run_folder(plan.workdir, plan.config, np.arange(9), load_dataset(plan.config))
        write_result(plan.workdir, {"step": 2, "test_accuracy": 90.0})

    one = shutil.copytree(images, tmp_path / "one" / "pets")
    finish(plan_run(one))
    assert plan_run(one).workdir.name == "pets-all-cls-seed0"
    (one / "unlabeled" / "0.png").rename(one / "labeled" / "ant" / "new.png")
    grown = plan_run(one)
    assert grown.workdir.name == "pets-all-cls-seed0-2"
    said = capsys.readouterr().out
    assert "are no longer those of the run in runs/pets-all-cls-seed0, so this run is in" in said
    with pytest.raises(UserError, match="give --workdir a new folder, and --from runs/pets-all"):
        plan_run(one, workdir="runs/pets-all-cls-seed0")

    assert plan_run(one, again=True).workdir == grown.workdir  # It can be resumed.
    finish(grown)
    assert plan_run(one).workdir == grown.workdir
    assert plan_run(one, again=True).workdir.name == "pets-all-cls-seed0-3"
    assert "-2 is finished, so this run is in" in capsys.readouterr().out
    # The same data elsewhere, while the first folder is still there, is a run of its own.
    other = shutil.copytree(images, tmp_path / "two" / "pets")
    assert plan_run(other).workdir.name == "pets-all-cls-seed0-3"
    assert "has a run on" in capsys.readouterr().out
    # A folder that was moved is the same data.
    shutil.copytree(one, tmp_path / "moved" / "pets")
    shutil.rmtree(one)
    assert plan_run(tmp_path / "moved" / "pets").workdir == grown.workdir
    begun = plan_run(other, settings={"seed": 1}, start_from=grown.workdir)
    assert begun.config.model.init == str(grown.workdir.resolve())
    assert begun.config.model.width == grown.config.model.width


def test_configuration_without_a_folder_does_not_take_the_current_one(images, calls, monkeypatch):
    monkeypatch.chdir(images)
    with pytest.raises(UserError, match="is not a folder: name one with images"):
        open_run(create_folder_config("", "supervised"), "run").dataset  # noqa: B018
    assert calls["list_images"] == 0


def test_dry_run_tells_the_cost_and_writes_nothing(images, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in images.rglob("*")}
    assert run_console("train", images, "--dry-run", *TINY) == 0
    output = capsys.readouterr().out
    for passage in (
        "9 labeled, 20 unlabeled, 100 validation and 120 test images; 2 classes",
        "Classes are unequal",
        "9 to 9 pixels, median 9",
        "supervised, 1 x WRN-10-1 at 8 pixels, with all labels",
        "2 with 4 labeled images each",
        "GiB on each device",
        "s per step",
    ):
        assert passage in output
    assert not list(tmp_path.iterdir())
    assert {path: path.stat().st_mtime_ns for path in images.rglob("*")} == before


def test_cache_is_shown_and_cleared_where_links_lead(images, tmp_path, capsys):
    folder, disk = get_cache_folder(), tmp_path / "disk"
    folder.parent.mkdir(parents=True)
    disk.mkdir()
    folder.symlink_to(disk)
    load_dataset(create_folder_config(str(images), "supervised"))
    (folder.parent / "jit_step-cache").write_bytes(bytes(20_000_000))
    assert run_console("cache") == 0
    shown = capsys.readouterr().out
    for kind in (f"Images:    0.00 GB in {folder}", f"Features:  0.00 GB in {folder}"):
        assert kind in shown
    assert f"Programs:  0.02 GB in {folder.parent}" in shown
    assert len([*disk.glob("*.sqlite")]) == 1
    assert run_console("cache", "--clear") == 0
    assert f"deleted from {folder}" in capsys.readouterr().out
    assert [path.name for path in (*disk.iterdir(), *folder.parent.iterdir())] == ["lock", "store"]


def test_suggestions_need_neither_labels_nor_a_run(images, tmp_path, capsys):
    assert run_console("suggest", images / "unlabeled", "--count", 4) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 4
    assert f"{images / 'unlabeled' / 'labeled'}/<class>/ and all others into" in output.err
    assert output.err.endswith(f" label {images / 'unlabeled'}\n")
    assert run_console("suggest", images, "--output", "next.csv") == 0
    rows = read_table(tmp_path / "next.csv")
    assert list(rows[0]) == ["rank", "score", "file"]
    assert len(rows) == 20


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ([], "required: VERB: see cls-jax --help"),
        (["sing"], "choose from"),
        (["train"], "required: FOLDER: see cls-jax train --help"),
        (["train", "x", "--wrkdir=3"], "Unexpected argument '--wrkdir=3'"),
        (["train", "nothing"], "nothing is not a folder: name one"),
        (["train", "IMAGES", "--method", "fixmatsch"], "choose one of"),
        (["train", "IMAGES", "--config.sead=1"], 'Did you mean "seed"'),
        (["train", "IMAGES", "--config.seed"], "--config.seed needs a value"),
        (["train", "IMAGES", "--config.seed=one"], "--config.seed=one"),
        (["train", "IMAGES", "--config.mu=0"], "choose an integer from 1 to"),
        (["train", "IMAGES", "--minutes=0"], "must be positive and below 1,000,000, not 0"),
        (["train", "IMAGES", "--config.data=3"], "flag --config.data=3"),
        (["train", "IMAGES", *SHORT, "--config.optimizer.warmup_steps=30"], "would last for all"),
        (["train", "IMAGES", "--config.model.init_head=probe"], "set model.init, or model.init_h"),
        (["train", "IMAGES", "--from", "nothing"], "nothing is not the folder of a run"),
        (["predict", "RUN"], "required: IMAGE_OR_FOLDER"),
        (["predict", "RUN", "x" * 300], "There is no file x"),
        (["predict", "x" * 300, "IMAGES"], "cannot be used (File name too long)"),
        (["train", "x" * 300], "cannot be used (File name too long)"),
        (["train", "IMAGES", "--again", "--workdir=x"], "leave out --workdir"),
        (["predict", "RUN", "x", "--config.seed=1"], "Unexpected argument"),
        (["predict", "nothing", "IMAGES"], "nothing is not the folder of a run"),
        (["evaluate", "nothing"], "nothing is not the folder of a run"),
        (["report", "nothing"], "nothing is not the folder of a run"),
        (["export", "nothing", "out"], "nothing is not the folder of a run"),
        (["export", "RUN"], "required: DIR"),
        (["suggest", "IMAGES", "--count", "0"], "--count must be at least 1"),
        (["suggest", "IMAGES", "--count", "x"], "invalid int value"),
        (["suggest", "IMAGES", "--output", "x.txt"], "does not end in .csv or .parquet"),
        (["suggest", "nothing"], "nothing is not a folder"),
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
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    for verb in (["predict", "RUN"], ["train"], ["suggest"], ["label", "--no-browser"]):
        assert run_console(*verb, images) == 2
        assert f"{images} cannot be read: Permission denied" in capsys.readouterr().err


def test_a_packed_folder_takes_the_place_of_the_folder(images, tmp_path, monkeypatch, capsys):
    pytest.importorskip("array_record")
    (table := tmp_path / "flat").mkdir()
    shutil.copy(images / "unlabeled" / "0.png", table)
    shutil.copy(images / "unlabeled" / "1.png", table / "b.png")
    (table / "Labels.csv").write_text("file,label\n0.png,ant\nb.png,bee\n")
    packed = tmp_path / "out" / "pets"
    assert run_console("pack", images, packed) == run_console("pack", table, "flat2") == 0
    num_images = sum(path.suffix == ".png" for path in images.rglob("*"))
    assert f"{num_images} images in 1 file(s)" in capsys.readouterr().out
    with monkeypatch.context() as patch:  # Its images are decoded when a batch needs them.
        patch.setattr(files_lib, "decode_image", None)
        folder_source.load_folder(create_folder_config(str(packed), "cls").data)
    ours, theirs = (
        load_dataset(create_folder_config(str(root), "cls")) for root in (packed, images)
    )
    assert (ours.train_files, ours.test_files) == (theirs.train_files, theirs.test_files)
    assert ours.fingerprint == theirs.fingerprint
    np.testing.assert_array_equal(ours.train_images[:], theirs.train_images[:])
    assert load_dataset(create_folder_config("flat2", "cls")).class_names == ("ant", "bee")
    assert run_console("train", packed, *TINY) == 0
    assert run_console("predict", "runs/pets-all-supervised-seed0", packed / "test/ant/3.png") == 0
    assert run_console("suggest", packed, "--count", 2) == 0
    assert run_console("pack", images, packed) == 2  # It is not empty.
    assert run_console("pack", tmp_path / "runs", "nothing") == 2
    (packed / "packed_images.npz").write_bytes(b"?")
    assert run_console("train", packed, *TINY) == 2
    assert "pack the folder again" in capsys.readouterr().err


def test_training_takes_its_place_among_processes(monkeypatch):
    places = []
    monkeypatch.setattr(distributed, "initialize_distributed", lambda *own: places.append(own))
    monkeypatch.setattr(commands, "train", lambda folder, **_: None)
    assert run_console("train", "photos") == 0
    place = ["--coordinator_address=host:1", "--num_processes=4", "--process_id=3"]
    assert run_console("train", "photos", *place) == 0
    assert places == [(None, None, None), ("host:1", 4, 3)]


def test_verb_that_takes_one_process_says_so_in_several(monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for arguments in (["predict", "RUN", "x"], ["report", "RUN"], ["evaluate", "RUN", "FOLDER"]):
        assert run_console(*arguments) == 2
        assert "runs in one process: start it without the others" in capsys.readouterr().err


def test_device_is_chosen_before_jax_is_loaded(monkeypatch):
    seen = []
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(sys, "argv", ["cls-jax", "cache", "--device", "gpu"])
    monkeypatch.setattr(
        console, "prepare_process", lambda: seen.append(os.environ["JAX_PLATFORMS"])
    )
    monkeypatch.setattr(console, "run_to_end", lambda function: None)
    console.main()
    assert seen == ["cuda"]


def test_module_is_the_command_and_its_version_needs_no_jax():
    command = [sys.executable, "-X", "importtime", "-m", "cls_jax", "--version"]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert outcome.stdout.startswith("cls-jax ")
    assert "| jax\n" not in outcome.stderr


def test_a_run_without_steps_or_test_images_says_how_to_measure_it(tmp_path, monkeypatch, capsys):
    config = create_tiny_config()
    result = {"step": 0, "test_accuracy": None, "monitors": {}}
    run = types.SimpleNamespace(workdir=tmp_path, config=config, layout=None)
    monkeypatch.setattr("cls_jax.cli.train.train_assessed", lambda run: result)
    monkeypatch.setattr(plan, "open_run", lambda *_: run)
    commands.train_config(config, None)
    output = capsys.readouterr().out
    assert f"evaluate {tmp_path} FOLDER" in output
    assert "Averages" not in output
