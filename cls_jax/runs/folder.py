"""The files of a run's folder other than checkpoints and metrics."""

import contextlib
import csv
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.batch import DatasetSpec
from cls_jax.config import describe_differences, read_config, to_json
from cls_jax.data.label_split import (
    check_labeled_indices,
    choose_labeled_indices,
    labeled_indices_to_json,
    read_labeled_indices,
)
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError, explain_writing
from cls_jax.io import (
    PARTIAL,
    describe_error,
    is_number,
    make_printable,
    read_json,
    to_csv,
    write_atomically,
)
from cls_jax.parallel.distributed import is_main_process
from cls_jax.photos.folder.dataset import COPY_OF, hash_contents, hash_names, list_layout
from cls_jax.photos.folder.layout import NO_CLASS_NAME, Layout
from cls_jax.photos.images.decode import get_decode_options, get_image_shape
from cls_jax.photos.images.files import ImageFile, find_digests, read_ahead
from cls_jax.photos.images.packed import open_packed
from cls_jax.photos.images.store import Store
from cls_jax.runs.sessions import LOCK

CONFIG = "config.json"
DATASET = "dataset.json"
LABELED_INDICES = "labeled_indices.json"
RESULT = "result.json"
LABELED_FILES = "labeled_files.csv"
SKIPPED_FILES = "skipped_files.csv"
PSEUDO_LABELS = "pseudo_labels.csv"
_BATCH_SIZE = 256
_FIGURES = ("test_", "validation_", "labels_", "answer_gain")  # Prefixes of the names of numbers.
# A run's instant classifier is the file RUN/instant.npz, opened as RUN/instant. In older runs, this
# is a folder with a run without steps.
INSTANT = "instant"
INSTANT_FILE = f"{INSTANT}.npz"
# Files that a folder may contain before it becomes a run's: a label budget, the instant classifier,
# and leftovers of a process that died before it wrote config.json, the first file of a run.
_BEFORE_A_RUN = {LOCK, LABELED_INDICES, INSTANT}


def get_default_workdir(config: ConfigDict) -> pathlib.Path:
    """runs/<dataset, or a folder's name>-<labels>-<method, or instant>-seed<seed>."""
    dataset = config.data.name
    if dataset == "folder":
        dataset = pathlib.Path(config.data.data_dir).expanduser().resolve().name or dataset
    num_labels = config.num_labels or "all"
    dataset = make_printable(dataset)  # Messages quote the folder's name.
    method = config.method.name if config.num_steps else "instant"
    return pathlib.Path("runs") / f"{dataset}-{num_labels}-{method}-seed{config.seed}"


def choose_workdir(
    config: ConfigDict, layout: Layout, again: bool = False
) -> tuple[pathlib.Path, str | None]:
    """The first of NAME, NAME-2, … without a run on other images or labels.

    With `again`, also without a finished run. Returns it with a sentence about the last run that
    was skipped, or None.
    """
    path = first = get_default_workdir(config)
    number, sentence = 1, None
    while (difference := describe_other_data(path, config, layout, allows_copies=False)) or (
        again and (path / RESULT).exists()
    ):
        number, sentence = number + 1, difference or f"{path} is finished"
        path = first.with_name(f"{first.name}-{number}")
    return path, sentence and f"{sentence}, so this run is in {path}."


def describe_other_data(
    workdir: pathlib.Path, config: ConfigDict, layout: Layout, allows_copies: bool = True
) -> str | None:
    """A clause about how a run's data differs, or None if it is the same or there is no run.

    With `allows_copies`, another folder with the same names, contents and labels counts as the same
    data, even if the run's own folder still exists. Raises a UserError if the folder has a
    run that cannot be read.
    """
    if not (workdir / CONFIG).exists():
        return None
    stored = read_config(workdir / CONFIG)
    theirs, ours = (pathlib.Path(one.data.data_dir).expanduser() for one in (stored, config))
    is_same_place = stored.data.name == "folder" and theirs.resolve() == ours.resolve()
    fingerprint = _read_fingerprint(workdir)
    if fingerprint is None and is_same_place:  # The run had not begun.
        return None
    is_same = fingerprint is not None and _has_trained_on(workdir, fingerprint, ours, layout)
    if is_same and (allows_copies or is_same_place or not theirs.is_dir()):
        return None
    if is_same_place:
        return f"The images or labels in {ours} have changed since the run in {workdir}"
    return f"{workdir} has a run on {stored.data.data_dir or stored.data.name}"


