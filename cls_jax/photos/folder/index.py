"""Which file of a folder a cell of a table names.

Programs write names in many ways: relative to the folder or to the one around it, absolute, as an
address, encoded as in one, with a prefix of their own. A cell gets the file that it names exactly.
Otherwise it gets the only file that fits, and none if several do.
"""

import copy
import functools
import os
import pathlib
import posixpath
import re
import unicodedata
import urllib.parse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.photos.folder.names import find_part, fold_case, group_pairs
from cls_jax.photos.images.files import ImageFiles

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

    def count(self, how: int) -> int:
        """The cells that name a file at least this surely, none of those on another machine."""
        files = self.files.values() if how == STEM or not self.dropped else ()
        return sum(bool(one.name) and one.how <= how for one in files)

    def count_whole(self) -> int:
        """The cells that are the path of a file, none of which begins on another machine."""
        return 0 if self.dropped else sum(map(_is_whole, self.files.values()))


NO_MATCH = Match("")


class FileIndex:
    """The files of a folder, to be found by the cells of a table.

    The names of a table within the folder may be relative to its own folder, or to any around it.
    Names are indexed once, by their last part without its extension.
    """

    def __init__(self, files: ImageFiles | Sequence[str], root: pathlib.Path):
        """`files` are all in `root`, "/" in their names, to which names are relative."""
        self._files = files
        self._root = root
        self._tops: Sequence[str] = ()  # Folders of a table, the nearest first, each with "/".
        self._only_folders: dict[str, str] = {}

    def near(self, folder: str) -> "FileIndex":
        """The same index for the table of another program in this `folder` of the root."""
        _ = self._places  # Of both.
        near, parts = copy.copy(self), folder.split("/") if folder else []
        near._tops = ["/".join([*parts[:count], ""]) for count in range(len(parts), 0, -1)] + [""]
        return near

    def has_stem(self, stem: str) -> bool:
        """Whether the last part of a name, folded and without its extension, is this one."""
        return stem in self._places

    def _read(self, places: range | np.ndarray) -> Iterator[str]:
        if isinstance(self._files, ImageFiles):
            return (name for names, _ in self._files.read(places) for name in names)
        return (self._files[place] for place in places)

    @functools.cached_property
    def _places(self) -> dict[str, list[int]]:
        """Folded stem → the places of its files."""
        names = self._read(range(len(self._files)))
        return group_pairs((_cut_stem(fold_case(name)), place) for place, name in enumerate(names))

    def _find(self, keys: Iterable[str], top: str) -> list[str]:
        """The names below `top`, relative to it, whose last part may be that of a folded key."""
        ends = {key.rpartition("/")[2] for key in keys}
        ends |= {os.path.splitext(end)[0] for end in ends}
        found = {place for end in ends for place in self._places.get(end, ())}
        names = self._read(np.array(sorted(found), np.int64))
        return [name[len(top) :] for name in names if name.startswith(top)]

    def _find_only_folder(self, top: str) -> str:
        """The only folder of images below `top`, folded, with "/", or "". Splits do not count."""
        if top not in self._only_folders:
            names = self._read(range(len(self._files)))
            below = (name[len(top) :] for name in names if name.startswith(top))
            inner = {name.split("/")[0] for name in below if "/" in name}
            folders = [folder for folder in inner if find_part(folder) in (None, "train")]
            self._only_folders[top] = f"{fold_case(folders[0])}/" if len(folders) == 1 else ""
        return self._only_folders[top]

    def match_exactly(self, cells: Iterable[str]) -> dict[str, Match]:
        """Cell → the file of this name, up to the composition of accents. No other fits."""
        wanted = {cell: [cell] for cell in cells}
        return self._look_up(wanted, COMPOSED, next(iter(self._tops), ""))

    def match(self, cells: Iterable[str]) -> Matches:
        """The matches relative to the nearest folder in which cells name files.

        A folder around it counts if it agrees on these files and has more. A cell that names a file
        more surely in another folder could mean several.
        """
        cells = list(cells)
        if not self._tops:
            return self._match_in("", cells)
        found = []
        for top in self._tops:
            matches = self._match_in(top, cells)
            is_whole = matches.count_whole() == len(matches.files) > 0
            found.append(matches if is_whole else _keep_alike(matches, top))
            if is_whole:
                break
        best = functools.reduce(_choose, found)
        surer = {
            cell
            for other in found
            for cell, match in other.files.items()
            if match.name not in ("", None, best.files[cell].name)
            and match.how < best.files[cell].how
        }
        files = {
            cell: Match(None, one.how) if cell in surer else one for cell, one in best.files.items()
        }
        return Matches(files, best.dropped)

    def _match_in(self, top: str, cells: Sequence[str]) -> Matches:
        """Finds the files of a column's cells, relative to a folder.

        If no cell names a file, the folders that all of them begin with are left out: those of
        another machine. A file that is named exactly belongs to no cell that only resembles it.
        """
        found = self._look_up({cell: [cell] for cell in cells}, EXACT, top)
        rest = [cell for cell, one in found.items() if not one.name]
        if not rest:
            return Matches(found)
        roots = self._list_roots(top)
        wanted = {cell: list(dict.fromkeys(_spell(cell, roots))) for cell in rest}
        found |= self._look_up(wanted, STEM, top)
        has_found = any(one.name for one in found.values())
        others, dropped = Matches({}) if has_found else self._match_without_folders(found, top)
        found |= others
        named = {one.name for one in found.values() if one.name and one.how <= INNER}
        files = {
            cell: NO_MATCH if one.how > INNER and one.name in named else one
            for cell, one in found.items()
        }
        return Matches(files, dropped)

    def _list_roots(self, top: str) -> list[str]:
        """The paths that the folder `top` has."""
        path = self._root / top
        paths = dict.fromkeys([os.path.abspath(path), os.path.realpath(path)])
        return [path.replace(os.sep, "/").rstrip("/") for path in paths]

    def _match_without_folders(self, cells: Iterable[str], top: str) -> Matches:
        """Finds files without the first folders that all cells have, as few as possible."""
        others = (cell for cell in cells if not _exists(cell))
        paths = {cell: path for cell in others if (path := _normalize(_decode(cell)))}
        folders = [posixpath.dirname(path) for path in paths.values()]
        common = posixpath.commonpath(folders) if all(folders) and folders else ""
        shared = common.split("/") if common else []
        for count in range(1, len(shared) + 1):
            how = STEM if count == len(shared) else FOLDED
            rest = {cell: ["/".join(path.split("/")[count:])] for cell, path in paths.items()}
            found = self._look_up(rest, how, top)
            if any(one.name for one in found.values()):
                return Matches(found, "/".join(shared[:count]))
        return Matches({})

    def _look_up(
        self, wanted: Mapping[str, Sequence[str]], last: int, top: str
    ) -> dict[str, Match]:
        """Cell → the file below `top` that one of its spellings names, as surely as by `last`."""
        composed = {cell: [_compose(name) for name in wanted[cell] if name] for cell in wanted}
        folded = {cell: list(map(fold_case, names)) for cell, names in composed.items()}
        keys = {name for names in folded.values() for name in names}
        names = self._find(keys, top)
        keys.update(
            name for spellings in (wanted, composed) for one in spellings.values() for name in one
        )
        stages = self._sort_by_key(names, keys, last, top)
        return {
            cell: next(
                (
                    Match(name and top + name, how)
                    for how in range(last + 1)
                    for key in (wanted, composed, folded)[min(how, FOLDED)][cell]
                    if (name := stages[how].get(key, "")) != ""
                ),
                NO_MATCH,
            )
            for cell in wanted
        }

    def _sort_by_key(
        self, names: Sequence[str], wanted: Collection[str], last: int, top: str
    ) -> list[dict[str, str | None]]:
        """For each way to name a file up to `last`: wanted key → the file, or None for several."""
        prefix = self._find_only_folder(top) if names and last >= INNER else ""
        stages = [dict[str, str | None]() for _ in range(last + 1)]
        for name in names:
            folded = fold_case(name)
            base = folded.rpartition("/")[2]
            inner = folded.removeprefix(prefix)
            ways = [name, _compose(name), folded, inner, base]
            if dot := len(os.path.splitext(base)[1]):
                ways += [folded[:-dot], inner[:-dot], base[:-dot]]
            for how, key in enumerate(ways[: last + 1]):
                if key in wanted:
                    stages[how][key] = name if stages[how].get(key, name) == name else None
        return stages


