"""The number of threads follows what a process may use, not what the machine has."""

import os
import pathlib

import pytest

from cls_jax.parallel.cpus import available_cpus, get_machine_memory


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes")
def test_affinity_bounds_the_cores():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= available_cpus() <= os.cpu_count()


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="only Linux has the file")
def test_memory_is_what_the_system_says():
    kilobytes = int(pathlib.Path("/proc/meminfo").read_text().split()[1])  # After "MemTotal:".
    assert get_machine_memory() == pytest.approx(1024 * kilobytes, rel=0.01)
