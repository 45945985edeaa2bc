"""Image files that are intact but for their metadata or their last bytes, as Pillow reads them.

Pillow refuses a PNG for the sake of a long text or the checksum of a comment, and a JPEG without an
end marker, as some cameras write it. It also looks for the next part of a file byte by byte, in
Python, so that a file of 64 MB of markers takes 16 s.
"""

import io
import math
import re
import struct
import zlib
from typing import Any, BinaryIO

from PIL import Image

from cls_jax.data.resize import LARGE_PIXELS, ImageError
from cls_jax.photos.images.store import hash_content

PNG = b"\x89PNG\r\n\x1a\n"
_MAX_READS = 100_000  # Until the pixels begin. Photos need a few hundred.
_MAX_CHUNKS = 2**18
# Decompressed bytes of metadata that are kept, since they may tell which side is up.
_MAX_METADATA = 2**20
_TRANSPARENCY = b"tRNS"
_EXIF = b"eXIf"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
# Of texts with other names, Pillow makes no use.
_ORIENTED = (b"Raw profile type exif", b"XML:com.adobe.xmp")

_START = b"\xff\xd8"
_END = b"\xff\xd9"
_SCAN = b"\xff\xda"
_RESTART_INTERVAL = b"\xff\xdd"
# Within a scan, 00 follows an ff of the data, and d0 to d7 are places to start again.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_MAX_MARKERS = 10_000
_BLOCK = 2**20
_RUN = b"\xff" * 1024
_MAX_RUNS = 1024
_LONG_RUN = re.compile(rb"\xff{65536,}")  # No part of a JPEG with a length is as long.
# Two ways in which the data of a scan could go on.
_PATTERNS = (b"\x5a\xb6\x93\x2d" * 16, b"\x93\x5b\x4d\xb2" * 16)
_RESTARTS = tuple(b"\xff" + bytes([0xD0 + i]) for i in range(8))


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
    if file.read(len(PNG)) != PNG:
        return file
    size = file.seek(0, io.SEEK_END)
    kept: list[tuple[int, int]] = []  # First bytes of what stays, and the bytes behind it.
    begin = 0
    end = len(PNG)
    budget = _MAX_METADATA
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
        if is_needed:
            continue
        used = _measure_oriented(kind, file, length) if length <= budget else 0
        budget -= used
        if not used:
            kept.append((begin, start))
            begin = end
    else:
        raise ImageError(f"more than {_MAX_CHUNKS:,} parts")
    if not kept:
        return file
    stripped = io.BytesIO()
    for first, behind in (*kept, (begin, max(begin, size))):
        file.seek(first)
        stripped.write(file.read(behind - first))
    return stripped


def _measure_oriented(kind: bytes, file: BinaryIO, length: int) -> int:
    """The bytes of metadata that may tell which side is up, 0 if they do not or are damaged."""
    if kind != _EXIF and kind not in _TEXTS:
        return 0
    content = file.read(length)
    if zlib.crc32(kind + content) != int.from_bytes(file.read(4), "big"):
        return 0
    if kind == _EXIF:
        return length
    name, _, text = content.partition(b"\0")
    if name not in _ORIENTED:
        return 0
    if kind == b"iTXt":
        flags, text = text[:2], text[2:].partition(b"\0")[2].partition(b"\0")[2]
        is_compressed = flags == b"\1\0"
        if flags not in (b"\0\0", b"\1\0"):
            return 0
    else:
        is_compressed = kind == b"zTXt"
        text = text.removeprefix(b"\0") if is_compressed else text
    if not is_compressed:
        return length
    try:
        text = zlib.decompressobj().decompress(text, _MAX_METADATA)
    except zlib.error:
        return 0
    return max(len(text), 1) if len(text) < _MAX_METADATA else 0


