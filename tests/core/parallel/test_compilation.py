"""Programs that run a few times are compiled without tuning, on GPUs only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.parallel import compilation

FEW, MANY = 1, compilation._MIN_TUNED_RUNS


@pytest.fixture
def on_gpu(monkeypatch):
    """A stand-in: XLA knows all options, but follows those of its platform only."""
    monkeypatch.setattr(compilation, "_get_platform", lambda: "gpu")


def test_only_programs_that_run_seldom_get_options_and_only_on_a_gpu(monkeypatch):
    assert compilation.choose_options(FEW) == compilation.choose_options(MANY) == {}
    monkeypatch.setattr(compilation, "_get_platform", lambda: "gpu")
    assert compilation.choose_options(FEW)["xla_gpu_autotune_level"] == 0
    assert compilation.choose_options(MANY) == {}


@pytest.mark.usefixtures("on_gpu")
def test_options_that_this_xla_does_not_know_are_left_out(monkeypatch):
    options = {"xla_gpu_autotune_level": 0, "xla_invented": 1, "xla_gpu_enable_triton_gemm": False}
    monkeypatch.setitem(compilation._UNTUNED, "gpu", options)
    expected = {name: value for name, value in options.items() if name != "xla_invented"}
    assert compilation.choose_options(FEW) == expected
    assert compilation.jit(lambda x: x + 1, runs=FEW)(1) == 2


@pytest.mark.usefixtures("on_gpu")
def test_a_program_keeps_its_other_options(monkeypatch):
    seen = {}
    monkeypatch.setattr(jax, "jit", lambda function, **options: seen.update(options))
    monkeypatch.setattr(compilation, "keep_known", dict)
    given = {"xla_backend_optimization_level": 1}
    compilation.jit(lambda x: x, runs=FEW, static_argnums=0, compiler_options=given)
    assert seen.pop("compiler_options") == {**compilation._UNTUNED["gpu"], **given}
    assert seen == {"static_argnums": 0}


def test_what_is_left_to_the_cpu_runs_there_and_as_before(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    with compilation.on_cpu():
        assert compilation.choose_options(FEW) == {}
        found = compilation.jit(jnp.sin, runs=FEW)(x)
    assert found.devices() <= set(jax.devices("cpu"))
    np.testing.assert_array_equal(found, jax.jit(jnp.sin)(x))
