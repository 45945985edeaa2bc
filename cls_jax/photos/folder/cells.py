"""What the cells of another program's table mean: its classes, and the parts of the data."""

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cls_jax.io import parse_json
from cls_jax.photos.folder.kinds import ONE_CLASS, SEPARATOR, SEPARATORS, Classes, join_tags
from cls_jax.photos.folder.names import (
    HELD_OUT,
    LONGEST_CLASS,
    clean,
    find_part,
    fold_class,
    is_missing,
    simplify,
)
from cls_jax.photos.folder.reading import Fault

# Headers, simplified, of columns that say which part a row belongs to, if their cells do.
_PART_COLUMNS = ("split", "subset", "partition", "datasplit", "mluse", "traintest", "trainvaltest")
# Headers of columns that say it for one part, by yes and no.
_PLAIN_FLAGS = ("train", "training", "test", "testing", "val", "valid", "validation")
_FLAG_COLUMNS = {
    **dict.fromkeys(("isvalid", "isval", "isvalidation"), "validation"),
    **dict.fromkeys(("istest", "istesting", "isholdout", "holdout"), "test"),
    **dict.fromkeys(("istrain", "istraining", "istrainingimage"), "train"),
}
_MORE_PARTS = {
    "dev": "validation",
    **dict.fromkeys(("eval", "evaluation", "holdout", "publictest", "privatetest"), "test"),
}
_YES, _NO = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")
_MAX_MARKS = 20
# Classes with four numbers each, as Kaggle writes boxes of ImageNet.
_BOX = re.compile(r"([^\W\d]\S*)(?: -?\d+){4}(?: |$)")
_BOXES = re.compile(rf"(?:{_BOX.pattern})+")
_PLURALS = ("labels", "classes", "categories", "choices", "tags")
_RARE_SEPARATORS = ",/+&"  # They occur in names, so the parts must be classes of their own.


def read_classes(
    table: str, header: str, labels: Mapping[str, str], kind: Classes = ONE_CLASS
) -> tuple[dict[str, str], Fault | None]:
    """Cell → its label, "" without one, of the distinct cells of a column.

    `labels` have a file with each of these cells, for sentences. There is a fault if a cell has
    more classes than an image can have, or something else than a class.
    """
    classes: dict[str, tuple[str, ...]] = {}
    for cell in labels:
        names = _unpack(cell)
        if names is None:
            return {}, Fault(
                f"{table} has {cell!r:.100} in place of a class: write one class, such as cat, "
                "into each row."
            )
        if _BOXES.fullmatch(names[0] if len(names) == 1 else ""):
            names = list(dict.fromkeys(match[1] for match in _BOX.finditer(names[0])))
        if len(names) == 1:
            names = [name for name in map(clean, names) if not is_missing(name)]
        classes[cell] = tuple(names)
    texts = [names[0] for names in classes.values() if len(names) == 1]
    known = {fold_class(name) for names in classes.values() for name in names}
    separators, sure, known = kind.find_lists(texts, _list_separators(header), known)
    classes = {
        cell: _split(names[0], separators, sure, known) if len(names) == 1 else names
        for cell, names in classes.items()
    }
    several = (cell for cell, names in classes.items() if len(names) > kind.most)
    faults = (refuse_several(table, labels[cell], classes[cell]) for cell in several)
    too_long = (
        Fault(
            f"{table} has a class of more than {LONGEST_CLASS} characters: shorten it, or pass "
            "--label-column with the column of the classes."
        )
        for names in classes.values()
        if any(len(name) > LONGEST_CLASS for name in names)
    )
    named = {
        cell: [clean(name).replace(SEPARATOR, ",") for name in names if not is_missing(clean(name))]
        for cell, names in classes.items()
    }
    joined = {cell: join_tags(names) if names else "" for cell, names in named.items()}
    joined |= {cell: kind.none for cell in labels if cell.strip() == kind.none}
    return joined, next(itertools.chain(faults, too_long), None)


def _split(name: str, separators: str, sure: str, known: Collection[str]) -> tuple[str, ...]:
    """The classes in a text: a single one unless a separator is `sure`, or the parts `known`."""
    for separator in separators:
        parts = tuple(filter(None, map(clean, name.split(separator))))
        are_known = [fold_class(part) in known for part in parts]
        # With a comma, or a space below a header in the plural, one of them is enough.
        is_list = all(are_known) or (separator in ", " and any(are_known))
        if len(parts) > 1 and (is_list or separator in sure):
            return parts
    return tuple(filter(None, [name.strip(f"{sure} ")]))  # "cat;" has one.


