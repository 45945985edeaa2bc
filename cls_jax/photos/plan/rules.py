"""The configuration for a folder of images: fixed defaults, and those that fit folder and machine.

`create_folder_config` returns the same values everywhere, also for `configs/folder.py`.
`fit_to_folder` replaces what the user has not set by values for the images at hand and for the
memory of the machine, and `cli.budget.fit_to_minutes` steps and resolution by its speed.
"""

import math
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cls_jax.config.build import create_defaults, flatten, read_config
from cls_jax.errors import UserError
from cls_jax.methods import choose_decay, get_method, get_round_length
from cls_jax.models import MODELS, Entry
from cls_jax.models.layers import STEMS, resolve_stem
from cls_jax.models.weights.sources import BUILTIN
from cls_jax.photos.features.extract import PRETRAINED
from cls_jax.photos.folder.dataset import FolderSummary, are_photographs, find_short_side

_EVAL_PIXELS = 2**20  # In an evaluation batch.
# Bytes that a network keeps per image of a step with a feature map of 32 pixels: measured for
# WRN-28-2 (6.98 GB for two networks and 960 images). ResNet-18's is within 10% of it.
_BYTES_PER_IMAGE = 4e6
_MAX_MEMORY_SHARE = 0.5

_ARCHITECTURE = {"model.name", "model.depth", "model.width", "model.stem"}
# EfficientNet-Lite0 at 224 pixels: outputs of its convolutions (6.7 million numbers), twice.
_PRETRAINED_BYTES_PER_PIXEL = 6.7e6 * 4 * 2 / 224**2


class Resources(NamedTuple):
    """What a machine offers."""

    has_accelerator: bool  # Whether JAX computes on something faster than a CPU.
    memory: int  # Bytes of a device, or of the host if it computes.
    has_tensorflow: bool  # Whether tf.data can feed images.
    has_pretrained: bool = False  # Whether the weights `builtin:efficientnet_lite0` are installed.
    num_devices: int = 1  # Of all processes together.


def create_folder_config(path: str, method_name: str) -> ConfigDict:
    """The defaults for any folder of images.

    Sizes follow `data.image_size`, so for larger images that is the only value to change. Raises a
    UserError if there is no such method.
    """
    config = create_defaults(num_labels=0, method_name=method_name)
    config.num_steps = 20_000  # More steps would only repeat a few images.
    config.batch_size = 32
    config.eval_every = config.checkpoint_every = 500
    config.data.name, config.data.data_dir = "folder", path
    config.data.image_size = 64
    image_size = config.data.get_ref("image_size")
    # 256 images of 64 pixels or 20 of 224: a few hundred MB either way.
    config.eval_batch_size = _EVAL_PIXELS // (image_size * image_size)
    config.data.shift = image_size // 8  # The authors' shares of the image size.
    config.data.cutout = image_size // 2
    config.data.mean = config.data.std = ()
    config.model.stem = "auto"
    return config


def find_own_image_size(config: ConfigDict) -> int:
    """Height and width of the images that the weights of `model.init` were trained on."""
    stored = pathlib.Path(config.model.init).expanduser() / "config.json"
    if config.model.init and stored.exists():  # The weights of another run.
        return read_config(stored).data.image_size
    entry = _get_entry(config)
    stem = resolve_stem(config.model.stem, config.data.image_size)
    is_small = "stem" in entry.keys and stem != "imagenet"
    return config.data.image_size if is_small else entry.image_size


def _get_entry(config: ConfigDict) -> Entry:
    """The architecture, implied by weights that come with the project."""
    init = config.model.init
    return MODELS[init.removeprefix(BUILTIN) if init.startswith(BUILTIN) else config.model.name]


class Plan(NamedTuple):
    """The plan of a run on a folder so far: the input of every rule."""

    config: ConfigDict  # With the user's values and the results of earlier rules.
    summary: FolderSummary
    resources: Resources
    set_by_user: Collection[str] = ()  # Dotted keys that rules keep, set by the user or a budget.
    workdir: pathlib.Path = pathlib.Path()  # The run's folder, which need not exist.
    budget: str | None = None  # The reason for steps and resolution. None if they were given.


def choose_method(given: Plan) -> str:
    """FixMatch for photographs and the built-in weights, otherwise CLS.

    CLS also where an option is set that only CLS has, or networks are spread over devices. From
    these weights, labels exchanged between networks gained nothing, and in the same time FixMatch
    was more accurate on average (experiments/results/any_folder.md). It also predicts in half the
    time.
    """
    config = given.config
    others = flatten(create_folder_config(config.data.data_dir, "fixmatch").to_dict())
    needs_cls = bool(set(given.set_by_user) - others.keys()) or config.mesh.network > 1
    init = config.model.init if "model.init" in given.set_by_user else _choose_init(given)
    return "cls" if needs_cls or init != PRETRAINED else "fixmatch"


