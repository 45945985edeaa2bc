"""Keys that older runs have in their `config.json` and this version no longer has."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from cls_jax.errors import UserError

# The last commit that has the keys below.
_LAST_COMMIT = "878afb8"

# Old key → new key, and old value → new value where these differ.
RENAMED: dict[str, tuple[str, dict[Any, Any]]] = {
    "method.lambda_alike": ("method.lambda_consistency", {}),
    "data.unlabeled": ("data.unlabeled_includes_labeled", {"all": True, "rest": False}),
}


class Retired(NamedTuple):
    """A key that no longer exists."""

    harmless: tuple[Any, ...] | None  # Values with which a run is the same without it. None: any.
    remedy: str = f"use commit {_LAST_COMMIT} for this run"  # What to do with another value.


RETIRED = {
    "model.init_noise": Retired((0.0,)),
    "method.adaptive_tau": Retired(("off",)),
    "method.exchange_rule": Retired(("all",)),
    "method.ramp": Retired((0.0,)),
    "method.weight_power": Retired((1.0,)),
    "method.align": Retired(
        ("off",),
        "cls_plus with method.lambda_cutmix=0 is what align=joint was, so train it again, or use "
        f"commit {_LAST_COMMIT} for this run",
    ),
    "method.lambda_cutmix": Retired((0.0,)),
    "method.statistics_decay": Retired(None),  # Only the switches above read it.
}
# Method → where it differs from the above.
_BY_METHOD = {"cls_plus": {"method.align": Retired(("joint",))}}


def drop_retired(values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Stored values without retired keys and with new names, given the keys of this version.

    Raises:
        UserError: If a retired key has a value that decided what the run trained.
    """
    kept = {}
    table = RETIRED | _BY_METHOD.get(values["method.name"], {})
    for key, value in values.items():
        if key in RENAMED:
            new_key, new_values = RENAMED[key]
            kept[new_key] = new_values.get(value, value) if isinstance(value, str) else value
        elif key in keys or key not in table:
            kept[key] = value
        else:
            harmless, remedy = table[key]
            if harmless is not None and value not in harmless:
                raise UserError(f"{key}={value!s:.100} is no longer supported: {remedy}.")
    return kept
