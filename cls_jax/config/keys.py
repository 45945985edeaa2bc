"""Every key of a configuration: its default, the default's source, its valid values and its help.

"Paper" is the CLS paper, "authors" its released PyTorch code, "FixMatch" Google's code of FixMatch.
"""

from collections.abc import Callable, Mapping, Sequence

from cls_jax.data.augment.randaugment import OPS, PARAMETER_MAX
from cls_jax.data.sources import records
from cls_jax.io import is_number
from cls_jax.methods import get_method
from cls_jax.models import MODELS, STEMS, ModelSpec
from cls_jax.options import (
    ABOVE_0,
    ADDED,
    AT_LEAST_1,
    BELOW_1,
    COUNT,
    TEXT,
    YES_OR_NO,
    Option,
    Rule,
    between,
    one_of,
)


def parse_step_range(text: str) -> range | None:
    """The steps of "FIRST:LAST", the last included. None if it has another form."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        return None
    return range(int(first), int(last) + 1)


DEPTH = Rule(lambda v: 10 <= v <= 1000 and (v - 4) % 6 == 0, "6n + 4 (10, 16, 22, 28, …)")
IMBALANCE_OR_0 = Rule(
    lambda value: is_number(value) and (value == 0 or 1e-6 <= value <= 1e6),
    "0, or a number from 1e-06 to 1e+06",
)
NUMBERS = Rule(lambda value: all(map(is_number, value)), "numbers, one per channel, or none")
POSITIVE_NUMBERS = Rule(
    lambda value: all(is_number(number) and number > 0 for number in value),
    "positive numbers, one per channel, or none",
)
POOL = Rule(
    lambda value: 0 < len(value) <= len(OPS) and all(name in OPS for name in value),
    f"some of {', '.join(OPS)}",
)
STEP_RANGE = Rule(
    lambda value: not value or parse_step_range(value) is not None,
    "FIRST:LAST, two steps such as 10:12, or nothing",
)


# A table, in this layout: the default and its rule, then the help and the source.
# fmt: off
OPTIONS: dict[str, Option] = {
    "seed": Option(0, COUNT,
        "Seed of initial weights, label split, sample order and augmentation."),
    "num_labels": Option(0, COUNT,
        "Labeled training images, the number after the colon of `--config`. 0, or `all` after "
        "the colon: all that have a label."),
    "num_steps": Option(307_200, AT_LEAST_1, "Training steps.",
        "paper: 300 epochs of 1,024 steps"),
    "batch_size": Option(64, between(1, 2**20), "Labeled images per step.", "paper"),
    "mu": Option(7, between(1, 2**20),
        "Unlabeled images per labeled image. Each method has its own default."),
    "accumulate_steps": Option(1, between(1, 2**10),
        "Parts into which each device divides a batch, to save memory. Gradients are averaged; "
        "BatchNorm, and methods that relate images to one another, see only a part. Decays stay "
        "those of a whole step."),
    "ema_decay": Option(0.999, BELOW_1,
        "Decay per step of the weights' moving average (EMA). 0: no average.",
        "authors' `--ema-decay`"),
    "log_every": Option(64, AT_LEAST_1, "Log metrics every N steps.", is_runtime=True),
    "eval_every": Option(1024, AT_LEAST_1, "Evaluate every N steps.", "authors' `--eval-step`"),
    "checkpoint_every": Option(1024, AT_LEAST_1, "Save a checkpoint every N steps.",
        is_runtime=True),
    "keep_checkpoints": Option(3, AT_LEAST_1, "Number of newest checkpoints to keep.",
        is_runtime=True),
    "eval_batch_size": Option(500, between(1, 2**16),
        "Images evaluated at once. UPS draws its dropout by it, so a run of UPS keeps it.",
        is_runtime=True),
    "debug_nans": Option(False, YES_OR_NO,
        "Stop at the operation that produces the first NaN. Slow.", is_runtime=True),
    "profile": Option("", STEP_RANGE,
        "Steps to trace with JAX's profiler into the run's folder, for TensorBoard or Perfetto.",
        is_runtime=True),
    "data.name": Option("", TEXT,
        "Dataset: cifar10, cifar100, digits, imagenet2012, npz, stl10, svhn or folder. The "
        "config file sets it."),
    "data.data_dir": Option("", TEXT,
        "A TFDS folder (empty: TFDS's own), an `.npz` (see docs/own_arrays.md), or the folder "
        "of images of `configs/folder.py`.", is_runtime=True),
    "data.pipeline": Option("tfdata", one_of("tfdata", "device"),
        "Where batches are made: by tf.data on the host, or on the accelerator. Without "
        "TensorFlow the default is device."),
    "data.image_size": Option(32, between(8, 1024),
        "Height and width in pixels to which images are scaled."),
    "data.validation": Option(0.0, BELOW_1,
        "Share of the training images of known class that are held out, before `num_labels` are "
        "drawn, to validate and calibrate the run. 0: only those of a folder's `val/`."),
    "data.unlabeled_includes_labeled": Option(True, YES_OR_NO,
        "Show labeled images among the unlabeled ones, too.", "authors"),
    "data.imbalance": Option(1.0, between(1.0, 1e6),
        "Ratio of the largest class to the smallest, among labeled and unlabeled images: a long "
        "tail. 1: as they are."),
    "data.unlabeled_imbalance": Option(0.0, IMBALANCE_OR_0,
        "The ratio among unlabeled images, if it is another. Below 1, the last class is the "
        "largest. 0: `data.imbalance`."),
    "data.mean": Option((0.5, 0.5, 0.5), NUMBERS,
        "Mean per channel, from 0 to 1. Empty, like `data.std`: computed from the training "
        "images."),
    "data.std": Option((0.5, 0.5, 0.5), POSITIVE_NUMBERS,
        "Standard deviation per channel."),
    "data.flip": Option(True, YES_OR_NO, "Flip half of the images horizontally.", "authors"),
    "data.shift": Option(4, between(0),
        "Pixels of reflected border to crop from.", "authors: 32 / 8"),
    "data.randaugment": Option("authors", one_of("authors", "torchssl"),
        "How strong views are made. torchssl fixes operations, levels and the square's side: of "
        "the four keys below it uses only the pool, and whether `data.cutout` is 0."),
    "data.randaugment_ops": Option(2, between(0, 14),
        "RandAugment operations per strong view.", "authors: `n=2`"),
    "data.randaugment_levels": Option(10, between(2, PARAMETER_MAX),
        "RandAugment's magnitudes are drawn from 1 to this minus 1.", "authors: `m=10`"),
    "data.randaugment_pool": Option(tuple(OPS), POOL,
        "RandAugment operations to draw from.", "FixMatch: all 14"),
    "data.cutout": Option(16, between(0),
        "Side in pixels of the gray square in strong views. 0: none.",
        "authors: half the image"),
    "model.name": Option("wide_resnet", one_of(*MODELS),
        "Architecture. Implied by `model.init=builtin:NAME` and the names on the hub that "
        "`cls-jax backbones` lists."),
    "model.init": Option("", TEXT,
        "Pretrained weights to start from, except for the last layer: "
        "`builtin:efficientnet_lite0` (or 1, 2), a `.safetensors` file, the folder of a run or "
        "an export, or `hf:OWNER/NAME` (see docs/pretrained.md). Empty: random weights."),
    "model.stem": Option("cifar", one_of("auto", *STEMS),
        "First layers of a ResNet: 3x3 (cifar), 3x3 with stride 2 (small), or 7x7 and maxima, "
        "with stride 2 each (imagenet). `auto`: cifar below 48 pixels, small below 96."),
    "model.depth": Option(28, DEPTH, "Layers of a Wide ResNet.", "paper: WRN-28-2"),
    "model.width": Option(2, between(1, 64),
        "Width factor of a Wide ResNet.", "paper: WRN-28-2 (WRN-28-8 on CIFAR-100)"),
    "model.dtype": Option("float32", one_of("float32", "bfloat16"),
        "Type of convolutions and activations. Parameters, BatchNorm statistics and losses stay "
        "float32."),
    "model.matmul_precision": Option("default", one_of("default", "high", "highest"),
        "JAX's `default_matmul_precision`. On NVIDIA GPUs since Ampere, only `highest` keeps "
        "all 23 bits of float32; TensorFloat-32 is faster.",
        "PyTorch convolutions, hence the authors' code", is_runtime=True),
    "model.remat": Option(False, YES_OR_NO,
        "Recompute normalizations and activations for the gradient: less memory, slower."),
    "model.bn_momentum": Option(0.999, BELOW_1,
        "Decay per step of BatchNorm's running statistics.", "authors: PyTorch's momentum 0.001"),
    "model.bn_frozen": Option(False, YES_OR_NO,
        "Keep the pretrained running statistics, and normalize by them in training, too."),
    "method.name": Option("cls", TEXT, "Method. Choose it after the colon of `--config`."),
    "optimizer.name": Option("sgd", one_of("sgd", "adamw"),
        "SGD with Nesterov momentum, or AdamW. For pretrained networks, see docs/finetuning.md.",
        "paper, FixMatch"),
    "optimizer.learning_rate": Option(0.03, between(0.0, 100.0, excludes="low"),
        "Initial learning rate. AdamW needs at most 0.01.", "paper, FixMatch"),
    "optimizer.momentum": Option(0.9, BELOW_1, "Nesterov momentum of SGD.", "paper, FixMatch"),
    "optimizer.weight_decay": Option(5e-4, BELOW_1,
        "Weight decay, of kernels only. SGD adds it to the gradient, AdamW to the update.",
        "authors' `--wdecay`"),
    "optimizer.cosine_cycles": Option(7 / 16, between(0.0, 0.5),
        "Share of a cosine's half cycle over which the rate falls: 0 keeps it constant, 7/16 "
        "ends at a fifth, ½ at 0.", "FixMatch"),
    "optimizer.warmup_steps": Option(0, COUNT,
        "Steps over which the rate first rises linearly from 0.",
        "FixMatch"),
    "optimizer.layer_decay": Option(1.0, ABOVE_0,
        "Factor on the learning rate per block, counted from the head. 1: the same rate "
        "everywhere."),
    "optimizer.head_learning_rate": Option(0.0, between(0.0, 100.0),
        "Learning rate of the heads. 0: `optimizer.learning_rate`."),
    "optimizer.head_steps": Option(0, COUNT,
        "First steps that train only the heads. BatchNorm's running statistics still move, "
        "unless `model.bn_frozen`."),
    "optimizer.frozen_stages": Option(0, between(0, 1000),
        "Stages (or blocks, without stages) that are never trained, with the stem, counted from "
        "the images. Saves time."),
    "mesh.network": Option(0, COUNT,
        "Devices over which the networks are spread. 0: automatic.", is_runtime=True),
    "mesh.data": Option(0, COUNT,
        "Devices over which a batch is spread. 0: automatic.", is_runtime=True),
}
# fmt: on


ADDED["imagenet2012"] = records.OPTIONS


def _list_networks(has_key: Callable[[ModelSpec], bool]) -> tuple[str, Sequence[str]]:
    return "model.name", [name for name, spec in MODELS.items() if has_key(spec)]


# Keys that are read only with some values of another key.
READ_WITH: dict[str, tuple[str, Sequence[str]]] = {
    "data.randaugment_ops": ("data.randaugment", ["authors"]),
    "data.randaugment_levels": ("data.randaugment", ["authors"]),
    "model.bn_momentum": _list_networks(lambda spec: spec.has_batch_norm),
    "model.bn_frozen": _list_networks(lambda spec: spec.has_batch_norm),
    "optimizer.momentum": ("optimizer.name", ["sgd"]),
    **{
        f"model.{key}": _list_networks(lambda spec, key=key: key in spec.keys)  # type: ignore[misc]
        for key in sorted({key for spec in MODELS.values() for key in spec.keys})
    },
}


def is_read(key: str, values: Mapping[str, object]) -> bool:
    """Whether something reads a key, given the values of all keys."""
    other, readers = READ_WITH.get(key, ("", ()))
    return not other or values.get(other) in readers


def list_options() -> dict[str, Option]:
    """Every key but those of a method, whichever dataset reads it."""
    return OPTIONS | {key: row for options in ADDED.values() for key, row in options.items()}


def get_options(method_name: str, dataset: str = "") -> dict[str, Option]:
    """The table of a method, with its own `mu` and `method.*`, and of a dataset.

    Raises the UserError of `get_method`.
    """
    method = get_method(method_name)
    options = OPTIONS | ADDED.get("", {}) | ADDED.get(dataset, {})
    options |= {
        "mu": OPTIONS["mu"]._replace(default=method.mu),
        "method.name": OPTIONS["method.name"]._replace(default=method_name),
        "data.name": OPTIONS["data.name"]._replace(default=dataset),
    }
    if method.select_labels:
        options["eval_batch_size"] = options["eval_batch_size"]._replace(is_runtime=False)
    return options | {f"method.{name}": row for name, row in method.hyperparameters.items()}