def fit_to_folder(given: Plan) -> None:
    """Sets the keys of `RULES` that the method has, except those that the user has set."""
    own = flatten(given.config.to_dict())
    for key, rule in RULES.items():
        applies = given.config.model.init or not key.startswith("optimizer.")
        if applies and key in own and key not in given.set_by_user:
            given.config.update_from_flattened_dict({key: rule(given)})


def _choose_init(given: Plan) -> str:
    """Pretrained weights for gray and color photographs, if installed and no network is chosen."""
    is_fitting = (
        given.resources.has_pretrained
        and _ARCHITECTURE.isdisjoint(given.set_by_user)
        and are_photographs(given.summary.sizes)
    )
    return PRETRAINED if is_fitting else given.config.model.init


def _choose_init_head(given: Plan) -> str:
    """Heads fitted to inferred labels, or to the given labels for supervised methods."""
    if not given.config.model.init:
        return "random"
    return "graph" if get_method(given.config.method.name).unlabeled_views else "probe"


def _choose_final_head(given: Plan) -> str:
    """Refitted, with 2 to 25 labels per class, see `cls_jax.photos.start.final_heads`.

    With 4 or 5 labels per class, refitted heads were 1.3 points better than trained ones on average
    (experiments/results/any_folder.md). Other numbers of labels were not measured.
    """
    config = given.config
    is_trained = config.model.init_head == "graph" and config.num_steps > 0
    is_fitting = is_trained and 2 <= _count_labels_per_class(given) <= 25
    return "graph" if is_fitting else config.model.final_head


