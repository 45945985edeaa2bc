"""Predictions for image files: their rows, of classes or of tags, and a table of these.

Shape suffixes: B images, K classes.
"""

import abc
import contextlib
import glob
import hashlib
import json
import pathlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tqdm import tqdm

from cls_jax.bars import show_progress
from cls_jax.errors import StoppedError, explain_writing
from cls_jax.io import PARTIAL, make_printable
from cls_jax.photos.folder.kinds import SEPARATOR
from cls_jax.photos.images.files import ImageBatch, compute_key, stat_image
from cls_jax.photos.images.store import hash_content
from cls_jax.photos.inference.classifier import (
    Classifier,
    Prediction,
    TaggedPrediction,
    describe_top,
)
from cls_jax.photos.inference.tables import (
    ALL_COLUMNS,
    PREDICTION_COLUMNS,
    SHORT_COLUMNS,
    TAG_COLUMNS,
    WITHOUT_ERRORS,
    Row,
    write_table,
)
from cls_jax.runs.sessions import hold_at_once

# More than twice the share of a folder's new photos that are called foreign by mistake.
_MANY_FOREIGN = 0.1
# A file with its predicted class, or tags, and confidence.
Label = tuple[str, str | None, float | None]


class Rows(abc.ABC):
    """Rows of files, for a table and for people."""

    columns: Mapping[str, type]  # Of a table. A row may have more.
    label: str  # The column with the class or the tags.

    def iterate(self, batch: ImageBatch, prediction: Any) -> Iterator[dict[str, Any]]:
        """A row for each file. That of an unreadable one has nothing but its error."""
        values = self._list_values(prediction)
        readable = (
            dict(zip(values, each, strict=True)) for each in zip(*values.values(), strict=True)
        )
        for file, error in zip(batch.files, batch.errors, strict=True):
            known = next(readable) if error is None else {}
            yield dict.fromkeys(self.columns) | {"file": file, "error": error} | known

    @abc.abstractmethod
    def _list_values(self, prediction: Any) -> dict[str, Sequence[Any]]:
        """The values of B images by column, as far as they are known."""

    @abc.abstractmethod
    def describe(self, row: Row) -> tuple[str, list[str]]:
        """What a readable file shows, with its confidence and doubts."""


class ClassRows(Rows):
    """Rows of `ALL_COLUMNS`. In `SHORT_COLUMNS`, the confidence is a calibrated one."""

    label = "label"

    def __init__(self, classifier: Classifier, all_columns: bool):
        """With the networks' own labels if there are several networks, or with all columns."""
        self.columns = PREDICTION_COLUMNS if classifier.num_networks > 1 else SHORT_COLUMNS
        if all_columns:
            self.columns = ALL_COLUMNS

    def _list_values(self, prediction: Prediction) -> dict[str, Sequence[Any]]:
        p_BK, names = prediction.probabilities, prediction.class_names
        values = prediction._asdict()
        values |= {f"network_{i}": label for i, label in enumerate(prediction.network_labels, 1)}
        if len(prediction.network_labels) == 1:
            del values["agree"]
        if self.columns is SHORT_COLUMNS and prediction.calibrated_confidence is not None:
            values["confidence"] = prediction.calibrated_confidence
        known = {name: values[name] for name in ALL_COLUMNS if values.get(name) is not None}
        listed = {name: value.tolist() for name, value in known.items()}
        return listed | {"top5": [describe_top(p_K, names) for p_K in p_BK]}

    def describe(self, row: Row) -> tuple[str, list[str]]:
        """The class, with its confidence."""
        low = ["low confidence"] if row.get("abstain") else []
        return row["label"], [f"{get_confidence(row):.2f}", *low]


