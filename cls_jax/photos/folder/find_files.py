"""Which file of a folder a cell of a table names.

Programs write names in many ways: relative to the folder or to the one around it, absolute, as an
address, encoded as in one, with a prefix of their own. A cell gets the file that it names exactly.
Otherwise it gets the only file that fits, and none if several do.
"""

import os
import pathlib
import posixpath
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cls_jax.photos.folder.names import find_part, fold

# How a cell names its file, from the most to the least certain: by the whole name, by the name in
# the only folder of images, by the last part of the name, or the same without the extension.
EXACT, COMPOSED, FOLDED, INNER, BASE, WHOLE_STEM, INNER_STEM, STEM = range(8)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]*", re.I)
_DRIVE = re.compile(r"[a-z]:/", re.I)
# Label Studio names uploaded files upload/<project>/<eight digits of a hash>-<name>, and files on
# its server's disk by a query. https://labelstud.io/guide/export, https://labelstud.io/guide/storage
_UPLOADED = re.compile(r"(?:.*/)?upload/\d+/[0-9a-f]{8}-([^/]+)", re.S)
_LOCAL_FILES = re.compile(r".*/data/local-files/?\?d=([^&]+).*", re.S)


class Match(NamedTuple):
    """The file that a cell names."""

    name: str | None  # "" if there is none, None if several fit.
    how: int = EXACT


class Matches(NamedTuple):
    """The files that the cells of a column name."""

    files: dict[str, Match]  # By cell.
    dropped: str = ""  # The folders that all cells begin with, if they had to be left out.


NO_MATCH = Match("")


class FileIndex:
    """The files of a folder, to be found by the cells of a table."""

    def __init__(self, names: Callable[[], Iterable[str]], root: pathlib.Path | None = None):
        """`names` yields the names of all files in `root`, "/" in them, whenever it is called."""
        self._names = names
        paths = [] if root is None else [os.path.abspath(root), os.path.realpath(root)]
        self._roots = [path.replace(os.sep, "/").rstrip("/") for path in dict.fromkeys(paths)]

    def match_exactly(self, cells: Iterable[str]) -> dict[str, Match]:
        """Cell → the file of this name, up to the composition of accents. No other fits."""
        found, rest = self._find_exact(cells)
        return found | self._look_up({cell: [cell] for cell in rest}, COMPOSED)

    def match(self, cells: Iterable[str]) -> Matches:
        """Finds the files of a column's cells.

        If no cell names a file, the folders that all of them begin with are left out: those of
        another machine. A file that is named exactly belongs to no cell that only resembles it.
        """
        found, rest = self._find_exact(cells)
        wanted = {cell: list(dict.fromkeys(_spell(cell, self._roots))) for cell in rest}
        found |= self._look_up(wanted, STEM)
        dropped = ""
        if not any(one.name for one in found.values()):
            others, dropped = self._match_without_folders(found)
            found |= others
        named = {one.name for one in found.values() if one.name and one.how <= INNER}
        files = {
            cell: NO_MATCH if one.how > INNER and one.name in named else one
            for cell, one in found.items()
        }
        return Matches(files, dropped)

    def _find_exact(self, cells: Iterable[str]) -> tuple[dict[str, Match], list[str]]:
        """The cells that are names of files, and all others."""
        distinct = dict.fromkeys(cells)
        names = set(distinct).intersection(self._names())
        return {name: Match(name) for name in names}, [c for c in distinct if c not in names]

    def _match_without_folders(self, cells: Iterable[str]) -> Matches:
        """Finds files without the first folders that all cells have, as few as possible."""
        paths = {cell: _normalize(_decode(cell)) for cell in cells if not _exists(cell)}
        paths = {cell: path for cell, path in paths.items() if path}
        folders = [posixpath.dirname(path) for path in paths.values()]
        common = posixpath.commonpath(folders) if all(folders) and folders else ""
        shared = common.split("/") if common else []
        for count in range(1, len(shared) + 1):
            how = STEM if count == len(shared) else FOLDED
            rest = {cell: ["/".join(path.split("/")[count:])] for cell, path in paths.items()}
            found = self._look_up(rest, how)
            if any(one.name for one in found.values()):
                return Matches(found, "/".join(shared[:count]))
        return Matches({})

    def _look_up(self, wanted: Mapping[str, Sequence[str]], last: int) -> dict[str, Match]:
        """Cell → the file that one of its spellings names, no less surely than by `last`."""
        if not wanted:
            return {}
        exact = {name for spellings in wanted.values() for name in spellings}
        exact.intersection_update(self._names())
        found = {}
        rest = {}
        for cell, spellings in wanted.items():
            if name := next((name for name in spellings if name and name in exact), ""):
                found[cell] = Match(name)
            else:
                rest[cell] = [_compose(name) for name in spellings if name]
        if not any(rest.values()):
            return found | dict.fromkeys(rest, NO_MATCH)
        keys = {key for names in rest.values() for name in names for key in (name, fold(name))}
        stages = self._index(keys, last)
        for cell, names in rest.items():
            found[cell] = next(
                (
                    Match(stages[how][key], how)
                    for how in range(COMPOSED, last + 1)
                    for key in (names if how == COMPOSED else map(fold, names))
                    if key in stages[how]
                ),
                NO_MATCH,
            )
        return found

    def _index(self, wanted: set[str], last: int) -> list[dict[str, str | None]]:
        """For each way to name a file up to `last`: wanted key → the file, or None for several."""
        prefix = self._find_prefix() if last >= INNER else ""
        stages = [dict[str, str | None]() for _ in range(last + 1)]
        ends = {key.rpartition("/")[2] for key in wanted}
        for name in self._names():
            folded = fold(name)
            base = folded.rpartition("/")[2]
            stem = os.path.splitext(base)[0]
            if base not in ends and stem not in ends and _compose(name) not in wanted:
                continue
            inner = folded.removeprefix(prefix)
            dot = len(stem) - len(base)  # Counted from the end.
            ways = {
                COMPOSED: {_compose(name)},
                FOLDED: {folded},
                INNER: {inner},
                BASE: {base},
                WHOLE_STEM: {folded[:dot]} if dot else set(),
                INNER_STEM: {inner[:dot]} if dot else set(),
                STEM: {stem} if dot else set(),
            }
            for how in range(COMPOSED, last + 1):
                for key in ways[how] & wanted:
                    stages[how][key] = name if stages[how].get(key, name) == name else None
        return stages

    def _find_prefix(self) -> str:
        """The only folder of images at the top, folded, with "/", or "". Splits do not count."""
        tops = {name.split("/")[0] for name in self._names() if "/" in name}
        tops = {top for top in tops if find_part(top) in (None, "train")}
        return f"{fold(tops.pop())}/" if len(tops) == 1 else ""


