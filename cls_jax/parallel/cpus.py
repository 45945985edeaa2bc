"""How many CPU cores this process may keep busy."""

import math
import os
import pathlib
from collections.abc import Iterator

_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_MEMBERSHIP = pathlib.Path("/proc/self/cgroup")


def available_cpus() -> int:
    """The cores to size a thread pool by: at least 1.

    The machine's cores (`os.cpu_count`) are only an upper bound. Schedulers pin a process to some
    of them (its affinity), and containers give it a share of CPU time (a control group's quota):
    more threads than that take turns and hold memory. A share such as 2.5 cores counts as 3.
    """
    if hasattr(os, "process_cpu_count"):  # Python 3.13; respects -X cpu_count, too.
        cores = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *map(math.ceil, _read_quotas())]))


def _read_quotas() -> Iterator[float]:
    """Limits in cores of this process's control group and of every group around it."""
    try:
        memberships = _MEMBERSHIP.read_text().splitlines()
    except OSError:  # Not Linux.
        return
    for membership in memberships:
        # "0::/path" in version 2, "4:cpu,cpuacct:/path" in version 1.
        _, controllers, path = membership.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = _CGROUPS / "cpu" if controllers else _CGROUPS
        # In a container the path may be the host's, of which only the top is mounted.
        group = top / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(top):
                yield from _read_v1(folder) if controllers else _read_v2(folder)


def _read_v2(folder: pathlib.Path) -> Iterator[float]:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return
    if quota != "max":
        yield int(quota) / int(period)


def _read_v1(folder: pathlib.Path) -> Iterator[float]:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return
    if quota > 0:  # -1: unlimited.
        yield quota / period
