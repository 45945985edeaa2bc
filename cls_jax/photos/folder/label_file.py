"""A file that may have labels, parsed when a format asks for its content, and at most once."""

import functools
import pathlib
import xml.etree.ElementTree as ElementTree
from typing import Any

from cls_jax.io import parse_json
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions

_NO_FILES = FileIndex(())
_HEAD_CHARACTERS = 10_000  # That show whether a file is a table with separators.


class _Builder(ElementTree.TreeBuilder):
    """Refuses a document type, whose entities could fill the memory."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("it has a document type, which CVAT does not write")


def parse_xml(content: bytes) -> ElementTree.Element:
    """The root of an XML document. Raises one of `PARSE_ERRORS` for anything else."""
    parser = ElementTree.XMLParser(target=_Builder())
    parser.feed(content)
    return parser.close()


class LabelFile:
    """A file that may have labels of a folder's images, parsed at most once."""

    def __init__(
        self,
        raw: bytes,
        path: pathlib.Path = pathlib.Path(),
        index: FileIndex = _NO_FILES,
        options: FolderOptions = AUTOMATIC,
    ):
        """The bytes of the file at `path`. The folder's files tell the columns of a table apart."""
        self.raw = raw
        self.path = path
        self.index = index
        self.options = options
        self.start = raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]

    @functools.cached_property
    def json(self) -> Any:
        """The value of a JSON file. Raises one of `PARSE_ERRORS` for any other file."""
        return parse_json(self.raw.decode("utf-8-sig"))

    @functools.cached_property
    def xml(self) -> ElementTree.Element:
        """The root of an XML document. Raises one of `PARSE_ERRORS` for any other file."""
        return parse_xml(self.raw)

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of a file with one in each line, empty for any other file."""
        if self.start != b"{":
            return []
        lines = list(filter(None, map(str.strip, self.raw.decode("utf-8-sig").splitlines())))
        if not (lines[0].startswith("{") and lines[0].endswith("}")):
            return []
        objects = list(map(parse_json, lines))
        return objects if all(isinstance(one, dict) for one in objects) else []

    @functools.cached_property
    def words(self) -> list[list[str]]:
        """The words of lines, empty for any other file, or a table.

        If some have more than others, the first one of each line, and the rest.
        """
        text = self.raw.decode("utf-8-sig")
        if any(mark in text[:_HEAD_CHARACTERS] for mark in ",;\t|\0"):
            return []
        texts = [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")]
        lines = [line.split() for line in texts if line]
        if len(set(map(len, lines))) > 1:  # Names of classes have several words.
            lines = [line.split(maxsplit=1) for line in texts if line]
        is_other = len(set(map(len, lines))) != 1 or len(lines) < 2 or len(lines[0]) < 2
        return [] if is_other else lines

    @functools.cached_property
    def records(self) -> dict[str, Any]:
        """An object for each file, as VIA, SuperAnnotate and others write it, or nothing."""
        stored = self.get("_via_img_metadata") or (self.json if self.start == b"{" else {})
        if isinstance(stored, dict):  # Of MegaDetector and Edge Impulse.
            lists = [stored[k] for k in ("images", "files") if isinstance(stored.get(k), list)]
            if len(lists) == 1:
                stored = {str(number): one for number, one in enumerate(lists[0])}
        is_one = isinstance(stored, dict) and all(isinstance(v, dict) for v in stored.values())
        return stored if is_one else {}

    def get(self, key: str) -> Any:
        """What an object has for a key, None for any other file."""
        is_object = self.start == b"{" and isinstance(self.json, dict)
        return self.json.get(key) if is_object else None
