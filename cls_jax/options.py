"""The keys of a configuration: what each may be, and who adds keys to those of every run."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from cls_jax.io import is_number


class Rule(NamedTuple):
    """The values that a key may have."""

    # Whether a value of the default's type is valid. May raise a TypeError for a tuple.
    accepts: Callable[[Any], bool]
    text: str  # In words, after "choose" in an error message.


def between(low: float, high: float = math.inf, excludes: str = "") -> Rule:
    """Numbers from `low` to `high`, integers if `low` is one.

    `excludes` names the end that is itself invalid, "low" or "high".
    """

    def accepts(value: object) -> bool:
        if not is_number(value) or (value == low and excludes == "low"):
            return False
        return low <= value < high if excludes == "high" else low <= value <= high

    noun = "an integer" if isinstance(low, int) else "a number"
    ends = f"from {_show(low)} to {_show(high)}"
    if math.isinf(high):
        ends = f"of at least {_show(low)}"
    elif excludes:
        ends = f"above {_show(low)}" if excludes == "low" else f"of at least {_show(low)}"
        ends += f" and below {_show(high)}" if excludes == "high" else f" and at most {_show(high)}"
    return Rule(accepts, f"{noun} {ends}")


def _show(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def one_of(*words: str) -> Rule:
    """Any of these words."""
    *others, last = words
    return Rule(lambda value: value in words, f"{', '.join(others)} or {last}")


YES_OR_NO = Rule(lambda value: True, "True or False")
TEXT = Rule(lambda value: "\0" not in value, "a string without NUL characters")
AT_LEAST_1 = between(1)
COUNT = between(0, 2**31 - 1)
BELOW_1 = between(0.0, 1.0, excludes="high")
ABOVE_0 = between(0.0, 1.0, excludes="low")


class Option(NamedTuple):
    """A value that a user may set as `--config.KEY=VALUE`."""

    default: Any  # Only its type is accepted.
    rule: Rule
    help: str  # The key's meaning and unit.
    source: str = ""  # The origin of the default. Empty if it is our own choice.
    # Whether the value may change when a run resumes, because it does not affect what is trained.
    # In a method with rounds, such as UPS, `eval_batch_size` does: dropout is drawn by batch.
    is_runtime: bool = False


# fmt: off
# Of datasets of image files, see `data.resize`.
DECODING: dict[str, Option] = {
    "data.channels": Option(3, Rule(lambda value: value in (1, 3), "1 or 3"),
        "1 (gray) or 3 (RGB), for images in a folder."),
    "data.resize": Option("crop", one_of("crop", "pad", "stretch"),
        "How images in a folder become square: crop keeps the center, pad adds gray borders, "
        "stretch changes the aspect ratio."),
    "data.bit_depth": Option(16, between(8, 16),
        "Bits that 16-bit images in a folder use: 12 maps 4,095 to white."),
}
# fmt: on
# The keys that only some runs have, by the name of the dataset that reads them. Those of "" are the
# product's, which every run has. A key that nothing reads is refused.
ADDED: dict[str, dict[str, Option]] = {}
