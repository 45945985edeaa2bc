"""What a label can be: one class, or any number of tags. All that differs between the two is here.

Everybody else treats a label as a text. That of an image with several tags has them joined by ";":
"boots;hat" has two, and ";" alone is the label of an image that was looked at and has none of them.
In "boots;?hat", nobody knows whether it has the second one. No tag contains ";" or begins with "?".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cls_jax.photos.folder.names import clean, fold_class, group_pairs

SEPARATOR, OPEN = ";", "?"
ONES, ZEROS = ("1", "true"), ("0", "false")  # Folded cells of a column for one class.
# Between labels. They hardly occur in the name of a class.
SEPARATORS = f"{SEPARATOR}|\n\r\t"
Votes = Iterable[tuple[str, str]]  # Files, as a table has them, and labels, "" for none.


def split_tags(label: str) -> tuple[str, ...]:
    """The tags in a label, "?" before those that are open."""
    return tuple(filter(None, label.split(SEPARATOR)))


def join_tags(names: Iterable[str]) -> str:
    """The label of an image with these tags, each once and sorted."""
    return SEPARATOR.join(sorted(set(names))) or SEPARATOR


class TagSets(NamedTuple):
    """S labels as sets of T tags."""

    names: tuple[str, ...]  # Of the tags, sorted.
    values: np.ndarray  # int8 [S, T]: 1 with a tag, 0 without it, -1 if it is open.

    def mark(self, labels_B: np.ndarray) -> np.ndarray:
        """The tags of B images by the numbers of their labels, int [B], -1 without one.

        Returns int8 [B, T], as `infer_tags` takes them.
        """
        return np.where(labels_B[:, None] >= 0, self.values[labels_B], np.int8(-1))


def read_sets(labels: Sequence[str]) -> TagSets:
    """The tags of labels, such as the classes of a dataset with tags."""
    found = [split_tags(label) for label in labels]
    names = sorted({tag.removeprefix(OPEN) for tags in found for tag in tags})
    values = [[(tag in tags) - (OPEN + tag in tags) for tag in names] for tags in found]
    return TagSets(tuple(names), np.array(values, np.int8).reshape(len(found), len(names)))


class Classes:
    """An image has one class."""

    word = "classes"
    most: float = 1  # Classes of an image.
    none = ""  # The label of an image that has none of the classes: it is left out.
    open_marks: Collection[str] = ()  # Folded cells that are neither 0 nor 1.
    joins_networks = True  # Whether labels are inferred from features of several networks.

    def split(self, label: str) -> tuple[str, ...]:
        """The classes in a label, as it spells them."""
        return (label,)

    def name(self, spelled: Iterable[str]) -> list[str]:
        """The same without what says that one is open."""
        return list(spelled)

    def respell(self, spelled: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
        """The same with the usual names, by folded names, of which there must be one for each."""
        pairs = [(name, *self.name([name])) for name in spelled]
        return tuple((OPEN if a != b else "") + names[fold_class(b)] for a, b in pairs)

    def find_lists(
        self, texts: Sequence[str], separators: str, known: set[str]
    ) -> tuple[str, str, set[str]]:
        """What separates the classes in the texts of a column, which surely do, and known classes.

        Other `separators` do so only between `known` classes, folded.
        """
        return separators, SEPARATORS, known

    def mark(self, names: Sequence[str], cells: Sequence[str]) -> tuple[str, ...]:
        """The classes of a row with a column for each, which has 1 or 0."""
        pairs = zip(names, cells, strict=True)
        return tuple(name for name, cell in pairs if fold_class(cell) in ONES)

    def join(self, marked: Sequence[str], num_classes: int) -> str:
        """The label of such a row, which has at most `most` classes."""
        return "".join(marked[:1])

    def settle(self, votes: Votes, has_people: bool) -> dict[str, tuple[str, str]]:
        """File → its label by all of its rows, and that which comes second.

        With `has_people`, each row is a person's, and the majority counts. Otherwise, rows stay as
        they are.
        """
        if not has_people:
            return {}
        votes, chosen = list(votes), {}
        spelled = {fold_class(label): label for _, label in reversed(votes)} | {"": ""}
        for file, labels in group_pairs(votes).items():
            counts = Counter(filter(None, map(fold_class, labels)))
            (first, most), (second, fewer), *_ = [*counts.most_common(2), ("", 0), ("", 0)]
            chosen[file] = spelled[first if fewer < most else ""], spelled[second]
        return chosen

    def join_repeats(self, labels: list[str], places: Iterable[Sequence[int]]) -> list[str]:
        """The labels of images, some of which are identical: those at the same of the `places`."""
        return labels

    def count(self, labels_B: np.ndarray, class_names: Sequence[str]) -> dict[str, int]:
        """Class → the images that have it.

        Labels are numbers of `class_names`, int [B], -1 for none.
        """
        counts = np.bincount(labels_B[labels_B >= 0], minlength=len(class_names))
        return dict(zip(class_names, counts.tolist(), strict=True))

    def compare(self, counts: Collection[int]) -> float:
        """The number of labels of the largest class divided by the smallest class's."""
        return max(counts) / max(min(counts), 1)


