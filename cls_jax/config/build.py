"""Builds configurations from the table of keys, validates, stores and compares them."""

import contextlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from cls_jax.config.keys import READ_WITH, get_options, is_read, list_options
from cls_jax.data.pipelines import get_default_pipeline
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, read_json
from cls_jax.methods import get_round_length
from cls_jax.options import Option

# AdamW moves every parameter by about the learning rate per step, whatever its gradient.
_MAX_ADAMW_RATE = 0.01
# About half an hour for CLS on two idle CPU cores. Values that are not the paper's follow from the
# size of the network or the length of the run, or were searched for on CIFAR-10 with seed 100
# (experiments/results/cifar10_two_cores.md).
_SMALL = {
    "num_steps": 8000,
    "batch_size": 16,
    "mu": 4,
    "ema_decay": 0.995,  # Averages over about 200 of the steps.
    "log_every": 20,
    "eval_every": 500,
    "checkpoint_every": 500,
    "data.pipeline": "device",  # Leaves both cores to the networks, and needs no TensorFlow.
    "model.depth": 10,
    "model.width": 1,
    "model.bn_momentum": 0.99,
    "optimizer.weight_decay": 4e-3,  # Decay takes 1 / (learning rate · decay) = 8,000 steps.
}


def create_config(
    argument: str, method_settings: Mapping[str, Mapping[str, object]] | None = None
) -> ConfigDict:
    """Builds the defaults for an argument such as "250" (of CLS), "250,fixmatch" or "all".

    Raises a UserError if the argument cannot be read or its method is unknown.
    """
    budget, _, method = argument.partition(",")
    num_labels = 0 if budget == "all" else int(budget) if budget.isdecimal() else -1
    if num_labels < 0 or "," in method:
        raise UserError(
            f"Cannot read {argument!r:.200} after the config's colon: write the number of labels "
            "or all, optionally followed by a method, as in 250 or 250,fixmatch."
        )
    return create_defaults(num_labels, method or "cls", method_settings)


def create_defaults(
    num_labels: int,
    method_name: str,
    method_settings: Mapping[str, Mapping[str, object]] | None = None,
    dataset: str = "",
) -> ConfigDict:
    """Builds the defaults for a label budget (0: all labels) and a method. No key can be added.

    The only default that depends on the environment is `data.pipeline`, see `get_default_pipeline`.
    `method_settings` are the hyperparameters by method for which the dataset has another default,
    and `dataset` is its name if it has keys of its own. Raises a UserError if there is no such
    method.
    """
    values = {key: row.default for key, row in get_options(method_name, dataset).items()}
    values["num_labels"] = num_labels
    values["data.pipeline"] = get_default_pipeline()
    for name, value in (method_settings or {}).get(method_name, {}).items():
        values[f"method.{name}"] = value
    return ConfigDict(unflatten_dict(values, sep=".")).lock()


def make_small(config: ConfigDict) -> None:
    """Changes a benchmark's configuration to one for two idle CPU cores."""
    config.update_from_flattened_dict(_SMALL)
    if "statistics_decay" in config.method:  # Of the methods' running means.
        config.method.statistics_decay = _SMALL["ema_decay"]


