"""DICOM: the first frame of a file, as the window that the file names shows it."""

from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from cls_jax.data.resize import ImageError
from cls_jax.extras import is_installed, write_install
from cls_jax.io import describe_error

START = 132  # Bytes in which a file says what it is.
_MARK = b"DICM"
_MAX_PIXELS = 2**27
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # Its whole content would be unpacked before any check.
_OTHER = "save it as PNG"


def is_dicom(start: bytes) -> bool:
    """Whether these are the first bytes of a DICOM file."""
    return start[START - len(_MARK) : START] == _MARK


def open_dicom(file: BinaryIO) -> Image.Image:
    """The first frame with 8 bits per value, gray or in color.

    Levels are rescaled as the file says and then cut to its first window or, without one, scaled
    from the smallest to the largest. Raises an ImageError if it cannot be read, and any error if
    the file is damaged.
    """
    if not is_installed("dicom"):
        install = write_install("dicom")
        raise ImageError(f"DICOM, which needs the extra dicom: {install}, or {_OTHER}")
    import pydicom
    from pydicom.pixels import apply_rescale, pixel_array

    file.seek(0)
    if _DEFLATED in file.read(2**12):
        raise ImageError(f"a DICOM that is compressed as a whole: {_OTHER}")
    file.seek(0)
    dataset = pydicom.dcmread(file)
    if dataset.get("Rows", 0) * dataset.get("Columns", 0) > _MAX_PIXELS:
        raise ImageError(f"more than {_MAX_PIXELS:,} pixels")
    try:
        levels = pixel_array(dataset, index=0)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        reason = f"without pixels that can be decoded ({describe_error(error)})"
        raise ImageError(f"a DICOM {reason}: {_OTHER}") from error
    if levels.ndim == 3:  # Color, already as RGB.
        image = Image.fromarray(levels if levels.dtype == np.uint8 else (levels >> 8).astype("u1"))
    else:
        gray = _show(apply_rescale(levels, dataset).astype(np.float32), dataset)
        image = Image.fromarray(gray)
    image.format = "DICOM"
    image.info["patient"] = str(dataset.get("PatientID") or "").strip()
    return image


def _show(levels: np.ndarray, dataset: Any) -> np.ndarray:
    """Levels float32 [h, w] as a viewer shows them, uint8."""
    low, high = float(levels.min()), float(levels.max())
    if "WindowCenter" in dataset and "WindowWidth" in dataset:
        center, width = (
            float(np.ravel(dataset[name].value)[0]) for name in ("WindowCenter", "WindowWidth")
        )
        low, high = center - width / 2, center + width / 2
    shown = np.rint(255 * np.clip((levels - low) / max(high - low, 1e-6), 0, 1)).astype(np.uint8)
    is_inverted = dataset.get("PhotometricInterpretation") == "MONOCHROME1"
    return 255 - shown if is_inverted else shown
