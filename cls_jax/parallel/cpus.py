"""How many CPU cores this process may keep busy."""

import joblib


def available_cpus() -> int:
    """Returns the number of cores to size a thread pool by, at least 1.

    The machine's cores, or fewer where a scheduler pins the process to some of them or a container
    limits its CPU time. A share such as 2.5 cores counts as 3.
    """
    return joblib.cpu_count()
