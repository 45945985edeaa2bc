"""The expected accuracy of a run, corrected by random photos that a person has checked."""

import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cls_jax.photos.features.accuracy import correct_estimate, read_estimate
from cls_jax.photos.folder.catalog import read_checked
from cls_jax.photos.folder.log import compare_checks
from cls_jax.photos.folder.options import get_folder_options


def measure_with_checks(config: ConfigDict, result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures `labels_*` of a result that the checks in the folder's label table change.

    Empty without an estimate or without enough checks, or if only some labels are used. Raises a
    UserError if the table cannot be read.
    """
    estimate = read_estimate(result)
    if estimate is None or config.data.name != "folder" or config.num_labels:
        return {}
    root = pathlib.Path(config.data.data_dir).expanduser()
    checked = compare_checks(read_checked(root, get_folder_options(config.data)))
    corrected = correct_estimate(estimate, checked.is_right, checked.confidences)
    if corrected == estimate:
        return {}
    return {f"labels_{name}": value for name, value in corrected._asdict().items()}
