"""How a program is compiled: tuned for speed, or fast, by how often it will run.

On a GPU, XLA's autotuner times several kernels for each convolution, product and fusion of a
program. If the program then runs a few times, tuning it takes longer than it saves.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

# Tuning saves a part of each run. Of the step of EfficientNet-Lite0, it takes 30 to 40 seconds on
# an H200, as long as a thousand steps (experiments/results/gpu.md).
_MIN_TUNED_RUNS = 5_000

# A platform's options of XLA that compile without tuning. Without it, XLA has no good tiles for its
# Triton products, so these are left to cuBLAS.
_UNTUNED: Mapping[str, Mapping[str, Any]] = {
    "gpu": {  # CUDA and ROCm.
        "xla_gpu_autotune_level": 0,
        "xla_gpu_experimental_enable_fusion_autotuner": False,
        "xla_gpu_enable_triton_gemm": False,
    }
}


def jit(function: Callable[..., Any], *, runs: int, **options: Any) -> Any:
    """`jax.jit` for a program that a command runs about `runs` times, with its other `options`.

    Options of the compiler, if given, are kept.
    """
    given = options.pop("compiler_options", None) or {}
    chosen = {**choose_options(runs), **given}
    return jax.jit(function, **options, compiler_options=chosen or None)


def is_tuned(runs: int) -> bool:
    """Whether a program that runs about so many times is tuned, on a GPU."""
    return runs >= _MIN_TUNED_RUNS


def choose_options(runs: int) -> dict[str, Any]:
    """The `compiler_options` of a program that runs about `runs` times on the default backend.

    None for programs that run often, and none for a CPU. Options that the installed version of XLA
    does not know are left out.
    """
    if is_tuned(runs):
        return {}
    return keep_known(tuple(_UNTUNED.get(_get_platform(), {}).items()))


@functools.cache
def keep_known(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Those of the (name, value) pairs that the default backend's compiler accepts."""
    # XLA has no list of its options, and a plugin may differ from jaxlib. Usually it knows all.
    if not options or _accepts(dict(options)):
        return dict(options)
    return {name: value for name, value in options if _accepts({name: value})}


def _accepts(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _get_platform() -> str:
    """Where programs run by default: "cpu", "gpu" or "tpu"."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]  # Defined at run time.
    return device.platform if isinstance(device, jax.Device) else jax.default_backend()


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Runs programs on the CPU, or on the default backend if there is no other."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it.
        device = None
    with jax.default_device(device):
        yield