class TagRows(Rows):
    """Rows of files, their tags, and the probabilities of all tags."""

    label = "tags"

    def __init__(self, classifier: Classifier):
        """A tag's column has its name, or another one if `TAG_COLUMNS` have it."""
        taken, self._names = {*TAG_COLUMNS, *classifier.class_names}, dict[str, str]()
        for name in classifier.class_names:
            column = name
            while column in (TAG_COLUMNS if column == name else taken):
                column = f"tag {column}"
            self._names[column] = name
        first, last = list(TAG_COLUMNS.items())[:2], list(TAG_COLUMNS.items())[2:]
        self.columns = dict([*first, *((column, float) for column in self._names), *last])

    def _list_values(self, prediction: TaggedPrediction) -> dict[str, Sequence[Any]]:
        values: dict[str, Sequence[Any]] = {
            "tags": [SEPARATOR.join(sorted(tags)) for tags in prediction.tags]
        }
        values |= zip(self._names, prediction.probabilities.T.tolist(), strict=True)
        if prediction.foreign is not None:
            values["foreign"] = prediction.foreign.tolist()
        return values

    def describe(self, row: Row) -> tuple[str, list[str]]:
        """The tags, likeliest first. Without one, the likeliest as a doubt."""
        likely = sorted(self._names, key=lambda column: -row[column])
        said = set(row["tags"].split(SEPARATOR))
        shown = [(f"{self._names[c]} {row[c]:.2f}", self._names[c] in said) for c in likely]
        found = [text for text, is_said in shown if is_said]
        return (", ".join(found), []) if found else ("no tag", [shown[0][0]])


def create_rows(classifier: Classifier, all_columns: bool = False) -> Rows:
    """The form of a classifier's rows. Those of tags always have all columns."""
    of_classes = classifier.thresholds is None
    return ClassRows(classifier, all_columns) if of_classes else TagRows(classifier)


def get_confidence(row: Row) -> float | None:
    """The confidence in a class, calibrated where the run is. None if the file is unreadable."""
    calibrated: float | None = row.get("calibrated_confidence")
    return row.get("confidence") if calibrated is None else calibrated


def predict_files(
    classifier: Classifier,
    files: Sequence[str],
    output: pathlib.Path,
    all_columns: bool = False,
) -> list[tuple[Label, bool]]:
    """Predicts files and writes one row each, in order. Unreadable files get a reason.

    Rows are kept beside the output, a .csv or .parquet file, until all are complete. After an
    interruption, the same command continues with the files that have no row, or have changed, or
    could not be read. `check_path` has accepted the output, whose columns are those of
    `create_rows`. Returns the result of `take_label` for each file. Raises a UserError if the
    output cannot be written, or another process is writing it, and a StoppedError after Ctrl-C.
    """
    rows = create_rows(classifier, all_columns)
    journal = output.with_name(f"{output.name}.{_identify(classifier, rows)}{PARTIAL}")
    keys = [_identify_file(file) for file in files]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock(output))
        with explain_writing(output, "choose another --output"):
            rows_file = stack.enter_context(journal.open("a+b"))
        places = _find_rows(rows_file)
        num_done = sum(key in places for key in keys)
        if num_done:
            known = f"{num_done:,} of {len(files):,} images were predicted before"
            print(f"{known}: continuing with the others.", file=sys.stderr, flush=True)
        left = [(key, file) for key, file in zip(keys, files, strict=True) if key not in places]
        try:
            with show_progress(total=len(files), initial=num_done, unit="image") as bar:
                _append_rows(classifier, rows, left, rows_file, places, bar)
        except KeyboardInterrupt as stop:
            done = sum(key in places for key in keys)
            sentence = f"Stopped with {done:,} of {len(files):,} images predicted: rerun the same "
            raise StoppedError(f"{sentence}command to continue.", signal.SIGINT) from stop
        in_order = [places[key] for key in keys]
        found = [take_label(classifier, rows, row) for row in _read_rows(journal, files, in_order)]
        is_whole = all(label is not None for (_, label, _), _ in found)
        columns = WITHOUT_ERRORS if is_whole and rows.columns is SHORT_COLUMNS else rows.columns
        write_table(output, columns, _read_rows(journal, files, in_order))
        # Also those of other classifiers, and of programs that were killed.
        for path in output.parent.glob(f"{glob.escape(output.name)}.{'[0-9a-f]' * 12}{PARTIAL}"):
            path.unlink()
    return found


