"""Every kind of image file is decoded as displayed, also if all but its pixels is damaged."""

import io
import os
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from cls_jax.data.resize import DecodeOptions, ImageError
from cls_jax.errors import UserError
from cls_jax.photos.images import decode, repair
from cls_jax.photos.images import files as files_module
from cls_jax.photos.images.decode import decode_image
from cls_jax.photos.images.files import find_images, read_ahead
from tests.photos.helpers import assert_refused, read_image, write_image

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
def test_modes_and_formats_also_with_damaged_metadata(case):
    mode, format = case.split()
    damaged = {"exif": b"Exif\0\0damaged"} if format in ("JPEG", "PNG", "WEBP") else {}
    file = encode(Image.fromarray(create_photo()).convert(mode), format, **damaged)
    decoded = decode_image(file, SHAPE)
    assert (decoded.shape, decoded.dtype) == (SHAPE, np.uint8)
    np.testing.assert_allclose(decoded, expect(Image.open(file).convert("RGB")), atol=2)


@pytest.mark.parametrize("size", [(48, 32), (16, 16), (300, 400), (1500, 1000), (7, 5), (900, 1)])
def test_any_size_is_scaled_with_its_aspect_and_cropped_to_its_center(size):
    photo = Image.fromarray(create_photo(*size))
    np.testing.assert_allclose(decode_image(encode(photo, "PNG"), SHAPE), expect(photo), atol=5)
    if min(size) > 5:
        file = encode(photo, "JPEG")
        np.testing.assert_allclose(decode_image(file, SHAPE), expect(Image.open(file)), atol=5)
    if size == (SIZE, SIZE):  # It stays as it is.
        np.testing.assert_array_equal(decode_image(encode(photo, "PNG"), SHAPE), np.asarray(photo))
        gray = decode_image(encode(photo, "PNG"), (SIZE, SIZE, 1))
        np.testing.assert_array_equal(gray[..., 0], np.asarray(photo.convert("L")))


@pytest.mark.parametrize("size", [(200, 120), (120, 200), (16, 16), (900, 2)])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.usefixtures("in_strips")
def test_padding_and_stretching_keep_the_sides(size, format):
    file = encode(Image.fromarray(create_photo(*size)), format, quality=95)
    photo = Image.open(io.BytesIO(file.getvalue()))
    stretched = photo.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    width, height = (max(round(SIZE * side / max(size)), 1) for side in size)
    padded = Image.new("RGB", (SIZE, SIZE), (127, 127, 127))
    small = photo.resize((width, height), Image.Resampling.BICUBIC)
    padded.paste(small, ((SIZE - width) // 2, (SIZE - height) // 2))
    for name, expected in (("stretch", stretched), ("pad", padded)):
        decoded = decode_image(file, SHAPE, DecodeOptions(name)).astype(int)
        np.testing.assert_allclose(decoded, np.asarray(expected), atol=12)


def chunk(kind, content, checksum=None):
    """A part of a PNG."""
    checksum = zlib.crc32(kind + content) if checksum is None else checksum
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def pack_png(size, depth, color_type, data, *others):
    """A PNG of compressed rows, with other chunks before them, each its kind and content."""
    header = struct.pack(">IIBBBBB", *size, depth, color_type, 0, 0, 0)
    parts = (b"IHDR", header), *others, (b"IDAT", data), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, content) for kind, content in parts)


