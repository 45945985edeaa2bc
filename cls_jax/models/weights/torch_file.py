"""Reads the tensors of a file of `torch.save`, without PyTorch and without unpickling.

Such a file holds a pickle, a program that can call whatever it names. Here `pickletools` lists its
instructions, and `_follow` executes those that a dictionary of tensors needs. They can call nothing
but functions of this module. Formats: `_load` (a zip file) and `_legacy_load` (before PyTorch 1.6)
of PyTorch's torch/serialization.py.
"""

import math
import pickletools
import zipfile
from collections.abc import Iterator
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


class _Storage(NamedTuple):
    key: str  # Of the numbers of tensors.
    dtype: Any
    size: int


class _Tensor(NamedTuple):
    """A view of a storage. Offset and strides count numbers, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_file(file: BinaryIO) -> dict[str, np.ndarray]:
    """Reads the tensors of a state dict, or of the state dict in a training checkpoint, by name.

    Raises:
        ValueError: if the pickle does anything but describe tensors. A damaged file raises any of
            `PARSE_ERRORS`.
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
            raise ValueError("it is compressed")  # PyTorch never does. It could expand to anything.
        order = folder + "byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("its numbers are big-endian")
        content, storages = _follow(pickletools.genops(archive.read(pickle_name)))
        return content, {key: archive.read(f"{folder}data/{key}") for key in storages}


def _read_legacy(file: BinaryIO) -> tuple[Any, dict[str, bytes]]:
    file.seek(0)
    magic, _version, _system = (_follow(pickletools.genops(file))[0] for _ in range(3))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it is not a file of torch.save")
    content, storages = _follow(pickletools.genops(file))
    keys, _ = _follow(pickletools.genops(file))
    data = {}
    for key in keys:
        file.read(8)  # The number of entries, which the pickle has named as well.
        data[key] = file.read(storages[key].size * np.dtype(storages[key].dtype).itemsize)
    return content, data


def _to_array(tensor: _Tensor, storages: dict[str, bytes]) -> np.ndarray:
    numbers = np.frombuffer(storages[tensor.storage.key], tensor.storage.dtype)
    spans = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    if math.prod(tensor.shape) == 0:
        return np.zeros(tensor.shape, numbers.dtype)
    first, last = tensor.offset, tensor.offset + sum(spans)
    if min((first, *tensor.strides)) < 0 or max(last, math.prod(tensor.shape) - 1) >= len(numbers):
        raise ValueError("a tensor reaches beyond its numbers")
    strides = [stride * numbers.itemsize for stride in tensor.strides]
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides)
    return np.array(view)


# The names that a pickle of tensors has, in the spelling of `pickletools`, and what they are here.
_NAMES: dict[str, Any] = {
    "collections OrderedDict": dict,
    "torch._utils _rebuild_tensor_v2": lambda storage, offset, shape, strides, *_: _Tensor(
        storage, offset, shape, strides
    ),
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
    **{f"torch {name}": dtype for name, dtype in _DTYPES.items()},
}
_CONTAINERS = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _follow(operations: Iterator[tuple[Any, Any, Any]]) -> tuple[Any, dict[str, _Storage]]:
    """Follows the instructions of one pickle: its value, and the storages it refers to by key.

    Raises:
        ValueError: at an instruction or a name that no dictionary of tensors needs.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    storages: dict[str, _Storage] = {}

    def pop_from(start: int) -> list[Any]:
        items = stack[start:]
        del stack[start:]
        return items

    for operation, argument, _ in operations:
        match operation.name:
            case "PROTO":
                pass
            case "STOP":
                break
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case name if name in _CONTAINERS:
                stack.append(_CONTAINERS[name]())
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(pop_from(marks.pop())))
            case name if name in _TUPLES:
                stack.append(tuple(pop_from(len(stack) - _TUPLES[name])))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "SETITEM" | "SETITEMS" as name:
                items = pop_from(marks.pop() if name == "SETITEMS" else len(stack) - 2)
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "APPEND" | "APPENDS" as name:
                items = pop_from(marks.pop() if name == "APPENDS" else len(stack) - 1)
                stack[-1].extend(items)
            case "GLOBAL" if argument in _NAMES:
                stack.append(_NAMES[argument])
            case "GLOBAL":
                name = argument.replace(" ", ".", 1)
                raise ValueError(f"it names {name}, which no weights need")
            case "BINPERSID":
                kind, dtype, key, _device, size, *_ = stack.pop()
                if kind != "storage":
                    raise ValueError(f"it refers to a {kind}")
                storages[key] = _Storage(key, dtype, size)
                stack.append(storages[key])
            case "REDUCE":
                function, arguments = pop_from(len(stack) - 2)
                stack.append(function(*arguments))
            case "BUILD":  # Attributes of a state dict: versions of its modules.
                stack.pop()
            case name:
                raise ValueError(f"it has the instruction {name}, which no weights need")
    return stack.pop(), storages
