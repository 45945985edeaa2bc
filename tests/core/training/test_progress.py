"""Metrics of steps in flight, the progress bar, and how a loss that is not finite stops a run."""

import json
import re
import sys

import jax
import numpy as np
import pytest

from cls_jax.bars import show_progress
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.errors import UserError
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.training import progress
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import WEIGHT_READERS, prepare_run
from cls_jax.training.step import create_train_step, make_batch_fn
from tests.conftest import create_tiny_config

pytestmark = pytest.mark.usefixtures("tiny_model")


class Fake:
    """Writer, bar and timer at once."""

    def __init__(self):
        self.rows, self.losses, self.lines, self.seconds = [], [], [], 0.0

    def write(self, step, values):
        self.rows.append({"step": step, **values})

    def advance(self, loss):
        self.losses.append(loss)
        self.seconds += 0.5

    def say(self, line):
        self.lines.append(line)


def create_queue(log_every=1):
    fake, config = Fake(), create_tiny_config(num_steps=8, log_every=log_every)
    return progress.MetricsQueue(config, 10, 40, fake, fake, fake), fake


def create_monitors(**values):
    values = {"loss": 1.0, "gradient_norm": 1.0} | values
    return {f"train/{name}": np.float32(value) for name, value in values.items()}


def test_rows_are_written_every_log_every_steps_with_the_speed_since_the_row_before(monkeypatch):
    queue, fake = create_queue(log_every=4)
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    for step in range(9):
        with queue.waiting():
            clock[0] += 0.125
        queue.append(step, None, create_monitors(loss=step))
    queue.drain()
    assert fake.losses == list(range(9))
    columns = {
        "step": [0, 4, 8],
        "perf/input_wait": [None, 0.25, 0.125],  # Two steps are in flight.
        "perf/steps_per_second": [None, 2.0, 2.0],
        "perf/images_per_second": [None, 80.0, 80.0],
    }
    assert {name: [row.get(name) for row in fake.rows] for name in columns} == columns
    rates = [0.03 * np.cos(np.pi * 7 / 16 * progress) for progress in (0, 0.5, 0)]
    assert [row["train/learning_rate"] for row in fake.rows] == pytest.approx(rates)


def test_a_loss_far_above_guessing_is_flagged_once_it_stays_there():
    queue, fake = create_queue()
    high, guessing = 2.1 * np.log(10), np.log(10)
    losses = {0: high, 199: high, 200: guessing, 201: high, 400: high, 401: high, 402: high}
    for step, loss in losses.items():
        queue.append(step, None, create_monitors(loss_supervised=loss))
        queue.drain()
        assert len(fake.lines) == (step > 400)
    assert "above 4.61, twice the loss of random guessing, since step 201" in fake.lines[0]
    queue.append(1000, None, create_monitors())  # Not every method has that loss.
    queue.drain()


def test_means_that_a_run_is_too_short_for_are_named_with_a_value_that_fits():
    config = create_tiny_config(num_steps=200, ema_decay=0.99, model__bn_momentum=0.5)
    (warning,) = progress.describe_slow_means(config, has_batch_norm=True)
    assert "13% of the start values remain with ema_decay=0.99: set --config.ema_decay=" in warning
    config.ema_decay, config.model.bn_momentum = float(warning.split("=")[-1].rstrip(".")), 0.999
    assert len(progress.describe_slow_means(config, has_batch_norm=True)) == 1
    assert progress.describe_slow_means(config, has_batch_norm=False) == []
    for method, key in (("freematch", "statistics_decay"), ("remixmatch", "class_mean_decay")):
        config = create_tiny_config(f"20,{method}", num_steps=100, ema_decay=0.5)
        config.method[key] = 0.999
        (warning,) = progress.describe_slow_means(config, has_batch_norm=False)
        assert f"remain with method.{key}=0.999: set --config.method.{key}=" in warning


