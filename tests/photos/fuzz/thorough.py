"""How thoroughly the tests of this folder look for a counterexample."""

import os

from hypothesis import HealthCheck, settings

# The same examples in every run. FUZZ_EXAMPLES sets their number.
FUZZ = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", 300)),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
