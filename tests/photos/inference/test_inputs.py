"""What `predict` takes, and what it says of everything else."""

import array
import io
import pathlib
import struct
import tempfile
import zlib

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cls_jax.data.resize import DecodeOptions, ImageError
from cls_jax.photos.images.decode import decode_image
from cls_jax.photos.images.files import read_ahead
from cls_jax.photos.inference.inputs import check_source, is_source, iterate_inputs
from tests.photos.images.test_decode import encode, pack_png

SHAPE = (8, 8, 3)
PIXELS = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
CONTENT = encode(Image.fromarray(PIXELS), "PNG").getvalue()


def decode(images):
    (batch,) = read_ahead(iterate_inputs(images), SHAPE, 16)
    assert not any(batch.errors), batch.errors
    return batch.images


class Once(io.RawIOBase):
    """A file without positions that returns a few bytes at a time, such as a download."""

    def __init__(self, content):
        self.content = io.BytesIO(content)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self.content.readinto(memoryview(buffer)[:50])


def test_an_image_is_the_same_in_every_form(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(CONTENT)
    read_to_its_end = io.BytesIO(CONTENT)
    read_to_its_end.read()
    spooled = tempfile.SpooledTemporaryFile()  # noqa: SIM115
    spooled.write(CONTENT)
    with path.open("rb") as file, spooled:
        forms = [path, str(path), np.str_(path), CONTENT, bytearray(CONTENT), memoryview(CONTENT)]
        forms += [file, read_to_its_end, spooled]
        forms += [Image.open(io.BytesIO(CONTENT)), PIXELS, jnp.asarray(PIXELS)]
        for form in forms:
            assert not is_source(form)
            np.testing.assert_array_equal(decode(form), PIXELS[None], repr(form))
        # A file that is named twice has one position.
        several = forms, iter(forms), tuple(forms), Once(CONTENT), [file, file]
        for images in (*several, np.array([str(path)] * 2), np.array([path, CONTENT], object)):
            assert (decode(images) == PIXELS).all()
    gray = PIXELS[..., 0]
    for form in (gray, gray[..., None]):
        np.testing.assert_array_equal(decode(form), np.repeat(gray[None, ..., None], 3, axis=-1))
    clear = np.dstack([PIXELS, np.zeros_like(gray)])
    assert (decode(clear) == 255).all()
    assert is_source(PIXELS[None])
    for images in (PIXELS[None], PIXELS[None][:0]):
        check_source(images, SHAPE)


def test_a_file_that_pillow_has_not_loaded_yet():
    """Threads must not load it at the same time, and it has all bits of its file."""
    noise = np.random.default_rng(0).integers(0, 256, (800, 800, 3), np.uint8)
    file = encode(Image.fromarray(noise), "PNG")
    with Image.open(file) as image:
        found = decode([image] * 16)
    assert (found == decode(file)).all()
    levels = np.full((8, 8, 3), 3000, np.uint16)
    levels[:4] = 30000
    data = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels))
    transparent = (b"tRNS", struct.pack(">HHH", 30000, 30000, 30000))
    with Image.open(io.BytesIO(pack_png((8, 8), 16, 2, data, transparent))) as image:
        found = decode_image(image, SHAPE, DecodeOptions(bit_depth=12))
        assert (found[0, 0, 0], found[-1, -1, 0]) == (255, round(255 * 3000 / 4095))
        image.load()  # It is as before.
        assert image.getpixel((0, 0)) == (117, 117, 117)


class Upload:
    """As FastAPI's."""

    async def read(self, size=-1):
        return CONTENT


class Tensor:
    """As PyTorch's."""

    shape = (3, 8, 8)
    dtype = "uint8"

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self

    __iter__ = [].__iter__


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (np.frombuffer(CONTENT, np.uint8), r"array uint8 \[\d+\], not .* the bytes of an image"),
        (np.array([CONTENT]), r"array \|S\d+ \[1\], not"),
        (
            np.moveaxis(PIXELS, -1, 0)[:, :6],
            r"uint8 \[3, 6, 8\], not .* uint8 \[h, w\] or \[h, w, 1",
        ),
        (PIXELS / 255, r"array float64 \[8, 8, 3\], not .* with values from 0 to 255"),
        (PIXELS[..., 0] > 9, r"array bool \[8, 8\]"),
        (PIXELS[..., :2], r"array uint8 \[8, 8, 2\]"),
        (PIXELS[None, None], r"array uint8 \[1, 1, 8, 8, 3\]"),
        (np.uint8(3) * np.ones((), np.uint8), r"object of type numpy.uint8|array uint8 \[\]"),
        (PIXELS[:0], r"array uint8 \[0, 8, 3\]"),
        (b"", "it is empty, not a path"),
        (io.BytesIO(), "a file without bytes"),
        (io.StringIO("x"), "StringIO cannot be read .* pass a file opened with 'rb'"),
        (Upload(), r"type .*Upload, which is read with await"),
        (Tensor(), r"type .*Tensor \[3, 8, 8\], not a path, the bytes of an image file"),
        (array.array("B", CONTENT), "type int, not a path"),
        ({"a.png": PIXELS}, "type dict"),
        ({"a.png"}, "type set"),
        (None, "type NoneType, not a path"),
        (7, "type int, not a path"),
        (PIXELS.tolist(), "type list, not a path"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_everything_else_is_named(image, sentence):
    assert not is_source(image)
    with pytest.raises(ImageError, match=f"Image 1 cannot be read: .*{sentence}"):
        list(iterate_inputs(image))
    with pytest.raises(ImageError, match="Image 2 cannot be read"):
        list(iterate_inputs([PIXELS, image, PIXELS]))


def test_unreadable_files_are_named():
    closed = io.BytesIO(CONTENT)
    closed.close()
    with tempfile.TemporaryFile() as file, pytest.raises(ImageError, match="without bytes"):
        list(iterate_inputs(file))
    with pytest.raises(ImageError, match=r"BytesIO cannot be read \(I/O operation on closed"):
        list(iterate_inputs(closed))


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (np.zeros((2, 9, 9, 3), np.uint8), r"uint8 \[n, 9, 9, 3\], .* pass a list of images"),
        (
            np.zeros((2, 8, 8, 3), np.float32),
            r"float32 \[n, 8, 8, 3\].* takes uint8 \[n, 8, 8, 3\]",
        ),
        (np.zeros((2, 3, 8, 8), np.uint8), r"uint8 \[n, 3, 8, 8\]"),
        (type("Images", (), {"__len__": len, "__getitem__": None})(), "type .*Images, which"),
    ],
)
def test_arrays_of_other_images_are_named(images, sentence):
    assert is_source(images)
    with pytest.raises(ImageError, match=sentence):
        check_source(images, SHAPE)


def test_bytes_are_never_a_path(classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("secret.png").write_bytes(CONTENT)
    for given in (b"secret.png", [b"secret.png"], io.BytesIO(b"secret.png")):
        with pytest.raises(ImageError, match="Image 1 cannot be read: not an image of a known"):
            classifier.predict(given)
    by_path = classifier.predict("secret.png").probabilities
    np.testing.assert_array_equal(classifier.predict(CONTENT).probabilities, by_path)
    with pytest.raises(ImageError, match="an image without pixels"):
        classifier.predict(Image.new("RGB", (0, 3)))
