"""Every kind of image file comes out as a person sees it."""

import io
import os
import struct
import unittest.mock
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from cls_jax.data.images import decode
from cls_jax.data.images.decode import (
    DecodeOptions,
    ImageError,
    decode_image,
    find_bit_depth,
    read_image,
    read_upright,
)

SIZE = 16
SHAPE = (SIZE, SIZE, 3)
RNG = np.random.default_rng(0)


def create_photo(width=48, height=32):
    """Smooth, so that lossy formats and different ways to scale agree."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack(
        [255 * x / width, 255 * y / height, 127 + 120 * np.sin(x / 9) * np.cos(y / 7)], axis=-1
    ).astype(np.uint8)


def encode(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    file.seek(0)
    return file


def decode_in_strips(monkeypatch):
    """Images of a few thousand pixels are decoded in strips, like images of millions."""
    monkeypatch.setattr(decode, "_LARGE_PIXELS", 500)
    monkeypatch.setattr(decode, "_STRIP_PIXELS", 500)


def expect(image):
    """What Pillow alone makes of an image in RGB."""
    return np.asarray(ImageOps.fit(image, (SIZE, SIZE), Image.Resampling.BICUBIC)).astype(int)


@pytest.mark.parametrize(
    "case",
    [
        *("RGB JPEG", "RGB PNG", "RGB WEBP", "RGB BMP", "RGB GIF", "RGB TIFF", "L PNG", "L JPEG"),
        *("1 PNG", "P PNG", "P GIF", "CMYK JPEG", "LA PNG", "RGBA PNG", "RGBA WEBP"),
    ],
)
def test_modes_and_formats(case):
    mode, format = case.split()
    file = encode(Image.fromarray(create_photo()).convert(mode), format)
    decoded = decode_image(file, SHAPE)
    assert (decoded.shape, decoded.dtype) == (SHAPE, np.uint8)
    np.testing.assert_allclose(decoded, expect(Image.open(file).convert("RGB")), atol=2)


@pytest.mark.parametrize(
    "size", [(48, 32), (32, 48), (16, 16), (400, 300), (1500, 1000), (7, 5), (900, 1)]
)
def test_any_size_is_scaled_with_its_aspect_and_cropped_to_its_center(size):
    photo = Image.fromarray(create_photo(*size))
    np.testing.assert_allclose(decode_image(encode(photo, "PNG"), SHAPE), expect(photo), atol=5)
    if min(size) > 5:
        file = encode(photo, "JPEG")
        np.testing.assert_allclose(decode_image(file, SHAPE), expect(Image.open(file)), atol=5)


def test_image_of_the_wanted_size_stays_as_it_is():
    noise = Image.fromarray(RNG.integers(0, 256, SHAPE, dtype=np.uint8))
    file = encode(noise, "PNG")
    np.testing.assert_array_equal(decode_image(file, SHAPE), np.asarray(noise))
    gray = decode_image(file, (SIZE, SIZE, 1))
    np.testing.assert_array_equal(gray[..., 0], np.asarray(noise.convert("L")))


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_what_is_transparent_is_white(format):
    photo = Image.fromarray(create_photo()).convert("RGBA")
    photo.putalpha(Image.fromarray((create_photo()[..., 0] > 127).astype(np.uint8) * 255))
    on_white = Image.alpha_composite(Image.new("RGBA", photo.size, "white"), photo)
    decoded = decode_image(encode(photo, format, lossless=True), SHAPE)
    np.testing.assert_allclose(decoded, expect(on_white.convert("RGB")), atol=60)  # At the edge.
    assert np.abs(decoded - expect(on_white.convert("RGB"))).mean() < 3
    assert (decoded[:, 0] == 255).all()


def test_transparent_color_of_a_palette_is_white():
    levels = np.zeros((SIZE, SIZE), np.uint8)
    levels[:, SIZE // 2 :] = 1
    image = Image.fromarray(levels, "L").convert("P")
    image.putpalette([255, 0, 0, 0, 0, 255])
    decoded = decode_image(encode(image, "PNG", transparency=0), SHAPE)
    assert (decoded[:, 0] == 255).all()
    assert (decoded[:, -1] == (0, 0, 255)).all()


@pytest.mark.parametrize("size", [(200, 120), (120, 200), (16, 16), (900, 2)])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("is_large", [False, True])
def test_padding_and_stretching_keep_the_sides(monkeypatch, size, format, is_large):
    photo = Image.fromarray(create_photo(*size))
    if is_large:
        decode_in_strips(monkeypatch)
    file = encode(photo, format, quality=95)
    photo = Image.open(file)
    photo.load()
    stretched = photo.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    decoded = decode_image(file, SHAPE, DecodeOptions("stretch")).astype(int)
    np.testing.assert_allclose(decoded, np.asarray(stretched), atol=12)
    file.seek(0)
    width, height = (max(round(SIZE * side / max(size)), 1) for side in size)
    padded = Image.new("RGB", (SIZE, SIZE), (127, 127, 127))
    small = photo.resize((width, height), Image.Resampling.BICUBIC)
    padded.paste(small, ((SIZE - width) // 2, (SIZE - height) // 2))
    decoded = decode_image(file, SHAPE, DecodeOptions("pad")).astype(int)
    np.testing.assert_allclose(decoded, np.asarray(padded), atol=12)


@pytest.mark.parametrize(("progressive", "is_alone"), [(False, False), (True, True)])
def test_only_progressive_jpegs_wait_for_each_other(monkeypatch, progressive, is_alone):
    monkeypatch.setattr(decode, "_LARGE_PIXELS", 1000)
    lock = unittest.mock.MagicMock()
    monkeypatch.setattr(decode, "_LARGE_IMAGES", lock)
    decode_image(encode(Image.fromarray(create_photo()), "JPEG", progressive=progressive), SHAPE)
    assert lock.__enter__.called == is_alone


def pack_png(size, depth, color_type, data):
    """A PNG of compressed rows."""
    header = struct.pack(">IIBBBBB", *size, depth, color_type, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, part in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + part))
        png += struct.pack(">I", len(part)) + kind + part + checksum
    return png


def encode_png(levels):
    """A PNG of uint16 [H, W, 3 or 4], which Pillow cannot write."""
    height, width, channels = levels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)
    return io.BytesIO(pack_png((width, height), 16, {3: 2, 4: 6}[channels], zlib.compress(rows)))


def encode_tiff(levels, photometric="minisblack", is_planar=False, order="<"):
    """A TIFF. Pillow can write neither three channels of 16 bits nor more than four channels."""
    tifffile, file = pytest.importorskip("tifffile"), io.BytesIO()
    planes = np.moveaxis(levels, -1, 0) if is_planar else levels
    options = {"planarconfig": "separate" if is_planar else "contig", "metadata": None}
    tifffile.imwrite(file, planes, byteorder=order, photometric=photometric, **options)
    file.seek(0)
    return file


# Files of 16 bits per value, made of levels uint16 [H, W, 3].
DEEP = {
    "PNG": encode_png,
    "TIFF": lambda levels: encode_tiff(levels, "rgb"),
    "big-endian TIFF": lambda levels: encode_tiff(levels, "rgb", order=">"),
    "TIFF by libtiff": lambda levels: encode_tiff(levels, "rgb"),
    "gray PNG": lambda levels: encode(Image.fromarray(levels[..., 0]), "PNG"),
    "gray TIFF": lambda levels: encode(Image.fromarray(levels[..., 0]), "TIFF"),
}


@pytest.mark.parametrize("format", DEEP)
@pytest.mark.parametrize("is_large", [False, True])
def test_16_bits_keep_their_brightness(tmp_path, monkeypatch, format, is_large):
    if "libtiff" in format:
        monkeypatch.setattr(TiffImagePlugin, "READ_LIBTIFF", True)
    if is_large:
        decode_in_strips(monkeypatch)
    photo = create_photo(200, 120)
    shown = Image.fromarray(photo[..., 0] if "gray" in format else photo).convert("RGB")
    whole = DEEP[format](photo.astype(np.uint16) * 257)
    np.testing.assert_allclose(decode_image(whole, SHAPE), expect(shown), atol=3)
    dark = DEEP[format](photo.astype(np.uint16) * 16)  # 12 bits of 16.
    options = DecodeOptions(bit_depth=12)
    np.testing.assert_allclose(decode_image(dark, SHAPE, options), expect(shown), atol=4)
    (tmp_path / "dark").write_bytes(dark.getvalue())
    (tmp_path / "whole").write_bytes(whole.getvalue())
    Image.fromarray(photo).save(tmp_path / "8 bits.png")
    assert find_bit_depth([tmp_path / name for name in ("dark", "8 bits.png", "missing")]) == 12
    assert find_bit_depth([tmp_path / "dark", tmp_path / "whole"]) == 16
    assert find_bit_depth([tmp_path / "8 bits.png"]) == 16
    upright = read_upright(tmp_path / "dark", 40, bit_depth=12)
    assert upright.shape == (24, 40, 3)
    assert upright.max() > 240


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("photometric", ["minisblack", "rgb"])
@pytest.mark.parametrize("is_planar", [False, True])
def test_tiff_of_many_bands_is_refused(dtype, photometric, is_planar):
    """Pillow would take the first three of some for colors."""
    levels = np.zeros((20, 30, 6), dtype)
    with pytest.raises(ImageError, match="a TIFF that is neither gray nor in color"):
        decode_image(encode_tiff(levels, photometric, is_planar), SHAPE)


def test_opaque_image_with_12_bits_of_color_stays_opaque():
    levels = np.full((20, 20, 4), 2048, np.uint16)
    levels[..., 3] = 65535
    decoded = decode_image(encode_png(levels), SHAPE, DecodeOptions(bit_depth=12))
    assert set(decoded.ravel()) == {128}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("is_large", [False, True])
def test_photos_are_turned_upright(monkeypatch, format, orientation, is_large):
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo = Image.fromarray(create_photo(200, 120))
    file = encode(photo, format, exif=exif)
    if is_large:
        decode_in_strips(monkeypatch)
    upright = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    assert (upright.size == photo.size) == (orientation < 5)
    file.seek(0)
    np.testing.assert_allclose(decode_image(file, SHAPE), expect(upright), atol=6)


def test_damaged_metadata_do_no_harm():
    photo = Image.fromarray(create_photo())
    file = encode(photo, "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # As `cls_jax.data.images.decode` has it outside pytest.
        decoded = decode_image(file, SHAPE)
    np.testing.assert_allclose(decoded, expect(photo), atol=8)


@pytest.mark.parametrize("format", ["GIF", "WEBP"])
def test_first_frame_of_an_animation(format):
    frames = [Image.new("RGB", (20, 20), color) for color in ("red", "lime", "blue")]
    file = encode(frames[0], format, save_all=True, append_images=frames[1:])
    np.testing.assert_allclose(decode_image(file, SHAPE), np.full(SHAPE, (255, 0, 0)), atol=3)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_what_is_not_a_whole_image_is_named(format):
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    whole = encode(noise, format).getvalue()
    for content in (whole[: len(whole) // 2], whole[:8], b"", b"a text"):
        with pytest.raises(ImageError, match=r"damaged|not an image"):
            decode_image(io.BytesIO(content), SHAPE)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "I;16"])
def test_large_image_is_converted_in_strips(monkeypatch, mode):
    photo = Image.fromarray(create_photo(900, 600))
    levels = np.asarray(photo.convert("L"), np.uint16) * 257
    photo = Image.fromarray(levels) if mode == "I;16" else photo.convert(mode)
    file = encode(photo, "PNG")
    whole = decode_image(file, SHAPE).astype(int)
    decode_in_strips(monkeypatch)
    file.seek(0)
    np.testing.assert_allclose(decode_image(file, SHAPE), whole, atol=2)


def test_pipes_endless_scans_floating_point_and_too_large_files_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ImageError, match="not a regular file"):
        read_image(tmp_path / "pipe.jpg", SHAPE)
    with pytest.raises(ImageError, match="floating-point"):
        decode_image(encode(Image.new("F", (8, 8)), "TIFF"), SHAPE)
    scans = encode(Image.new("L", (2000, 2000)), "JPEG", progressive=True).getvalue()
    last = scans[scans.rindex(b"\xff\xda") : -2]
    assert decode_image(io.BytesIO(scans), SHAPE).shape == SHAPE
    # With comments, so that the reading of blocks of 1 MiB cuts a scan's mark in two.
    sizes = map(len, np.array_split(np.zeros(2**20 + 1 - len(scans)), 20))
    comments = b"".join(b"\xff\xfe" + (n - 2).to_bytes(2, "big") + bytes(n - 4) for n in sizes)
    number = f"{scans.count(bytes([255, 218])) + 1000:,}"
    for start in (scans[:2], scans[:2] + comments):
        with pytest.raises(ImageError, match=f"{number} scans"):
            decode_image(io.BytesIO(start + scans[2:-2] + 1000 * last + scans[-2:]), SHAPE)
    monkeypatch.setattr(decode, "_MAX_WEBP_PIXELS", 1000)
    with pytest.raises(ImageError, match="more than 1,000 pixels"):
        decode_image(encode(Image.new("RGB", (40, 40)), "WEBP"), SHAPE)
    (tmp_path / "a.png").write_bytes(bytes(200))
    monkeypatch.setattr(decode, "_MAX_FILE_BYTES", 100)
    with pytest.raises(ImageError, match="more than 100 bytes"):
        read_image(tmp_path / "a.png", SHAPE)
