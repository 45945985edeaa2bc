"""Threads are counted by what a process may use, not by what the machine has."""

import os

import pytest

from cls_jax.parallel import cpus
from cls_jax.parallel.cpus import available_cpus


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes fake control groups; the process is pinned to 16 of 96 cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 16, raising=False)
    monkeypatch.setattr(cpus, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cpus, "_MEMBERSHIP", tmp_path / "self")

    def write(membership: str, **files: str) -> None:
        (tmp_path / "self").write_text(membership)
        for name, content in files.items():
            path = tmp_path / "cgroup" / name.replace("__", "/")
            path = path.with_name(path.name.replace("cpu_", "cpu."))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


V1 = "12:memory:/x\n4:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu_max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu_max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu_max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu_max": "6400000 100000\n"}, 16),
        ("0::/\n", {"cpu_max": "damaged"}, 16),
        # A limit of any group around this one counts; a path of the host's is not there.
        ("0::/a/b\n", {"a__cpu_max": "200000 100000", "a__b__cpu_max": "max 100000"}, 2),
        ("0::/of/the/host\n", {"cpu_max": "400000 100000"}, 4),
        (V1, {"cpu__cpu_cfs_quota_us": "-1\n", "cpu__cpu_cfs_period_us": "100000\n"}, 16),
        (V1, {"cpu__cpu_cfs_quota_us": "400000", "cpu__cpu_cfs_period_us": "100000"}, 4),
        (
            V1,
            {
                "cpu__docker__abc__cpu_cfs_quota_us": "75000",
                "cpu__docker__abc__cpu_cfs_period_us": "50000",
            },
            2,
        ),
    ],
)
def test_quota_of_a_container_bounds_the_cores(machine, membership, files, expected):
    machine(membership, **files)
    assert available_cpus() == expected


def test_affinity_bounds_the_cores_where_python_does_not_count_them(machine, monkeypatch):
    machine("0::/\n")
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7})
    assert available_cpus() == 3


def test_without_control_groups_the_cores_count(machine, monkeypatch):
    assert available_cpus() == 16  # Nothing was written.
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cpus() == 96
