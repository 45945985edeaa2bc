"""How a training from the page goes and ends, by what its process prints and leaves behind."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cls_jax.parallel.preemption import SIGNALS

# What `cls-jax train` says of a time. `tests/photos/labeling/test_training.py` compares both.
_NEEDED = re.compile(r"[^\n]* too short for a training[^\n]*about ([\d,]+) minutes are needed\.")
_PLANNED = re.compile(r"^Time: +([\d.,]+) minutes\b.*$", re.MULTILINE)
_STOPPED = {code for number in SIGNALS for code in (128 + number, -number)}  # Exit codes.


class Offer(NamedTuple):
    """What a training would do on this machine now, or why there is none."""

    sentence: str
    minutes: float  # That it takes, or that are needed.
    is_possible: bool


def read_offer(printed: str) -> Offer | None:
    """What a training, or its dry run, has printed about its time. None if it has not (yet)."""
    for pattern in (_NEEDED, _PLANNED):
        if found := pattern.search(printed):
            sentence = re.sub(r"^(Error|Time): +", "", found[0])
            return Offer(sentence, float(found[1].replace(",", "")), pattern is _PLANNED)
    return None


def read_message(printed: str) -> str:
    """The last whole line that was printed, or what a progress bar counts."""
    lines = re.split(r"[\r\n]", printed)[:-1]
    # As "Features:  50%|█████".
    said = (" ".join(re.sub(r"%\|.*", "%", line).split()) for line in reversed(lines))
    return next(filter(None, said), "")


def describe_end(
    code: int, printed: str, has_saved: bool, choice: str = "", is_planning: bool = False
) -> dict[str, Any]:
    """How a process has ended: its phase, and a message.

    A time that is too short is no failure: what is possible is offered.

    Args:
        code: Its exit code.
        printed: All that it has printed.
        has_saved: Whether it left something to resume.
        choice: A sentence about what is used now, of a training that is done.
        is_planning: Whether it was a dry run.
    """
    offer = read_offer(printed)
    if offer is not None and (is_planning or not offer.is_possible):
        return {"phase": "planned", "message": "", "offer": offer._asdict()}
    if code in _STOPPED and is_planning:
        return {"phase": "none", "message": ""}
    if code in _STOPPED:
        kept, lost = "To continue, run this command:", "Nothing was saved: it had not begun."
        return {"phase": "stopped", "message": kept if has_saved else lost}
    if code or is_planning:
        last = [line.strip() for line in printed.splitlines() if line.strip()][-1:]
        reason = "".join(last).removeprefix("Error: ") if code else ""
        return {"phase": "failed", "message": reason or "It ended unexpectedly."}
    return {"phase": "done", "message": choice}


def estimate_left(
    rows: Sequence[Mapping[str, Any]], num_steps: int, seconds: float, planned: float
) -> int | None:
    """Seconds that are left. None if nothing is known.

    Args:
        rows: The metrics of the run so far.
        num_steps: The length of the run.
        seconds: That have passed.
        planned: Seconds that it was to take in all. 0 if it was not said.
    """
    speeds = [row["perf/steps_per_second"] for row in rows if row.get("perf/steps_per_second")]
    left = planned - seconds
    if speeds:
        left = max(left, (num_steps - max(row["step"] for row in rows)) / speeds[-1])
    return max(int(left), 0) if planned or speeds else None
