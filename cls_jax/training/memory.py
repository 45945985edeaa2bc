"""Checks before training that a step fits into the memory of a device."""

import ctypes
import os
import platform

import jax

from cls_jax.errors import UserError

_GIB = 2**30


def get_device_memory(device: jax.Device) -> int:
    """Bytes of memory of a device; for a CPU device, its share of the machine's memory."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit:
        return limit
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return whole // jax.local_device_count()


def measure_step_memory(compiled: jax.stages.Compiled) -> int | None:
    """Bytes that a step needs on a device, as reported by the compiler; None if unknown."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes  # Donated arguments are outputs.
        + memory.temp_size_in_bytes
    )


def check_step_memory(compiled: jax.stages.Compiled, device: jax.Device) -> str:
    """Compares the memory that a compiled step needs with that of the device.

    Args:
        compiled: the step.
        device: the device that runs it.

    Returns:
        A line for the user.

    Raises:
        UserError: if the device cannot hold it.
    """
    needed = measure_step_memory(compiled)
    if needed is None:
        return "the compiler does not report how much memory a step needs"
    available = get_device_memory(device)
    if needed > available:
        raise UserError(
            f"A step needs {needed / _GIB:.1f} GiB of memory on each device, which has "
            f"{available / _GIB:.1f} GiB: choose a smaller --config.batch_size, --config.mu or "
            "--config.model.width, set --config.model.remat=True, or use more devices."
        )
    return f"a step needs {needed / _GIB:.2f} of {available / _GIB:.1f} GiB on each device"


def release_freed_memory() -> None:
    """Returns freed memory between live blocks to the operating system.

    `cli.process.reexec_with_malloc_settings` makes glibc keep freed memory, but the memory that
    compiling has freed is not needed again.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
