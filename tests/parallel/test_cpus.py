"""Threads are counted by what a process may use, not by what the machine has."""

import os

import pytest

from cls_jax.parallel.cpus import available_cpus


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes")
def test_affinity_bounds_the_cores():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= available_cpus() <= os.cpu_count()
