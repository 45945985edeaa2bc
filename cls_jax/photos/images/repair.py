"""Image files that are intact but for their metadata or their last bytes, as Pillow reads them.

Pillow refuses a PNG for the sake of a long text or the checksum of a comment, and a JPEG without an
end marker, as some cameras write it. It also looks for the next part of a file byte by byte, in
Python, so that a file of 64 MB of markers takes 16 s.
"""

import io
import math
import re
import struct
from typing import Any, BinaryIO

from PIL import Image, PngImagePlugin

from cls_jax.data.resize import LARGE_PIXELS, ImageError
from cls_jax.photos.images.store import hash_content

PNG = b"\x89PNG\r\n\x1a\n"
_MAX_READS = 100_000  # Until the pixels begin. Photos need a few hundred.
_MAX_CHUNKS = 2**18
_END_OF_HEADER = 33
_TRANSPARENCY = b"tRNS"
# Metadata that may tell which side is up, and the bytes of them that are read.
_PROFILE = b"Raw profile type exif\0"
_ORIENTED = (b"eXIf", b"tEXt" + _PROFILE, b"zTXt" + _PROFILE, b"iTXtXML:com.adobe.xmp\0")
_MOST = 2**20
_DATA = bytes(4) + b"IDAT"  # At which Pillow stops reading.

_END = b"\xff\xd9"
_SCAN = b"\xff\xda"
# Within a scan, 00 follows an ff of the data, and d0 to d7 are places to start again.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
# Two ways in which the data of a scan could go on, also where it starts again at a marker. The
# decoder takes a marker for a later one where it is one or two ahead of the next one.
_TAILS = tuple(
    pattern + b"".join(b"\xff" + bytes([0xD0 + (first + i) % 8]) + pattern for i in range(8))
    for first, pattern in ((0, b"\x5a\xb6\x93\x2d" * 16), (4, b"\x93\x5b\x4d\xb2" * 16))
)


class BoundedFile:
    """A file that may be read only so often until `release`."""

    def __init__(self, file: BinaryIO):
        """Reads from a file that stays open."""
        self._file = file
        self._num_left: float = _MAX_READS

    def read(self, size: int = -1) -> bytes:
        """Reads as the file does. Raises an ImageError after too many reads."""
        self._num_left -= 1
        if self._num_left < 0:
            raise ImageError(f"no pixels among its first {_MAX_READS:,} parts")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves as the file does."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position in the file."""
        return self._file.tell()

    def release(self) -> None:
        """Allows any number of reads."""
        self._num_left = float("inf")


def strip_png(file: BinaryIO) -> BinaryIO:
    """A PNG without metadata, except for those that may tell which side is up and can be read.

    Returns the file itself if there are none, or if it is not a PNG. Raises an ImageError if it has
    too many parts.
    """
    file.seek(0)
    first = file.read(_END_OF_HEADER)
    if not first.startswith(PNG):
        return file
    size = file.seek(0, io.SEEK_END)
    dropped: list[int] = []  # Where parts begin and end, in turn.
    end = len(PNG)
    for _ in range(_MAX_CHUNKS):
        file.seek(end)
        header = file.read(8)
        if len(header) < 8:
            break
        length, kind = struct.unpack(">I4s", header)
        start = end
        end += 12 + length
        is_needed = kind[:1].isupper() or kind == _TRANSPARENCY
        if not kind.isalpha() or (is_needed and end > size):
            break  # Damaged, which Pillow will say.
        if not is_needed and not _is_oriented(first, header + file.read(min(length, _MOST) + 4)):
            dropped += [start, end]
    else:
        raise ImageError(f"more than {_MAX_CHUNKS:,} parts")
    if not dropped:
        return file
    file.seek(0)
    content = file.read()
    edges = [0, *dropped, size]
    kept = zip(edges[::2], edges[1::2], strict=True)
    return io.BytesIO(b"".join(content[begin:behind] for begin, behind in kept))


def _is_oriented(first: bytes, part: bytes) -> bool:
    """Whether a part of a PNG may tell which side is up, and Pillow reads it, given the first."""
    if not part[4:].startswith(_ORIENTED):
        return False
    try:
        PngImagePlugin.PngImageFile(io.BytesIO(first + part + _DATA))
    except Exception:  # Decoders raise any kind of exception for damaged files.
        return False
    return True


def repair_jpeg(image: Any, file: BinaryIO) -> BinaryIO:
    """A JPEG with the end marker that it lacks, or the file itself.

    `image` is the opened and unloaded file. Raises an ImageError if pixels are missing, too, or if
    that cannot be told: of a progressive image, or one with a scan for each color.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - len(_END), 0))
    if file.read() == _END:
        return file
    file.seek(0)
    content = file.read()
    scan = content.rfind(_SCAN)
    if content.rfind(_END) > scan:  # Something else follows.
        return file
    num_colors = content[scan + 4 : scan + 5]  # Of the scan (ITU-T T.81, B.2.3).
    if image.info.get("progressive") or num_colors != bytes([image.layers]):
        raise ImageError("damaged: truncated")
    # What follows the data is no data, unless it is an ff that 00 marks as such.
    found = _MARKER.search(content, scan + len(_SCAN))
    end = found.start() if found else len(content)
    data = content[:end].rstrip(b"\0\xff")
    filler = content[len(data) : end]
    content = data + b"\xff\0" * (filler[:1] == b"\xff" and filler.lstrip(b"\xff")[:1] == b"\0")
    # If a pixel were missing, it would depend on what follows.
    is_small = math.prod(image.size) <= LARGE_PIXELS
    shown = {_decode_whole(content + tail + _END, is_small) for tail in (b"", *_TAILS)}
    if len(shown) > 1:
        raise ImageError("damaged: truncated")
    return io.BytesIO(content + _END)


def _decode_whole(content: bytes, is_small: bool) -> bytes:
    """A digest of the pixels of a JPEG, of a large one at an eighth of its size."""
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        if not is_small:
            image.draft(None, (1, 1))
        return hash_content(image.tobytes())
