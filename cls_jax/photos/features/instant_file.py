"""The file of an instant classifier: a frozen network, and arrays of its heads."""

import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cls_jax.data.resize import DecodeOptions
from cls_jax.io import parse_json, read_bytes, write_atomically
from cls_jax.models.weights.layout import Weights
from cls_jax.photos.features.network import FrozenNetwork

INSTANT_FILE = "instant.npz"
_MAX_BYTES = 2**32  # Limit of a file.
_WEIGHTS = "weights/"


def write_arrays(
    path: pathlib.Path, network: FrozenNetwork, heads: Mapping[str, np.ndarray]
) -> None:
    """Writes all into one file. Raises an OSError if the system refuses."""
    buffer = io.BytesIO()
    names = [field.name for field in dataclasses.fields(network)]
    settings = {name: getattr(network, name) for name in names}
    settings["weights"] = network.weights.normalization
    weights = {f"{_WEIGHTS}{name}": array for name, array in network.weights.arrays.items()}
    arrays: dict[str, Any] = {**weights, **heads}
    np.savez(buffer, settings=np.array(json.dumps(settings)), **arrays)
    write_atomically(path, buffer.getvalue())


def read_arrays(path: pathlib.Path) -> tuple[FrozenNetwork, dict[str, np.ndarray]]:
    """The network and the arrays that `write_arrays` wrote.

    Raises a UserError if the file cannot be read, or one of `PARSE_ERRORS` if it is damaged.
    """

    def to_tuple(value: Any) -> Any:
        return tuple(map(to_tuple, value)) if isinstance(value, list) else value

    with np.load(io.BytesIO(read_bytes(path, _MAX_BYTES)), allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    settings = {k: to_tuple(v) for k, v in parse_json(str(stored.pop("settings"))).items()}
    names = [name for name in stored if name.startswith(_WEIGHTS)]
    arrays = {name.removeprefix(_WEIGHTS): stored.pop(name) for name in names}
    settings["weights"] = Weights(arrays, settings["weights"])
    resize, bit_depth = settings["decoding"]
    settings["decoding"] = DecodeOptions(resize, bit_depth)
    return FrozenNetwork(**settings), stored
