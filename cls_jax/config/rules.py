"""The values that a key of a configuration may have, as a check and in words."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from cls_jax.data.augment.randaugment import OPS
from cls_jax.io import is_number


@dataclasses.dataclass(frozen=True)
class Rule:
    """The values that a key may have.

    Attributes:
        accepts: value of the default's type → whether it is one of them. May raise a TypeError if
            it is a tuple.
        text: the same in words, which follow "choose" in an error message.
    """

    accepts: Callable[[Any], bool]
    text: str


def between(low: float, high: float = math.inf, excludes: str = "") -> Rule:
    """Numbers from `low` to `high`. Integers if `low` is one.

    Args:
        low: the lower end.
        high: the upper end.
        excludes: the end that is itself invalid, "low" or "high". Empty if both are valid.
    """

    def accepts(value: Any) -> bool:
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


def parse_step_range(text: str) -> range | None:
    """The steps that "FIRST:LAST" names, the last included. None if it has another form."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        return None
    return range(int(first), int(last) + 1)


YES_OR_NO = Rule(lambda value: True, "True or False")
TEXT = Rule(lambda value: "\0" not in value, "a string without NUL characters")
AT_LEAST_1 = between(1)
DEVICES = between(0, 2**31 - 1)
DEPTH = Rule(lambda v: 10 <= v <= 1000 and (v - 4) % 6 == 0, "6n + 4 (10, 16, 22, 28, …)")
NUMBERS = Rule(lambda value: all(map(is_number, value)), "numbers, one per channel, or none")
POSITIVE_NUMBERS = Rule(
    lambda value: all(is_number(number) and number > 0 for number in value),
    "positive numbers, one per channel, or none",
)
POOL = Rule(
    lambda value: 0 < len(value) <= len(OPS) and all(name in OPS for name in value),
    f"some of {', '.join(OPS)}",
)
STEP_RANGE = Rule(
    lambda value: not value or parse_step_range(value) is not None,
    "FIRST:LAST, two steps such as 10:12, or nothing",
)
