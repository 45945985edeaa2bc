"""The files of a run's folder other than checkpoints and metrics."""

import json
import os
import pathlib
from typing import Any

import numpy as np

from cls_jax.config import describe_differences, read_config, to_json
from cls_jax.data.datasets import Dataset
from cls_jax.data.label_budget import (
    choose_labeled_indices,
    read_labeled_indices,
    write_labeled_indices,
)
from cls_jax.errors import UserError

CONFIG = "config.json"
LABELED_INDICES = "labeled_indices.json"
RESULT = "result.json"


def get_default_workdir(config) -> pathlib.Path:
    """runs/<dataset>-<labels>-<method>-seed<seed>."""
    name = f"{config.data.name}-{config.num_labels}-{config.method.name}-seed{config.seed}"
    return pathlib.Path("runs") / name


def open_run_folder(workdir: pathlib.Path, config) -> None:
    """Creates the folder of a run, or accepts that of the same run begun before.

    Raises:
        UserError: if the folder holds a run of another configuration, holds something else, or
            cannot be written.
    """
    path = workdir / CONFIG
    if path.exists():
        differences = describe_differences(config, read_config(path))
        if differences:
            raise UserError(
                f"{workdir} holds a run of another configuration ({'; '.join(differences)}): "
                "give --workdir a new folder, or this run's own configuration to go on with it."
            )
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if any(workdir.iterdir()):
            raise UserError(
                f"{workdir} is not empty and not the folder of a run: give --workdir a new folder."
            )
        write_atomically(path, to_json(config))
    except OSError as error:
        raise UserError(
            f"{workdir} cannot be written ({error.strerror}): give --workdir another folder."
        ) from error


def load_labeled_indices(workdir: pathlib.Path, config, dataset: Dataset) -> np.ndarray:
    """The run's label budget: as stored in its folder, else drawn with the seed and stored."""
    path = workdir / LABELED_INDICES
    if path.exists():
        return read_labeled_indices(path, dataset.class_names)
    indices = choose_labeled_indices(
        dataset.train_labels, config.num_labels, dataset.num_classes, config.seed
    )
    write_labeled_indices(path, indices, dataset.train_labels, dataset.class_names)
    return indices


def read_result(workdir: pathlib.Path) -> dict[str, Any] | None:
    """The result of a finished run, or None."""
    path = workdir / RESULT
    return json.loads(path.read_text()) if path.exists() else None


def write_result(workdir: pathlib.Path, result: dict[str, Any]) -> None:
    """Stores the result: from now on the run counts as finished."""
    write_atomically(workdir / RESULT, json.dumps(result, indent=2) + "\n")


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file that is either wholly there or not at all, whenever the process dies."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