def _read_fingerprint(workdir: pathlib.Path) -> str | None:
    if not (workdir / DATASET).exists():
        return None
    with _open_description(workdir) as stored:
        return str(stored.get("fingerprint"))


def _has_trained_on(
    workdir: pathlib.Path, fingerprint: str, root: pathlib.Path, layout: Layout
) -> bool:
    """Whether a run's training images have the names, contents and labels of a folder's.

    A file that the run could not read but that can be read now counts as different.
    """
    skipped = _read_skipped(workdir)
    names = hash_names(layout, skipped)
    if not fingerprint.startswith(names):
        return False
    files, data = [file for file, _ in layout.train], read_config(workdir / CONFIG).data
    tried = [file.name for file in files if not skipped.get(file.name, COPY_OF).startswith(COPY_OF)]
    paths, shape = [str(root / name) for name in tried], get_image_shape(data)
    batches = read_ahead(paths, shape, _BATCH_SIZE, get_decode_options(data))
    errors = (error for batch in batches for error in batch.errors)
    unreadable = {name for name, error in zip(tried, errors, strict=True) if error is not None}
    contents = hash_contents(layout, _hash_files(root, files), unreadable)
    return fingerprint in (names, names + contents)


def _hash_files(root: pathlib.Path, files: Sequence[ImageFile]) -> list[bytes]:
    """Digests of the files' contents, b"" where they cannot be read."""
    packed = open_packed(root)
    if packed and len(packed.digests):
        digests: list[bytes] = packed.digests[[file.inode for file in files]].tolist()
        return digests
    return find_digests(Store(), [str(root / file.name) for file in files], reads=True)


def count_training_images(workdir: pathlib.Path, folder: str) -> int:
    """How many images that would be evaluated in a folder have trained the run, by content.

    If the run's own folder is gone, only a complete copy of it is recognized. Raises a UserError
    if the folder has no layout.
    """
    data, root = read_config(workdir / CONFIG).data, pathlib.Path(folder).expanduser()
    if data.name != "folder":
        return 0
    own, layout = pathlib.Path(data.data_dir).expanduser(), list_layout(root)
    trained, fingerprint = None, _read_fingerprint(workdir)
    with contextlib.suppress(UserError):
        trained = list_layout(own) if own.is_dir() else None
    if trained is None and fingerprint and _has_trained_on(workdir, fingerprint, root, layout):
        own, trained = root, layout
    if trained is None:
        return 0
    evaluated = layout.test or [row for row in layout.train if row[1] != NO_CLASS_NAME]
    known = set(_hash_files(own, [file for file, _ in trained.train]))
    digests = _hash_files(root, [file for file, _ in evaluated])
    return sum(digest in known for digest in digests if digest)


def _read_skipped(workdir: pathlib.Path) -> dict[str, str]:
    """The files that a run could not use, and why."""
    try:
        with (workdir / SKIPPED_FILES).open(encoding="utf-8", errors="surrogateescape") as file:
            return {row["file"]: row["reason"] or "" for row in csv.DictReader(file)}
    except (OSError, KeyError, ValueError, csv.Error):
        return {}


def check_run_folder(workdir: pathlib.Path, config: ConfigDict) -> None:
    """Checks that the folder is new, empty, or has the same run.

    It may already contain a list of labeled images. A finished run may be continued with a larger
    `num_steps`. Raises a UserError if it has a run of another configuration or other files.
    """
    path = workdir / CONFIG
    if path.exists():
        stored = read_config(path)
        if config.num_steps > stored.num_steps and (workdir / RESULT).exists():
            stored.num_steps = config.num_steps
        differences = describe_differences(config, stored)
        if differences:
            raise UserError(
                f"{workdir} has a run of another configuration ({'; '.join(differences)}): "
                "choose a new --workdir, or use this run's own configuration to resume it."
            )
        return
    names = [file.name for file in workdir.iterdir()] if workdir.is_dir() else [""]
    others = [name for name in names if name not in _BEFORE_A_RUN and not name.endswith(PARTIAL)]
    if workdir.exists() and others:
        raise UserError(
            f"{workdir} is not empty and not the folder of a run: choose a new --workdir."
        )


