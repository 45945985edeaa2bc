"""Files with pretrained weights, and where they come from.

Only two kinds of file are read: safetensors, which are plain named arrays, and a PyTorch file in a
package, which is verified by its hash. Downloads: `hub`.
"""

import hashlib
import importlib
import io
import json
import pathlib
from typing import NamedTuple

import numpy as np

from cls_jax.errors import UserError
from cls_jax.extras import check_extra, is_installed
from cls_jax.io import PARSE_ERRORS, describe_error, is_number, read_bytes, read_json
from cls_jax.models.weights.backbones import BACKBONES, BUILTIN, HUB, Package
from cls_jax.models.weights.hub import (
    WEIGHTS_FILE,
    fetch_weights,
    find_cached,
    find_commit,
    read_license,
)
from cls_jax.models.weights.layout import Normalization, Weights
from cls_jax.models.weights.torch_file import read_torch_file

# By architecture. The extra "pretrained" installs all of them.
PACKAGES = {row.name: row.origin for row in BACKBONES.values() if isinstance(row.origin, Package)}
_PYTORCH_SUFFIXES = {".pth", ".pt", ".bin"}
_MAX_PACKAGE_BYTES = 2**29


def check_init(init: str) -> None:
    """Raises a UserError unless the packages that read the weights of a `model.init` are installed.

    Opens no file, so that it can come before everything else.
    """
    path = pathlib.Path(init).expanduser()
    if init.startswith(BUILTIN):
        get_builtin_name(init)
    elif not (init.startswith(HUB) or path.suffix == ".safetensors"):
        return  # The folder of a run, say, which needs no package.
    check_extra("pretrained", f"model.init={init:.100}")


def get_builtin_name(init: str) -> str:
    """The architecture of weights "builtin:…". Raises a UserError if there are none for it."""
    name = init.removeprefix(BUILTIN)
    if name not in PACKAGES:
        known = " or ".join(f"{BUILTIN}{known}" for known in PACKAGES)
        raise UserError(f"There are no weights {init:.100}: choose {known}.")
    return name


def find_architecture(init: str) -> str:
    """The architecture that a `model.init` implies, or "" if `model.name` says it.

    Raises a UserError if there are no such built-in weights.
    """
    if init.startswith(BUILTIN):
        return get_builtin_name(init)
    return BACKBONES[init].name if init in BACKBONES else ""


class Origin(NamedTuple):
    """Where weights come from, and what may be done with them."""

    init: str  # Their `model.init`.
    license: str  # As SPDX or its authors write it, "" if unknown.
    commit: str  # Of a repository on the hub, "" elsewhere or if unknown.


def find_origin(init: str) -> Origin:
    """The license of weights, and the commit of downloaded ones. Downloads nothing."""
    license = BACKBONES[init].license if init in BACKBONES else ""
    if not init.startswith(HUB) or not is_installed("pretrained"):
        return Origin(init, license, "")
    repository = init.removeprefix(HUB)
    return Origin(init, license or read_license(repository), find_commit(repository))


def read_init(init: str) -> Weights:
    """Reads the weights that `model.init` names: builtin, on the hub, or a file or its folder.

    This and the public functions below raise a UserError if weights cannot be read or the package
    that reads them is missing.
    """
    if init.startswith(BUILTIN):
        return read_builtin(get_builtin_name(init))
    if init.startswith(HUB):
        return read_hub(init.removeprefix(HUB))
    path = pathlib.Path(init).expanduser()
    return read_safetensors(path / WEIGHTS_FILE if path.is_dir() else path)


def locate_builtin(name: str) -> pathlib.Path:
    """The file with the weights of an architecture, one of `PACKAGES`."""
    package = PACKAGES[name]
    check_extra("pretrained", f"{BUILTIN}{name}")
    return pathlib.Path(str(importlib.import_module(package.module).__file__)).parent / package.file


def read_builtin(name: str) -> Weights:
    """Reads the weights of an architecture, one of `PACKAGES`, from the package that has them."""
    path = locate_builtin(name)
    try:
        content = read_bytes(path, _MAX_PACKAGE_BYTES)
        if hashlib.sha256(content).hexdigest() != PACKAGES[name].sha256:
            raise ValueError("its SHA-256 differs")
        return Weights(read_torch_file(io.BytesIO(content)))
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path} does not have the expected weights ({describe_error(error)}): reinstall "
            f"{PACKAGES[name].module.replace('_', '-')}."
        ) from error


def read_safetensors(path: pathlib.Path) -> Weights:
    """Reads a safetensors file."""
    check_extra("pretrained", f"Reading {path}")
    safetensors = importlib.import_module("safetensors")  # Its own types are incomplete.
    choose = "set model.init to a .safetensors file"
    try:
        if not path.is_file():
            raise UserError(f"There is no file {path}: {choose}.")
        with safetensors.safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        mean, std = (json.loads(metadata.get(name, "null")) for name in ("mean", "std"))
        return Weights(arrays, _to_normalization(mean, std))
    except (safetensors.SafetensorError, *PARSE_ERRORS) as error:
        remedy = f"it may be damaged, so copy it again or {choose}"
        if path.suffix in _PYTORCH_SUFFIXES:
            command = f"python -m cls_jax.models.weights.convert {path} FILE.safetensors"
            remedy = f"convert it with {command}"
        raise UserError(
            f"{path} cannot be read as weights ({describe_error(error)}): {remedy}."
        ) from error


def to_safetensors(weights: Weights) -> bytes:
    """The content of a safetensors file with these weights."""
    metadata = {"format": "pt"}
    if weights.normalization is not None:
        mean, std = map(json.dumps, weights.normalization)
        metadata |= {"mean": mean, "std": std}
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.arrays.items()}
    check_extra("pretrained", f"Writing {WEIGHTS_FILE}")
    import safetensors.numpy

    return safetensors.numpy.save(arrays, metadata)


def read_hub(repository: str) -> Weights:
    """Reads the weights of a repository on the Hugging Face hub, or an earlier download of them."""
    weights = read_safetensors(fetch_weights(repository))
    path = find_cached(repository, "config.json")
    if f"{HUB}{repository}" in BACKBONES or path is None:
        return weights  # Normalized as the architecture's others are.
    try:
        settings = read_json(path)["pretrained_cfg"]
        return weights._replace(normalization=_to_normalization(settings["mean"], settings["std"]))
    except PARSE_ERRORS:  # Only timm's repositories have these entries.
        return weights


def _to_normalization(mean: object, std: object) -> Normalization | None:
    """Mean and standard deviation from JSON, or None without them, or a ValueError."""
    if mean is None and std is None:
        return None
    if not (isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std)):
        raise ValueError("mean and std are not lists of one length")
    if not all(map(is_number, mean + std)) or min(std) <= 0:
        raise ValueError("mean and std are not numbers and positive ones")
    return tuple(map(float, mean)), tuple(map(float, std))
