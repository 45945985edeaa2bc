"""Names of classes that have numbers, from a file beside the images.

Many programs number the classes of folders and tables and keep the names in a file of their own:
classes.txt, data.yaml, label_map.json, class_indices.json, LOC_synset_mapping.txt. A file counts if
it has a name for each number that occurs, and says which one it is.
"""

import json
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]

from cls_jax.io import PARSE_ERRORS, make_printable, read_bytes
from cls_jax.photos.folder.kinds import SEPARATOR, split_tags
from cls_jax.photos.folder.log import NOTHING, LabelRow, Mark
from cls_jax.photos.folder.names import clean, fold_class, simplify
from cls_jax.photos.images.decode import SUFFIXES
from cls_jax.photos.images.files import Listing, list_rare

_MAX_BYTES = 2**22  # WordNet's words.txt has 2.6 million.
_MAX_YAML = 2**17  # Characters. Its parser is slow.
_MAX_DEPTH = 6  # Of a list of names within JSON or YAML.
_SUFFIXES = (".txt", ".csv", ".tsv", ".json", ".yaml", ".yml", ".names", ".md")
# Names of files whose lines are names of classes, and keys of JSON and YAML, simplified.
_LISTS = (
    "classes",
    "class",
    "classnames",
    "labels",
    "labelnames",
    "names",
    "categories",
    "id2label",
)
_WORDNET = re.compile(r"n\d{8}")
_LINE = re.compile(r"\s*(\S+?)\s*[\s,:;=]\s*(\S.*)")
_REVERSED = re.compile(r"\s*(\S.*?)\s*[\s,:;=]\s*(\S+)\s*")
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---", re.S)


class ClassNames(NamedTuple):
    """The names of numbered classes."""

    names: Mapping[str, str] = NOTHING  # By number, as `_read_key` writes it.
    file: str = ""  # That has them.
    sentence: str = ""  # Of a plan, which file has them.
    warning: str = ""

    def get(self, label: str) -> str:
        """The names of the classes in a label, or the label itself."""
        parts = (self.names.get(_read_key(part), part) for part in label.split(SEPARATOR))
        return SEPARATOR.join(parts)

    def name_rows(self, rows: list[LabelRow]) -> list[LabelRow]:
        """The same in the rows of a table."""
        if not self.names:
            return rows
        return [row._replace(label=self.get(row.label), rival=self.get(row.rival)) for row in rows]

    def name_marks(self, marks: Mapping[str, Mark]) -> Mapping[str, Mark]:
        """The same in the marks of files, as they are spelled."""
        if not self.names:
            return marks
        named = {  # Many files have equal marks.
            mark: mark._replace(
                spelled=tuple(map(self.get, mark.spelled)), rival=self.get(mark.rival)
            )
            for mark in set(marks.values())
        }
        return {file: named[mark] for file, mark in marks.items()}


def find_class_names(
    root: pathlib.Path, listing: Listing, labels: Collection[str], tables: Collection[str] = ()
) -> ClassNames:
    """The names of all classes of a folder if these are numbers, from the only file that fits.

    `tables` are files that have the labels, and so no names of classes.
    """
    labels = {tag for label in labels for tag in split_tags(label)}
    keys = {_read_key(label) for label in labels}
    if len(keys) < 2 or "" in keys or len(keys) < len(set(map(fold_class, labels))):
        return ClassNames()
    files = [file for file in list_rare(listing.others, _SUFFIXES) if file not in tables]
    names = {file: list(_read_names(root / file)) for file in files}
    fits = {file: list(filter(None, (_fit(one, keys) for one in names[file]))) for file in files}
    found = {
        file: one[0] for file, one in fits.items() if one and all(fit == one[0] for fit in one)
    }
    if not found:
        listed = ", ".join(sorted(keys, key=lambda key: (len(key), key))[:3])
        warnings = (
            f"{file!r} does not name the classes, which stay numbers such as {listed}: write one "
            'line for each, as in "0,cat".'
            for file in files
            if names[file] and simplify((root / file).name.split(".")[0]) in _LISTS
        )
        return ClassNames(warning=next(warnings, ""))
    file, chosen = next(iter(found.items()))
    if other := next((name for name, fit in found.items() if fit != chosen), None):
        return ClassNames(
            warning=f"Both {file!r} and {other!r} have names for the numbers of the classes, "
            "which stay numbers: move the wrong one out of the folder."
        )
    ends = sorted(chosen.items(), key=lambda item: (len(item[0]), item[0]))
    first, last = (make_printable(f"{number} = {name}") for number, name in (ends[0], ends[-1]))
    return ClassNames(
        chosen, file, f"{file}: names of {len(chosen):,} classes, from {first} to {last}."
    )


