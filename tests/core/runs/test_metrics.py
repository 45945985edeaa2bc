"""`metrics.jsonl` after interruptions, its scalars in TensorBoard, and the result made of it."""

import errno
import json

import numpy as np
import pytest

from cls_jax.runs.metrics import METRICS, MetricsWriter, read_metrics
from cls_jax.runs.result import create_result
from tests.conftest import create_tiny_config


def test_rows_after_a_damaged_line_are_kept_also_by_a_resumed_run(tmp_path):
    good = [{"step": step, "a": 1.0} for step in range(4)]
    lines = [json.dumps(row) for row in good]
    lines[2:2] = ['{"step": 1, "a', "\x00" * 100, '{"a": 2}', "[]", "[" * 100_000, "é"]
    lines += ['{"step": 4, "a": "x"}', '{"step": 4, "a"']  # The last one cut short by a crash.
    (tmp_path / METRICS).write_bytes("\n".join(lines).encode("latin-1"))
    assert read_metrics(tmp_path) == good
    stored = (tmp_path / METRICS).read_bytes()
    resumed = MetricsWriter(tmp_path, first_step=3)
    resumed.write(3, {"a": 30.0})
    resumed.close()
    assert read_metrics(tmp_path) == [*good[:3], {"step": 3, "a": 30.0}]
    assert (tmp_path / METRICS).read_bytes().startswith(stored)


def test_a_session_repeats_its_steps_and_keeps_what_was_measured_before_them(tmp_path):
    def write(first_step, *rows):
        writer = MetricsWriter(tmp_path, first_step)
        for step, name, value in rows:
            writer.write(step, {name: value})
        writer.close()
        return [[*row.values()][-1] for row in read_metrics(tmp_path)]

    loss, test, old = "train/loss", "test/accuracy", "\0\n" * 100
    (tmp_path / METRICS).write_text('{"step": 7, "train/loss": 7.0}\n' + old)
    assert write(0, (0, test, 1), (0, loss, 2), (1, loss, 3), (2, test, 4), (2, loss, 5)) == [
        *(1, 2, 3, 4, 5)
    ]
    assert write(2) == [1, 2, 3, 4, 5]  # It has ended before its first row.
    assert write(2, (2, loss, 6), (3, test, 7), (3, loss, 8)) == [1, 2, 3, 4, 6, 7, 8]
    assert write(1, (1, loss, 9)) == [1, 2, 9]
    assert write(0, (0, loss, 10)) == [10]


def test_of_rows_written_twice_the_last_one_counts_and_what_is_not_finite_is_null(tmp_path):
    rows = [(1, {"train/loss": 2.0}), (2, {"train/loss": 1.0}), (2, {"test/accuracy": 50.0})]
    rows += [(2, {"train/loss": float("nan")})]
    writer = MetricsWriter(tmp_path)
    for step, scalars in rows:
        writer.write(step, scalars)
    writer.close()
    first, third = ({"step": step, **scalars} for step, scalars in (rows[0], rows[2]))
    assert read_metrics(tmp_path) == [first, {"step": 2, "train/loss": None}, third]


def test_tensorboard_shows_the_same_scalars_and_the_images(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = MetricsWriter(tmp_path)
    writer.write(4, {"train/loss": 0.25})
    writer.write_images(4, {"views/weak": np.zeros((2, 8, 8, 1), np.uint8)})
    writer.close()
    events = accumulators.EventAccumulator(str(tmp_path), {"tensors": 0, "images": 0}).Reload()
    (scalar,) = events.Tensors("train/loss")
    assert scalar.step == 4
    assert np.frombuffer(scalar.tensor_proto.tensor_content, np.float32) == [0.25]
    assert "views/weak" in events.Tags()["tensors"]


class FullDisk:
    """Takes half of what it is given, then nothing, until there is room."""

    def __init__(self, file):
        self.file, self.has_room = file, False

    def write(self, data):
        if self.has_room:
            return self.file.write(data)
        self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_rows_that_a_full_disk_refuses_are_written_later(tmp_path):
    warnings = []
    writer = MetricsWriter(tmp_path, warn=warnings.append)
    writer.write(0, {"a": 1.0})
    writer._file = disk = FullDisk(writer._file)
    writer.write(1, {"a": 2.0})
    assert not writer.flush()
    assert [row["step"] for row in read_metrics(tmp_path)] == [0]
    assert ["No space left on device" in line for line in warnings] == [True]
    disk.has_room = True
    writer.write(2, {"a": 3.0})
    assert writer.flush()
    writer.close()
    assert [row["a"] for row in read_metrics(tmp_path)] == [1.0, 2.0, 3.0]


def write_rows(workdir, rows):
    text = "".join(json.dumps({"step": step, **row}) + "\n" for step, row in rows)
    (workdir / "metrics.jsonl").write_text(text)


def test_accuracies_are_the_last_the_best_and_a_median_and_monitors_are_means_of_twenty(tmp_path):
    """Of 25 rows of monitors and 25 evaluations at other steps. One monitor is unknown once."""
    history = [(7 * i) % 25 for i in range(25)]
    monitors = [{"monitors/mask": i, "monitors/rare": i if i < 24 else None} for i in range(25)]
    evaluations = [
        {"test/accuracy": accuracy, "test/accuracy_network_2": 50.0 + i}
        for i, accuracy in enumerate(history)
    ]
    write_rows(tmp_path, [*enumerate(monitors), *enumerate(evaluations, 100)])
    result = create_result(create_tiny_config(), tmp_path, 20, 12.5)
    assert (result["step"], result["num_labels"], result["train_seconds"]) == (6, 20, 12.5)
    assert (result["test_accuracy"], result["test_accuracy_best"]) == (history[-1], 24)
    assert result["test_accuracy_median_last_20"] == np.median(history[5:]) != np.median(history)
    assert result["test_accuracy_network_2"] == 74.0
    assert result["test_accuracy_ensemble"] is None
    assert result["monitors"] == {"mask": sum(range(5, 25)) / 20, "rare": sum(range(5, 24)) / 19}


def test_validation_images_choose_a_step_whose_test_accuracy_may_be_reported(tmp_path):
    pairs = [(60.0, 50.0), (80.0, 40.0), (80.0, 90.0), (70.0, 95.0)]
    rows = [{"validation/accuracy": v, "test/accuracy": t} for v, t in pairs]
    write_rows(tmp_path, list(enumerate(rows, 1)))
    result = create_result(create_tiny_config(), tmp_path, 20, 1.0)
    assert (result["validation_accuracy"], result["validation_accuracy_best"]) == (70.0, 80.0)
    assert result["validation_best_step"] == 2
    assert result["test_accuracy_at_best_validation"] == 40.0
    write_rows(tmp_path, [(0, {"monitors/mask_ratio": 0.5}), (1, {"test/accuracy": None})])
    result = create_result(create_tiny_config(), tmp_path, 20, 1.0)
    assert result["test_accuracy"] is result["test_accuracy_best"] is None
    assert result["monitors"] == {"mask_ratio": 0.5}
