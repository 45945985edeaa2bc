"""A run's configuration: one table of keys, and the defaults, checks and JSON made from it.

`keys` is the table. `build` makes a locked `ConfigDict` of it, which `configs/*.py` adapt to their
dataset, and reads and writes it as `config.json`. docs/configuration.md is generated from the same
table.
"""

from cls_jax.config.build import (
    check_channels,
    check_given,
    check_values,
    create_config,
    create_defaults,
    describe_differences,
    explain_reading,
    flatten,
    make_small,
    read_config,
    read_empty,
    read_values,
    restore_config,
    restore_values,
    show_value,
    to_json,
    validate_config,
    with_values,
)
from cls_jax.config.keys import OPTIONS, get_options, list_options, parse_step_range
from cls_jax.config.suggest import find_key
from cls_jax.options import Option

__all__ = [
    "OPTIONS",
    "Option",
    "check_channels",
    "check_given",
    "check_values",
    "create_config",
    "create_defaults",
    "describe_differences",
    "explain_reading",
    "find_key",
    "flatten",
    "get_options",
    "list_options",
    "make_small",
    "parse_step_range",
    "read_config",
    "read_empty",
    "read_values",
    "restore_config",
    "restore_values",
    "show_value",
    "to_json",
    "validate_config",
    "with_values",
]
