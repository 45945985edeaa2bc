"""What *Result* says on top: at every moment, one next step."""

import pytest

from cls_jax.photos.labeling.next_step import Situation, choose_step

GUESSED = Situation(
    early="", images=496, open=410, percent=95, accuracy=90.0, random=0, checks=0, listed=36
)
MEASURED = GUESSED._replace(checks=20)


@pytest.mark.parametrize(
    ("known", "kind", "said"),
    [
        (GUESSED._replace(early="Label photos of two classes first."), "answer", "two classes"),
        (GUESSED, "check", "This is an estimate: check 20 random photos to measure it."),
        (GUESSED._replace(checks=19), "check", "check 1 more random photo to measure it."),
        (GUESSED._replace(random=7), "answer", "7 random photos left to check."),
        (GUESSED._replace(open=19), "look", "look at these 36."),
        (MEASURED, "look", "To get 95% of all 496 photos right, look at these 36."),
        (MEASURED._replace(listed=1), "look", "right, look at this one."),
        (MEASURED._replace(listed=0), "use", "Done: about 92% of all 496 photos are named right."),
        # The list that was asked is a promise: newer answers make it no longer.
        (MEASURED._replace(asked=36, left=12, listed=75), "look", "12 of the 36 photos are left"),
        (MEASURED._replace(asked=36, left=0, listed=75), "use", "Done: about 92% of all 496"),
        (GUESSED._replace(asked=36, left=0, listed=0), "use", "Done: about 92% of all 496"),
        (MEASURED._replace(asked=9, accuracy=None), "use", "Done: the 9 photos have your answer."),
        (MEASURED._replace(open=0, listed=0), "use", "Done: all 496 photos have your answer."),
    ],
)
def test_there_is_one_next_step_in_every_situation(known, kind, said):
    step = choose_step(known)
    assert step.kind == kind
    assert said in step.sentence