def with_values(config: ConfigDict, values: Mapping[str, object]) -> ConfigDict:
    """A locked copy of a configuration with other values, by dotted key."""
    copy = ConfigDict(config.to_dict())
    copy.update_from_flattened_dict(dict(values))
    return copy.lock()


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Nested dicts → values by dotted key. An empty dict leaves no trace."""
    flat: dict[str, Any] = flatten_dict(tree, sep=".")
    return flat


def show_value(value: object) -> str:
    """A value as written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a command line that mean "none" by key, as `--config.data.mean=` does.

    The flags' parser makes a tuple with an empty string of it.
    """
    return {key: () for key, value in values.items() if value == ("",)}


def validate_config(config: ConfigDict, is_whole: bool = True) -> None:
    """Checks everything that can be checked without the data, or raises a UserError.

    Unless `is_whole`, each value alone: values still to be chosen may fit the others.
    """
    values = flatten(config.to_dict())
    keys = get_options(values.get("method.name", "cls"), values.get("data.name", ""))
    _check_names(values, keys)
    check_values(values, keys)
    if is_whole:
        _check_combinations(values, get_round_length(config))


def check_given(config: ConfigDict, keys: Iterable[str]) -> None:
    """Raises a UserError if nothing reads one of the keys that a user has given.

    For example the depth of a Wide ResNet with another `model.name`, which the configuration says.
    """
    values = flatten(config.to_dict())
    for key in keys:
        if not is_read(key, values):
            other, readers = READ_WITH[key]
            raise UserError(
                f"{key} does nothing with {other}={values[other]}: remove it, or choose "
                f"{other}={' or '.join(readers)}."
            )


def check_values(values: Mapping[str, object], keys: Mapping[str, Option]) -> None:
    """Raises a UserError unless the value of each key is valid by itself."""
    for key, row in keys.items():
        if not _is_valid(values[key], row):
            text = show_value(values[key])
            shown = text if len(text) <= 100 else text[:100] + "…"
            raise UserError(f"{key}={shown} is invalid: choose {row.rule.text}.")


def _check_names(values: Mapping[str, object], keys: Mapping[str, Option]) -> None:
    """Raises a UserError unless a configuration has exactly the keys of its method."""
    wrong = sorted(set(values) ^ set(keys))
    if not wrong:
        return
    if "method.name" in values and all(key.startswith("method.") for key in wrong):
        name = values["method.name"]
        raise UserError(
            f"method.name={name} was set without its hyperparameters: choose the method after the "
            f"config's colon, as in --config configs/cifar10.py:250,{name}."
        )
    if wrong[0] in keys:  # A whole section was replaced, for example by --config.data={}.
        raise UserError(f"{wrong[0]} is missing: set keys one by one, as --config.{wrong[0]}.")
    dataset = values.get("data.name") or "any dataset"
    raise UserError(f"{wrong[0]:.100} is not a key of a run on {dataset}: remove it.")


def _is_valid(value: object, row: Option) -> bool:
    try:
        # A ConfigDict accepts None for any key.
        return isinstance(value, type(row.default)) and row.rule.accepts(value)
    except TypeError:  # The items of a tuple may be of any type.
        return False


def _check_combinations(values: Mapping[str, Any], round_length: int) -> None:
    """Raises a UserError if two values, each of them valid, contradict each other."""
    if values["batch_size"] % values["accumulate_steps"]:
        raise UserError(
            f"accumulate_steps={values['accumulate_steps']} does not divide "
            f"batch_size={values['batch_size']}: choose one of its divisors."
        )
    if len(values["data.mean"]) != len(values["data.std"]):
        raise UserError(
            "data.mean and data.std have different lengths: set both, or set both to () to "
            "compute them from the training images."
        )
    init_head = values["model.init_head"]
    if init_head != "random" and not values["model.init"]:
        raise UserError(
            f"model.init_head={init_head} needs the features of a pretrained network: set "
            "model.init, or model.init_head=random."
        )
    if values["data.shift"] >= values["data.image_size"]:
        raise UserError(
            f"data.shift={values['data.shift']} needs images of more than that many pixels, not "
            f"{values['data.image_size']}: choose a smaller shift."
        )
    rate = max(values["optimizer.learning_rate"], values["optimizer.head_learning_rate"])
    if values["optimizer.name"] == "adamw" and rate > _MAX_ADAMW_RATE:
        raise UserError(
            f"A learning rate of {rate:g} is SGD's, and too large for optimizer.name=adamw: choose "
            f"at most {_MAX_ADAMW_RATE:g}, for example --config.optimizer.learning_rate=5e-4."
        )
    for key in ("optimizer.warmup_steps", "optimizer.head_steps"):
        if values[key] >= round_length > 0:
            raise UserError(
                f"{key}={values[key]:,} covers all {round_length:,} steps: choose fewer, or a "
                "larger num_steps."
            )


def check_channels(config: ConfigDict, name: str, num_channels: int) -> None:
    """Raises a UserError unless mean and deviation fit the images of a dataset of this name."""
    if len(config.data.mean) not in (0, 1, num_channels):
        channels = "one channel" if num_channels == 1 else f"{num_channels} channels"
        raise UserError(
            f"data.mean has {len(config.data.mean)} numbers, and the images of {name:.100} have "
            f"{channels}: set --config.data.mean and --config.data.std to one number per channel, "
            "or leave both empty, as in --config.data.mean= --config.data.std=, to compute them "
            "from the training images."
        )


def to_json(config: ConfigDict) -> str:
    """The whole configuration as indented JSON."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def read_config(path: pathlib.Path) -> ConfigDict:
    """Reads and validates the `config.json` of a run's folder.

    A run older than a key gets its default, which changes nothing. Raises a UserError if the file
    is missing or damaged, or this version does not know a key or value.
    """
    with explain_reading(path):
        return restore_config(read_values(path))