def _list_separators(header: str) -> str:
    return SEPARATORS + _RARE_SEPARATORS + (" " if simplify(header) in _PLURALS else "")


def is_read_as_written(header: str, name: str) -> bool:
    """Whether `read_classes` certainly takes the name of a class for itself."""
    is_list = name[:1] in ("{", "[") or any(one in name for one in _list_separators(header))
    return not is_list and not is_missing(name)


def _unpack(cell: str) -> list[str] | None:
    """The classes in a list or in an object as Label Studio writes it. None for other objects."""
    if cell.strip()[:1] not in ("{", "["):
        return [cell]
    value: Any = None
    for text in (cell, cell.replace("'", '"')):  # A list as Python writes it.
        with contextlib.suppress(ValueError):
            value = parse_json(text)
            break
    else:
        return [cell]
    if isinstance(value, dict) and len(value) == 1:  # Of Label Studio and VIA.
        (value,) = value.values()
    names: list[Any] = value if isinstance(value, list) else [value]
    return list(map(str, names)) if all(isinstance(name, str | int) for name in names) else None


def refuse_several(table: str, file: str, names: Sequence[str]) -> Fault:
    """The fault that a table gives a file several classes."""
    return Fault(
        f"{table} gives {file!r:.100} several classes, {', '.join(map(repr, names)):.200}, but an "
        "image has one class here: pass --tags if images may have several, keep one of them in "
        "each row, or rename the class if it is a single one."
    )


def is_part_column(header: str, cells: Sequence[str]) -> bool:
    """Whether a column's header, or its distinct cells, say which part a row belongs to.

    Cells do if they name "train" and another part. With one that is held out, other cells are a
    mistake, which `read_parts` reports.
    """
    simple = simplify(header)
    if simple in _PLAIN_FLAGS and all(fold_class(cell) in (*_YES, *_NO) for cell in cells):
        return True
    if simple in (*_PART_COLUMNS, *_FLAG_COLUMNS):
        return True
    # More cells are something else, such as names of files.
    found = set(map(_find_part, cells)) if len(cells) <= _MAX_MARKS else set()
    others = found & {"test", "validation"} if None in found else found - {"train"}
    return "train" in found and bool(others)


def read_parts(
    table: str, headers: Sequence[str], rows: Sequence[str]
) -> tuple[dict[str, str], Fault | None]:
    """What the columns of parts with these headers say: "train", "unlabeled", "test", "validation".

    By the cells of a row, joined by a zero byte. It is "" without such columns. There is a fault if
    a cell means none of them, columns contradict each other, or yes and no seem to mean something
    else.
    """
    parts, counts = dict[str, str](), Counter(rows)
    kinds = {row: list(map(_read_part, headers, row.split("\0"))) for row in counts}
    for row, found in kinds.items():
        if None in found:
            place = found.index(None)
            header, cell = headers[place], row.split("\0")[place]
            return {}, Fault(
                f"{table} has {cell!r:.100} in the column {header!r:.100}, which is none of train, "
                "val and test: write one of them in each row, or rename the column."
            )
        others = sorted({part for part in found if part} - {"train"})
        if len(others) > 1:
            return {}, Fault(
                f"{table} has rows that are {' and '.join(others)} images at once by the columns "
                f"{' and '.join(map(repr, headers))}: keep one of the columns."
            )
        parts[row] = others[0] if others else "train" if headers else ""
    for place, header in enumerate(headers):
        num_held_out = sum(counts[row] for row in counts if kinds[row][place] in HELD_OUT)
        if _find_flag(header) and 2 * num_held_out > len(rows):
            return {}, Fault(
                f"{num_held_out:,} of {len(rows):,} rows of {table} would be held out by the "
                f"column {header!r:.100}: write train, val or test into a column called split, or "
                "rename the column."
            )
    return parts, None


def _find_flag(header: str) -> str | None:
    """The part that a column is about, if it says yes and no."""
    simple = simplify(header)
    return _FLAG_COLUMNS.get(simple) or (find_part(simple) if simple in _PLAIN_FLAGS else None)


def _read_part(header: str, cell: str) -> str | None:
    """The part that a cell of such a column means, None for any other cell."""
    word, flag = fold_class(cell), _find_flag(header)
    if flag and word in _YES:
        return flag
    if flag and word in _NO:  # What is no training image is a test image.
        return "test" if flag == "train" else "train"
    return "train" if is_missing(clean(cell)) else _find_part(cell)


def _find_part(cell: str) -> str | None:
    word = fold_class(cell)
    return find_part(word) or _MORE_PARTS.get(word)
