"""A run's configuration: one table of keys, and the defaults, checks and JSON made from it.

`keys` is the table. `build` makes a locked `ConfigDict` of it, which `configs/*.py` adapt to their
dataset, and reads and writes it as `config.json`. docs/configuration.md is generated from the same
table.
"""

from cls_jax.config.build import (
    create_config,
    create_defaults,
    describe_differences,
    flatten,
    read_config,
    show_value,
    to_json,
    validate_config,
)
from cls_jax.config.keys import OPTIONS, get_options, parse_step_range