MODES = ("1", "L", "P", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV", "LA", "La")
MODES += ("PA", "I", "F", "I;16", "I;16L", "I;16B")
# Pillow's options of formats that keep every pixel.
LOSSLESS = {
    "PNG": [{}, {"transparency": 7}, {"transparency": (7, 7, 7)}, {"bits": 4}, {"bits": 2}],
    "BMP": [{}],
    "DIB": [{}],
    "GIF": [{}, {"transparency": 7}],
    "WEBP": [{"lossless": True, "exact": True}],
    "TIFF": [{"compression": name} for name in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits")]
    + [{"compression": name} for name in ("group3", "group4", "tiff_deflate")],
}


@pytest.mark.parametrize("format", LOSSLESS)
@pytest.mark.parametrize("mode", MODES)
def test_what_pillow_writes_is_read_as_written_or_refused(format, mode):
    photo = create_photo(SIZE * 2, SIZE * 2)[::2, ::2]
    if mode.startswith("I;16"):
        image = Image.fromarray(photo[..., 0].astype(np.uint16) * 257)
        image = image if mode == "I;16" else image.convert("I").convert(mode)
    else:
        image = Image.fromarray(photo)
        for step in {"La": ("LA", "La"), "RGBa": ("RGBA", "RGBa"), "PA": ("P", "PA")}.get(
            mode, (mode,)
        ):
            try:
                image = image.convert(step)
            except ValueError:  # Such as LAB.
                image = Image.merge(mode, [image.getchannel(i % 3) for i in range(3)])
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.fromarray(np.where(photo[..., 1] > 99, 255, 0).astype(np.uint8)))
    for options in LOSSLESS[format]:
        try:
            file = encode(image, format, **options)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SystemError):
            continue  # Pillow does not write it.
        (batch,) = read_ahead([file.getvalue()], SHAPE, 1)
        (reason,) = batch.errors
        if reason:
            assert mode in ("I", "F", "LAB"), (options, reason)
            continue
        with Image.open(file) as written:  # Pillow may have changed it as it wrote.
            is_deep = written.mode.startswith("I")
            shown = Image.fromarray(photo[..., 0]) if is_deep else written.convert("RGBA")
        white = Image.new("RGBA", shown.size, "white")
        shown = Image.alpha_composite(white, shown.convert("RGBA")).convert("RGB")
        difference = np.abs(batch.images[0].astype(int) - np.asarray(shown))
        assert difference.max() <= 1, options


@pytest.mark.parametrize(
    ("color_type", "depth"),
    [*((0, depth) for depth in (1, 2, 4, 8, 16)), *((kind, 8) for kind in (2, 4, 6))]
    + [(kind, 16) for kind in (2, 4, 6)],
)
@pytest.mark.parametrize("used", [12, 16])
@pytest.mark.usefixtures("in_strips")
def test_every_png_is_read_as_displayed(tmp_path, color_type, depth, used):
    """All colors and transparency of all depths: Pillow loses some of it."""
    num_colors, most = 1 if color_type in (0, 4) else 3, 2**depth - 1
    photo = create_photo(SIZE * 2, SIZE * 2)[::2, ::2, :num_colors]
    levels = photo.astype(np.uint32) * most // 255
    shown = np.rint(255 * levels / most)
    if depth == 16:
        levels >>= 16 - used
    transparent = levels[3, 5]
    is_clear = (levels == transparent).all(axis=-1, keepdims=True)
    others = []
    if color_type > 2:
        is_clear = np.indices(is_clear.shape)[0] % 3 == 0
        levels = np.concatenate([levels, np.where(is_clear, 0, most)], axis=-1)
    else:
        others = [(b"tRNS", transparent.astype(">u2").tobytes())]
    big_endian = levels.astype(">u2" if depth == 16 else np.uint8)
    rows = big_endian.view(np.uint8).reshape(SIZE, -1)
    if depth < 8:  # Several pixels in a byte.
        bits = np.unpackbits(rows[..., None], axis=-1)[..., 8 - depth :]
        rows = np.packbits(bits.reshape(SIZE, -1), axis=1)
    path, data = tmp_path / "a.png", b"".join(b"\0" + row.tobytes() for row in rows)
    path.write_bytes(pack_png((SIZE, SIZE), depth, color_type, zlib.compress(data), *others))
    found = read_image(path, SHAPE, DecodeOptions(bit_depth=used)).astype(int)
    expected = np.broadcast_to(np.where(is_clear, 255, shown), SHAPE)
    assert np.abs(found - expected).max() <= 1
    assert decode.read_header(path) == (SIZE, SIZE, 3)
    if depth == 16:
        assert decode.find_bit_depth([path]) == used
        if used == 16:
            assert np.abs(decode.read_upright(path, SIZE).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.usefixtures("in_strips")
def test_photos_are_turned_upright(format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo = Image.fromarray(create_photo(200, 120))
    file = encode(photo, format, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(file.getvalue()))).convert("RGB")
    assert (upright.size == photo.size) == (orientation < 5)
    np.testing.assert_allclose(decode_image(file, SHAPE), expect(upright), atol=6)


@pytest.mark.parametrize("format", ["GIF", "WEBP"])
def test_first_frame_of_an_animation(format):
    frames = [Image.new("RGB", (20, 20), color) for color in ("red", "lime", "blue")]
    file = encode(frames[0], format, save_all=True, append_images=frames[1:])
    np.testing.assert_allclose(decode_image(file, SHAPE), np.full(SHAPE, (255, 0, 0)), atol=3)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "AVIF", "HEIF"])
