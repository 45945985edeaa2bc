"""Photographs as the page shows them: decoded within limits and encoded again.

The browser never gets a byte of the original file. Malformed images and metadata, such as the place
where a photograph was taken, stay in this process.
"""

import collections
import io
import os
import threading

from PIL import Image

from cls_jax.data.images.decode import read_upright

SIDES = {"small": 320, "large": 1280}  # Pixels on the long side.
_QUALITY = 85
_MAX_CACHE_BYTES = 64 * 2**20


class PictureReader:
    """Encodes photographs as JPEG and keeps the latest ones in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: collections.OrderedDict[tuple[str, str], bytes] = collections.OrderedDict()
        self._num_bytes = 0

    def read(self, path: str | os.PathLike, size: str) -> bytes:
        """A photograph as JPEG, without metadata.

        Args:
            path: An image file.
            size: A key of `SIDES`.

        Raises:
            ImageError: If it cannot be read or is not an image.
        """
        key = (os.fspath(path), size)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        buffer = io.BytesIO()
        Image.fromarray(read_upright(path, SIDES[size])).save(buffer, "JPEG", quality=_QUALITY)
        content = buffer.getvalue()
        with self._lock:
            if key not in self._cache:
                self._num_bytes += len(content)
            self._cache[key] = content
            while self._num_bytes > _MAX_CACHE_BYTES:
                _, oldest = self._cache.popitem(last=False)
                self._num_bytes -= len(oldest)
        return content
