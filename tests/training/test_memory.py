"""What a step needs of a device's memory is known before it runs."""

import types

import jax
import jax.numpy as jnp
import pytest

from cls_jax.errors import UserError
from cls_jax.training.step import check_step_memory, get_device_memory, measure_step_memory


def compile_sum(num_bytes: int) -> jax.stages.Compiled:
    """A program whose argument takes so many bytes."""
    return jax.jit(jnp.sum).lower(jnp.zeros(num_bytes, jnp.uint8)).compile()


def test_arguments_and_results_count():
    small, large = measure_step_memory(compile_sum(1000)), measure_step_memory(compile_sum(9000))
    assert large - small >= 8000


def test_donated_arguments_count_once():
    def add_one(x):
        return x + 1

    x = jnp.zeros(100_000)
    kept = jax.jit(add_one).lower(x).compile()
    donated = jax.jit(add_one, donate_argnums=0).lower(x).compile()
    assert measure_step_memory(kept) - measure_step_memory(donated) >= 400_000


def test_a_step_that_does_not_fit_is_named_before_it_runs():
    device = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 2**30})
    line = check_step_memory(compile_sum(2**20), device)
    assert "of 1.0 GiB on each device" in line
    needs_more = types.SimpleNamespace(
        memory_analysis=lambda: types.SimpleNamespace(
            argument_size_in_bytes=2**30,
            output_size_in_bytes=2**30,
            alias_size_in_bytes=2**30,
            temp_size_in_bytes=2**31,
        )
    )
    with pytest.raises(UserError, match=r"needs 3\.0 GiB of memory on each device, which has 1\.0"):
        check_step_memory(needs_more, device)


def test_unknown_memory_does_not_stop_training():
    silent = types.SimpleNamespace(memory_analysis=lambda: None)
    assert measure_step_memory(silent) is None
    assert "does not report" in check_step_memory(silent, jax.devices()[0])


def test_cpus_share_the_machine():
    whole = get_device_memory(jax.devices()[0]) * jax.local_device_count()
    assert 2**28 < whole < 2**50
