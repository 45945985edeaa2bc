"""A DICOM file is read as a viewer shows it, or refused with what to do."""

import io
import struct
import sys

import numpy as np
import pytest

from cls_jax.photos.images.decode import decode_image, find_suffix, read_header, read_origin
from cls_jax.photos.images.files import list_images
from tests.photos.helpers import assert_refused

LEVELS = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
_PLAIN = b"1.2.840.10008.1.2.1\0"


def _element(group, number, kind, value):
    value += (b"\0" if kind == b"UI" else b" ") * (len(value) % 2)
    size = struct.pack("<HI", 0, len(value)) if kind == b"OW" else struct.pack("<H", len(value))
    return struct.pack("<HH2s", group, number, kind) + size + value


def create_dicom(levels=LEVELS, photometric=b"MONOCHROME2", syntax=_PLAIN, patient=b"", **decimals):
    """A file with these levels, uint16 [frames, h, w] or [h, w], and what says their meaning."""
    frames = levels.reshape(-1, *levels.shape[-2:])
    meta = _element(2, 0x10, b"UI", syntax)
    numbers = {2: 1, 0x10: frames.shape[1], 0x11: frames.shape[2]}
    numbers |= {0x100: 16, 0x101: 16, 0x102: 15, 0x103: 0}
    rows = {n: _element(0x28, n, b"US", struct.pack("<H", v)) for n, v in numbers.items()}
    rows[4] = _element(0x28, 4, b"CS", photometric)
    rows[8] = _element(0x28, 8, b"IS", str(len(frames)).encode())
    for name, text in decimals.items():
        number = {"center": 0x1050, "width": 0x1051, "intercept": 0x1052, "slope": 0x1053}[name]
        rows[number] = _element(0x28, number, b"DS", text.encode())
    pixels = _element(0x7FE0, 0x10, b"OW", frames.tobytes())
    head = b"\0" * 128 + b"DICM" + _element(2, 0, b"UL", struct.pack("<I", len(meta))) + meta
    return (
        head
        + _element(0x10, 0x20, b"LO", patient)
        + b"".join(rows[n] for n in sorted(rows))
        + pixels
    )


def show(content):
    """What is read, uint8 [64, 64]."""
    return decode_image(io.BytesIO(content), (64, 64, 1))[..., 0]


def scale(low, high):
    return np.rint(255 * np.clip((LEVELS.astype(float) - low) / (high - low), 0, 1)).astype(
        np.uint8
    )


def test_the_window_of_the_file_decides_what_is_white():
    pytest.importorskip("pydicom")
    np.testing.assert_array_equal(show(create_dicom()), scale(0, 4095))
    inverted = show(create_dicom(photometric=b"MONOCHROME1"))
    np.testing.assert_array_equal(inverted, 255 - scale(0, 4095))
    np.testing.assert_array_equal(show(create_dicom(center="1000", width="500")), scale(750, 1250))
    # Of several windows, the first one, in units after rescaling.
    windows = {"center": "40\\400", "width": "400\\2000", "intercept": "-1024", "slope": "1"}
    np.testing.assert_array_equal(show(create_dicom(**windows)), scale(1024 - 160, 1024 + 240))
    # Of several frames, the first one.
    frames = np.stack([LEVELS, LEVELS[::-1]])
    np.testing.assert_array_equal(show(create_dicom(frames)), scale(0, 4095))
    assert not show(create_dicom(LEVELS * 0 + 7)).any()
    assert find_suffix(io.BytesIO(create_dicom())) == ".dcm"


def test_files_are_found_with_and_without_an_ending(tmp_path):
    for name in ("a.dcm", "IM0", "b.DICOM", "1.2.840.11"):
        (tmp_path / name).write_bytes(create_dicom())
    (tmp_path / "notes").write_text("DICM")
    assert list(list_images(tmp_path).files.names()) == [
        "1.2.840.11",
        "IM0",
        "a.dcm",
        "b.DICOM",
    ]
    pytest.importorskip("pydicom")
    assert read_header(tmp_path / "IM0") == (64, 64, 1)


def test_patients_are_origins(tmp_path):
    pytest.importorskip("pydicom")
    for i in range(4):
        (tmp_path / f"{i}").write_bytes(create_dicom(patient=b"P%d" % (i % 2)))
    (tmp_path / "4").write_bytes(create_dicom())
    origins = [read_origin(path) for path in sorted(tmp_path.iterdir())]
    assert origins == [("patient", number) for number in ("P0", "P1", "P0", "P1", "")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (create_dicom(syntax=b"1.2.840.10008.1.2.1.99"), "compressed as a whole: save it as PNG"),
        (create_dicom(syntax=b"1.2.840.10008.1.2.4.80"), "can be decoded .*: save it as PNG"),
        (create_dicom()[:400], "without pixels|damaged"),
        (create_dicom().replace(b"US\2\0\x40\0", b"US\2\0\xff\xff"), "pixels"),
    ],
)
def test_what_cannot_be_read_is_refused(content, reason):
    pytest.importorskip("pydicom")
    assert_refused(content, reason)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert_refused(create_dicom(), r"pip install '\.\[dicom\]', or save it as PNG")
