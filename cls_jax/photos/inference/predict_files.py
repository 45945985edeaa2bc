"""Predictions for image files: as rows, as a table, or as files sorted into folders."""

import contextlib
import glob
import hashlib
import itertools
import json
import pathlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from cls_jax.bars import show_progress
from cls_jax.errors import StoppedError, explain_writing
from cls_jax.io import PARTIAL, make_printable
from cls_jax.photos.features.decide import rank_classes
from cls_jax.photos.images.files import ImageBatch, compute_key, stat_image
from cls_jax.photos.images.store import hash_content
from cls_jax.photos.inference.calibration import Calibration, apply_calibration
from cls_jax.photos.inference.classifier import Classifier, Prediction, describe_top
from cls_jax.photos.inference.tables import (
    ALL_COLUMNS,
    PREDICTION_COLUMNS,
    PREDICTION_TABLES,
    SHORT_COLUMNS,
    WITHOUT_ERRORS,
    Row,
    check_path,
    write_table,
)
from cls_jax.photos.inference.unknown import FOREIGN
from cls_jax.runs.sessions import hold_at_once

# More than twice the share of a folder's new photos that are called foreign by mistake.
_MANY_FOREIGN = 0.1
# A file with its predicted class and confidence (see `get_confidence`).
Label = tuple[str, str | None, float | None]


def choose_columns(num_networks: int, all_columns: bool = False) -> dict[str, type]:
    """The columns for a run: with the networks' own labels if there are several networks."""
    if all_columns:
        return ALL_COLUMNS
    return PREDICTION_COLUMNS if num_networks > 1 else SHORT_COLUMNS


def shorten(row: Row, columns: Mapping[str, type]) -> dict[str, Any]:
    """The values of some columns. In `SHORT_COLUMNS`, a calibrated confidence is the confidence."""
    shortened = {name: row[name] for name in columns}
    if "calibrated_confidence" not in columns:
        shortened["confidence"] = get_confidence(row)
    return shortened


def predict_files(
    classifier: Classifier,
    files: Sequence[str],
    output: pathlib.Path,
    overwrite: bool = False,
    all_columns: bool = False,
) -> tuple[list[tuple[Label, bool]], float, float]:
    """Predicts files and writes one row each, in order. Unreadable files get a reason.

    Rows are kept beside the output, a .csv or .parquet file, until all are complete. After an
    interruption, the same command continues with the files that have no row, or have changed, or
    could not be read. With `overwrite`, the output may replace a file that is not a table of
    predictions. It has the columns of `choose_columns`. Returns the result of `take_label` for each
    file, the seconds that it took, and the networks' share of them. Raises a UserError if the
    output cannot be written, or another process is writing it, and a StoppedError after Ctrl-C.
    """
    check_path(output, PREDICTION_TABLES, overwrite)
    journal = output.with_name(f"{output.name}.{_identify(classifier)}{PARTIAL}")
    keys = [_identify_file(file) for file in files]
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock(output))
        places = _find_rows(journal)
        num_done = sum(key in places for key in keys)
        if num_done:
            known = f"{num_done:,} of {len(files):,} images were predicted before"
            print(f"{known}: continuing with the others.", file=sys.stderr, flush=True)
        left = [(key, file) for key, file in zip(keys, files, strict=True) if key not in places]
        with explain_writing(output, "choose another --output"):
            rows_file = stack.enter_context(journal.open("ab"))
        try:
            with show_progress(total=len(files), initial=num_done, unit="image") as bar:
                network_seconds = _append_rows(classifier, left, rows_file, places, bar)
        except KeyboardInterrupt as stop:
            done = sum(key in places for key in keys)
            sentence = f"Stopped with {done:,} of {len(files):,} images predicted: rerun the same "
            raise StoppedError(f"{sentence}command to continue.", signal.SIGINT) from stop
        in_order = [places[key] for key in keys]
        found = [take_label(classifier, row) for row in _read_rows(journal, files, in_order)]
        columns = choose_columns(classifier.num_networks, all_columns)
        if columns is SHORT_COLUMNS and all(label is not None for (_, label, _), _ in found):
            columns = WITHOUT_ERRORS
        rows = _read_rows(journal, files, in_order)
        write_table(output, columns, (shorten(row, columns) for row in rows))
        # Also those of other classifiers, and of programs that were killed.
        for path in output.parent.glob(f"{glob.escape(output.name)}.{'[0-9a-f]' * 12}{PARTIAL}"):
            path.unlink()
    seconds = time.perf_counter() - started
    return found, seconds, network_seconds / seconds


def _append_rows(
    classifier: Classifier,
    left: Sequence[tuple[bytes, str]],
    rows_file: BinaryIO,
    places: dict[bytes, int],
    bar: tqdm,
) -> float:
    """Predicts the files that are left, by key, and notes the places of their rows.

    Returns the seconds that the networks took.
    """
    keys = (key for key, _ in left)
    seconds = 0.0
    with contextlib.closing(classifier.read_files([file for _, file in left])) as batches:
        for batch in batches:
            before = time.perf_counter()
            prediction = classifier.predict(batch.images)
            seconds += time.perf_counter() - before
            rows = iterate_rows(batch, prediction, classifier.calibration)
            for row, key in zip(rows, keys, strict=False):
                places[key] = rows_file.tell()
                rows_file.write(f"{json.dumps({'key': key.hex(), **row})}\n".encode("ascii"))
            rows_file.flush()
            bar.update(len(batch.files))
    return seconds