def test_what_is_not_a_whole_image_is_named(format):
    if format == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    noise = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    whole = encode(noise, format).getvalue()
    for content in (whole[: len(whole) // 2], whole[:8], b"", b"a text"):
        assert_refused(content, r"damaged|not an image")


def test_pipes_endless_scans_floating_point_and_too_large_files_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ImageError, match="not a regular file"):
        read_image(tmp_path / "pipe.jpg", SHAPE)
    assert_refused(encode(Image.new("F", (8, 8)), "TIFF"), "floating-point")
    scans = encode(Image.new("L", (2000, 2000)), "JPEG", progressive=True).getvalue()
    last = scans[scans.rindex(b"\xff\xda") : -2]
    assert decode_image(io.BytesIO(scans), SHAPE).shape == SHAPE
    number = f"{scans.count(bytes([255, 218])) + 1000:,}"
    assert_refused(scans[:-2] + 1000 * last + scans[-2:], f"{number} scans")
    monkeypatch.setattr(decode, "_MAX_WEBP_PIXELS", 1000)
    assert_refused(encode(Image.new("RGB", (40, 40)), "WEBP"), "more than 1,000 pixels")
    (tmp_path / "a.png").write_bytes(bytes(200))
    monkeypatch.setattr(decode, "MAX_FILE_BYTES", 100)
    with pytest.raises(ImageError, match="more than 100 bytes"):
        read_image(tmp_path / "a.png", SHAPE)


def put(path, level=255, format=None):
    """Writes a red picture and returns where."""
    return write_image(path, np.full((8, 8, 3), (level, 0, 0)), format)


def test_every_file_that_is_listed_can_be_decoded(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    readable = ["avif", "bmp", "dib", "gif", "heic", "heif", "jfif", "jpe", "jpeg", "jpg", "png"]
    readable += ["tif", "tiff", "webp"]
    others = ["jp2", "pbm", "pgm", "ppm", "tga"]  # Pillow reads them, we do not.
    for name in readable + others:
        try:
            put(tmp_path / f"image.{name}")
        except (OSError, KeyError, ValueError):  # A Pillow without this format.
            (tmp_path / f"image.{name}").write_text("a format that cannot be read")
    assert find_images(str(tmp_path)) == [f"{tmp_path}/image.{name}" for name in readable]
    for name in readable:
        assert read_image(tmp_path / f"image.{name}", SHAPE).shape == SHAPE
    for name in others:
        with pytest.raises(ImageError, match="not an image of a known format"):
            read_image(tmp_path / f"image.{name}", SHAPE)


def test_folder_glob_and_file_stand_for_each_image_once(tmp_path):
    folder = tmp_path / "folder"
    for name in ["b.png", "a.JPG", "sub/deep/c.webp", "notes.txt", "sub/labels.csv"]:
        put(folder / name, format="png")
    os.symlink(folder, folder / "sub" / "loop")
    names = [os.path.relpath(file, folder) for file in find_images(str(folder))]
    assert names == ["a.JPG", "b.png", "sub/deep/c.webp"]
    os.symlink(folder / "b.png", folder / "sub" / "link.png")
    brackets = put(folder / "a[1].png")  # A name, not a pattern.
    for pattern, found in (
        ("*.png", ["a[1].png", "b.png"]),
        ("**/*.png", ["a[1].png", "b.png", "sub/link.png"]),
        ("sub/**/c.*", ["sub/deep/c.webp"]),
        ("notes.t*", ["notes.txt"]),
        (brackets.name, ["a[1].png"]),
    ):
        assert find_images(f"{folder}/{pattern}") == [f"{folder}/{name}" for name in found]
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none", r"There is no file .*/none.*: pass a folder"),
        ("*.png", r"There is no file .*/\*.png"),
        ("empty", r"There is no image in .*: pass a folder"),
    ):
        with pytest.raises(UserError, match=message):
            find_images(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("a.heic", "pip install '.[heif]'"), ("a.avif", "pip install --upgrade pillow")],
)
def test_image_whose_reader_is_missing_names_the_package(tmp_path, monkeypatch, name, remedy):
    pytest.importorskip("pillow_heif").register_heif_opener()
    path = put(tmp_path / name)
    monkeypatch.setattr(decode, "_get_formats", lambda: ("JPEG", "PNG"))
    (batch,) = read_ahead(find_images(str(tmp_path)), SHAPE, 1)
    assert batch.files == [str(path)]
    assert remedy in batch.errors[0]


