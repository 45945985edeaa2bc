"""Images of up to 12 channels, from `.npy` files and TIFF."""

import io
import pickle
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.images import decode
from cls_jax.data.images.decode import (
    RESIZE_MODES,
    DecodeOptions,
    ImageError,
    decode_image,
    find_bit_depth,
    read_header,
    read_upright,
)
from cls_jax.data.images.files import list_images
from tests.data.images.test_decode import create_photo, decode_in_strips, encode, encode_tiff

SIZE = 16


def create_bands(channels, width=48, height=32):
    """Smooth levels of 8 bits, [height, width, channels], different in each channel."""
    photo = create_photo(width, height)
    return np.stack([photo[..., c % 3] // (1 + c // 3) for c in range(channels)], axis=-1)


def save(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    file.seek(0)
    return file


def decode_bands(file, channels, **options):
    return decode_image(file, (SIZE, SIZE, channels), DecodeOptions(**options))


@pytest.mark.parametrize("resize", RESIZE_MODES)
@pytest.mark.parametrize("is_large", [False, True])
def test_every_channel_is_scaled_like_a_gray_picture(monkeypatch, resize, is_large):
    if is_large:
        decode_in_strips(monkeypatch)
    levels = create_bands(5)
    decoded = decode_bands(save(levels), 5, resize=resize)
    assert (decoded.shape, decoded.dtype) == ((SIZE, SIZE, 5), np.uint8)
    for c in range(5):
        picture = encode(Image.fromarray(levels[..., c]), "PNG")
        alone = decode_bands(picture, 1, resize=resize)
        np.testing.assert_array_equal(decoded[..., c], alone[..., 0])


def test_gray_and_rgb_arrays_are_what_pictures_of_them_are():
    for levels, channels in [(create_photo(), 3), (create_photo()[..., 0], 1)]:
        picture = encode(Image.fromarray(levels), "PNG")
        for wanted in (1, 3):
            expected = decode_bands(picture, wanted)
            np.testing.assert_allclose(decode_bands(save(levels), wanted), expected, atol=1)
            if wanted == channels:
                np.testing.assert_array_equal(decode_bands(save(levels), wanted), expected)
            picture.seek(0)


def test_layout_in_memory_makes_no_difference():
    levels = create_bands(4).astype(np.uint16)
    expected = decode_bands(save(levels), 4, bit_depth=8)
    for other in (np.asfortranarray(levels), levels.astype(">u2")):
        np.testing.assert_array_equal(decode_bands(save(other), 4, bit_depth=8), expected)


def test_16_bits_are_scaled_by_the_range_that_is_used(tmp_path):
    levels = create_bands(6)
    expected = decode_bands(save(levels), 6)
    deep = levels.astype(np.uint16)
    np.testing.assert_allclose(decode_bands(save(257 * deep), 6), expected, atol=1)
    np.testing.assert_allclose(decode_bands(save(16 * deep), 6, bit_depth=12), expected, atol=2)
    np.save(tmp_path / "deep.npy", 16 * deep)
    np.save(tmp_path / "flat.npy", levels)
    assert find_bit_depth([tmp_path / "deep.npy", tmp_path / "flat.npy"]) == 12
    assert find_bit_depth([tmp_path / "flat.npy"]) == 16


@pytest.mark.parametrize("channels", [1, 2, 5, 12])
def test_header_tells_size_and_channels(tmp_path, channels):
    np.save(tmp_path / "a.npy", create_bands(channels).squeeze())
    assert read_header(tmp_path / "a.npy") == (48, 32, channels)


@pytest.mark.parametrize(("found", "wanted"), [(5, 3), (5, 1), (3, 5), (1, 2), (5, 4)])
def test_another_number_of_channels_is_refused(found, wanted):
    levels = create_bands(found).squeeze()
    files = [save(levels)] + ([encode(Image.fromarray(levels), "PNG")] if found in (1, 3) else [])
    for file in files:
        with pytest.raises(ImageError, match=rf"^{found} channel\(s\) instead of {wanted}$"):
            decode_bands(file, wanted)


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_objects_are_never_unpickled(tmp_path):
    array = np.empty((8, 8), object)
    array.fill(Payload(tmp_path / "unpickled"))
    file = save(array, allow_pickle=True)
    with pytest.raises(ImageError, match=r"^object values instead of uint8 or uint16$"):
        decode_bands(file, 3)
    # Also where the header lies about what follows.
    liar = file.getvalue().replace(b"'|O'", b"'|u1'").replace(b" \n", b"\n", 1)
    decode_bands(io.BytesIO(liar), 3)
    assert not (tmp_path / "unpickled").exists()
    pickle.loads(pickle.dumps(Payload(tmp_path / "unpickled"))).close()
    assert (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint32", "bool", "complex64"])
def test_values_of_unknown_range_are_refused(dtype):
    with pytest.raises(ImageError, match=f"^{dtype} values instead of uint8 or uint16$"):
        decode_bands(save(create_bands(3).astype(dtype)), 3)


@pytest.mark.parametrize("shape", [(), (9,), (8, 8, 13), (1, 8, 8, 3), (0, 8, 3), (8, 8, 0)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ImageError, match=r"^shape \(.*\) instead of \(height, width\) or"):
        decode_bands(save(np.zeros(shape, np.uint8)), 3)


def test_damaged_and_too_large_arrays_are_refused(monkeypatch):
    whole = save(create_bands(3)).getvalue()
    for file, reason in [
        (whole[:-1], "the array is cut short"),
        (whole.replace(b"(32, 48, 3)", b"(99, 99, 3)"), "the array is cut short"),
        (whole[:20], "damaged: "),
        (whole.replace(b"'shape'", b"'shake'"), "damaged: "),
        (whole.replace(b"(32, 48, 3), }    ", b"(99999, 99999), } "), "more than 100,000,000 pix"),
    ]:
        with pytest.raises(ImageError, match=reason):
            decode_bands(io.BytesIO(file), 3)
    monkeypatch.setattr(decode, "_MAX_FILE_BYTES", 4000)
    with pytest.raises(ImageError, match="more than 4,000 bytes"):
        decode_bands(io.BytesIO(whole), 3)


@pytest.mark.parametrize(("channels", "shown"), [(1, [0] * 3), (2, [0] * 3), (5, [0, 1, 2])])
def test_a_person_sees_the_first_channels(tmp_path, channels, shown):
    levels = create_bands(channels)
    for name, array in {"8.npy": levels, "16.npy": 257 * levels.astype(np.uint16)}.items():
        np.save(tmp_path / name, array)
        np.testing.assert_allclose(read_upright(tmp_path / name, 100), levels[..., shown], atol=1)
    assert read_upright(tmp_path / "8.npy", 12).shape == (8, 12, 3)


def test_arrays_are_found_by_name_and_by_content(tmp_path):
    for name in ("a.npy", "B.NPY", "c"):
        with (tmp_path / name).open("wb") as file:
            np.save(file, create_bands(5))
    np.savez(tmp_path / "many.npz", create_bands(5))
    assert [file.name for file in list_images(tmp_path).files] == ["B.NPY", "a.npy", "c"]


@pytest.mark.parametrize("is_planar", [False, True])
@pytest.mark.parametrize("photometric", ["minisblack", "rgb"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_keeps_all_of_its_bands(monkeypatch, dtype, photometric, is_planar):
    levels = create_bands(6).astype(dtype)
    expected = decode_bands(save(levels), 6, bit_depth=12)
    file = encode_tiff(levels, photometric, is_planar)
    np.testing.assert_array_equal(decode_bands(file, 6, bit_depth=12), expected)
    file.seek(0)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ImageError, match=r"but tifffile may: pip install '\.\[tiff\]'"):
        decode_bands(file, 6)


def test_tiff_of_colors_needs_no_package(monkeypatch):
    levels = create_photo()
    file = encode_tiff(levels, "rgb")
    monkeypatch.setitem(sys.modules, "tifffile", None)
    expected = decode_bands(encode(Image.fromarray(levels), "TIFF"), 3)
    np.testing.assert_array_equal(decode_bands(file, 3), expected)


def test_damaged_tiff_of_many_bands_is_refused():
    whole, width = encode_tiff(create_bands(6)).getvalue(), struct.pack("<HHII", 256, 4, 1, 48)
    assert width in whole
    for file in (whole[:-200], whole[:4], whole.replace(width, b"")):
        with pytest.raises(ImageError):
            decode_bands(io.BytesIO(file), 6)
    huge = whole.replace(width, struct.pack("<HHII", 256, 4, 1, 2**30))
    with pytest.raises(ImageError, match="more than 100,000,000 pixels"):
        decode_bands(io.BytesIO(huge), 6)
