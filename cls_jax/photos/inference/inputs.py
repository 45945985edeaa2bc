"""What `predict` takes: an image, several of them, or an array of many."""

import collections.abc
import inspect
import io
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import jax
import numpy as np
from PIL import Image

from cls_jax.data.resize import ImageError
from cls_jax.photos.images.decode import MAX_FILE_BYTES, ImageLike

# A path, the content of an image file, a file opened for reading bytes, or an image in memory.
ImageInput = ImageLike | bytearray | memoryview | BinaryIO

_BLOCK = 2**20
_CHANNELS = (1, 3, 4)
_ARRAYS = "uint8 [h, w] or [h, w, 1, 3 or 4]"
_KINDS = (
    "a path, the bytes of an image file, a file opened with 'rb', a PIL image or a NumPy array "
    f"{_ARRAYS}"
)


def is_source(images: Any) -> bool:
    """Whether images of one size are read by index: an array [n, H, W, C] or an `ImageSource`."""
    if isinstance(images, np.ndarray | jax.Array) or getattr(images, "dtype", None) == np.uint8:
        return len(getattr(images, "shape", ())) == 4
    # A list, a column of a table and a tensor can be iterated. An `ImageSource` need not be.
    is_indexed = hasattr(images, "__len__") and hasattr(images, "__getitem__")
    return is_indexed and not hasattr(images, "__iter__")


def check_source(images: Any, image_shape: tuple[int, int, int]) -> None:
    """Raises an ImageError unless `images` are uint8 [n, H, W, C] of this shape."""
    try:
        first = np.asarray(images[:1])
    except Exception as error:  # Whatever an object of someone else raises.
        raise ImageError(
            f"The images are {_describe(images)}, which cannot be read by index: pass a list."
        ) from error
    if first.dtype == np.uint8 and first.shape[1:] == image_shape:
        return
    found = _describe_array(first.dtype, ("n", *first.shape[1:]))
    remedy = ""
    if first.dtype == np.uint8 and first.ndim == 4 and first.shape[3] in _CHANNELS:
        remedy = ": pass a list of images to have them resized"
    raise ImageError(
        f"The images are {found}, but this classifier takes uint8 "
        f"{_write_shape(('n', *image_shape))}{remedy}."
    )


def iterate_inputs(images: Any) -> Iterator[ImageLike]:
    """One image or several, in order, as `read_ahead` takes them.

    Files are read here, one after the other, since several may share one position. Raises an
    ImageError that names what was given if it is not an image.
    """
    for number, image in enumerate(_list_inputs(images), start=1):
        try:
            yield _convert(image)
        except ImageError as error:
            raise ImageError(f"Image {number} cannot be read: {error}.") from error


def _list_inputs(images: Any) -> Iterable[Any]:
    """The images, which may be a single one."""
    if isinstance(images, np.ndarray | jax.Array):
        is_column = images.ndim == 1 and images.dtype.kind in ("O", "U", "T")
        return images if is_column else [images]
    if isinstance(images, str | bytes | bytearray | memoryview | os.PathLike | Image.Image):
        return [images]
    is_table = len(getattr(images, "shape", ())) > 1  # Iterating it would give names of columns.
    is_unordered = isinstance(images, collections.abc.Mapping | collections.abc.Set)
    if hasattr(images, "read") or not hasattr(images, "__iter__") or is_table or is_unordered:
        return [images]
    return iter(images)


def _convert(image: Any) -> ImageLike:
    """An image as `read_ahead` takes it. Raises an ImageError if it is none."""
    if isinstance(image, os.PathLike):
        return os.fsdecode(image)
    if isinstance(image, str | Image.Image):
        if image == "":
            raise ImageError("its path is empty")
        return image
    if isinstance(image, bytes | bytearray | memoryview):
        content = bytes(image)
        if not content:
            raise ImageError("it has no bytes")
        return content
    if isinstance(image, np.ndarray | jax.Array):
        return _check_array(np.asarray(image))
    if hasattr(image, "read"):
        return _read(image)
    raise ImageError(f"it is {_describe(image)}, not {_KINDS}")


def _check_array(array: np.ndarray) -> np.ndarray:
    """The array if it is an image."""
    is_flat = array.ndim == 2
    is_image = array.dtype == np.uint8 and (
        is_flat or (array.ndim == 3 and array.shape[2] in _CHANNELS)
    )
    if is_image and array.size:
        return array
    found = _describe_array(array.dtype, array.shape)
    if is_image:
        raise ImageError(f"it is {found}, which is empty")
    remedy = ""
    if array.dtype.kind == "S" or (array.dtype == np.uint8 and array.ndim == 1):
        remedy = ": pass the content of an image file as bytes, several as a list"
    elif array.ndim == 3 and array.shape[0] in _CHANNELS and array.shape[2] not in _CHANNELS:
        remedy = ": put the channels last, as numpy.moveaxis(image, 0, -1) does"
    elif array.ndim in (2, 3) and array.dtype != np.uint8:
        remedy = ": scale the values to 0 to 255 and convert them to uint8"
    raise ImageError(f"it is {found}, not {_ARRAYS}{remedy}")


def _read(file: Any) -> bytes:
    """The whole content of a file, from its start if it can be rewound."""
    if isinstance(file, io.TextIOBase):
        raise ImageError("it is a file opened as text: open it with 'rb'")
    if inspect.iscoroutinefunction(file.read):  # Such as an upload in FastAPI.
        raise ImageError(f"it is {_describe(file)}, which is read with await: pass what it returns")
    try:
        if file.seekable():
            file.seek(0)
        content = bytearray()
        # Reading to the end at once might fill memory.
        while len(content) <= MAX_FILE_BYTES and (part := file.read(_BLOCK)):
            if not isinstance(part, bytes):
                raise ImageError(f"it is {_describe(file)}, not a file opened with 'rb'")
            content += part
    except ImageError:
        raise
    except Exception as error:  # Such as a closed file, a lost connection, or no file at all.
        raise ImageError(f"{_describe(file)} cannot be read ({error})") from error
    if not content:
        raise ImageError("it is a file without bytes")
    return bytes(content)


def _describe(value: object) -> str:
    """The type of a value with its module, and the shape if it has one."""
    if value is None:
        return "None"
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    shape = getattr(value, "shape", None)
    text = f" {_write_shape(shape)}" if isinstance(shape, tuple) else ""
    return f"an object of type {name}{text}"


def _describe_array(dtype: np.dtype, shape: tuple[int | str, ...]) -> str:
    return f"an array {dtype} {_write_shape(shape)}"


def _write_shape(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