def _cut_stem(path: str) -> str:
    return os.path.splitext(path.rpartition("/")[2])[0]


def _choose(one: Matches, other: Matches) -> Matches:
    """The better matches, of those in a folder and those in one around it."""
    num_whole = one.count_whole()
    if not num_whole:
        return min(one, other, key=_rank)
    whole = {cell: match.name for cell, match in one.files.items() if _is_whole(match)}
    agree = all(other.files[cell].name == name for cell, name in whole.items())
    return other if agree and other.count_whole() > num_whole else one


def _keep_alike(matches: Matches, top: str) -> Matches:
    """The matches of cells that name files as the others do: if some have paths, all have."""
    files = {
        cell: one
        if _is_whole(one) or not one.name or _cut_ending(top + cell) == _cut_ending(one.name)
        else NO_MATCH
        for cell, one in matches.files.items()
    }
    has_paths = any(one.name for one in files.values())
    return Matches(files, matches.dropped) if has_paths else matches


def _cut_ending(name: str) -> str:
    return os.path.splitext(fold_case(name))[0]


def _rank(matches: Matches) -> tuple[int, ...]:
    """The surer ones first, and of those without folders of another machine, the longest paths."""
    inner, every = matches.count(INNER), matches.count(STEM)
    return not every, -matches.count_whole(), -inner, len(matches.dropped), -every


def _is_whole(match: Match) -> bool:
    """Whether a cell is the path of a file, with its extension or without."""
    return bool(match.name) and (match.how <= FOLDED or match.how == WHOLE_STEM)


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
    return os.path.isabs(cell) and os.path.exists(cell)


def _compose(name: str) -> str:
    return name if name.isascii() else unicodedata.normalize("NFC", name)
