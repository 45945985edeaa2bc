"""A run's configuration: defaults with their sources, validation, and JSON.

`configs/*.py` start from `create_config` and change what their dataset needs. "Authors" below is
the released PyTorch code of the CLS paper, "paper" the paper, "FixMatch" google-research/fixmatch.
"""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from cls_jax.data.augment.randaugment import OPS
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, is_number, read_json
from cls_jax.methods import METHODS, get_method

# Where a run is made and kept, which changes no result: the only keys that may differ when a run
# goes on.
RUNTIME_KEYS = ("data.data_dir", "mesh.network", "mesh.data", "debug_nans")


def create_config(
    argument: str,
    default_method: str = "cls",
    method_settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> ml_collections.ConfigDict:
    """Builds the defaults for an argument such as "250" or "250,fixmatch".

    Args:
        argument: what stands after the colon on the command line.
        default_method: where the argument names none.
        method_settings: as for `create_defaults`.

    Raises:
        UserError: if the argument cannot be read or names no method.
    """
    return create_defaults(*parse_argument(argument, default_method), method_settings)


def create_defaults(
    num_labels: int,
    method_name: str,
    method_settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> ml_collections.ConfigDict:
    """Builds the defaults for a label budget and a method.

    Args:
        num_labels: how many training images count as labelled; 0 for all that have a label.
        method_name: a key of `METHODS`.
        method_settings: method → hyper-parameters that the dataset wants otherwise.

    Raises:
        UserError: if there is no such method.
    """
    method = get_method(method_name)
    config = ml_collections.ConfigDict()
    config.seed = 0  # Initial weights, label split, sample order and augmentation.
    config.num_labels = num_labels
    config.num_steps = 307_200  # Paper: 300 epochs of 1,024 steps. FixMatch: 2^20.
    config.batch_size = 64  # Labelled images a step (paper).
    config.mu = method.mu  # Unlabelled images for each labelled one.
    config.ema_decay = 0.999  # Authors' --ema-decay.
    config.log_every = 64  # Steps between writes of losses and monitors.
    config.eval_every = 1024  # Authors' --eval-step.
    config.checkpoint_every = 1024
    config.keep_checkpoints = 3
    config.eval_batch_size = 500
    config.debug_nans = False  # Stop at the operation that makes the first NaN; slow.

    config.data = ml_collections.ConfigDict()
    config.data.name = ""
    config.data.data_dir = ""  # TFDS folder; empty: TFDS's own default.
    config.data.pipeline = "tfdata"  # Or "device": batches made on the accelerator.
    config.data.image_size = 32
    # Unlabelled set: "all" training images (authors' code) or the "rest" without the labelled.
    config.data.unlabeled = "all"
    config.data.mean = (0.5, 0.5, 0.5)  # (): computed from the training images, like std.
    config.data.std = (0.5, 0.5, 0.5)
    config.data.flip = True  # Horizontal, p = ½ (authors).
    config.data.shift = 4  # Pixels of reflected border to crop from: 32 / 8 (authors).
    config.data.randaugment_ops = 2  # Authors' RandAugmentMC(n=2, m=10).
    config.data.randaugment_levels = 10
    config.data.randaugment_pool = tuple(OPS)  # FixMatch's 14 operations.
    config.data.cutout = 16  # Side of the grey square: half the image (authors).

    config.model = ml_collections.ConfigDict()
    config.model.name = "wide_resnet"  # Or "resnet18", which has no depth, width or leaky_slope.
    # "cifar", "small" or "imagenet": see models/layers.py; "auto": what suits data.image_size.
    config.model.stem = "cifar"
    config.model.depth = 28  # Paper: WRN-28-2 for CIFAR-10, WRN-28-8 for CIFAR-100.
    config.model.width = 2
    config.model.dtype = "float32"
    config.model.lowering = "unrolled"  # How several networks are compiled: see models/ensemble.py.
    config.model.remat = False  # Less memory for a little more work: see models/ensemble.py.
    config.model.bn_momentum = 0.999  # Authors: PyTorch momentum .001.
    config.model.bn_epsilon = 1e-5  # PyTorch's default.
    config.model.leaky_slope = 0.1  # Authors.

    config.method = ml_collections.ConfigDict({"name": method_name})
    for name, hyperparameter in method.hyperparameters.items():
        config.method[name] = hyperparameter.default
    config.method.update((method_settings or {}).get(method_name, {}))

    config.optimizer = ml_collections.ConfigDict()
    config.optimizer.learning_rate = 0.03  # Paper, FixMatch.
    config.optimizer.momentum = 0.9  # Nesterov (paper, FixMatch).
    config.optimizer.weight_decay = 5e-4  # Authors' --wdecay; kernels only.
    config.optimizer.cosine_cycles = 7 / 16  # FixMatch: ends at .2 of the initial rate.

    config.mesh = ml_collections.ConfigDict()
    config.mesh.network = 0  # Devices over which networks are spread; 0: chosen by itself.
    config.mesh.data = 0  # Devices over which a batch is spread; 0: chosen by itself.
    return config.lock()


def parse_argument(argument: str, default_method: str) -> tuple[int, str]:
    """Reads "250" or "250,fixmatch" as (label budget, method name).

    Raises:
        UserError: if the argument has another form.
    """
    budget, _, method = argument.partition(",")
    if not budget.isdecimal() or "," in method:
        raise UserError(
            f"Cannot read {argument!r:.200} after the config's colon: write the number of labels, "
            "optionally followed by a method, as in 250 or 250,fixmatch."
        )
    return int(budget), method or default_method


# Key → (is the value sensible?, what to choose). Checked in this order.
_CHECKS: dict[str, tuple[Any, str]] = {
    "seed": (lambda v: 0 <= v < 2**31, "a whole number from 0 to 2147483647"),
    "num_labels": (lambda v: 0 <= v < 2**31, "a positive number of labels"),
    "num_steps": (lambda v: 1 <= v < 2**31, "a positive number of steps"),
    "batch_size": (lambda v: 1 <= v <= 2**20, "from 1 to 1048576 images"),
    "mu": (
        lambda v: 1 <= v <= 2**20,
        "a positive number of unlabelled images for each labelled one",
    ),
    "ema_decay": (lambda v: 0 <= v < 1, "a decay from 0 (no averaging) to below 1"),
    "log_every": (lambda v: v >= 1, "a positive number of steps"),
    "eval_every": (lambda v: v >= 1, "a positive number of steps"),
    "checkpoint_every": (lambda v: v >= 1, "a positive number of steps"),
    "keep_checkpoints": (lambda v: v >= 1, "at least 1 checkpoint"),
    "eval_batch_size": (lambda v: 1 <= v <= 2**16, "from 1 to 65536 images"),
    "data.data_dir": (lambda v: "\0" not in v, "a path"),
    "data.pipeline": (lambda v: v in ("tfdata", "device"), "tfdata or device"),
    "data.image_size": (lambda v: 8 <= v <= 1024, "from 8 to 1024 pixels"),
    "data.unlabeled": (lambda v: v in ("all", "rest"), "all or rest"),
    "data.mean": (lambda v: all(map(is_number, v)), "numbers"),
    "data.std": (lambda v: all(is_number(s) and s > 0 for s in v), "positive numbers"),
    "data.shift": (lambda v: v >= 0, "0 or more pixels"),
    "data.randaugment_ops": (lambda v: 0 <= v <= 14, "from 0 to 14 operations"),
    "data.randaugment_levels": (lambda v: 2 <= v <= 10, "from 2 to 10 levels"),
    "data.randaugment_pool": (
        lambda v: 0 < len(v) <= len(OPS) and all(name in OPS for name in v),
        f"some of {', '.join(OPS)}",
    ),
    "data.cutout": (lambda v: v >= 0, "0 (none) or more pixels"),
    "model.name": (lambda v: v in ("wide_resnet", "resnet18"), "wide_resnet or resnet18"),
    "model.stem": (
        lambda v: v in ("auto", "cifar", "small", "imagenet"),
        "auto, cifar, small or imagenet",
    ),
    "model.depth": (lambda v: 10 <= v <= 1000 and (v - 4) % 6 == 0, "6n + 4: 10, 16, 22, 28, …"),
    "model.width": (lambda v: 1 <= v <= 64, "from 1 to 64"),
    "model.dtype": (lambda v: v in ("float32", "bfloat16"), "float32 or bfloat16"),
    "model.lowering": (lambda v: v in ("unrolled", "vmap"), "unrolled or vmap"),
    "model.bn_momentum": (lambda v: 0 <= v < 1, "a decay from 0 to below 1"),
    "model.bn_epsilon": (lambda v: 0 < v <= 1, "a small positive number"),
    "model.leaky_slope": (lambda v: 0 <= v <= 1, "from 0 to 1"),
    "optimizer.learning_rate": (lambda v: 0 < v <= 100, "a positive number"),
    "optimizer.momentum": (lambda v: 0 <= v < 1, "from 0 to below 1"),
    "optimizer.weight_decay": (lambda v: 0 <= v < 1, "from 0 to below 1"),
    "optimizer.cosine_cycles": (lambda v: 0 <= v <= 0.5, "from 0 (constant) to ½ (down to 0)"),
    "mesh.network": (
        lambda v: 0 <= v < 2**31,
        "a number of devices, or 0 to choose it automatically",
    ),
    "mesh.data": (lambda v: 0 <= v < 2**31, "a number of devices, or 0 to choose it automatically"),
}


def validate_config(config: ml_collections.ConfigDict) -> None:
    """Checks every value that can be checked without the data.

    Raises:
        UserError: at the first value out of its range, naming what to choose instead.
    """
    _check_keys(config)
    for key, (is_sensible, remedy) in _CHECKS.items():
        value = get_value(config, key)
        if not _holds(is_sensible, value):
            raise UserError(f"{key}={_shorten(value)} is out of range: choose {remedy}.")
    if config.num_labels == 0 and config.data.name != "folder":
        raise UserError("num_labels=0 is out of range: choose a positive number of labels.")
    if len(config.data.mean) != len(config.data.std):
        raise UserError(
            "data.mean and data.std are not of the same channels: give both, or neither to have "
            "them computed from the training images."
        )
    if config.data.shift >= config.data.image_size:
        raise UserError(
            f"data.shift={config.data.shift} reflects more than an image of "
            f"{config.data.image_size} pixels has: choose a smaller shift."
        )
    _validate_method(config.method)


def _check_keys(config: ml_collections.ConfigDict) -> None:
    """Raises a UserError if a whole section was replaced, as by --config.data={}."""
    defaults = flatten(create_defaults(1, "cls").to_dict())
    wanted = {key for key in defaults if not key.startswith("method.")} | {"method.name"}
    missing = sorted(wanted - set(flatten(config.to_dict())))
    if missing:
        raise UserError(f"{missing[0]} is missing: set keys one by one, as --config.{missing[0]}.")


def _holds(is_sensible: Callable[[Any], bool], value: Any) -> bool:
    try:
        return is_sensible(value)
    except TypeError:  # The items of a tuple may be of any type.
        return False


def _shorten(value: Any) -> str:
    text = show_value(value)
    return text if len(text) <= 100 else text[:100] + "…"


def _validate_method(hparams: ml_collections.ConfigDict) -> None:
    hyperparameters = get_method(hparams.name).hyperparameters
    if set(hparams) != {"name", *hyperparameters}:
        raise UserError(
            f"method.name={hparams.name} was set without its hyper-parameters: choose the method "
            f"after the config's colon, as in --config configs/cifar10.py:250,{hparams.name}."
        )
    for name, hyperparameter in hyperparameters.items():
        shown = f"method.{name}={_shorten(hparams[name])}"
        low, high, choices = hyperparameter.low, hyperparameter.high, hyperparameter.choices
        if choices:
            if hparams[name] not in choices:
                raise UserError(f"{shown} is unknown: choose {' or '.join(choices)}.")
            continue
        if not low <= hparams[name] <= high:
            raise UserError(f"{shown} is out of range: choose from {low:g} to {high:g}.")


def to_json(config: ml_collections.ConfigDict) -> str:
    """The whole configuration as indented JSON."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def read_config(path: pathlib.Path) -> ml_collections.ConfigDict:
    """Reads and validates the `config.json` of a run folder.

    Raises:
        UserError: if there is none or it is not one of ours.
    """
    try:
        stored = read_json(path)
        config = create_defaults(int(stored["num_labels"]), stored["method"]["name"])
        # Onto the defaults, so that types are checked and a foreign key is noticed.
        config.update(_lists_to_tuples(stored))
        validate_config(config)
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} is not the folder of a run, it has no {path.name}: give --workdir the "
            "folder that training printed."
        ) from error
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path} is not the configuration of a run of this version "
            f"({describe_error(error)}): give --workdir another folder."
        ) from error
    return config


def describe_differences(
    config: ml_collections.ConfigDict, other: ml_collections.ConfigDict
) -> list[str]:
    """Lists as "key: value → value" where two configurations differ in what changes results."""
    ours, theirs = flatten(config.to_dict()), flatten(other.to_dict())
    return [
        f"{key}: {show_value(theirs.get(key))} → {show_value(ours.get(key))}"
        for key in sorted(ours | theirs)
        if key not in RUNTIME_KEYS and show_value(ours.get(key)) != show_value(theirs.get(key))
    ]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _lists_to_tuples(tree: Any) -> Any:
    """Turns JSON's lists back into the tuples they were."""
    if isinstance(tree, Mapping):
        return {key: _lists_to_tuples(value) for key, value in tree.items()}
    return tuple(tree) if isinstance(tree, list) else tree


def get_value(config: ml_collections.ConfigDict, key: str) -> Any:
    """The value of a dotted key such as "method.tau"."""
    node: Any = config
    for part in key.split("."):
        node = node[part]
    return node


def show_value(value: Any) -> str:
    """A value as the command line takes it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


__all__ = [
    "METHODS",
    "create_config",
    "create_defaults",
    "describe_differences",
    "flatten",
    "parse_argument",
    "read_config",
    "show_value",
    "to_json",
    "validate_config",
]
