"""What a user asks of a run on a folder of photos, whether in a terminal or in Python.

To add an option, add a field here and its row in the parser of `console`, whose name is the
field's. `cls_jax.train` names each field as well, so that editors show it.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from cls_jax.config import check_values, flatten, list_options
from cls_jax.errors import UserError
from cls_jax.models import resolve_stem
from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.folder.instant_config import read_instant_config
from cls_jax.photos.folder.options import FolderOptions, find_labels_file


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a training. None where images and machine decide."""

    folder: str | pathlib.Path
    workdir: str | pathlib.Path | None = None  # The run's folder. None for one under runs/.
    method: str | None = None  # Of the table of methods, see `rules.choose_method`.
    start_from: str | pathlib.Path | None = None  # The run whose weights are the first ones.
    instant: bool = False  # Whether only the instant classifier is fitted.
    minutes: float | None = None  # Of training, see `fit_to_time`.
    again: bool = False  # Whether another run is started if a finished one exists.
    backbone: str | None = None  # Names of pretrained networks, with commas.
    # Values by dotted key.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def read_settings(self) -> dict[str, Any]:
        """The settings with those that other options stand for.

        Raises a UserError if two options contradict each other, or a run, a network or the file
        with the labels does not exist.
        """
        values = dict(self.settings)
        if self.backbone is not None:
            if self.start_from:
                raise UserError(
                    "--from and --backbone both choose the weights: remove one of them."
                )
            values |= Backbones.read(self.backbone).to_settings()
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise UserError(
                f"--minutes must be positive and below 1,000,000, not {self.minutes:g}."
            )
        values = _settings_from_run(self.start_from) | values
        if typed := values.get("data.labels"):
            values["data.labels"] = find_labels_file(self.folder, str(typed))
        return values


def find_options(values: Mapping[str, Any]) -> FolderOptions:
    """How settings say to read the folder. Raises a UserError if a value is invalid."""
    known = list_options()
    keys = {f"data.{name}": known[f"data.{name}"] for name in FolderOptions._fields}
    check_values({key: values.get(key, row.default) for key, row in keys.items()}, keys)
    return FolderOptions(**{name: values.get(f"data.{name}", "") for name in FolderOptions._fields})


def _settings_from_run(run: str | pathlib.Path | None) -> dict[str, Any]:
    """Settings to start from another run's weights, with its architecture."""
    if not run:
        return {}
    stored = flatten(read_instant_config(pathlib.Path(run)).to_dict())
    kept = ["model.name", "model.depth", "model.width", "data.image_size", "data.channels"]
    stem = resolve_stem(stored["model.stem"], stored["data.image_size"])
    settings = {"model.init": str(pathlib.Path(run).resolve()), "model.stem": stem}
    return settings | {key: stored[key] for key in kept}