class Tags(Classes):
    """An image has any number of classes, its tags."""

    word = "tags"
    most = float("inf")
    none = SEPARATOR
    open_marks = ("-1",)  # As in CheXpert. Empty cells, too.
    joins_networks = False

    def split(self, label: str) -> tuple[str, ...]:
        """Any number of them."""
        return split_tags(label)

    def name(self, spelled: Iterable[str]) -> list[str]:
        """Without a question mark."""
        return [name.removeprefix(OPEN) for name in spelled]

    def find_lists(
        self, texts: Sequence[str], separators: str, known: set[str]
    ) -> tuple[str, str, set[str]]:
        """Commas separate surely. What several texts have in common is known."""
        sure = f"{SEPARATORS},"
        if any(one in text for one in sure for text in texts):
            separators = sure  # Lists of one column are written in one way.
        counts: Counter[str] = Counter()
        for text in texts:
            parts = {fold_class(part) for one in separators for part in text.split(one)}
            counts.update(parts - {"", fold_class(text)})
        return separators, sure, known | {part for part, count in counts.items() if count > 1}

    def mark(self, names: Sequence[str], cells: Sequence[str]) -> tuple[str, ...]:
        """Also those that are open."""
        pairs = zip(names, map(fold_class, cells), strict=True)
        return tuple(
            ("" if cell in ONES else OPEN) + clean(name).replace(SEPARATOR, ",")
            for name, cell in pairs
            if cell not in ZEROS
        )

    def join(self, marked: Sequence[str], num_classes: int) -> str:
        """It is "" if all are open."""
        are_open = len(marked) == num_classes and all(tag[:1] == OPEN for tag in marked)
        return "" if are_open else join_tags(marked)

    def settle(self, votes: Votes, has_people: bool) -> dict[str, tuple[str, str]]:
        """All tags that rows give a file, or of several people those of most."""
        counts: dict[str, Counter[str]] = {}
        sizes: Counter[str] = Counter()
        least = 1 if has_people else 0  # Half of the rows, or any.
        for file, label in votes:
            sizes[file] += bool(label)
            counts.setdefault(file, Counter()).update(split_tags(label))
        return {
            file: (join_tags(t for t, n in found.items() if 2 * n > least * sizes[file]), "")
            for file, found in counts.items()
            if sizes[file]
        }

    def join_repeats(self, labels: list[str], places: Iterable[Sequence[int]]) -> list[str]:
        """The first one gets the tags of all, and the others have no label then."""
        labels = list(labels)
        for first, *others in places:
            found = [tag for i in (first, *others) for tag in split_tags(labels[i])]
            labels[first] = join_tags(found)
            for i in others:
                labels[i] = ""
        return labels

    def count(self, labels_B: np.ndarray, class_names: Sequence[str]) -> dict[str, int]:
        """By tag."""
        names, values = read_sets(class_names)
        counts = np.bincount(labels_B[labels_B >= 0], minlength=len(class_names))
        return dict(zip(names, (counts @ (values == 1)).tolist(), strict=True))

    def compare(self, counts: Collection[int]) -> float:
        """1: how often photos have one tag says nothing of another one."""
        return 1.0


ONE_CLASS, TAGS = Classes(), Tags()
