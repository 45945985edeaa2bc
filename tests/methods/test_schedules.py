"""Schedules at points where their values are known."""

import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods.schedules import ramp_up, tsa_threshold


def test_ramp_is_linear_and_then_one():
    values = [ramp_up(jnp.float32(progress), 0.4) for progress in (0.0, 0.1, 0.4, 0.9)]
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