def describe_finished(workdir: pathlib.Path, step: int, num_steps: int) -> str:
    """A sentence about a run that is finished, or that was at `step` and goes on to `num_steps`."""
    if step >= num_steps:
        return f"{workdir} is finished: nothing to do."
    return (
        f"{workdir} was finished at step {step:,} and continues to step {num_steps:,}, with the "
        f"learning rates of a run of {num_steps:,} steps."
    )


def write_labeled_indices(workdir: pathlib.Path, indices: np.ndarray, dataset: Dataset) -> None:
    """Writes which training images, int [num_labels], are labeled. The folder need not exist."""
    workdir.mkdir(parents=True, exist_ok=True)
    text = labeled_indices_to_json(np.asarray(indices), dataset.train_labels, dataset.class_names)
    write_atomically(workdir / LABELED_INDICES, text)


def create_run_folder(
    workdir: pathlib.Path, config: ConfigDict, labeled_indices: np.ndarray, dataset: Dataset
) -> None:
    """Writes the files that define the run, once everything about it has been checked.

    The configuration comes first, since it marks the folder as a run: whenever the process dies,
    the same command finds either no run or its own. In another order, a labels file drawn from the
    seed would look like one that the user supplied. Raises a UserError if the folder cannot be
    written.
    """
    remedy = "free disk space and rerun the command, or choose another --workdir"
    with explain_writing(workdir, remedy):
        write_atomically(workdir / CONFIG, to_json(config))
        write_labeled_indices(workdir, labeled_indices, dataset)
        description = {
            "class_names": list(dataset.class_names),
            "image_shape": dataset.image_shape,
            "num_classes": dataset.num_classes,
            "num_images": len(dataset.train_images),
            "mean": dataset.mean,
            "std": dataset.std,
            "fingerprint": dataset.fingerprint,
        }
        write_atomically(workdir / DATASET, json.dumps(description, indent=1) + "\n")
        if dataset.skipped_files:
            text = to_csv([("file", "reason"), *dataset.skipped_files])
            write_atomically(workdir / SKIPPED_FILES, text)
        if files := dataset.train_files:
            names, labels = dataset.class_names, dataset.train_labels
            rows = [(files[i], names[labels[i]]) for i in np.sort(labeled_indices)]
            write_atomically(workdir / LABELED_FILES, to_csv([("file", "label"), *rows]))


def write_pseudo_labels(workdir: pathlib.Path, dataset: Dataset, *columns: np.ndarray) -> None:
    """Writes the pseudo-labels of unlabeled images by file, if they are files.

    The columns are training images int [m], labels int [m] and weights float [m] from 0 to 1.
    """
    if not dataset.train_files or not is_main_process():
        return
    rows = [
        (dataset.train_files[i], dataset.class_names[label], f"{weight:.6f}")
        for i, label, weight in zip(*columns, strict=True)
    ]
    write_atomically(workdir / PSEUDO_LABELS, to_csv([("file", "label", "weight"), *rows]))


def check_dataset(workdir: pathlib.Path, dataset: Dataset) -> None:
    """Checks that a run resumes with the training images that it started with.

    Raises a UserError if a folder of images has changed, so that indices mean other images.
    """
    stored = _read_fingerprint(workdir)
    is_same = stored and stored in (dataset.fingerprint, dataset.fingerprint[: len(stored)])
    if dataset.fingerprint and stored is not None and not is_same:
        raise UserError(
            f"The training images of {dataset.name} are not those with which the run in {workdir} "
            "started: choose a new --workdir, or restore the images as they were."
        )


def use_mean_and_std(config: ConfigDict, mean: Sequence[float], std: Sequence[float]) -> ConfigDict:
    """A copy of the configuration with these means and standard deviations, one per channel."""
    config = config.copy_and_resolve_references()
    config.data.mean, config.data.std = tuple(mean), tuple(std)
    return config


