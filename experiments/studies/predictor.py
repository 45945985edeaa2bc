"""How often the rules that choose between two classifiers are right.

python -m experiments.studies.predictor

The gains by training are those of 20 runs on five folders (experiments/results/any_folder.md). For
each, validation photos are drawn: on some, only the trained networks are right, on others only the
instant classifier, so that the expected difference is the gain. Compared are the sign of the sum of
the measured gain and a prior one, each divided by its variance, and a gain of more than twice its
error, which `predictor` asks for.
"""

import math
from collections.abc import Callable

import numpy as np

from cls_jax.photos.inference.predictor import TRAINED, compare_classifiers, expect_gain
from experiments.paper import grid

# By folder, in points: scans, trash, clothing, textures, CIFAR-10.
_GAINS = {
    "scans": (-3.0, -2.8, 0.2, -1.0),
    "trash": (3.5, 1.8, 0.7, 0.3),
    "clothing": (6.7, -0.1, 6.0, 3.3),
    "textures": (0.7, -1.0, 0.4, -0.3),
    "CIFAR-10": (9.1, 8.9, 6.7, 7.4),
}
_WITHOUT_GRAPHS = "scans"
_NUM_DRAWS = 1000
_NUM_PHOTOS = (0, 20, 40, 100, 400)
_LESS_RIGHT = 0.05  # On this share of the photos, only the worse classifier is right.
_PRIOR_DEVIATION = 4.0


def choose_by_sum(is_right: np.ndarray, is_right_instant: np.ndarray, prior: float) -> bool:
    """Whether the sum of both gains is positive. Right ones are bool [B]."""
    evidence = prior / _PRIOR_DEVIATION**2
    if len(is_right):
        gains = 100 * (is_right.astype(float) - is_right_instant)
        evidence += gains.mean() / (((gains**2).sum() + 100**2) / len(gains) ** 2)
    return evidence > 0


def choose_by_error(is_right: np.ndarray, is_right_instant: np.ndarray, prior: float) -> bool:
    """The rule of `predictor`."""
    return compare_classifiers(is_right, is_right_instant, prior)["predictor"] == TRAINED


RULES: dict[str, Callable[[np.ndarray, np.ndarray, float], bool]] = {
    "sum with the prior": choose_by_sum,
    "twice the error": choose_by_error,
    "always the instant classifier": lambda *_: False,
    "always the trained networks": lambda *_: True,
}


def main() -> None:
    """Prints a table."""
    rows = []
    for name, choose in RULES.items():
        for num_photos in _NUM_PHOTOS:
            rng = np.random.default_rng(0)
            right, harmed, gained = [], [], []
            for folder, gains in _GAINS.items():
                prior = expect_gain(10 if folder == _WITHOUT_GRAPHS else 50, 80)
                for gain in gains:
                    for _ in range(_NUM_DRAWS):
                        is_chosen = choose(*_draw(rng, gain, num_photos), prior)
                        right.append(is_chosen == (gain > 0))
                        harmed.append(is_chosen and gain < 0)
                        gained.append(gain if is_chosen else 0.0)
            cells = [f"{100 * np.mean(one):.0f}%" for one in (right, harmed)]
            rows.append([name, str(num_photos), *cells, f"{np.mean(gained):+.1f}"])
            if name.startswith("always"):
                break
    print(grid.describe_provenance())
    print(grid.format_table(["rule", "photos", "right", "chooses a loss", "gain in points"], rows))


def _draw(rng: np.random.Generator, gain: float, num_photos: int) -> tuple[np.ndarray, np.ndarray]:
    """Which photos the trained networks and the instant classifier name right, bool [B] each."""
    more = _LESS_RIGHT + abs(gain) / 100
    shares = (more, _LESS_RIGHT) if gain > 0 else (_LESS_RIGHT, more)
    drawn = rng.random(num_photos)
    is_right = drawn >= shares[0] + shares[1]
    return is_right | (drawn < shares[0]), is_right | (
        (drawn >= shares[0]) & (drawn < math.fsum(shares))
    )


if __name__ == "__main__":
    grid.run_main(main)
