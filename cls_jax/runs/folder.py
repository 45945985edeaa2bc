"""The files of a run's folder other than checkpoints and metrics."""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.batch import DatasetSpec
from cls_jax.config import describe_differences, read_config, to_json, with_values
from cls_jax.data.label_split import (
    choose_labeled_indices,
    find_labeled_rows,
    labeled_indices_to_json,
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
from cls_jax.models.weights.backbones import split_inits
from cls_jax.models.weights.sources import find_origin
from cls_jax.parallel.distributed import is_main_process
from cls_jax.runs.metrics import METRICS
from cls_jax.runs.sessions import LOCK, SESSIONS

CONFIG = "config.json"
DATASET = "dataset.json"
LABELED_INDICES = "labeled_indices.json"
RESULT = "result.json"
LABELED_FILES = "labeled_files.csv"
SKIPPED_FILES = "skipped_files.csv"
PSEUDO_LABELS = "pseudo_labels.csv"
CHECKPOINTS = "checkpoints"
HELD_OUT = "held_out"  # In the description of the dataset: `Dataset.moved`.
# Prefixes of the names of numbers.
_FIGURES = ("test_", "validation_", "labels_", "predictor_gain", "predictor_right")
# Files that a folder may contain before it becomes a run's: a label budget, and leftovers of a
# process that died before it wrote config.json, the first file of a run.
_BEFORE_A_RUN = {LOCK, LABELED_INDICES}
# What a run writes before its first step, apart from its configuration.
_AT_START = (
    *(DATASET, LABELED_INDICES, LABELED_FILES, SKIPPED_FILES, PSEUDO_LABELS, SESSIONS, METRICS),
    *(CHECKPOINTS, "profile", "events.out.tfevents.*", f"*{PARTIAL}"),
)


def get_default_workdir(config: ConfigDict, method: str | None = None) -> pathlib.Path:
    """runs/<dataset, or a folder's or file's name>-<labels>-<method>-seed<seed>.

    The method is the configuration's, unless it has none.
    """
    dataset = config.data.name
    path = pathlib.Path(config.data.data_dir).expanduser().resolve()
    if dataset == "folder":
        dataset = path.name or dataset
    elif dataset == "npz":
        dataset = path.stem
    num_labels = config.num_labels or "all"
    dataset = make_printable(dataset)  # Messages quote the folder's name.
    name = f"{dataset}-{num_labels}-{method or config.method.name}-seed{config.seed}"
    return pathlib.Path("runs") / name


def read_fingerprint(workdir: pathlib.Path) -> str | None:
    """The hash of a run's training images. None if there is no run yet, "None" without images."""
    if not (workdir / DATASET).exists():
        return None
    with open_description(workdir) as stored:
        return str(stored.get("fingerprint"))


def check_run_folder(workdir: pathlib.Path, config: ConfigDict) -> int | None:
    """Decides what a run of this configuration finds in a folder.

    Returns None if it starts there, or resumes an unfinished run. Otherwise the step at which the
    run is finished: with a larger `num_steps` it continues from that state. The configuration in
    the folder has the larger number from the first step on, so until then the run is a finished
    one, and afterward an unfinished one, which takes no other number.

    The folder may already contain a list of labeled images. Raises a UserError if it has a run of
    another configuration or other files, or there is nothing to continue from.
    """
    path = workdir / CONFIG
    if not path.exists():
        check_unused(workdir)
        return None
    stored = read_config(path)
    result = read_result(workdir)
    finished = result["step"] if result and result["step"] >= stored.num_steps else None
    is_longer = finished is not None and config.num_steps > finished
    known = with_values(stored, {"num_steps": config.num_steps}) if is_longer else stored
    if differences := describe_differences(config, known):
        raise UserError(
            f"{workdir} has a run of another configuration ({'; '.join(differences)}): "
            "choose a new --workdir, or use this run's own configuration to resume it."
        )
    reason = ""
    if config.method.get("rounds", 1) > 1:
        reason = f"the rounds of {config.method.name} are shares of all steps: "
    elif not (workdir / CHECKPOINTS / str(finished)).is_dir():
        reason = f"it has no state of that step: restore {CHECKPOINTS}/ from a backup, or "
    if is_longer and reason:
        raise UserError(
            f"{workdir} is finished at step {finished:,} and cannot be continued, since "
            f"{reason}train a new run in another --workdir."
        )
    return finished


def check_unused(workdir: pathlib.Path) -> None:
    """Raises a UserError if a folder, which need not exist, has files that are not of a run."""
    names = [file.name for file in workdir.iterdir()] if workdir.is_dir() else [""]
    others = [name for name in names if name not in _BEFORE_A_RUN and not name.endswith(PARTIAL)]
    if workdir.exists() and others:
        raise UserError(
            f"{workdir} is not empty and not the folder of a run: choose a new --workdir."
        )


@contextlib.contextmanager
def undo_start(workdir: pathlib.Path, others: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Yields a function to call once a run has begun. If the block fails before, it was no run.

    What the block has written to a new folder is then removed, so that a corrected command finds
    it as it was. `others` are names of files and folders that it may write besides those of the
    run itself. Does nothing in the folder of an earlier session.
    """
    if (workdir / CONFIG).exists():
        yield lambda: None
        return
    given = {path.name for path in workdir.iterdir()}
    begun: list[bool] = []
    try:
        yield lambda: begun.append(True)
    except BaseException:
        if not begun:
            # The configuration last: without it, labels that were drawn would look like the user's.
            for pattern in (*others, *_AT_START, CONFIG):
                for path in workdir.glob(pattern):
                    if path.name not in given:
                        _remove(path)
        raise


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def describe_finished(workdir: pathlib.Path, step: int, num_steps: int) -> str:
    """A sentence about a run that is finished, or that was at `step` and goes on to `num_steps`."""
    if step >= num_steps:
        return f"{workdir} is finished: nothing to do."
    return (
        f"{workdir} was finished at step {step:,} and continues to step {num_steps:,}, with the "
        f"learning rates of a run of {num_steps:,} steps."
    )


def write_labeled_indices(workdir: pathlib.Path, indices: np.ndarray, dataset: Dataset) -> None:
    """Writes which training images, int [num_labels], are labeled, unless a file says so already.

    The file has their `Dataset.numbers`. The folder need not exist.
    """
    path = workdir / LABELED_INDICES
    if path.exists():  # Perhaps the user's own.
        return
    workdir.mkdir(parents=True, exist_ok=True)
    numbers, classes = dataset.numbers[indices], dataset.train.labels[indices]
    write_atomically(path, labeled_indices_to_json(numbers, classes, dataset.class_names))


def read_labeled_rows(workdir: pathlib.Path, dataset: Dataset) -> np.ndarray:
    """The labeled training images that a folder lists, int32 [num_labels].

    Raises a UserError without such a list, or if it does not fit the dataset.
    """
    labels, path = dataset.train.labels, workdir / LABELED_INDICES
    num_images = len(labels) + len(dataset.moved)
    return find_labeled_rows(path, dataset.class_names, labels, dataset.numbers, num_images)


def write_config(workdir: pathlib.Path, config: ConfigDict) -> None:
    """Stores a run's configuration, which the same command must have from now on."""
    write_atomically(workdir / CONFIG, to_json(config))


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
    has_begun = (workdir / DATASET).exists()
    with explain_writing(workdir, remedy):
        write_config(workdir, config)
        write_labeled_indices(workdir, labeled_indices, dataset)
        description = {
            "class_names": list(dataset.class_names),
            "image_shape": dataset.image_shape,
            "num_classes": dataset.num_classes,
            "num_images": len(dataset.train.images),
            HELD_OUT: dataset.moved.tolist(),
            **(read_weights(workdir) if has_begun else describe_weights(config)),
            "mean": dataset.mean,
            "std": dataset.std,
            "fingerprint": dataset.fingerprint,
        }
        write_atomically(workdir / DATASET, json.dumps(description, indent=1) + "\n")
        if dataset.skipped_files:
            text = to_csv([("file", "reason"), *dataset.skipped_files])
            write_atomically(workdir / SKIPPED_FILES, text)
        if files := dataset.train.files:
            names = dataset.class_names
            labels = dataset.train.labels
            rows = [(files[i], names[labels[i]]) for i in np.sort(labeled_indices)]
            write_atomically(workdir / LABELED_FILES, to_csv([("file", "label"), *rows]))


def write_pseudo_labels(workdir: pathlib.Path, dataset: Dataset, *columns: np.ndarray) -> None:
    """Writes the pseudo-labels of unlabeled images by file, if they are files.

    The columns are training images int [m], labels int [m] and weights float [m] from 0 to 1.
    """
    if not dataset.train.files or not is_main_process():
        return
    rows = [
        (dataset.train.files[i], dataset.class_names[label], f"{weight:.6f}")
        for i, label, weight in zip(*columns, strict=True)
    ]
    write_atomically(workdir / PSEUDO_LABELS, to_csv([("file", "label", "weight"), *rows]))


def check_dataset(workdir: pathlib.Path, dataset: Dataset) -> None:
    """Checks that a run resumes with the training images that it started with.

    Raises a UserError if a folder of images has changed, so that indices mean other images.
    """
    if read_fingerprint(workdir) not in (None, dataset.fingerprint):
        raise UserError(
            f"The training images of {dataset.name} are not those with which the run in {workdir} "
            "started: choose a new --workdir, or restore the images as they were."
        )


def use_mean_and_std(config: ConfigDict, mean: Sequence[float], std: Sequence[float]) -> ConfigDict:
    """A copy of the configuration with these means and standard deviations, one per channel."""
    return with_values(config, {"data.mean": tuple(mean), "data.std": tuple(std)})


def read_dataset_description(workdir: pathlib.Path) -> tuple[tuple[str, ...], DatasetSpec]:
    """Class names and sizes of a run's dataset. Raises a UserError without a sound dataset.json."""
    with open_description(workdir) as stored:
        names = stored["class_names"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("class_names is not a list of names")
        # Bounded, because networks and arrays of these sizes are created before further checks.
        height, width, channels = (_to_size(side, 1024) for side in stored["image_shape"])
        num_classes = _to_size(len(names), 10**6)
        num_images = _to_size(stored["num_images"], 2**31)
        return tuple(names), DatasetSpec((height, width, channels), num_classes, num_images)


def read_mean_and_std(workdir: pathlib.Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel. Raises a UserError without a sound dataset.json."""
    with open_description(workdir) as stored:
        mean, std = tuple(stored["mean"]), tuple(stored["std"])
        if not all(map(is_number, mean + std)) or len(mean) != len(std) or min(std) <= 0:
            raise ValueError("mean and std are not a number and a positive one for each channel")
        return tuple(map(float, mean)), tuple(map(float, std))


def describe_weights(config: ConfigDict) -> dict[str, list[dict[str, str]]]:
    """The entry `weights` of `result.json`: license and commit of each pretrained network.

    The weights of a run are those that it began with. {} if the networks began at random.
    """
    inits = [config.model.init, *split_inits(config.model.inferred_by)]
    found: list[dict[str, str]] = []
    for init in filter(None, inits):
        run = pathlib.Path(init).expanduser()
        if (run / CONFIG).exists():
            found += (read_result(run) or {}).get("weights", [])
        else:
            found.append(find_origin(init)._asdict())
    return {"weights": found} if found else {}


def read_weights(workdir: pathlib.Path) -> dict[str, list[dict[str, str]]]:
    """What `describe_weights` said when the run began: its source may have changed since then.

    {} without a dataset.json.
    """
    if not (workdir / DATASET).exists():
        return {}
    with open_description(workdir) as stored:
        return {"weights": stored["weights"]} if "weights" in stored else {}


@contextlib.contextmanager
def open_description(workdir: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The content of `dataset.json`, and a UserError for what reading it raises in the block."""
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


def _to_size(value: object, largest: int) -> int:
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
        labeled = read_labeled_rows(workdir, dataset)
        if num_labels and len(labeled) != num_labels:
            raise UserError(
                f"{path} lists {len(labeled)} labeled images and not {num_labels}: set "
                f"--config.num_labels={len(labeled)}."
            )
        return labeled
    return choose_labeled_indices(
        dataset.train.labels,
        num_labels=num_labels,
        num_classes=dataset.num_classes,
        seed=seed,
        imbalance=imbalance,
    )


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


def write_result(workdir: pathlib.Path, result: Mapping[str, object]) -> None:
    """Stores the result, which marks the run as finished."""
    write_atomically(workdir / RESULT, json.dumps(result, indent=2) + "\n")