def read_dataset_description(workdir: pathlib.Path) -> tuple[tuple[str, ...], DatasetSpec]:
    """Class names and sizes of a run's dataset. Raises a UserError without a sound dataset.json."""
    with _open_description(workdir) as stored:
        names = stored["class_names"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("class_names is not a list of names")
        # Bounded, because networks and arrays of these sizes are created before further checks.
        height, width, channels = (_to_size(side, 1024) for side in stored["image_shape"])
        num_classes, num_images = _to_size(len(names), 10**6), _to_size(stored["num_images"], 2**31)
        return tuple(names), DatasetSpec((height, width, channels), num_classes, num_images)


def read_mean_and_std(workdir: pathlib.Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel. Raises a UserError without a sound dataset.json."""
    with _open_description(workdir) as stored:
        mean, std = tuple(stored["mean"]), tuple(stored["std"])
        if not all(map(is_number, mean + std)) or len(mean) != len(std) or min(std) <= 0:
            raise ValueError("mean and std are not a number and a positive one for each channel")
        return tuple(map(float, mean)), tuple(map(float, std))


@contextlib.contextmanager
def _open_description(workdir: pathlib.Path) -> Iterator[dict[str, Any]]:
    path = workdir / DATASET
    try:
        stored = read_json(path)
        if not isinstance(stored, dict):
            raise ValueError("it is not a JSON object")
        yield stored
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} does not describe the run's dataset ({describe_error(error)}): pass the "
            "folder of a run of this version."
        ) from error


def _to_size(value: Any, largest: int) -> int:
    if type(value) is not int or not 1 <= value <= largest:
        raise ValueError("a size is not an integer, or out of range")
    return value


def load_labeled_indices(
    workdir: pathlib.Path, dataset: Dataset, num_labels: int, seed: int, imbalance: float = 1.0
) -> np.ndarray:
    """The run's labeled training images, int [num_labels], stored or else drawn.

    They are stored in the folder, which need not exist yet, or drawn by `choose_labeled_indices`.
    Raises a UserError if the stored ones do not fit the dataset or the configuration, or the
    budget cannot be drawn.
    """
    path = workdir / LABELED_INDICES
    if path.exists():
        labeled = read_labeled_indices(path, dataset.class_names)
        check_labeled_indices(path, labeled, num_labels, len(dataset.train_images))
        return labeled
    labels, num_classes = dataset.train_labels, dataset.num_classes
    return choose_labeled_indices(labels, num_labels, num_classes, seed, imbalance)


def read_result(workdir: pathlib.Path) -> dict[str, Any] | None:
    """The result of a finished run, or None. Raises a UserError if the file is damaged."""
    path = workdir / RESULT
    if not path.exists():
        return None
    try:
        return _check_result(read_json(path))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not the result of a run ({describe_error(error)}): delete it and "
            "rerun the command that trained the run."
        ) from error


def _check_result(result: Any) -> dict[str, Any]:
    """Raises a ValueError unless the values read from a result have their types."""
    if not isinstance(result, dict) or type(result.get("step")) is not int:
        raise ValueError("it has no step")
    if "test_accuracy" not in result:
        raise ValueError("it has no test_accuracy")
    monitors = result.get("monitors", {})
    if not isinstance(monitors, dict):
        raise ValueError("monitors is not a JSON object")
    figures = {name: value for name, value in result.items() if name.startswith(_FIGURES)}
    figures.pop("test_accuracy_best_note", None)
    known = [value for value in figures.values() if value is not None]
    if not all(map(is_number, [*known, *monitors.values()])):
        raise ValueError("an accuracy or a monitor is not a number")
    return result


def find_predictor(workdir: pathlib.Path) -> pathlib.Path:
    """The path of the classifier that predicts for a run: the run, or its instant classifier.

    A finished result decides. Raises a UserError if the result is damaged.
    """
    chosen, instant = (read_result(workdir) or {}).get("answer"), workdir / INSTANT
    is_there = (instant / CONFIG).exists() or is_instant(instant)
    return instant if chosen == INSTANT and is_there else find_trained(workdir)


def find_trained(workdir: pathlib.Path) -> pathlib.Path:
    """The path of the last step's networks, or of the instant classifier of a run without steps."""
    is_only = is_instant(workdir / INSTANT) and read_config(workdir / CONFIG).num_steps == 0
    return workdir / INSTANT if is_only else workdir


def find_assessments(workdir: pathlib.Path, predictor: pathlib.Path | None) -> pathlib.Path:
    """The folder for the files of a predictor's assessment, by default of the last step's.

    An instant classifier beside trained networks has its own.
    """
    return predictor if predictor not in (None, find_trained(workdir)) else workdir


def is_instant(path: pathlib.Path) -> bool:
    """Whether the path names a run's instant classifier."""
    return path.name == INSTANT and path.with_name(INSTANT_FILE).exists()


def write_result(workdir: pathlib.Path, result: dict[str, Any]) -> None:
    """Stores the result, which marks the run as finished."""
    write_atomically(workdir / RESULT, json.dumps(result, indent=2) + "\n")
