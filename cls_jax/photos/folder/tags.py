"""Labels of images that may have several: their tags, joined by ";", as one text.

So a label is a text everywhere, whether an image has one class or several tags: "boots;hat" has
two, and ";" alone is the label of an image that was looked at and has none of them. In
"boots;?hat", nobody knows whether it has the second one. No tag contains ";" or begins with "?".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

SEPARATOR, OPEN = ";", "?"


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

        Returns int8 [B, T], the values of `Marks`.
        """
        return np.where(labels_B[:, None] >= 0, self.values[labels_B], np.int8(-1))


def read_sets(labels: Sequence[str]) -> TagSets:
    """The tags of labels, such as the classes of a dataset with tags."""
    found = [split_tags(label) for label in labels]
    names = sorted({tag.removeprefix(OPEN) for tags in found for tag in tags})
    values = [[(tag in tags) - (OPEN + tag in tags) for tag in names] for tags in found]
    return TagSets(tuple(names), np.array(values, np.int8).reshape(len(found), len(names)))
