"""The CPU cores that this process may keep busy, and the memory of machine and devices."""

import ctypes
import os
import platform

import jax
import joblib

_STATUS_BYTES = 64  # Of MEMORYSTATUSEX, whose second eight bytes are the size of the memory.


def available_cpus() -> int:
    """Cores to size a thread pool by: those that machine, scheduler and container allow."""
    count: int = joblib.cpu_count()
    return count


def get_device_memory(device: jax.Device) -> int:
    """Bytes of memory of a device. A CPU device has its share of the machine's memory."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit or get_machine_memory() // jax.local_device_count()


def get_machine_memory() -> int:
    """Bytes of memory of the machine."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Windows: https://learn.microsoft.com/windows/win32/api/sysinfoapi/ns-sysinfoapi-memorystatusex
    status = (ctypes.c_uint64 * (_STATUS_BYTES // 8))(_STATUS_BYTES)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(status)  # type: ignore[attr-defined]
    return status[1]


def release_freed_memory() -> None:
    """Returns freed memory between live blocks to the operating system.

    The C library keeps small blocks for later, but what compiling has freed is not needed again.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
