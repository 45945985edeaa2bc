"""Predictions for image files: as rows, as a table, or as files sorted into folders."""

import contextlib
import hashlib
import itertools
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from cls_jax.errors import UserError, explain_writing
from cls_jax.io import PARTIAL, make_printable
from cls_jax.photos.images.files import ImageBatch, stat_image
from cls_jax.photos.inference.classifier import Classifier
from cls_jax.photos.inference.prediction import Prediction, describe_top
from cls_jax.photos.inference.tables import PREDICTION_COLUMNS, check_path, write_table
from cls_jax.runs.sessions import hold_at_once


def predict_files(
    classifier: Classifier, files: Sequence[str], output: pathlib.Path, overwrite: bool = False
) -> tuple[list[tuple[str, str | None, float | None]], float, float]:
    """Predicts files and writes one row each, in order. Unreadable files get a reason.

    Rows are kept beside the output, a .csv or .parquet file, until all are complete. After an
    interruption, the same command continues with the first file without a row. With `overwrite`,
    the output may replace a file that is not a table of predictions. Returns each file with its
    predicted class and confidence (see `get_confidence`), the total seconds, and the networks'
    share of these.
    Raises a UserError if the output cannot be written, or another process is writing it.
    """
    check_path(output, PREDICTION_COLUMNS, overwrite)
    journal = output.with_name(f"{output.name}.{_identify(classifier, files)}{PARTIAL}")
    network_seconds = 0.0
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock(output))
        num_done = _count_rows(journal)
        with explain_writing(output, "choose another --output"):
            rows_file = stack.enter_context(journal.open("a", encoding="ascii"))
        progress = tqdm(total=len(files), initial=num_done, unit="image", dynamic_ncols=True)
        bar = stack.enter_context(progress)
        batches = classifier.read_files(files[num_done:])
        for batch in stack.enter_context(contextlib.closing(batches)):
            before = time.perf_counter()
            prediction = classifier.predict(batch.images)
            network_seconds += time.perf_counter() - before
            lines = [json.dumps(row) + "\n" for row in iterate_rows(batch, prediction)]
            rows_file.writelines(lines)
            rows_file.flush()
            bar.update(len(lines))
        labels: list[tuple[str, str | None, float | None]] = []
        write_table(output, PREDICTION_COLUMNS, _read_rows(journal, labels))
        journal.unlink()
    seconds = time.perf_counter() - started
    return labels, seconds, network_seconds / seconds


def take_shard(
    files: Sequence[str], output: pathlib.Path, shard: str
) -> tuple[list[str], pathlib.Path]:
    """The files of shard "i/n", from 0, and its table. Raises a UserError for an invalid shard."""
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UserError(
            f"--shard {shard:.100} is invalid: write i/n with i from 0 to n - 1, as in 0/4."
        )
    i, n = int(index), int(count)
    part = files[len(files) * i // n : len(files) * (i + 1) // n]
    return list(part), output.with_name(f"{output.stem}-{i}-of-{n}{output.suffix}")


def predict_rows(classifier: Classifier, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of `predict_files`, one by one."""
    for batch in classifier.read_files(files):
        yield from iterate_rows(batch, classifier.predict(batch.images))


def describe_row(row: dict[str, Any]) -> str:
    """A line about a file: its class and confidence, or why it cannot be read."""
    text = row["error"]
    if text is None:
        confidence = row["calibrated_confidence"] or row["confidence"]
        text = f"{row['label']} ({confidence:.2f}{', low confidence' if row['abstain'] else ''})"
    return make_printable(f"{row['file']}: {text}")


def _identify(classifier: Classifier, files: Sequence[str]) -> str:
    """A hash of the files in their current state and of the networks."""
    digest = hashlib.sha256(classifier.compute_fingerprint().encode())
    for file in files:
        try:
            stat = stat_image(file)
            state = f"{stat.size} {stat.mtime_ns}"
        except OSError:
            state = ""
        digest.update(f"{file}\0{state}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def _count_rows(journal: pathlib.Path) -> int:
    """The number of complete rows of an interrupted prediction. A row cut short is removed."""
    if not journal.exists():
        return 0
    count = end = 0
    with journal.open("r+b") as file:
        for line in file:  # There may be millions.
            if line.endswith(b"\n"):
                count += 1
                end += len(line)
        file.truncate(end)
    return count


def _read_rows(
    journal: pathlib.Path, labels: list[tuple[str, str | None, float | None]]
) -> Iterator[dict[str, Any]]:
    """The rows of a finished prediction. Appends each file, class and confidence to `labels`."""
    with journal.open(encoding="ascii") as lines:
        for line in lines:
            row = json.loads(line)
            labels.append((row["file"], row["label"], get_confidence(row)))
            yield row


def get_confidence(row: Mapping[str, Any]) -> float | None:
    """The confidence of a row, calibrated where the run is. None if the file is unreadable."""
    calibrated: float | None = row["calibrated_confidence"]
    confidence: float | None = row["confidence"]
    return confidence if calibrated is None else calibrated


@contextlib.contextmanager
def _lock(output: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from writing the same output, where the file system has locks."""
    path = output.with_name(f".{output.name}.lock")
    another = "choose another --output"
    busy = f"Another process is writing {output}: wait for it, or {another}."
    with hold_at_once(path, output, lambda: busy, another):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()  # First: afterwards the file may be another process's lock.


def iterate_rows(batch: ImageBatch, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """A row of `PREDICTION_COLUMNS` for each file, mostly the fields of a `Prediction`."""
    columns = prediction._asdict() | {"network_1": prediction.network_labels[0]}
    if len(prediction.network_labels) > 1:
        columns["network_2"] = prediction.network_labels[1]
    else:
        del columns["agree"]
    known = {name: columns[name] for name in PREDICTION_COLUMNS if columns.get(name) is not None}
    places = itertools.count()  # Indices of the readable images.
    for file, error in zip(batch.files, batch.errors, strict=True):
        row = dict.fromkeys(PREDICTION_COLUMNS) | {"file": file, "error": error}
        if error is None:
            i = next(places)
            row |= {name: values[i].item() for name, values in known.items()}
            row["top5"] = describe_top(prediction.probabilities[i], prediction.class_names)
        yield row