def _read_key(label: str) -> str:
    """A number without zeros before it, or an identifier of WordNet. "" for any other label."""
    label = fold_class(label)
    if label.isdecimal() and len(label) < 10:
        return str(int(label))
    return label if _WORDNET.fullmatch(label) else ""


def _fit(names: Mapping[str, str] | list[str], keys: Collection[str]) -> dict[str, str] | None:
    """Key → name of all keys. None if some has none, or it is not clear which one it is."""
    if isinstance(names, list):
        starts = [
            start
            for start in (0, 1)
            if all(key.isdecimal() and start <= int(key) < start + len(names) for key in keys)
        ]
        # A list of exactly these classes begins at the first one.
        if len(names) == len(keys) and "0" not in keys and 1 in starts:
            starts = [1]
        if len(starts) != 1:
            return None
        names = {str(i): name for i, name in enumerate(names, starts[0])}
    chosen = {key: clean(names.get(key, "")) for key in sorted(keys)}
    folded = set(map(fold_class, chosen.values()))
    return chosen if len(folded) == len(keys) and all(map(_is_name, folded)) else None


def _is_name(folded: str) -> bool:
    return bool(folded) and not _read_key(folded) and not folded.endswith(SUFFIXES)


def _read_names(path: pathlib.Path) -> Iterator[dict[str, str] | list[str]]:
    """What a file may say about the names of classes: by key, or in order."""
    suffix = path.suffix.lower()
    try:
        text = read_bytes(path, _MAX_BYTES).decode("utf-8-sig")
        if suffix == ".md":
            front = _FRONT_MATTER.match(text[:_MAX_YAML])
            text = front[1] if front else ""
        if suffix == ".json":
            yield from _search(json.loads(text))
        elif suffix in (".yaml", ".yml", ".md"):
            yield from _search(yaml.safe_load(text) if len(text) < _MAX_YAML else None)
        else:
            yield from _read_lines(path, text)
    except (*PARSE_ERRORS, yaml.YAMLError):
        return


def _search(value: Any, depth: int = 0) -> Iterator[dict[str, str] | list[str]]:
    """The names in a value, or under keys such as "names" in it."""
    if not value or depth > _MAX_DEPTH:
        return
    inner = value if isinstance(value, list) else []
    if isinstance(value, dict):
        if all(isinstance(name, str) for name in value.values()):
            yield {_read_key(str(key)): name for key, name in value.items()}
        if all(type(key) is int for key in value.values()):
            yield {str(key): str(name) for name, key in value.items()}
        inner = [v for key, v in value.items() if not _are_names(v) or simplify(str(key)) in _LISTS]
    elif _are_names(value):
        yield value
        return
    for one in inner:
        yield from _search(one, depth + 1)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _read_lines(path: pathlib.Path, text: str) -> Iterator[dict[str, str] | list[str]]:
    """The names in lines: after or before a key, or alone."""
    # Several spaces would make the patterns slow.
    lines = list(filter(None, (" ".join(clean(line).split()) for line in text.splitlines())))
    for pattern, key, name in ((_LINE, 1, 2), (_REVERSED, 2, 1)):
        matches = [pattern.fullmatch(line) for line in lines]
        pairs = [(_read_key(one[key]), one[name].strip("\"'")) for one in matches if one]
        pairs = pairs if not pairs or pairs[0][0] else pairs[1:]  # A header.
        are_names = len({name for _, name in pairs}) == len(dict(pairs)) == len(pairs) > 0
        if len(pairs) >= len(lines) - 1 and are_names and all(key for key, _ in pairs):
            yield dict(pairs)
            return
    suffix = path.suffix.lower()
    is_list = suffix == ".names" or (suffix == ".txt" and simplify(path.stem) in _LISTS)
    if is_list and lines and not any(map(_read_key, lines)):
        yield lines