def print_files(
    classifier: Classifier, files: Sequence[str], as_json: bool, all_columns: bool
) -> list[tuple[Label, bool]]:
    """Predicts files and prints a line for each. Returns the results of `take_label`."""
    found = []
    columns = choose_columns(classifier.num_networks, all_columns)
    for batch in classifier.read_files(files):
        prediction = classifier.predict(batch.images)
        for row in iterate_rows(batch, prediction, classifier.calibration):
            found.append(take_label(classifier, row))
            line = json.dumps(shorten(row, columns)) if as_json else describe_row(row, found[-1][1])
            print(line, flush=True)
    return found


def describe_row(row: Row, foreign: bool = False) -> str:
    """A line about a file: its class, confidence and doubts, or why it cannot be read."""
    text = row["error"]
    if text is None:
        low = ", low confidence" if row["abstain"] else ""
        unlike = ", unlike all photos of the run" if foreign else ""
        text = f"{row['label']} ({get_confidence(row):.2f}{low}{unlike})"
    return make_printable(f"{row['file']}: {text}")


def _identify(classifier: Classifier) -> str:
    """A hash of the networks, and of what a row has."""
    digest = hashlib.sha256(classifier.compute_fingerprint().encode())
    digest.update(repr(list(ALL_COLUMNS)).encode())
    return digest.hexdigest()[:12]


def _identify_file(file: str) -> bytes:
    """16 bytes that change whenever the file may have changed."""
    try:
        return compute_key(file, stat_image(file))
    except (OSError, ValueError):
        return hash_content(file.encode("utf-8", "surrogateescape"))


def _find_rows(journal: pathlib.Path) -> dict[bytes, int]:
    """Where the rows of an interrupted prediction are, by file, without those of unreadable files.

    A row cut short is removed.
    """
    places = dict[bytes, int]()
    if not journal.exists():
        return places
    end = 0
    with journal.open("r+b") as file:
        for line in file:  # There may be millions.
            if line.endswith(b"\n"):
                row = json.loads(line)
                if row["error"] is None:  # Otherwise what it lacked may be installed now.
                    places[bytes.fromhex(row["key"])] = end
                end += len(line)
        file.truncate(end)
    return places


def _read_rows(
    journal: pathlib.Path, files: Sequence[str], places: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """The rows of files at some places, under the files' present names."""
    with journal.open("rb") as lines:
        for file, place in zip(files, places, strict=True):
            lines.seek(place)
            yield json.loads(lines.readline()) | {"file": file}


def take_label(classifier: Classifier, row: Row) -> tuple[Label, bool]:
    """The file of a row with its class and confidence, and whether it is unlike all of the run.

    Trained networks never say that.
    """
    is_compared = classifier.folder_images is not None and row["unknown"] is not None
    label = row["file"], row["label"], get_confidence(row)
    return label, is_compared and row["unknown"] > FOREIGN


def describe_foreign(num_foreign: int, num_read: int) -> str | None:
    """A warning if many of the images that were read are foreign. Otherwise None."""
    if num_foreign < max(min(3, num_read), _MANY_FOREIGN * num_read, 1):
        return None  # As many as among new photos of the same folder.
    if num_read == 1:
        return "This photo is unlike all photos of this run: is it the right run?"
    sentence = f"{num_foreign:,} of {num_read:,} photos are unlike all photos of this run"
    if 2 * num_foreign > num_read:
        return f"{sentence}: is it the right folder, and the right run?"
    return f"{sentence} (`unknown` above {FOREIGN})."


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


def iterate_rows(
    batch: ImageBatch, prediction: Prediction, calibration: Calibration | None = None
) -> Iterator[dict[str, Any]]:
    """A row of `ALL_COLUMNS` for each file, mostly the fields of a `Prediction`."""
    columns = prediction._asdict() | {"network_1": prediction.network_labels[0]}
    if len(prediction.network_labels) > 1:
        columns["network_2"] = prediction.network_labels[1]
    else:
        del columns["agree"]
    columns |= _find_second(prediction, calibration)
    known = {name: columns[name] for name in ALL_COLUMNS if columns.get(name) is not None}
    places = itertools.count()  # Indices of the readable images.
    for file, error in zip(batch.files, batch.errors, strict=True):
        row = dict.fromkeys(ALL_COLUMNS) | {"file": file, "error": error}
        if error is None:
            i = next(places)
            row |= {name: values[i].item() for name, values in known.items()}
            row["top5"] = describe_top(prediction.probabilities[i], prediction.class_names)
        yield row


def _find_second(prediction: Prediction, calibration: Calibration | None) -> dict[str, np.ndarray]:
    """The runners-up of B images, str [B], and their probabilities, calibrated if they can be."""
    p_BK = prediction.probabilities
    if p_BK.shape[1] < 2:
        return {}
    second = rank_classes(p_BK, 2)[:, 1]
    if calibration is not None:
        p_BK = apply_calibration(p_BK, calibration.temperature, calibration.uniform_share)
    confidence = np.take_along_axis(p_BK, second[:, None], axis=1)[:, 0]
    return {
        "second_label": prediction.class_names[second],
        "second_confidence": confidence.astype(np.float32),
    }
