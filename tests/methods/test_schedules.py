"""Schedules at points where their values are known."""

import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods import Context, choose_decay, get_round_length
from cls_jax.methods.baselines import tsa_threshold
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


def test_ramp_is_linear_and_then_one():
    at_start = Context(None, {}, None, None, None, jnp.float32(0))
    values = [
        at_start._replace(progress=jnp.float32(progress)).ramp_up(0.4)
        for progress in (0.0, 0.1, 0.4, 0.9)
    ]
    np.testing.assert_allclose(values, [0.0, 0.25, 1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "start", "middle", "end"),
    [
        ("linear", 0.1, 0.55, 1.0),
        ("log", 0.1, 0.1 + 0.9 * 0.917915, 0.1 + 0.9 * 0.993262),  # 1 - e^-2.5, 1 - e^-5.
        ("exp", 0.1 + 0.9 * 0.006738, 0.1 + 0.9 * 0.082085, 1.0),  # e^-5, e^-2.5.
    ],
)
def test_signal_annealing_rises_from_chance_to_one(kind, start, middle, end):
    values = [tsa_threshold(kind, jnp.float32(progress), 10) for progress in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(values, [start, middle, end], rtol=1e-5)
