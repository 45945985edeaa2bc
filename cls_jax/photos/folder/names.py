"""Names of classes, columns and folders: which ones are equal, and which ones mean no label."""

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

# Name of a folder, or mark in a table → the part of the data.
_PARTS = {
    **dict.fromkeys(("labeled", "labelled", "train", "training"), "train"),
    **dict.fromkeys(("unlabeled", "unlabelled"), "unlabeled"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}
HELD_OUT = ("test", "validation")
# Cells of a table that mean no label: what pandas writes and reads as missing, "?", and the errors
# of a spreadsheet's formulas.
# https://pandas.pydata.org/docs/reference/api/pandas.read_csv.html, `na_values`.
_MISSING = {
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"),
    *("#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"),
}
# Names of folders and classes that say so in words, such as FiftyOne's `_unlabeled`.
_UNLABELED = re.compile(
    r"(unlabell?ed|notlabell?ed|nolabels?|withoutlabels?)(data|files|images|photos|pictures)?"
)
# Names that may say so, or name a class.
_DOUBTFUL = {
    *("missing", "na", "nan", "nil", "noclass", "none", "notag", "notannotated", "notsure"),
    *("null", "pending", "skip", "skipped", "tbd", "todo", "tolabel", "unannotated"),
    *("unassigned", "uncategorized", "unclassified", "undefined", "unknown", "unlabel"),
    *("unlabled", "unsorted", "unsure", "untagged"),
}
LONGEST_CLASS = 255  # Characters, as in the name of a folder.
_DASHES = "?-\u2013\u2014_.*/~ "
_BETWEEN = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])")
_WORD = re.compile(r"[^\W\d_]+")
_INTEGER = re.compile(r"([+-]?\d+)\.0+", re.ASCII)


def fold_case(name: str) -> str:
    """Normalizes case and the composition of accents."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def clean(name: str) -> str:
    """A name without the spaces and invisible characters around it."""
    if name.isascii():
        return name.strip()
    kept = [i for i, one in enumerate(name) if not (one.isspace() or _has_no_width(one))]
    return name[kept[0] : kept[-1] + 1] if kept else ""


def _has_no_width(character: str) -> bool:
    """Whether it is invisible, as U+200B, or only selects how an emoji is drawn."""
    return unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f"


def _narrow(character: str) -> str:
    """The usual form of a letter that is wide or narrow in East Asian text."""
    is_variant = unicodedata.decomposition(character).startswith(("<wide>", "<narrow>"))
    return unicodedata.normalize("NFKC", character) if is_variant else character


@functools.lru_cache(2**14)  # Tables have few classes and many rows.
def fold_class(name: str) -> str:
    """What equal names of classes have in common.

    Spaces, invisible characters, case and the width of letters make no difference, and "0.0", as
    pandas writes an integer in a column with gaps, is "0".
    """
    if not name.isascii():
        name = "".join(_narrow(c) for c in name if not _has_no_width(c))
    folded = " ".join(fold_case(name).split())
    number = _INTEGER.fullmatch(folded)
    return number[1] if number else folded


def group_pairs(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Key → its values, both in order of appearance."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def list_names(names: Sequence[str], most: int = 6) -> str:
    """The first names for a sentence, and how many others there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def list_words(name: str) -> list[str]:
    """The words of a name, without digits and signs."""
    return _WORD.findall(name)


def simplify(name: str) -> str:
    """The letters and digits of a name in lower case."""
    return "".join(filter(str.isalnum, fold_case(name)))


def is_missing(cell: str) -> bool:
    """Whether a cell of another program's table means that there is no label."""
    return not cell.strip("?") or cell in _MISSING or means_unlabeled(cell)


def means_unlabeled(name: str) -> bool:
    """Whether the name of a folder or class says that there is no label."""
    return _UNLABELED.fullmatch(simplify(name)) is not None


def may_mean_unlabeled(name: str) -> bool:
    """Whether a name resembles those that say so, but may name a class."""
    if not name.strip(_DASHES) or fold_class(name) == "-1":
        return True
    simple = simplify(name)
    return simple in _DOUBTFUL or simple.startswith(("unlabel", "nolabel", "notlabel"))


def resemble(name: str) -> str:
    """What names of classes have in common that differ in "_", "-" and spaces between words."""
    return _BETWEEN.sub(" ", fold_class(name))


def find_part(name: str) -> str | None:
    """The part of the data that the name of a folder or a mark stands for. None for another name.

    One of "train", "unlabeled", "test" and "validation".
    """
    folded = fold_class(name)
    return _PARTS.get(folded) or ("unlabeled" if means_unlabeled(folded) else None)