def _spell(cell: str, roots: Sequence[str]) -> Iterator[str]:
    """The names that a cell can stand for in a folder with these paths, the likeliest first."""
    yield cell
    if _exists(cell):  # An absolute path, which is no other file than this one.
        path = os.path.normpath(cell).replace(os.sep, "/")
        yield from (path.removeprefix(f"{root}/") for root in roots)
        return
    yield cell.strip()
    for text in (_strip_address(cell), _decode(cell)):
        path = _normalize(text)
        yield path
        # The path may begin above the folder: with the end of the folder's own path.
        parts = path.split("/")
        for count in range(len(parts) - 1, 0, -1):
            end = f"/{'/'.join(parts[:count])}"
            if any(root.endswith(end) for root in roots):
                yield "/".join(parts[count:])
        if uploaded := _UPLOADED.fullmatch(path):
            yield uploaded[1]


def _strip_address(cell: str) -> str:
    """A cell as a path: without the server of an address, and with "/" between folders."""
    text = cell.strip().replace("\\", "/")
    if address := _ADDRESS.match(text):
        text = re.split(r"[?#]", text[address.end() :])[0]
    return text


def _decode(cell: str) -> str:
    """A cell as a path, with the characters that addresses encode as %20."""
    if stored := _LOCAL_FILES.fullmatch(cell.strip()):
        return urllib.parse.unquote(stored[1]).replace("\\", "/")
    return urllib.parse.unquote(_strip_address(cell))


def _normalize(path: str) -> str:
    """A path without a drive, "." and "..", relative to its first folder."""
    path = posixpath.normpath(_DRIVE.sub("/", path, count=1)).lstrip("/") if path else ""
    while path.startswith("../"):
        path = path[3:]
    return path


def _exists(cell: str) -> bool:
    """Whether a cell is the absolute path of a file, which is then no other one."""
    try:
        return os.path.isabs(cell) and os.path.exists(cell)
    except ValueError:  # A zero byte.
        return False


def _compose(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)
