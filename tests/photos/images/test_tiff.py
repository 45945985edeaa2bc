"""Every TIFF that tifffile writes is read as it was written, or refused."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.resize import TRANSPOSITIONS, DecodeOptions, ImageError
from cls_jax.photos.images import decode, tiff
from cls_jax.photos.images.decode import decode_image, describe_unread, read_upright
from cls_jax.photos.images.files import read_ahead
from tests.photos.helpers import assert_refused, read_image

tifffile = pytest.importorskip("tifffile")
SIZE = 24  # A tile and a half.
SHAPE = (SIZE, SIZE, 3)
ROWS, COLUMNS = np.mgrid[0:SIZE, 0:SIZE]
RGB = np.stack([COLUMNS * 11, ROWS * 11, (ROWS + COLUMNS) * 5], axis=-1).astype(np.uint8)
GRAY = RGB.mean(axis=-1, keepdims=True).astype(np.uint8)
ALPHA = np.where(ROWS // 4 % 2, 0, 255).astype(np.uint8)[..., None]
GRAYS = ("minisblack", "miniswhite")
PHOTOMETRICS = (*GRAYS, "rgb", "palette", "separated", "ycbcr", "cielab", "cfa", "mask", "logl")
DTYPES = ("bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "f2", "f4", "f8")
EXTRAS = (None, "unspecified", "assocalpha", "unassalpha")
# Further ways to store the same, in turn: BigTIFF, strips or tiles, compression.
WAYS = list(
    itertools.product(
        (False, True),
        ({}, {"rowsperstrip": 5}, {"tile": (16, 16)}),
        ({}, {"compression": "zlib"}, {"compression": "zlib", "predictor": True}),
    )
)


def to_lab(colors):
    """CIELab with white D50 of sRGB uint8, as a TIFF stores it."""
    values = colors / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    matrix = [[0.43607, 0.38506, 0.14308], [0.2225, 0.71688, 0.06062], [0.01393, 0.0971, 0.71417]]
    xyz = linear @ np.transpose(matrix) / [0.96422, 1, 0.82521]
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), -1, 0)
    lab = np.stack([2.55 * (116 * y - 16), 500 * (x - y), 200 * (y - z)], axis=-1)
    return (np.rint(lab).astype(int) % 256).astype(np.uint8)


def widen(values, dtype):
    """Values of 8 bits in another type, in which as many are white."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return values >= 128
    if kind.kind == "f":
        return (values / 255).astype(kind)
    return values.astype(kind) * kind.type(int(np.iinfo(kind).max) // 255)


def create(photometric, dtype, extra=None, used_bits=None):
    """Values [h, w, samples] and the image that they show, uint8 [h, w, 3]."""
    shown = RGB if photometric in ("rgb", "separated", "ycbcr", "cielab") else GRAY
    values = shown
    if photometric == "miniswhite":
        values = 255 - GRAY
    elif photometric == "separated":
        values = np.concatenate([255 - RGB, 0 * GRAY], axis=-1)
    elif photometric == "ycbcr":
        values = np.asarray(Image.fromarray(RGB).convert("YCbCr"))
    elif photometric == "cielab":
        values = to_lab(RGB)
    if dtype == "bool":
        shown = np.where((values >= 128) == (photometric != "miniswhite"), 255, 0)
    if extra == "assocalpha":
        values = np.where(ALPHA > 0, values, 0)
    if extra not in (None, "unspecified"):
        shown = np.where(ALPHA > 0, shown, 255)
    wide, alpha = widen(values, dtype), widen(ALPHA, dtype)
    if used_bits:
        wide >>= 16 - used_bits
    return (wide if extra is None else np.concatenate([wide, alpha], axis=-1)), shown[..., :3]


def write(values, photometric, extra=None, is_planar=False, order="<", big=False, **options):
    file = io.BytesIO()
    if is_planar:
        values = np.moveaxis(values, -1, 0)
    elif values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim == 3:
        options["planarconfig"] = "separate" if is_planar else "contig"
    if extra:
        options["extrasamples"] = [extra]
    if photometric == "palette":
        options["colormap"] = np.repeat(257 * np.arange(256, dtype=np.uint16)[None], 3, axis=0)
    options |= {"byteorder": order, "bigtiff": big, "metadata": None}
    tifffile.imwrite(file, values, photometric=photometric, **options)
    file.seek(0)
    return file


def can_be_read(photometric, dtype, extra, is_planar):
    """What must not be refused."""
    if photometric in (*GRAYS, "rgb"):
        return dtype in ("u1", "u2") or (dtype == "bool" and photometric in GRAYS and not extra)
    if photometric == "separated":
        return dtype in ("u1", "u2") and extra in (None, "unspecified")
    return (
        photometric in ("palette", "ycbcr", "cielab") and dtype == "u1" and not (extra or is_planar)
    )


@pytest.mark.parametrize("photometric", PHOTOMETRICS)
def test_what_tifffile_writes_is_read_as_written_or_refused(photometric):
    ways = itertools.cycle(WAYS)
    num_read = 0
    for dtype, extra, is_planar, order in itertools.product(DTYPES, EXTRAS, (False, True), "<>"):
        if is_planar and photometric in (*GRAYS, "palette", "cfa", "mask", "logl") and not extra:
            continue  # A single plane.
        values, shown = create(photometric, dtype, extra)
        big, layout, compression = next(ways)
        try:
            file = write(values, photometric, extra, is_planar, order, big, **layout, **compression)
        except (ValueError, TypeError, KeyError, NotImplementedError):
            continue  # tifffile does not write it either.
        case = (dtype, extra, is_planar, order, big, layout, compression)
        (batch,) = read_ahead([file.getvalue()], SHAPE, 1)
        (reason,) = batch.errors
        if reason:
            assert "TIFF" in reason or "range is unknown" in reason, case
            if can_be_read(photometric, dtype, extra, is_planar):
                assert (big, order) == (True, ">"), (case, reason)
            continue
        num_read += 1
        difference = np.abs(batch.images[0].astype(int) - shown)
        if photometric == "cielab":  # 8 bits are few for dark colors.
            assert difference.mean() < 2, case
        else:
            assert difference.max() <= (3 if photometric == "ycbcr" else 1), case
    assert (num_read > 0) == (photometric not in ("cfa", "mask", "logl"))


@pytest.mark.parametrize("photometric", ["miniswhite", "minisblack", "rgb", "separated"])
@pytest.mark.usefixtures("in_strips")
def test_12_bits_of_16_keep_their_brightness(tmp_path, photometric):
    path = tmp_path / "a.tif"
    for extra, is_planar, (_, layout, compression) in itertools.product(
        (None, "unassalpha"), (False, True), WAYS[:9]
    ):
        if photometric == "separated" and extra:
            continue
        values, shown = create(photometric, "u2", extra, used_bits=12)
        if values.shape[2] > 1 or not is_planar:
            file = write(values, photometric, extra, is_planar, **layout, **compression)
            path.write_bytes(file.getvalue())
            found = read_image(path, SHAPE, DecodeOptions(bit_depth=12)).astype(int)
            assert np.abs(found - shown).max() <= 1
            if (photometric, is_planar) != ("separated", False):
                assert decode.find_bit_depth([path]) == 12
    assert decode.read_upright(path, 10).shape == (10, 10, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("photometric", "is_planar"), [("rgb", True), ("miniswhite", False), ("rgb", False)]
)
def test_every_reader_turns_a_tiff_upright(orientation, photometric, is_planar):
    values, shown = create(photometric, "u2")
    tag = 274, 3, 1, orientation, True
    file = write(values[:20], photometric, None, is_planar, extratags=[tag])
    image = Image.fromarray(np.broadcast_to(shown[:20], (20, SIZE, 3)))
    upright = np.asarray(
        image if orientation == 1 else image.transpose(TRANSPOSITIONS[orientation])
    )
    sides = upright.shape[:2]
    found = decode_image(file, SHAPE, DecodeOptions("pad")).astype(int)
    top, left = ((SIZE - side) // 2 for side in sides)
    inner = found[top : top + sides[0], left : left + sides[1]]
    assert np.abs(inner - upright).max() <= 1


def test_a_rare_form_needs_tifffile_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "a.tif"
    path.write_bytes(write(create("rgb", "u2")[0], "rgb", is_planar=True).getvalue())
    assert decode.read_header(path) == (SIZE, SIZE, 3)
    with Image.open(path) as image:  # Its file is read.
        np.testing.assert_array_equal(decode_image(image, SHAPE), read_image(path, SHAPE))
    monkeypatch.setattr(tiff, "is_installed", lambda extra: False)
    with pytest.raises(ImageError, match=r"needs the extra tiff: pip install '\.\[tiff\]'"):
        read_image(path, SHAPE)


@pytest.mark.parametrize("compression", [{}, {"compression": "zlib"}])
def test_missing_and_endless_strips_are_refused(monkeypatch, compression):
    noise = np.random.default_rng(0).integers(0, 2**16, (SIZE, SIZE, 2), np.uint16)
    file = write(noise, "minisblack", "unassalpha", rowsperstrip=8, **compression)
    content = file.getvalue()
    first = decode_image(file, SHAPE)
    np.testing.assert_array_equal(decode_image(file, SHAPE), first)  # From its start again.
    assert_refused(content[:-10], "damaged: truncated")
    rows = [struct.pack("<HHII", 278, 4, 1, count) for count in (8, 4)]
    assert rows[0] in content
    assert_refused(content.replace(*rows), "damaged|TIFF")  # More strips are needed then.
    monkeypatch.setattr(tiff, "_MAX_BYTES", 1000)
    assert_refused(content, "more than 1,000 bytes of pixels")


def test_a_strip_that_decompresses_to_more_than_its_rows_is_refused():
    noise = np.zeros((SIZE, SIZE, 2), np.uint16)
    file = write(noise, "minisblack", "unassalpha", rowsperstrip=SIZE, compression="zlib")
    with tifffile.TiffFile(file) as opened:
        tags = opened.pages.first.tags
        places = [tags[name].valueoffset for name in ("StripOffsets", "StripByteCounts")]
    content, bomb = bytearray(file.getvalue()), zlib.compress(bytes(10**6))
    for place, value in zip(places, (len(content), len(bomb)), strict=True):
        struct.pack_into("<I", content, place, value)
    assert_refused(bytes(content) + bomb, "too many bytes")


@pytest.mark.parametrize("factor", [1, 257])
def test_a_color_map_of_8_bits_is_read_as_one_of_16(factor):
    levels = np.arange(256, dtype=np.uint16)
    values = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    file = io.BytesIO()
    colormap = factor * np.stack([levels, levels[::-1], levels])
    tifffile.imwrite(file, values, photometric="palette", colormap=colormap, metadata=None)
    shown = np.stack([values, 255 - values, values], axis=-1)
    np.testing.assert_array_equal(read_upright(file, 8), shown)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(("photometric", "is_planar"), [("minisblack", False), ("rgb", True)])
def test_many_bands_are_refused(dtype, photometric, is_planar):
    """Pillow would take the first three of some for colors."""
    file = write(np.zeros((20, 30, 6), dtype), photometric, is_planar=is_planar)
    assert_refused(file, "a TIFF that is neither gray nor in color")


def test_numbers_without_a_known_white_are_refused():
    for values in (np.full((9, 9), -5, np.int32), np.full((9, 9), 2**16, np.int32)):
        assert_refused(Image.fromarray(values), "whose range is unknown")
    assert decode_image(Image.fromarray(np.full((9, 9), 2**16 - 1, np.int32)), SHAPE).min() == 255


def test_pages_and_bands_that_are_not_read_are_counted(tmp_path):
    names = ("one.tif", "stack.tif", "pyramid.tif", "bands.tif", "broken.tif", "photo.png")
    one, stack, pyramid, bands, broken, photo = (str(tmp_path / name) for name in names)
    tifffile.imwrite(one, RGB)
    tifffile.imwrite(stack, np.stack([GRAY[..., 0]] * 3), photometric="minisblack")
    with tifffile.TiffWriter(pyramid) as file:
        file.write(RGB, subifds=0)
        file.write(RGB[::2, ::2], subfiletype=1)
    tifffile.imwrite(bands, np.dstack([RGB, ALPHA]), photometric="rgb", extrasamples="unassalpha")
    content = (tmp_path / "stack.tif").read_bytes()
    (tmp_path / "broken.tif").write_bytes(content[: len(content) // 2])
    Image.fromarray(RGB).save(photo)
    assert not [*describe_unread([one, pyramid, broken, photo, str(tmp_path / "gone.tif")])]
    pages, band = describe_unread([one, stack, bands, photo])
    assert pages.startswith("1 file has several pages, such as 'stack.tif' with 3: the first is")
    assert band.startswith("1 TIFF says that the last band is transparency, such as 'bands.tif'")
