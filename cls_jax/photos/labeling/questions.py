"""Which photos a session asks next, and in which window.

Nothing here is thread-safe: a session calls it under its lock.

Shape suffixes: B photos.
"""

import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cls_jax.data.resize import ImageError
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.images.decode import read_upright
from cls_jax.photos.images.store import hash_content

_NUM_NEXT = 8
_SMALL_SIDE = 32  # Pixels.
_CLAIM_SECONDS = 30.0


class Questions:
    """The photos to ask next: random ones to check, then marked ones, then those that cover most.

    Attributes:
        sample: Random photos to check → the probability of each to be drawn.
        next: The photos to ask next.
        marked: Photo without an answer → the classes that it is not.
    """

    def __init__(self) -> None:
        self.sample: dict[int, float] = {}
        self.next: list[int] = []
        self.marked: dict[int, set[str]] = {}
        # By window: the photo that it shows, and the time of its last request.
        self._claims: dict[str, tuple[int, float]] = {}

    def choose_first(self, is_open_B: np.ndarray) -> None:
        """Asks the first photos without an answer (`is_open_B`, bool [B])."""
        self.next = np.flatnonzero(is_open_B).tolist()[:_NUM_NEXT]

    def choose(
        self,
        is_open_B: np.ndarray,
        coverage: Coverage,
        shares_B: np.ndarray,
        sources_B: np.ndarray | None = None,
    ) -> None:
        """Asks photos without an answer. The arguments are those of `Coverage.choose`."""
        self.marked = {i: names for i, names in self.marked.items() if is_open_B[i]}
        chosen, _ = coverage.choose(is_open_B, _NUM_NEXT, shares_B, sources_B)
        sample = [i for i in self.sample if is_open_B[i] and i not in self.marked]
        first = [*sample, *self.marked]
        others = (int(image) for image in chosen if image not in first)
        self.next = [*first, *others][:_NUM_NEXT]

    def mark(self, images: Sequence[int], label: str) -> None:
        """Asks photos that are not of the class `label` soon, the last marked ones first."""
        marked = {image: {label, *self.marked.get(image, ())} for image in images}
        self.marked = marked | {i: names for i, names in self.marked.items() if i not in marked}

    def exclude_marked(
        self, is_open_B: np.ndarray, index: Mapping[str, int], p_BK: np.ndarray
    ) -> None:
        """Takes the classes that marked photos are not out of their probabilities, in place.

        Otherwise the page would propose what a person has just rejected.

        Args:
            is_open_B: Which photos have no answer, bool.
            index: The columns of all classes.
            p_BK: The probabilities of all photos, floating.
        """
        for image, names in self.marked.items():
            others = p_BK[image].copy()
            others[[index[name] for name in names if name in index]] = 0
            if is_open_B[image] and others.any():
                p_BK[image] = others / others.sum()

    def draw(self, is_open_B: np.ndarray, count: int, names: Sequence[str]) -> int:
        """Draws photos without an answer, each with the same probability, to be asked next.

        Random photos without an answer stay, and others are added until there are `count`, by the
        digests of their `names`: another session draws the same. Returns how many there are, 0 if
        all photos have an answer.
        """
        self.sample = {i: p for i, p in self.sample.items() if is_open_B[i]}
        others = [i for i in np.flatnonzero(is_open_B).tolist() if i not in self.sample]
        others.sort(key=lambda i: hash_content(os.fsencode(names[i])))
        drawn = others[: max(count - len(self.sample), 0)]
        self.sample |= dict.fromkeys(drawn, len(drawn) / max(len(others), 1))
        return len(self.sample)

    def forget_random(self) -> None:
        """Keeps only those random photos that a window shows."""
        shown = {image for image, _ in self._claims.values()}
        self.sample = {i: p for i, p in self.sample.items() if i in shown}

    def count_windows(self) -> int:
        """The windows that show a photo."""
        return len(self._claims)

    def share_out(self, window: str, shown: int | None = None) -> list[int]:
        """The photos to ask next in a window. Those shown in other windows come last.

        The one that is `shown` in the window and has no answer yet comes first: it stays until it
        has one. Random ones come before all others, even if another window shows them: it may not
        answer.
        """
        now = time.monotonic()
        recent = self._claims.items()
        self._claims = {key: one for key, one in recent if now - one[1] < _CLAIM_SECONDS}
        claimed, _ = self._claims.pop(window, (-1, 0.0))
        taken = {image for image, _ in self._claims.values()}
        # Sorting is stable.
        order = sorted(
            self.next,
            key=lambda i: (i not in self.sample, i in taken, i not in self.marked, i != claimed),
        )
        if shown is not None:
            order = [shown, *(image for image in order if image != shown)]
        if order:
            self._claims[window] = order[0], now
        return order


def draw_readable(
    root: pathlib.Path, names: Sequence[str], rng: np.random.Generator
) -> Iterator[str]:
    """The names of files in `root` in random order, without those that cannot be read."""
    for place in rng.permutation(len(names)):
        try:
            read_upright(root / names[place], _SMALL_SIDE)
        except ImageError:
            continue
        yield names[place]