def test_settings_for_other_images_are_named():
    dataset = load_dataset(create_tiny_config())

    def describe(**changes):
        return progress.describe_misfits(create_tiny_config(**changes), dataset)

    assert describe() == describe(data__mean=(), data__std=()) == []
    (warning,) = describe(data__mean=(30.5,), data__std=(31.9,))
    assert "data.mean=30.5 and data.std=31.9 are not on the scale from 0 to 1" in warning
    assert describe(data__mean=(30.5,), data__std=(31.9,), model__init="w.safetensors") == []
    cifar = {"data__mean": (0.49,), "data__std": (0.25,), "data__flip": True}
    other, mirrored = describe(**cifar, data__cutout=7)
    assert re.search(r"are not those of the training images, 0\.3\d\d and 0\.3\d\d: ", other)
    assert "set --config.data.flip=False where" in mirrored
    # That every image is labeled is worth a word where unlabeled ones would be used.
    for uses_unlabeled in (True, False):
        warnings = progress.list_warnings(dataset, len(dataset.train), uses_unlabeled)
        assert len(warnings) == uses_unlabeled
    (cutout,) = describe(data__cutout=8)
    assert "whole image of 8 pixels: set --config.data.cutout=4" in cutout


def test_the_bar_shows_validation_accuracies_where_test_images_should_stay_unseen(capsys):
    bar = progress.ProgressBar(first_step=4, num_steps=10)
    for split in ("test", "validation"):
        names = ("test/accuracy", f"{split}/accuracy", f"{split}/accuracy_ensemble")
        bar.show_accuracies(5, dict.fromkeys(names, 91.0))
        assert f"step 5/10: {split} accuracy 91.00%, ensemble" in capsys.readouterr().out
    bar.close()


def test_a_step_that_is_not_finite_can_be_reproduced_from_the_folder(tmp_path):
    """The requested trace of earlier steps exists, too."""
    options = {"optimizer__learning_rate": 100.0, "num_steps": 40, "data__pipeline": "device"}
    config = create_tiny_config("20,fixmatch", **options, profile="0:1", log_every=100)
    workdir = tmp_path / "run"
    with pytest.raises(UserError, match=r"stopped at step \d+: train/.* last good checkpoint"):
        run_training(config, workdir)
    assert len(list(workdir.glob("profile/**/*.xplane.pb"))) == 1

    (path,) = (workdir / "not_finite").iterdir()
    bad_step = int(re.fullmatch(r"step_(\d+)\.npz", path.name)[1])
    with np.load(path, allow_pickle=False) as dump:
        monitors = json.loads(str(dump["monitors"]))
        batch = {name: dump[name] for name in ("x", "y", "u", "u_index", "u_truth")}
    watched = ("train/loss", "train/gradient_norm")
    assert {"nan", "inf"} & {monitors[name] for name in watched}

    # The newest checkpoint and the stream lead to the same batch and the same loss.
    setup, dataset, spec, _ = prepare_run(config, workdir, load_dataset, WEIGHT_READERS)
    first, state, _ = Checkpointer(workdir).restore_newest(setup.state_shapes)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.params))
    inputs, specs, make = create_pipeline(spec, dataset, setup.mesh, first, config.num_steps)
    train_step, schedule = create_train_step(setup, make, specs), setup.put_schedule()
    for step in range(first, bad_step + 1):
        step_input = next(inputs)
        if step == bad_step:
            again = make_batch_fn(setup, make, specs)(state, step_input)
        state, again_monitors = train_step(state, step_input, schedule)
    inputs.close()
    for name, values in batch.items():
        np.testing.assert_array_equal(getattr(again, name), values)
    for name in watched:
        assert repr(float(again_monitors[name])) == monitors[name]


def test_the_operation_that_makes_the_first_nan_is_named(tmp_path):
    options = {"optimizer__learning_rate": 1e30, "num_steps": 4, "debug_nans": True}
    with pytest.raises(UserError, match=r"NaN or Inf produced in cls_jax/.*, line \d+: "):
        run_training(create_tiny_config("20,supervised", **options), tmp_path / "run")


@pytest.mark.parametrize(("seconds", "lines"), [(59, 0), (605, 10)])
def test_a_file_gets_a_line_of_progress_a_minute(seconds, lines, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with show_progress(total=10 * seconds, desc="Features") as bar:
        for _ in range(10 * seconds):
            now[0] += 0.1
            bar.update()
    found = capsys.readouterr().err
    assert "\r" not in found
    assert len(found.splitlines()) in (lines, lines + 1)  # The last one is that of the end.
    assert all(line.startswith("Features: ") for line in found.splitlines())
