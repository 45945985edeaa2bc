"""How thoroughly the tests of this folder look for a counterexample."""

import os

import pytest
from hypothesis import HealthCheck, settings

COUNTS = pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])


def fuzz(count):
    """So many examples, the same ones in every run. FUZZ_EXAMPLES sets another number."""
    return settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", count)),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