def _choose_image_size(given: Plan) -> int:
    """The median short side, at least 16 pixels, at most 64 on an accelerator and 32 on a CPU.

    From 96 to 128 for weights trained on larger images, since their features of small images are
    poor. Their own size where nothing is trained. A multiple of 8, or of a transformer's patches.
    """
    own_size, patch = find_own_image_size(given.config), _get_entry(given.config).patch
    if given.config.num_steps == 0:
        return own_size
    smallest, largest = 16, (64 if given.resources.has_accelerator else 32)
    if given.config.model.init:
        smallest, largest = (96 if own_size >= 96 else 16), 128
    unit = patch if patch > 1 else 8
    bounded = min(max(int(find_short_side(given.summary.sizes)), smallest), largest)
    return max(bounded // unit, -(-smallest // unit)) * unit


def _choose_batch_size(given: Plan) -> int:
    """Labeled images per step: as many as half of the memory holds, but at most 32.

    At most 16 on a CPU, and 8 for pretrained networks, which gain more from a higher resolution in
    the same time. Only one part of an accumulated batch must fit into memory. With several
    accelerators the batch is as many times larger, as long as an epoch has at least 20 steps.
    """
    on_cpu, num_parts = 8 if given.config.model.init else 16, given.config.accumulate_steps
    needed = estimate_memory_per_labeled_image(given.config)
    fitting = int(_MAX_MEMORY_SHARE * given.resources.memory / needed)
    power_of_two = 1 << max(fitting, 1).bit_length() - 1
    most = (32 if given.resources.has_accelerator else on_cpu) // num_parts
    batch_size = num_parts * min(power_of_two, max(most, 1))
    if not given.resources.has_accelerator:
        return batch_size
    shards = given.resources.num_devices // get_method(given.config.method.name).num_networks
    while shards >= 2 and 20 * 2 * batch_size * given.config.mu <= _count_images(given):
        batch_size, shards = 2 * batch_size, shards // 2
    return batch_size


def _count_images(given: Plan) -> int:
    return given.summary.num_labeled + given.summary.num_unlabeled


def _count_labels_per_class(given: Plan) -> float:
    """The mean number of labels of a class that the run trains on."""
    num_known = given.summary.num_labeled * (1 - given.config.data.validation)
    return (given.config.num_labels or num_known) / len(given.summary.class_counts)


def estimate_memory_per_labeled_image(config: ConfigDict) -> float:
    """Bytes that a step needs per labeled image, including its share of unlabeled images."""
    method = get_method(config.method.name)
    num_images = (1 + config.mu * len(method.unlabeled_views)) * method.num_networks
    if config.model.init:
        return _PRETRAINED_BYTES_PER_PIXEL * config.data.image_size**2 * num_images
    _, stride, pools = STEMS[resolve_stem(config.model.stem, config.data.image_size)]
    side = config.data.image_size / stride / (2 if pools else 1)
    size = 1.0
    if config.model.name == "wide_resnet":
        size = config.model.width / 2 * (config.model.depth - 4) / 24
    return _BYTES_PER_IMAGE * size * (side / 32) ** 2 * num_images


def _choose_num_steps(given: Plan) -> int:
    """64 epochs, from 1,000 to 20,000 steps (5,000 on a CPU).

    Pretrained networks need fewer: 8 epochs, from 300 to 2,000 steps. With an accelerator, enough
    to see every image once.
    """
    fewest, epochs = 1_000, 64
    most = 20_000 if given.resources.has_accelerator else 5_000
    if given.config.model.init:
        fewest, most, epochs = 300, 2_000, 8
    once = _count_images(given) / (given.config.batch_size * given.config.mu)
    if given.resources.has_accelerator:
        most = max(most, 100 * math.ceil(once / 100))
    chosen = min(max(100 * math.ceil(epochs * once / 100), fewest), most)
    return min(chosen, limit_steps_on_labels(given) or chosen)


def limit_steps_on_labels(given: Plan) -> int | None:
    """Eight epochs, but at least 40 steps, where pretrained networks see labeled images only.

    More steps learn a few labels by heart: with 5 per class and 400 steps, clothing ended 2 to 5
    points below the linear probe (experiments/results/any_folder.md). None for other runs.
    """
    config = given.config
    if not config.model.init or get_method(config.method.name).unlabeled_views:
        return None
    num_labels = _count_labels_per_class(given) * len(given.summary.class_counts)
    return max(math.ceil(8 * num_labels / config.batch_size), 40)


def _choose_learning_rate(given: Plan) -> float:
    """3e-4. On labeled images only, 1e-4, or 3e-6 with fewer than 10 per class.

    With 5 per class, higher rates ended below the linear probe on clothing. With 25, 1e-4 ended
    above it on most folders (experiments/results/any_folder.md).
    """
    if get_method(given.config.method.name).unlabeled_views:
        return 3e-4
    return 1e-4 if _count_labels_per_class(given) >= 10 else 3e-6


def _choose_decay(given: Plan) -> float:
    """A decay with which a running mean forgets its start before the run or round ends."""
    return choose_decay(get_round_length(given.config))


def _choose_interval(given: Plan) -> int:
    """Ten times per run, and at least every 500 steps. Three times where evaluations are slow."""
    is_slow = given.config.model.init and not given.resources.has_accelerator
    return min(max(math.ceil(given.config.num_steps / (3 if is_slow else 10)), 1), 500)


# Key → the rule for its value. Each rule comes after those whose values it reads.
RULES: dict[str, Callable[[Plan], Any]] = {
    "model.init": _choose_init,
    "model.init_head": _choose_init_head,
    # An accelerator receives each image once and augments it there.
    "data.pipeline": lambda given: (
        "tfdata"
        if given.resources.has_tensorflow and not given.resources.has_accelerator
        else "device"
    ),
    "data.bit_depth": lambda given: given.summary.bit_depth,
    "data.image_size": _choose_image_size,
    # Pretrained networks expect colors.
    "data.channels": lambda given: 3 if given.config.model.init else given.summary.channels,
    # On a CPU, a network that needs a twentieth of the work, and fewer unlabeled images per step.
    "model.depth": lambda given: 28 if given.resources.has_accelerator else 10,
    "model.width": lambda given: 2 if given.resources.has_accelerator else 1,
    "mu": lambda given: min(given.config.mu, 8 if given.resources.has_accelerator else 4),
    "batch_size": _choose_batch_size,
    "num_steps": _choose_num_steps,
    "model.final_head": _choose_final_head,
    "ema_decay": _choose_decay,
    "model.bn_momentum": _choose_decay,
    "method.statistics_decay": _choose_decay,
    "method.class_mean_decay": _choose_decay,
    # Where heads start from inferred labels, these labels stay a term of the loss.
    "method.graph": lambda given: (
        1.0 if given.config.model.init_head == "graph" else given.config.method.graph
    ),
    # Statistics of small batches would ruin pretrained features.
    "model.bn_frozen": lambda given: bool(given.config.model.init),
    # Both are then the same computation. Older runs chose the key this way and keep it.
    "method.weak_pass": lambda given: "fast" if given.config.model.bn_frozen else "joint",
    "eval_every": _choose_interval,
    "checkpoint_every": _choose_interval,
    "log_every": lambda given: min(max(given.config.num_steps // 100, 1), given.config.log_every),
    # Of docs/finetuning.md: the optimizer's rules are for pretrained weights only.
    "optimizer.name": lambda given: "adamw",
    "optimizer.learning_rate": _choose_learning_rate,
    "optimizer.layer_decay": lambda given: 0.9,
    "optimizer.warmup_steps": lambda given: min(20, given.config.num_steps // 10),
    # Four of EfficientNet-Lite0's seven stages, which leaves half of its work.
    "optimizer.frozen_stages": lambda given: 4 if given.config.model.init == PRETRAINED else 2,
}


def apply_settings(config: ConfigDict, settings: Mapping[str, Any]) -> None:
    """Sets dotted keys. Raises a UserError if a key does not exist or a value has another type."""
    for key, value in settings.items():
        if key not in flatten(config.to_dict()):
            raise UserError(
                f"The configuration has no key {key}: see docs/configuration.md for all keys."
            )
        try:
            config.update_from_flattened_dict({key: value})
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{key} cannot be {value!r:.100}: see docs/configuration.md for its values."
            ) from error