def test_copies_are_decoded_once(tmp_path, monkeypatch):
    def decode_slowly(*args):
        time.sleep(0.1)
        return decode_image(*args)

    monkeypatch.setattr(files_module, "decode_image", decode_slowly)
    copies = [put(tmp_path / "a.png")] * 8  # Several threads read them at once.
    (batch,) = read_ahead(copies, SHAPE, 8, is_known=lambda _: False)
    assert sorted(batch.errors, key=str) == [""] * 7 + [None]
    assert len(batch.images) == 1


def test_read_ahead_keeps_the_order_and_the_errors_and_ends_its_threads(tmp_path):
    files = [str(put(tmp_path / f"{i}.png", level=i)) for i in range(7)]
    (tmp_path / "4.png").write_text("no image")
    batches = list(read_ahead(files, SHAPE, 3))
    assert [batch.files for batch in batches] == [files[:3], files[3:6], files[6:]]
    assert [batch.images[:, 0, 0, 0].tolist() for batch in batches] == [[0, 1, 2], [3, 5], [6]]
    assert [error is None for batch in batches for error in batch.errors] == [
        *([True] * 4), False, True, True
    ]  # fmt: skip
    assert list(read_ahead([], SHAPE, 3)) == []
    num_threads = threading.active_count()
    batches = read_ahead(files[:1] * 1000, SHAPE, 10)
    next(batches)
    batches.close()  # It is left early.
    assert threading.active_count() == num_threads


PHOTO = create_photo(64, 64)[::2, ::2]
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
    (batch,) = read_ahead(files, PHOTO.shape, 2)
    assert not any(batch.errors)
    for found in batch.images:
        np.testing.assert_array_equal(found, PHOTO)
    assert decode.read_header(path) == PHOTO.shape


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
    np.testing.assert_array_equal(decode_image(io.BytesIO(content), PHOTO.shape), PHOTO[::-1, ::-1])


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
    expected = decode_image(io.BytesIO(whole), PHOTO.shape)
    cuts = [1, 2, *range(3, len(whole) - whole.index(b"\xff\xda") - 20, 5)]
    fillers = [b"", bytes(10_000), 3 * b"\xff\xfe\0\4ab"]  # Nothing, zeros, and comments.
    contents = [whole[:-cut] + filler for cut in cuts for filler in fillers]
    (batch,) = read_ahead(contents, PHOTO.shape, len(contents))
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
        expected = decode_image(io.BytesIO(whole), PHOTO.shape)
        assert_refused(whole[: len(whole) * 9 // 10], "damaged: truncated")
        if name == "progressive":
            assert_refused(whole[:-2], "damaged: truncated")
        else:
            found = decode_image(io.BytesIO(whole[:-2]), PHOTO.shape)
            np.testing.assert_array_equal(found, expected)


def test_what_follows_the_end_of_a_jpeg_and_runs_of_ff_do_not_matter():
    whole = encode(Image.fromarray(PHOTO), "JPEG", exif=create_exif(1)).getvalue()
    expected = decode_image(io.BytesIO(whole), PHOTO.shape)
    run = b"\xff" * 2**22
    contents = [whole + more for more in (b"\0", b"video" * 1000, whole[:300], run)]
    for content in (*contents, whole[:-2] + run, whole[:-2] + run + whole[-2:]):
        np.testing.assert_array_equal(decode_image(io.BytesIO(content), PHOTO.shape), expected)


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
