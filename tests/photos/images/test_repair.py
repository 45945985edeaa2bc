"""Images that lack nothing but metadata or an end marker are read, and those that lack more not."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from cls_jax.photos.images import repair
from cls_jax.photos.images.decode import decode_image, read_header
from cls_jax.photos.images.files import read_ahead
from tests.photos.helpers import assert_refused
from tests.photos.images.test_decode import chunk, create_photo, encode

SIZE = 32
SHAPE = (SIZE, SIZE, 3)
PHOTO = create_photo(2 * SIZE, 2 * SIZE)[::2, ::2]
PNG = encode(Image.fromarray(PHOTO), "PNG").getvalue()
LONG = zlib.compress(bytes(2 * 10**6))


CHUNKS = {
    "text": chunk(b"zTXt", b"Comment\0\0" + LONG),
    "international text": chunk(b"iTXt", b"Comment\0\1\0\0\0" + LONG),
    "long XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LONG),
    "damaged EXIF": chunk(b"zTXt", b"Raw profile type exif\0\0" + b"no zlib"),
    "color profile": chunk(b"iCCP", b"profile\0\0" + LONG),
    "unknown compression": chunk(b"zTXt", b"Comment\0\7" + LONG),
    "wrong checksum": chunk(b"tEXt", b"Comment\0text", checksum=1),
    "wrong checksum of EXIF": chunk(b"eXIf", b"MM\0*", checksum=1),
    "cut short": chunk(b"gAMA", b"\0") + chunk(b"cHRM", b"\0") + chunk(b"pHYs", b"\0"),
    "animation": chunk(b"acTL", bytes(8)) + chunk(b"fcTL", b"\0") + chunk(b"fdAT", b""),
}


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("place", [b"IDAT", b"IEND"])
def test_metadata_never_make_a_png_unreadable(tmp_path, name, place):
    start = PNG.index(place) - 4
    path = tmp_path / "a.png"
    path.write_bytes(PNG[:start] + CHUNKS[name] + PNG[start:])
    files = [str(path)]
    if place == b"IEND":
        files.append(PNG[:start] + CHUNKS[name][:-3])
    (batch,) = read_ahead(files, SHAPE, 2)
    assert not any(batch.errors)
    for found in batch.images:
        np.testing.assert_array_equal(found, PHOTO)
    assert read_header(path) == (SIZE, SIZE, 3)


def create_exif(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@pytest.mark.parametrize("kind", ["eXIf", "zTXt", "tEXt", "iTXt", "compressed iTXt"])
def test_the_orientation_of_a_png_stays(kind):
    exif = create_exif(3)
    profile = f"\nexif\n{len(exif):8}\n{exif.hex()}\n"
    xmp = '<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="3"/>'
    info = PngImagePlugin.PngInfo()
    options = {"exif": exif} if kind == "eXIf" else {"pnginfo": info}
    if "iTXt" in kind:
        info.add_itxt("XML:com.adobe.xmp", xmp, zip="compressed" in kind)
    else:
        info.add_text("Raw profile type exif", profile, zip=kind == "zTXt")
    content = encode(Image.fromarray(PHOTO), "PNG", **options).getvalue()
    start = content.index(b"IDAT") - 4
    content = content[:start] + CHUNKS["text"] + content[start:]
    np.testing.assert_array_equal(decode_image(io.BytesIO(content), SHAPE), PHOTO[::-1, ::-1])


def test_damaged_pixels_of_a_png_are_still_an_error():
    start = PNG.index(b"IDAT")
    for content in (
        PNG[: start + 4] + bytes(9) + PNG[start + 13 :],
        PNG[: start + 100],
        CHUNKS["text"].join((PNG[: start - 4], PNG[start - 4 : start + 100])),
    ):
        assert_refused(content, "damaged")


JPEGS = {
    "baseline": {},
    "fine": {"subsampling": 0, "quality": 95},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
    "restarts of rows": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("name", JPEGS)
def test_a_baseline_jpeg_without_its_end_is_read_if_it_has_all_pixels(name, mode):
    whole = encode(Image.fromarray(PHOTO).convert(mode), "JPEG", **JPEGS[name]).getvalue()
    expected = decode_image(io.BytesIO(whole), SHAPE)
    cuts = [1, 2, *range(3, len(whole) - whole.index(b"\xff\xda") - 20, 5)]
    fillers = [b"", bytes(10_000), 3 * b"\xff\xfe\0\4ab"]  # Nothing, zeros, and comments.
    contents = [whole[:-cut] + filler for cut in cuts for filler in fillers]
    (batch,) = read_ahead(contents, SHAPE, len(contents))
    assert [error is None for error in batch.errors[:6]] == [name != "progressive"] * 6
    for found in batch.images:
        np.testing.assert_array_equal(found, expected)
    errors = [error for error in batch.errors if error]
    assert all(error.startswith("damaged") for error in errors)
    assert len(errors) > len(contents) / 2


def test_large_jpegs_without_their_end(monkeypatch):
    monkeypatch.setattr(repair, "LARGE_PIXELS", 100)
    for name, options in JPEGS.items():
        whole = encode(Image.fromarray(PHOTO), "JPEG", **options).getvalue()
        expected = decode_image(io.BytesIO(whole), SHAPE)
        assert_refused(whole[: len(whole) * 9 // 10], "damaged: truncated")
        if name == "progressive":
            assert_refused(whole[:-2], "damaged: truncated")
        else:
            found = decode_image(io.BytesIO(whole[:-2]), SHAPE)
            np.testing.assert_array_equal(found, expected)


def test_what_follows_the_end_of_a_jpeg_and_runs_of_ff_do_not_matter():
    whole = encode(Image.fromarray(PHOTO), "JPEG", exif=create_exif(1)).getvalue()
    expected = decode_image(io.BytesIO(whole), SHAPE)
    run = b"\xff" * 2**22
    contents = [whole + more for more in (b"\0", b"video" * 1000, whole[:300], run)]
    for content in (*contents, whole[:-2] + run, whole[:-2] + run + whole[-2:]):
        np.testing.assert_array_equal(decode_image(io.BytesIO(content), SHAPE), expected)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8" + 2**19 * b"\xff\xfe\0\2",
        b"\xff\xd8" + bytes([0xFF]) * 2**20,
        b"\xff\xd8\xff" + 2**19 * b"\0\xff",
        PNG[:8] + 2**19 * chunk(b"tEXt", b""),
        b"GIF89a" + bytes(7) + 2**18 * b"!\xfe\1x\0",
        b"II+\0\10\0\0\0\x10\0\0\0\0\0\0\0" + struct.pack("<Q", 2**19) + bytes(20 * 2**19),
    ],
    ids=["comments", "ff", "junk", "PNG", "GIF", "BigTIFF"],
)
def test_a_file_of_nothing_but_small_parts_is_refused_before_all_are_read(content):
    assert_refused(content, r"no pixels among its first|more than [\d,]+ parts")
