"""Every key of a configuration: its default, the default's source, its valid values and its help.

"Paper" is the CLS paper, "authors" its released PyTorch code, "FixMatch" Google's code of FixMatch.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from cls_jax.data.augment.randaugment import OPS, PARAMETER_MAX
from cls_jax.data.resize import RESIZE_MODES
from cls_jax.io import is_number
from cls_jax.methods import get_method
from cls_jax.models import MODELS, STEMS


class Rule(NamedTuple):
    """The values that a key may have."""

    # Whether a value of the default's type is valid. May raise a TypeError for a tuple.
    accepts: Callable[[Any], bool]
    text: str  # In words, after "choose" in an error message.


def between(low: float, high: float = math.inf, excludes: str = "") -> Rule:
    """Numbers from `low` to `high`, integers if `low` is one.

    `excludes` names the end that is itself invalid, "low" or "high".
    """

    def accepts(value: object) -> bool:
        if not is_number(value) or (value == low and excludes == "low"):
            return False
        return low <= value < high if excludes == "high" else low <= value <= high

    noun = "an integer" if isinstance(low, int) else "a number"
    ends = f"from {_show(low)} to {_show(high)}"
    if math.isinf(high):
        ends = f"of at least {_show(low)}"
    elif excludes:
        ends = f"above {_show(low)}" if excludes == "low" else f"of at least {_show(low)}"
        ends += f" and below {_show(high)}" if excludes == "high" else f" and at most {_show(high)}"
    return Rule(accepts, f"{noun} {ends}")


def _show(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def one_of(*words: str) -> Rule:
    """Any of these words."""
    *others, last = words
    return Rule(lambda value: value in words, f"{', '.join(others)} or {last}")


def parse_step_range(text: str) -> range | None:
    """The steps of "FIRST:LAST", the last included. None if it has another form."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        return None
    return range(int(first), int(last) + 1)


YES_OR_NO = Rule(lambda value: True, "True or False")
TEXT = Rule(lambda value: "\0" not in value, "a string without NUL characters")
AT_LEAST_1 = between(1)
COUNT = between(0, 2**31 - 1)
BELOW_1 = between(0.0, 1.0, excludes="high")
ABOVE_0 = between(0.0, 1.0, excludes="low")
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
LAYOUT = Rule(lambda value: value in ("", "classes", "splits"), "classes, splits or nothing")
STEP_RANGE = Rule(
    lambda value: not value or parse_step_range(value) is not None,
    "FIRST:LAST, two steps such as 10:12, or nothing",
)


class Option(NamedTuple):
    """A value that a user may set as `--config.KEY=VALUE`."""

    default: Any  # Only its type is accepted.
    rule: Rule
    help: str  # The key's meaning and unit.
    source: str = ""  # The origin of the default. Empty if it is our own choice.
    # Whether the value may change when a run resumes, because it does not affect what is trained.
    # In a method with rounds, such as UPS, `eval_batch_size` does: dropout is drawn by batch.
    is_runtime: bool = False


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
    "data.labeled_subset": Option("", TEXT,
        "Images of imagenet2012 that have a label: a TFDS dataset, as imagenet2012_subset/1pct, "
        "or a .txt with names. Empty: all."),
    "data.file_column": Option("", TEXT,
        "Column of a folder's labels.csv with the files: its header, or its number from 1. "
        "Empty: the one that names files of the folder.", is_runtime=True),
    "data.label_column": Option("", TEXT,
        "The column with the classes, in the same way. Empty: by its header, or the only other "
        "column.", is_runtime=True),
    "data.layout": Option("", LAYOUT,
        "What folders called train, val and test are: classes like the folders beside them, or "
        "splits that hold class folders. Empty: asked where both are possible.",
        is_runtime=True),
    "data.source_column": Option("", TEXT,
        "The column with what each image comes from, such as a patient, in the same way. Empty: "
        "by its header.", is_runtime=True),
    "data.source_pattern": Option("", TEXT,
        r"Regular expression of names of files, whose group is what an image comes from, such as "
        r"`(P\d+)_`.", is_runtime=True),
    "data.labels": Option("", TEXT,
        "File with a folder's labels, absolute or relative to the folder. Empty: labels.csv, "
        "class folders, or the only other table that fits.", is_runtime=True),
    "data.label_pattern": Option("", TEXT,
        r"Regular expression of names of files, whose group is the class, such as "
        r"`([^/]+)_\d+\.`.", is_runtime=True),
    "data.pipeline": Option("tfdata", one_of("tfdata", "device"),
        "Where batches are made: by tf.data on the host, or on the accelerator. Without "
        "TensorFlow the default is device."),
    "data.image_size": Option(32, between(8, 1024),
        "Height and width in pixels to which images are scaled."),
    "data.channels": Option(3, Rule(lambda value: value in (1, 3), "1 or 3"),
        "1 (gray) or 3 (RGB), for images in a folder."),
    "data.resize": Option("crop", one_of(*RESIZE_MODES),
        "How images in a folder become square: crop keeps the center, pad adds gray borders, "
        "stretch changes the aspect ratio."),
    "data.bit_depth": Option(16, between(8, 16),
        "Bits that 16-bit images in a folder use: 12 maps 4,095 to white."),
    "data.cache_gigabytes": Option(20.0, between(0.0, 1e6),
        "Size of the cache of decoded images. Beyond it, the least recently used are deleted.",
        is_runtime=True),
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
    "model.init_head": Option("random", one_of("random", "probe", "inferred"),
        "Last layer of pretrained networks: random, or fitted to frozen features of the labeled "
        "images (probe) or of all, with inferred labels (inferred)."),
    "model.final_head": Option("trained", one_of("trained", "inferred"),
        "Last layer of the averaged networks after the last step: as trained, or refitted to "
        "labels inferred from frozen features, the networks and graphs of their features."),
    "model.inferred_images": Option(0, between(0),
        "Unlabeled images, evenly spaced, whose labels are inferred from frozen features. 0: "
        "all."),
    "model.inferred_by": Option("", TEXT,
        "More pretrained weights, comma-separated, whose features help to infer labels: "
        "`builtin:efficientnet_lite2`. See `cls-jax backbones`."),
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


def get_options(method_name: str) -> dict[str, Option]:
    """A method's table: its own `mu`, and `method.*`. Raises the UserError of `get_method`."""
    method = get_method(method_name)
    options = OPTIONS | {
        "mu": OPTIONS["mu"]._replace(default=method.mu),
        "method.name": OPTIONS["method.name"]._replace(default=method_name),
    }
    if method.select_labels:
        options["eval_batch_size"] = options["eval_batch_size"]._replace(is_runtime=False)
    for name, hyperparameter in method.hyperparameters.items():
        rule = (
            one_of(*hyperparameter.choices)
            if hyperparameter.choices
            else between(hyperparameter.low, hyperparameter.high)
        )
        if isinstance(hyperparameter.default, bool):
            rule = YES_OR_NO
        options[f"method.{name}"] = Option(hyperparameter.default, rule, "", hyperparameter.source)
    return options