@contextlib.contextmanager
def explain_reading(path: pathlib.Path) -> Iterator[None]:
    """Turns an error of reading a run's `config.json` into a UserError with its remedy."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"{path.parent} is not the folder of a run (it has no {path.name}): pass the folder "
            "that training printed."
        ) from error
    except (UserError, *PARSE_ERRORS) as error:  # type: ignore[misc] # A tuple of classes.
        raise UserError(
            f"This version of cls_jax cannot read {path} "
            f"({describe_error(error).rstrip('.')}): use the version that wrote it."
        ) from error


def read_values(path: pathlib.Path) -> dict[str, Any]:
    """The values of a stored configuration by dotted key, not validated.

    Raises the same as `read_json`.
    """
    stored = read_json(path)
    return flatten(stored) if isinstance(stored, dict) else {}


def restore_config(values: Mapping[str, Any]) -> ConfigDict:
    """The configuration of a run from its stored values by dotted key, validated.

    Raises a ValueError or a UserError if this version does not know a key or value.
    """
    if "method.name" not in values:
        raise ValueError("it has no method.name")
    keys = get_options(values["method.name"], values.get("data.name", ""))
    # Older runs also have keys that nothing read.
    if unknown := sorted(set(values) - set(keys) - set(list_options())):
        raise ValueError(f"{unknown[0]:.100} is not a key")
    config = restore_values(values, keys)
    validate_config(config)
    return config


def restore_values(values: Mapping[str, object], keys: Mapping[str, Option]) -> ConfigDict:
    """A locked configuration of these keys from stored values, with the defaults of all others."""
    restored = {
        key: _restore_type(values[key], row.default) if key in values else row.default
        for key, row in keys.items()
    }
    return ConfigDict(unflatten_dict(restored, sep=".")).lock()


def _restore_type(value: object, default: object) -> object:
    """Restores tuples, which JSON stores as lists, and floats written as integers."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and isinstance(default, float) else value


def describe_differences(config: ConfigDict, other: ConfigDict) -> list[str]:
    """Differences as "key: other's value → value".

    But for those of runtime keys, and of keys that nothing reads.
    """
    ours = flatten(config.to_dict())
    theirs = flatten(other.to_dict())
    # An instant classifier has no method.
    options = list_options()
    if "method.name" in ours:
        options |= get_options(ours["method.name"])
    return [
        f"{key}: {show_value(theirs.get(key))} → {show_value(ours.get(key))}"
        for key in sorted(ours | theirs)
        if not (key in options and options[key].is_runtime)
        and is_read(key, ours)
        and show_value(ours.get(key)) != show_value(theirs.get(key))
    ]