def _append_rows(
    classifier: Classifier,
    rows: Rows,
    left: Sequence[tuple[bytes, str]],
    rows_file: BinaryIO,
    places: dict[bytes, int],
    bar: tqdm,
) -> None:
    """Predicts the files that are left, by key, and notes the places of their rows."""
    keys = (key for key, _ in left)
    with contextlib.closing(classifier.read_files([file for _, file in left])) as batches:
        for batch in batches:
            found = rows.iterate(batch, classifier.predict(batch.images))
            for row, key in zip(found, keys, strict=False):
                places[key] = rows_file.tell()
                rows_file.write(f"{json.dumps({'key': key.hex(), 'row': row})}\n".encode("ascii"))
            rows_file.flush()
            bar.update(len(batch.files))


def print_files(
    classifier: Classifier, files: Sequence[str], as_json: bool, all_columns: bool
) -> list[tuple[Label, bool]]:
    """Predicts files and prints a line for each. Returns the results of `take_label`."""
    found = []
    rows = create_rows(classifier, all_columns)
    for batch in classifier.read_files(files):
        prediction = classifier.predict(batch.images)
        for row in rows.iterate(batch, prediction):
            found.append(take_label(classifier, rows, row))
            known = {name: row[name] for name in rows.columns}
            line = json.dumps(known) if as_json else describe_row(rows, row)
            print(line, flush=True)
    return found


def describe_row(rows: Rows, row: Row) -> str:
    """A line about a file: what it shows, with doubts, or why it cannot be read."""
    text = row["error"]
    if text is None:
        name, said = rows.describe(row)
        said += ["unlike all photos of the run"] if row["foreign"] else []
        text = f"{name} ({', '.join(said)})" if said else name
    return make_printable(f"{row['file']}: {text}")


def _identify(classifier: Classifier, rows: Rows) -> str:
    """A hash of the networks, and of what a row has."""
    decisive = classifier.compute_fingerprint(), list(rows.columns)
    return hashlib.sha256(repr(decisive).encode()).hexdigest()[:12]


def _identify_file(file: str) -> bytes:
    """16 bytes that change whenever the file may have changed."""
    try:
        return compute_key(file, stat_image(file))
    except (OSError, ValueError):
        return hash_content(file.encode("utf-8", "surrogateescape"))


def _find_rows(journal: BinaryIO) -> dict[bytes, int]:
    """Where the rows of an interrupted prediction are, by file, without those of unreadable files.

    A row cut short is removed, and the next one will be written behind the others.
    """
    places, end = dict[bytes, int](), journal.seek(0)
    for line in journal:  # There may be millions.
        if line.endswith(b"\n"):
            entry = json.loads(line)
            if entry["row"]["error"] is None:  # Otherwise what it lacked may be installed now.
                places[bytes.fromhex(entry["key"])] = end
            end += len(line)
    journal.truncate(journal.seek(end))
    return places


def _read_rows(
    journal: pathlib.Path, files: Sequence[str], places: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """The rows of files at some places, under the files' present names."""
    with journal.open("rb") as lines:
        for file, place in zip(files, places, strict=True):
            lines.seek(place)
            yield json.loads(lines.readline())["row"] | {"file": file}


def take_label(classifier: Classifier, rows: Rows, row: Row) -> tuple[Label, bool]:
    """The file of a row with its class, or tags, and confidence, and whether it is foreign."""
    confidence = get_confidence(row) if classifier.thresholds is None else None
    return (row["file"], row[rows.label], confidence), bool(row["foreign"])


def describe_foreign(num_foreign: int, num_read: int) -> str | None:
    """A warning if many of the images that were read are foreign. Otherwise None."""
    if num_foreign < max(min(3, num_read), _MANY_FOREIGN * num_read, 1):
        return None  # As many as among new photos of the same folder.
    if num_read == 1:
        return "This photo is unlike all photos of this run: is it the right run?"
    sentence = f"{num_foreign:,} of {num_read:,} photos are unlike all photos of this run"
    if 2 * num_foreign > num_read:
        return f"{sentence}: is it the right folder, and the right run?"
    return f"{sentence} (column `foreign`)."


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