def repair_jpeg(image: Any, file: BinaryIO) -> BinaryIO:
    """A JPEG with the end marker that it lacks and without long runs of ff, or the file itself.

    `image` is the opened and unloaded file. Raises an ImageError if pixels are missing, too.
    """
    file = _shorten(file)
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - len(_END), 0))
    if file.read() == _END:
        return file
    file.seek(0)
    content = file.read()
    found = _find_scans(content)
    if found is None:
        return file
    scans, end = found
    is_small = math.prod(image.size) <= LARGE_PIXELS
    is_progressive = bool(image.info.get("progressive"))
    # The later scans of a progressive image only show at full size, which takes long.
    if not _are_complete(scans, image.layers) or (is_progressive and not is_small):
        raise ImageError("damaged: truncated")
    # What follows the data is no data, unless it is an ff that 00 marks as such.
    data = content[:end].rstrip(b"\0\xff")
    filler = content[len(data) : end]
    content = data + b"\xff\0" * (filler[:1] == b"\xff" and filler.lstrip(b"\xff")[:1] == b"\0")
    shown = _decode_whole(content + _END, is_small)
    for pattern in _PATTERNS:
        # If a pixel were missing, it would depend on what follows.
        tail = pattern + b"".join(mark + pattern for mark in _list_restarts(content))
        if _decode_whole(content + tail + _END, is_small) != shown:
            raise ImageError("damaged: truncated")
    return io.BytesIO(content + _END)


def _shorten(file: BinaryIO) -> BinaryIO:
    """A JPEG without runs of ff that take long to skip, or the file itself.

    Any number of ff may precede a marker. Pillow starts over for every part of a run that it reads.
    """
    file.seek(0)
    num_runs = 0
    while block := file.read(_BLOCK):
        num_runs += block.count(_RUN)
    if num_runs < _MAX_RUNS:
        return file
    file.seek(0)
    return io.BytesIO(_LONG_RUN.sub(b"\xff", file.read()))


def _find_scans(content: bytes) -> tuple[list[bytes], int] | None:
    """The headers of a JPEG's scans, and where the last one ends, or None if it has an end marker.

    Looks at a bounded number of markers. No photo has as many.
    """
    position = len(_START)
    scans: list[bytes] = []
    end = len(content)
    for _ in range(_MAX_MARKERS):
        found = _MARKER.search(content, position)
        if found is None:
            break
        if found[0] == _END:
            return None
        end = min(end, found.start())
        # A part of the file, which may hold a thumbnail with an end of its own.
        begin = found.end()
        position = begin + int.from_bytes(content[begin : begin + 2], "big")
        if found[0] == _SCAN:
            scans.append(content[begin + 2 : position])
            end = len(content)
    return scans, end


def _are_complete(scans: list[bytes], num_components: int) -> bool:
    """Whether the scans of a JPEG, by their headers, have all bits of all components.

    ITU-T T.81, B.2.3: the number of components, two bytes for each, the first and the last
    coefficient, and the number of bits that are missing in the low half of the last byte.
    """
    missing = dict[int, set[int]]()
    for scan in scans:
        count = scan[0] if scan else 0
        if len(scan) != 4 + 2 * count:
            return False
        first, last, bits = scan[-3:]
        for component in scan[1 : 1 + 2 * count : 2]:
            rest = missing.setdefault(component, set(range(64)))
            if bits & 15 == 0:
                rest -= set(range(first, last + 1))
    return len(missing) == num_components and not any(missing.values())


def _list_restarts(content: bytes) -> list[bytes]:
    """The markers with which the last scan of a JPEG may start again, the next one first."""
    if _RESTART_INTERVAL not in content:
        return []
    start = content.rfind(_SCAN)
    places = [content.rfind(mark, start) for mark in _RESTARTS]
    following = places.index(max(places)) + 1 if max(places) > start else 0
    return [*_RESTARTS[following:], *_RESTARTS[:following]]


def _decode_whole(content: bytes, is_small: bool) -> bytes:
    """A digest of the pixels of a JPEG, of a large one at an eighth of its size."""
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        if not is_small:
            image.draft(None, (1, 1))
        return hash_content(image.tobytes())
