"""Predictions for image files, as a table."""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import filelock
from tqdm import tqdm

from cls_jax.data.images.files import ImageBatch
from cls_jax.errors import UserError
from cls_jax.inference.classifier import Classifier
from cls_jax.inference.prediction import Prediction, describe_top
from cls_jax.inference.tables import PREDICTION_COLUMNS, check_path, explain_os_error, write_table
from cls_jax.io import PARTIAL, make_printable


class Outcome(NamedTuple):
    """Counts and times of a prediction."""

    num_files: int
    num_errors: int  # Of files that could not be read.
    seconds: float
    network_share: float  # The share of this time spent in the networks.


def predict_files(
    classifier: Classifier, files: Sequence[str], output: pathlib.Path, overwrite: bool = False
) -> Outcome:
    """Predicts files and writes one row each, in their order. Unreadable files get a reason.

    Rows are kept beside the output, a .csv or .parquet file, until all are there. After an
    interruption, the same command goes on with the first file that has none. With `overwrite`, the
    output may replace a file that is no table of predictions.

    Raises:
        UserError: If the output cannot be written, or another process is writing it.
    """
    check_path(output, PREDICTION_COLUMNS, overwrite)
    journal = output.with_name(f"{output.name}.{_identify(classifier, files)}{PARTIAL}")
    network_seconds, started = 0.0, time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock(output))
        num_done = _count_rows(journal)
        try:
            rows_file = stack.enter_context(journal.open("a", encoding="ascii"))
        except OSError as error:
            raise explain_os_error(output, error) from error
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
        errors: list[str] = []
        write_table(output, PREDICTION_COLUMNS, _read_rows(journal, errors))
        journal.unlink()
    seconds = time.perf_counter() - started
    return Outcome(len(files), len(errors), seconds, network_seconds / seconds)


def take_shard(
    files: Sequence[str], output: pathlib.Path, shard: str
) -> tuple[list[str], pathlib.Path]:
    """The files of shard "i/n" of n, counted from 0, and the name of its table beside the others'.

    Raises:
        UserError: If the shard is none of these.
    """
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UserError(
            f"--shard {shard:.100} is not one of n: write i/n with i from 0 to n - 1, as in 0/4."
        )
    i, n = int(index), int(count)
    own = files[len(files) * i // n : len(files) * (i + 1) // n]
    return list(own), output.with_name(f"{output.stem}-{i}-of-{n}{output.suffix}")


def describe_predictions(classifier: Classifier, files: Sequence[str]) -> Iterator[str]:
    """A line for each file: its class and confidence, or why it cannot be read."""
    for batch in classifier.read_files(files):
        for row in iterate_rows(batch, classifier.predict(batch.images)):
            answer = row["error"]
            if answer is None:
                confidence = row["calibrated_confidence"] or row["confidence"]
                doubt = ", not to be relied on" if row["abstain"] else ""
                answer = f"{row['label']} ({confidence:.2f}{doubt})"
            yield make_printable(f"{row['file']}: {answer}")


def _identify(classifier: Classifier, files: Sequence[str]) -> str:
    """A name for what is predicted by what: the files as they are now, and the networks."""
    digest = hashlib.sha256(classifier.compute_fingerprint().encode())
    for file in files:
        try:
            stat = os.stat(file)
            state = f"{stat.st_size} {stat.st_mtime_ns}"
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
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count


def _read_rows(journal: pathlib.Path, errors: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a finished prediction. Appends the error of each file that has one."""
    with journal.open(encoding="ascii") as lines:
        for line in lines:
            row = json.loads(line)
            if row["error"] is not None:
                errors.append(row["error"])
            yield row


@contextlib.contextmanager
def _lock(output: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from writing the same output."""
    path = output.with_name(f".{output.name}.lock")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise UserError(
            f"Another process is writing {output}: wait for it, or give --output another file."
        ) from error
    except OSError as error:
        raise explain_os_error(output, error) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # First: afterwards the file may be another process's lock.
        lock.release()


def iterate_rows(batch: ImageBatch, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """A row of `PREDICTION_COLUMNS` for each file of a batch.

    Most columns are the field of a `Prediction` with this name.
    """
    columns = prediction._asdict() | {"network_1": prediction.network_labels[0]}
    if len(prediction.network_labels) > 1:
        columns["network_2"] = prediction.network_labels[1]
    else:
        del columns["agree"]
    known = {name: columns[name] for name in PREDICTION_COLUMNS if columns.get(name) is not None}
    places = itertools.count()  # Of the images that could be read.
    for file, error in zip(batch.files, batch.errors, strict=True):
        row = dict.fromkeys(PREDICTION_COLUMNS) | {"file": file, "error": error}
        if error is None:
            i = next(places)
            row |= {name: values[i].item() for name, values in known.items()}
            row["top5"] = describe_top(prediction.probabilities[i], prediction.class_names)
        yield row
