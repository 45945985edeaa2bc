"""Rounds, and running means that fit them. Ramps are in `test_oracles.py`."""

import pytest

from cls_jax.methods import choose_decay, get_round_length
from tests.conftest import create_tiny_config


@pytest.mark.parametrize(
    ("num_steps", "rounds", "length"), [(6, 1, 6), (6, 2, 3), (7, 2, 4), (10, 4, 3)]
)
def test_rounds_are_equally_long_but_for_the_last(num_steps, rounds, length):
    config = create_tiny_config("20,ups", num_steps=num_steps, method__rounds=rounds)
    assert get_round_length(config) == length


def test_a_method_without_rounds_has_one():
    assert get_round_length(create_tiny_config(num_steps=7)) == 7


@pytest.mark.parametrize("num_steps", [1, 25, 250, 300, 1_000, 5_000, 300_000])
def test_running_means_forget_their_start_within_a_round(num_steps):
    decay = choose_decay(num_steps)
    assert 0 <= decay <= 0.999
    assert decay**num_steps < 0.05


def test_running_means_follow_the_length_of_a_round():
    assert [choose_decay(n) for n in (500, 2_000, 10_000, 307_200)] == [0.99, 0.99, 0.998, 0.999]
