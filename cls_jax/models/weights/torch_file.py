"""Reads the tensors of a file of `torch.save`, without PyTorch.

Such a file has a pickle, a program that can call whatever it names. Here it may only name what
`_Unpickler.find_class` allows. Formats: `_load` (a zip file) and `_legacy_load` (before
PyTorch 1.6) of PyTorch's torch/serialization.py.
"""

import collections
import io
import math
import pickle
import zipfile
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": jnp.bfloat16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


class _Tensor(NamedTuple):
    """A view of a storage. Offset and strides count numbers, not bytes."""

    storage: tuple[str, str, int]  # Key, name of the type, and length.
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_file(file: BinaryIO) -> dict[str, np.ndarray]:
    """Reads the tensors of a state dict, or of the state dict in a training checkpoint, by name.

    Raises a ValueError if there is anything but tensors. Damage raises `PARSE_ERRORS`.
    """
    content, storages = _read_zip(file) if zipfile.is_zipfile(file) else _read_legacy(file)
    for key in ("state_dict", "model"):
        content = content.get(key, content) if isinstance(content, dict) else content
    if not isinstance(content, dict):
        raise ValueError("it is not a dictionary of tensors")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, _Tensor)}
    return {name: _to_array(tensor, storages) for name, tensor in tensors.items()}


def _read_zip(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        (pickle_name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = pickle_name.removesuffix("data.pkl")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("it is compressed")  # PyTorch never does. Might expand to any size.
        order = folder + "byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("its numbers are big-endian")
        content, sizes = _unpickle(io.BytesIO(archive.read(pickle_name)))
        return content, {key: archive.read(f"{folder}data/{key}") for key in sizes}


def _read_legacy(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    file.seek(0)
    magic, _version, _system = (_unpickle(file)[0] for _ in range(3))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it is not a file of torch.save")
    content, sizes = _unpickle(file)
    keys, _ = _unpickle(file)
    data = {}
    for key in keys:
        file.read(8)  # The number of entries, which the pickle has, too.
        data[key] = file.read(sizes[key])
    return content, data


def _to_array(tensor: _Tensor, storages: dict[str, bytes]) -> np.ndarray:
    key, dtype, _ = tensor.storage
    numbers = np.frombuffer(storages[key], _DTYPES[dtype])
    spans = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    if math.prod(tensor.shape) == 0:
        return np.zeros(tensor.shape, numbers.dtype)
    first = tensor.offset
    last = first + sum(spans)
    if min((first, *tensor.strides)) < 0 or max(last, math.prod(tensor.shape) - 1) >= len(numbers):
        raise ValueError("a tensor reaches beyond its numbers")
    strides = [stride * numbers.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides)
    return np.array(view)


class _Unpickler(pickle._Unpickler):
    """Finds the names that a dictionary of tensors needs, and lists the storages it refers to.

    Pure Python, since the unpickler in C allocates memory for any index that a file names.
    """

    def __init__(self, file: BinaryIO):
        super().__init__(file)
        self.sizes: dict[str, int] = {}  # Bytes of each storage, by key.

    def find_class(self, module: str, name: str) -> Any:
        """The object for a name in the file. Functions are new ones, since a file can modify them.

        Raises a ValueError if no dictionary of tensors needs it.
        """
        known: dict[str, Any] = {
            "collections.OrderedDict": collections.OrderedDict,
            "torch._utils._rebuild_tensor_v2": lambda storage, offset, shape, strides, *_: _Tensor(
                storage, offset, shape, strides
            ),
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
            **{f"torch.{dtype}": dtype for dtype in _DTYPES},
        }
        if f"{module}.{name}" not in known:
            raise ValueError(f"it names {module}.{name}, which no weights need")
        return known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> tuple[str, str, int]:
        """A storage. Raises a ValueError if it refers to anything else."""
        kind, dtype, key, _device, size, *_ = pid
        if kind != "storage":
            raise ValueError(f"it refers to a {kind}")
        self.sizes[key] = size * np.dtype(_DTYPES[dtype]).itemsize
        return key, dtype, size


def _unpickle(file: BinaryIO) -> tuple[Any, dict[str, int]]:
    """The value of the next pickle in a file, and the bytes of each storage it refers to."""
    unpickler = _Unpickler(file)
    try:
        return unpickler.load(), unpickler.sizes
    except pickle.UnpicklingError as error:
        raise ValueError(str(error)) from error
