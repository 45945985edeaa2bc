"""What `predict` takes: an image, several of them, or an array of many."""

import collections.abc
import inspect
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
_KINDS = (
    "a path, the bytes of an image file, a file opened with 'rb', a PIL image or a NumPy array "
    "uint8 [h, w] or [h, w, 1, 3 or 4], with values from 0 to 255"
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
    if first.dtype != np.uint8 or first.shape[1:] != image_shape:
        found, taken = (_write_shape(("n", *shape)) for shape in (first.shape[1:], image_shape))
        raise ImageError(
            f"The images are an array {first.dtype} {found}, but this classifier takes uint8 "
            f"{taken}: pass a list of images to have them resized."
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
    match images:
        case np.ndarray() | jax.Array():
            is_column = images.ndim == 1 and images.dtype.kind in ("O", "U", "T")
            return images if is_column else [images]
        case str() | bytes() | bytearray() | memoryview() | os.PathLike() | Image.Image():
            return [images]
        case collections.abc.Mapping() | collections.abc.Set():  # Without an order.
            return [images]
    is_table = len(getattr(images, "shape", ())) > 1  # Iterating it would give names of columns.
    is_one = is_table or hasattr(images, "read") or not hasattr(images, "__iter__")
    return [images] if is_one else iter(images)


def _convert(image: Any) -> ImageLike:
    """An image as `read_ahead` takes it. Raises an ImageError if it is none."""
    match image:
        case os.PathLike():
            return os.fsdecode(image)
        case Image.Image():
            return image
        case str() if image:
            return image
        case bytes() | bytearray() | memoryview() if len(image):
            return bytes(image)
        case np.ndarray() | jax.Array():
            array = np.asarray(image)
            is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _CHANNELS)
            if is_image and array.dtype == np.uint8 and array.size:
                return array
        case _ if hasattr(image, "read"):
            return _read(image)
    raise ImageError(f"it is {_describe(image)}, not {_KINDS}")


def _read(file: Any) -> bytes:
    """The whole content of a file, from its start if it can be rewound."""
    if inspect.iscoroutinefunction(file.read):  # Such as an upload in FastAPI.
        raise ImageError(f"it is {_describe(file)}, which is read with await: pass what it returns")
    content = bytearray()
    try:
        if file.seekable():
            file.seek(0)
        # Reading to the end at once might fill memory.
        while len(content) <= MAX_FILE_BYTES and (part := file.read(_BLOCK)):
            content += part
    except Exception as error:  # Such as a closed file, text, a lost connection, or no file at all.
        raise ImageError(
            f"{_describe(file)} cannot be read ({error}): pass a file opened with 'rb'"
        ) from error
    if not content:
        raise ImageError("it is a file without bytes")
    return bytes(content)


def _describe(value: Any) -> str:
    """The type of a value with its module, and the dtype and shape if it has them."""
    kind, shape = type(value), getattr(value, "shape", None)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    text = f" {_write_shape(shape)}" if isinstance(shape, tuple) else ""
    if isinstance(value, np.ndarray | jax.Array):
        return f"an array {value.dtype}{text}"
    if isinstance(value, str | bytes | bytearray | memoryview):
        return "empty"
    return f"an object of type {module}{kind.__qualname__}{text}"


def _write_shape(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
