"""The configuration for a folder of images: fixed defaults, and rules that fit folder and machine.

`create_folder_config` returns the same values everywhere, also for `configs/folder.py`. `fit`
decides what the user has not set. Each key has one rule, a pure function of the plan so far: of the
images at hand, the memory of the machine, and the time that the run may take.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from cls_jax.config import OPTIONS, create_defaults, flatten, get_options
from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.methods import choose_decay, get_method, get_round_length
from cls_jax.models import MODELS
from cls_jax.models.layers import STEMS, resolve_stem
from cls_jax.models.weights.backbones import BACKBONES
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE
from cls_jax.photos.folder.dataset import FolderSummary, are_photos, find_short_side
from cls_jax.photos.folder.instant_config import create_instant_config
from cls_jax.photos.plan.estimate import Budget, count_views
from cls_jax.photos.start.frozen import find_native_size, get_model_spec

_EVAL_PIXELS = 2**20  # In an evaluation batch.
# Bytes that a network keeps per image of a step with a feature map of 32 pixels: measured for
# WRN-28-2 (6.98 GB for two networks and 960 images). ResNet-18's is within 10% of it.
_BYTES_PER_IMAGE = 4e6
_MAX_MEMORY_SHARE = 0.5

_ARCHITECTURE = {"model.name", "model.depth", "model.width", "model.stem"}
_SIZES = (224, 160, 128, 96)  # For weights of the table of backbones, in pixels.
_LARGEST_ENLARGED = 160  # Smaller images are enlarged to at most this.
# The most steps by default, where time decides.
MAX_DEFAULT_STEPS = 2_000
_MIN_BATCH_SIZE = 4
STEP_UNIT = 20  # Where time decides, the number of steps is a multiple of this.


class Resources(NamedTuple):
    """What a machine offers."""

    has_accelerator: bool  # Whether JAX computes on something faster than a CPU.
    memory: int  # Bytes of a device, or of the host if it computes.
    has_tensorflow: bool  # Whether tf.data can feed images.
    has_pretrained: bool = False  # Whether the weights `builtin:efficientnet_lite0` are installed.
    num_devices: int = 1  # Of all processes together.


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run on a folder, or of its instant classifier, so far."""

    method: str | None  # Its name. None for an instant classifier, of which nothing is trained.
    settings: Mapping[str, Any]  # Values by dotted key, the user's and those chosen so far.
    set_by_user: frozenset[str]  # The keys that the user has set, and rules keep.
    summary: FolderSummary
    resources: Resources
    workdir: pathlib.Path = pathlib.Path()  # The run's folder, which need not exist.
    budget: Budget | None = None  # None unless time decides.
    reason: str | None = None  # A sentence about what the time decided.
    # Enough for a training that is worth having, if the time is not: then nothing is trained.
    needed_minutes: int | None = None
    draft: ConfigDict | None = None  # The configuration while rules choose its values.

    @functools.cached_property
    def config(self) -> ConfigDict:
        """The configuration with these settings.

        Raises a UserError if there is no such method, key, or type of a value.
        """
        if self.draft is not None:
            return self.draft
        config = self.create_draft()
        if self.method is None:
            config = create_instant_config(config)
        return FrozenConfigDict(config.copy_and_resolve_references())

    def create_draft(self) -> ConfigDict:
        """A configuration with these settings that still follows `data.image_size`.

        Of an instant classifier, with the keys of a training. Raises the same as `config`.
        """
        # An absolute path, so that evaluation finds the images from anywhere.
        config = create_folder_config(str(self.summary.root.resolve()), self.method or "cls")
        apply_settings(config, self.settings)
        return config

    def choose(self, settings: Mapping[str, Any], **changes: Any) -> "Plan":
        """The plan with these settings in addition to those so far, and changed fields."""
        return dataclasses.replace(self, settings={**self.settings, **settings}, **changes)


def create_folder_config(path: str, method_name: str) -> ConfigDict:
    """The defaults for any folder of images.

    Sizes follow `data.image_size`, so for larger images that is the only value to change. Raises a
    UserError if there is no such method.
    """
    config = create_defaults(num_labels=0, method_name=method_name, dataset="folder")
    config.num_steps = 20_000  # More steps would only repeat a few images.
    config.batch_size = 32
    config.eval_every = config.checkpoint_every = 500
    config.data.data_dir = path
    config.data.image_size = 64
    image_size = config.data.get_ref("image_size")
    # 256 images of 64 pixels or 20 of 224: a few hundred MB either way.
    config.eval_batch_size = _EVAL_PIXELS // (image_size * image_size)
    config.data.shift = image_size // 8  # The authors' shares of the image size.
    config.data.cutout = image_size // 2
    config.data.mean = config.data.std = ()
    config.model.stem = "auto"
    return config


def choose_method(plan: Plan) -> str:
    """FixMatch for photos and weights of the table of backbones, otherwise CLS.

    CLS also where an option is set that only CLS has, or networks are spread over devices. From
    the built-in weights, labels exchanged between networks gained nothing, and in the same time
    FixMatch was more accurate on average (experiments/results/any_folder.md). It also predicts in
    half the time.
    """
    config = plan.config
    others = flatten(create_folder_config(config.data.data_dir, "fixmatch").to_dict())
    needs_cls = bool(plan.set_by_user - others.keys()) or config.mesh.network > 1
    init = config.model.init if "model.init" in plan.set_by_user else _choose_init(plan)
    return "cls" if needs_cls or init not in BACKBONES else "fixmatch"


def fit(plan: Plan) -> Plan:
    """The plan with a value for each key of `RULES` that it has, except those that the user set."""
    unset = flatten(plan.config.to_dict()).keys() - plan.set_by_user
    draft = plan.create_draft()
    settings, drafted = dict(plan.settings), dataclasses.replace(plan, draft=draft)
    for key, rule in RULES.items():
        applies = draft.model.init or not key.startswith("optimizer.")
        if applies and key in unset:
            settings[key] = rule(drafted)
            draft.update_from_flattened_dict({key: settings[key]})
    return dataclasses.replace(plan, settings=settings)


def _choose_init(plan: Plan) -> str:
    """Pretrained weights for gray and color photos, if installed and no network is chosen."""
    is_fitting = plan.resources.has_pretrained and _fits_pretrained(plan)
    return DEFAULT_BACKBONE if is_fitting else plan.config.model.init


def _fits_pretrained(plan: Plan) -> bool:
    return _ARCHITECTURE.isdisjoint(plan.set_by_user) and are_photos(plan.summary.sizes)


def lacks_pretrained(plan: Plan) -> bool:
    """Whether photos train from random weights because the pretrained ones are not installed."""
    is_open = "model.init" not in plan.set_by_user and not plan.config.model.init
    return is_open and not plan.resources.has_pretrained and _fits_pretrained(plan)


def _choose_init_head(plan: Plan) -> str:
    """Heads fitted to inferred labels, or to the given labels for supervised methods."""
    if not plan.config.model.init:
        return "random"
    return "inferred" if get_method(plan.config.method.name).unlabeled_views else "probe"


def _choose_final_head(plan: Plan) -> str:
    """Refitted, with 2 to 25 labels per class, see `photos.start.stages`.

    With 4 or 5 labels per class, refitted heads were 1.3 points better than trained ones on average
    (experiments/results/any_folder.md). Other numbers of labels were not measured.
    """
    model = plan.config.model
    is_fitting = model.init_head == "inferred" and 2 <= _count_labels_per_class(plan) <= 25
    return "inferred" if is_fitting else model.final_head


def _choose_inferred_by(plan: Plan) -> str:
    """The partner of the default network, where labels are inferred and the time is enough.

    On average, its labels were right for 1.1 points more images, and the instant classifier for 0.6
    (experiments/results/any_folder.md).
    """
    partner = _find_partner(plan)
    return "" if _is_too_slow(plan, partner) else partner


def _find_partner(plan: Plan) -> str:
    """The network that helps that of the plan to infer labels. "" if there is none."""
    model = plan.config.model
    is_used = model.init_head == "inferred" and plan.summary.kind.joins_networks
    if not is_used or model.init not in BACKBONES or not plan.resources.has_pretrained:
        return ""
    return BACKBONES[model.init].partner


def _is_too_slow(plan: Plan, inferred_by: str) -> bool:
    """Whether the features of further networks would take too much of the time."""
    return plan.budget is not None and plan.budget.limit_inferred(inferred_by) is not None


def describe_absent_partner(plan: Plan) -> str:
    """A sentence about what the time has left out of inferring labels, or ""."""
    partner = "" if "model.inferred_by" in plan.set_by_user else _find_partner(plan)
    if not partner or not _is_too_slow(plan, partner):
        return ""
    title = MODELS[BACKBONES[partner].name].title
    return f"{title} is not used to infer labels: it would take too much of the time."


def _choose_inferred_images(plan: Plan) -> int:
    """All, unless their features would take too much of the time."""
    model = plan.config.model
    limit = plan.budget.limit_inferred(model.inferred_by) if plan.budget else None
    return limit or model.inferred_images


def _choose_image_size(plan: Plan) -> int:
    """The median short side, at least 16 pixels, at most 64 on an accelerator and 32 on a CPU.

    From 96 to 128 for weights trained on larger images, since their features of small images are
    poor. Their native size where nothing is trained. A multiple of 8, or of a transformer's
    patches. For weights of the table of backbones, and if the time is known: the highest of a few
    with enough steps.
    """
    native_size, patch = find_native_size(plan.config), get_model_spec(plan.config).patch
    if plan.method is None:
        return native_size
    if plan.budget and plan.config.model.init in BACKBONES:
        sizes, batch_size = list_sizes(plan), plan.budget.measured.batch_size
        enough = (each for each in sizes if plan.budget.is_enough(plan.config, each, batch_size))
        return max(enough, default=min(sizes))
    smallest, largest = 16, (64 if plan.resources.has_accelerator else 32)
    if plan.config.model.init:
        smallest, largest = (96 if native_size >= 96 else 16), 128
    unit = patch if patch > 1 else 8
    bounded = min(max(int(find_short_side(plan.summary.sizes)), smallest), largest)
    return max(bounded // unit, -(-smallest // unit)) * unit


def list_sizes(plan: Plan) -> list[int]:
    """The resolutions among which the time decides, in pixels, the highest first."""
    if "data.image_size" in plan.set_by_user or plan.config.model.init not in BACKBONES:
        return [plan.config.data.image_size]
    largest = max(find_short_side(plan.summary.sizes), _LARGEST_ENLARGED)
    patch = get_model_spec(plan.config).patch
    return [size // patch * patch for size in _SIZES if size <= largest]


def _choose_batch_size(plan: Plan) -> int:
    """As many labeled images as memory allows, or fewer where the time is too short for the steps.

    If the time is known, half, a quarter and so on, but at least 4, until there are enough steps.
    One of the parts that the batch is accumulated from then has half as many, rounded down.
    """
    batch_size, num_parts = _choose_largest_batch(plan), plan.config.accumulate_steps
    if plan.budget is None:
        return batch_size
    size, smallest = plan.config.data.image_size, max(2 * _MIN_BATCH_SIZE, 2 * num_parts)
    while batch_size >= smallest and not plan.budget.is_enough(plan.config, size, batch_size):
        batch_size = batch_size // 2 // num_parts * num_parts
    return batch_size


def _choose_largest_batch(plan: Plan) -> int:
    """Labeled images per step: as many as half of the memory holds, but at most 32.

    At most 16 on a CPU, and 8 for pretrained networks, which gain more from a higher resolution in
    the same time. Only one part of an accumulated batch must fit into memory. With several
    accelerators the batch is as many times larger, as long as an epoch has at least 20 steps.
    """
    on_cpu, num_parts = 8 if plan.config.model.init else 16, plan.config.accumulate_steps
    needed = estimate_memory_per_labeled_image(plan.config)
    fitting = int(_MAX_MEMORY_SHARE * plan.resources.memory / needed)
    power_of_two = 1 << max(fitting, 1).bit_length() - 1
    most = (32 if plan.resources.has_accelerator else on_cpu) // num_parts
    batch_size = num_parts * min(power_of_two, max(most, 1))
    if not plan.resources.has_accelerator:
        return batch_size
    shards = plan.resources.num_devices // get_method(plan.config.method.name).num_networks
    while shards >= 2 and 20 * 2 * batch_size * plan.config.mu <= _count_images(plan):
        batch_size, shards = 2 * batch_size, shards // 2
    return batch_size


def describe_small_batch(plan: Plan) -> str | None:
    """A sentence if the memory decides the number of images per step, or None."""
    ample = dataclasses.replace(plan, resources=plan.resources._replace(memory=2**60))
    if plan.method is None or "batch_size" in plan.set_by_user:
        return None
    size, wanted = _choose_largest_batch(plan), _choose_largest_batch(ample)
    if size >= wanted:
        return None
    return (
        f"Half of the memory of {plan.resources.memory / 2**30:.1f} GiB holds "
        f"{write_count(size, 'labeled image', 'labeled images')} per step, where {wanted} would be "
        "used otherwise: smaller images (--size) need less."
    )


def _count_images(plan: Plan) -> int:
    return plan.summary.num_labeled + plan.summary.num_unlabeled


def _count_labels_per_class(plan: Plan) -> float:
    """The mean number of labels of a class that the run trains on."""
    num_known = plan.summary.num_labeled * (1 - plan.config.data.validation)
    return (plan.config.num_labels or num_known) / len(plan.summary.class_counts)


def estimate_memory_per_labeled_image(config: ConfigDict) -> float:
    """Bytes that a step needs per labeled image, including its share of unlabeled images."""
    num_images = count_views(config)
    if config.model.init:
        backbone = BACKBONES.get(config.model.init, BACKBONES[DEFAULT_BACKBONE])
        return backbone.bytes_per_pixel * config.data.image_size**2 * num_images
    _, stride, pools = STEMS[resolve_stem(config.model.stem, config.data.image_size)]
    side = config.data.image_size / stride / (2 if pools else 1)
    size = 1.0
    if config.model.name == "wide_resnet":
        size = config.model.width / 2 * (config.model.depth - 4) / 24
    return _BYTES_PER_IMAGE * size * (side / 32) ** 2 * num_images


def choose_num_steps(plan: Plan) -> int:
    """As many steps as fit the time, or else by the number of images. The only place for this.

    By images: 64 epochs, from 1,000 to 20,000 steps (5,000 on a CPU). Pretrained networks need
    fewer: 8 epochs, from 300 to 2,000 steps. With an accelerator, enough to see every image once.
    """
    affordable = find_affordable_steps(plan)
    chosen = _choose_steps_by_images(plan) if affordable is None else affordable
    return min(chosen, limit_steps_on_labels(plan) or chosen)


def find_affordable_steps(plan: Plan) -> int | None:
    """Steps that fit the time at the chosen resolution and batch size. None if it is not known."""
    if plan.budget is None:
        return None
    size, batch_size = plan.config.data.image_size, plan.config.batch_size
    budget, step = plan.budget, plan.budget.measured.estimate_step(size, batch_size)

    def count(likely: int) -> int:
        seconds = budget.choose_step_seconds(plan.config, size, batch_size, likely)
        units = int(seconds / step) // STEP_UNIT
        return min(max(units, 1) * STEP_UNIT, budget.max_steps)

    return count(count(budget.config.num_steps))  # So many steps may need another program.


def _choose_steps_by_images(plan: Plan) -> int:
    fewest, epochs = 1_000, 64
    most = 20_000 if plan.resources.has_accelerator else 5_000
    if plan.config.model.init:
        fewest, most, epochs = 300, 2_000, 8
    once = _count_images(plan) / (plan.config.batch_size * plan.config.mu)
    if plan.resources.has_accelerator:
        most = max(most, 100 * math.ceil(once / 100))
    return min(max(100 * math.ceil(epochs * once / 100), fewest), most)


def limit_steps_on_labels(plan: Plan) -> int | None:
    """Eight epochs, but at least 40 steps, where pretrained networks see labeled images only.

    More steps learn a few labels by heart: with 5 per class and 400 steps, clothing ended 2 to 5
    points below the linear probe (experiments/results/any_folder.md). None for other runs.
    """
    config = plan.config
    if not config.model.init or get_method(config.method.name).unlabeled_views:
        return None
    num_labels = _count_labels_per_class(plan) * len(plan.summary.class_counts)
    return max(math.ceil(8 * num_labels / config.batch_size), 40)


def _choose_learning_rate(plan: Plan) -> float:
    """3e-4. On labeled images only, 1e-4, or 3e-6 with fewer than 10 per class.

    With 5 per class, higher rates ended below the linear probe on clothing. With 25, 1e-4 ended
    above it on most folders (experiments/results/any_folder.md).
    """
    if get_method(plan.config.method.name).unlabeled_views:
        return 3e-4
    return 1e-4 if _count_labels_per_class(plan) >= 10 else 3e-6


def _choose_decay(plan: Plan) -> float:
    """A decay with which a running mean forgets its start before the run or round ends."""
    return choose_decay(get_round_length(plan.config))


def _choose_mu(plan: Plan) -> int:
    """The method's, but at most 8, or 4 on a CPU."""
    default: int = get_options(plan.config.method.name)["mu"].default
    return min(default, 8 if plan.resources.has_accelerator else 4)


def _choose_frozen_stages(plan: Plan) -> int:
    """As the table of backbones says. Two of other networks."""
    backbone = BACKBONES.get(plan.config.model.init)
    return backbone.frozen_stages if backbone else 2


def _choose_eval_interval(plan: Plan) -> int:
    """As often as checkpoints, or only after the last step where the time is too short for more."""
    budget, size = plan.budget, plan.config.data.image_size
    if budget is not None and budget.count_evaluations(plan.config, size) == 1:
        return int(plan.config.num_steps)
    return _choose_interval(plan)


def _choose_interval(plan: Plan) -> int:
    """Ten times per run, and at least every 500 steps. Three times where evaluations are slow."""
    is_slow = plan.config.model.init and not plan.resources.has_accelerator
    return min(max(math.ceil(plan.config.num_steps / (3 if is_slow else 10)), 1), 500)


# Key → the rule for its value. Each rule comes after those whose values it reads.
RULES: dict[str, Callable[[Plan], Any]] = {
    "model.init": _choose_init,
    "model.init_head": _choose_init_head,
    # An accelerator receives each image once and augments it there.
    "data.pipeline": lambda plan: (
        "tfdata"
        if plan.resources.has_tensorflow and not plan.resources.has_accelerator
        else "device"
    ),
    "data.bit_depth": lambda plan: plan.summary.bit_depth,
    "model.final_head": _choose_final_head,
    "model.inferred_by": _choose_inferred_by,
    "model.inferred_images": _choose_inferred_images,
    "data.image_size": _choose_image_size,
    # Pretrained networks expect colors.
    "data.channels": lambda plan: 3 if plan.config.model.init else plan.summary.channels,
    # On a CPU, a network that needs a twentieth of the work, and fewer unlabeled images per step.
    "model.depth": lambda plan: 28 if plan.resources.has_accelerator else 10,
    "model.width": lambda plan: 2 if plan.resources.has_accelerator else 1,
    # As accurate, and 1.2 times as fast on an H200 (experiments/results/gpu.md).
    "model.dtype": lambda plan: (
        "bfloat16"
        if plan.config.model.init and plan.resources.has_accelerator
        else plan.config.model.dtype
    ),
    "mu": _choose_mu,
    "batch_size": _choose_batch_size,
    "num_steps": choose_num_steps,
    "ema_decay": _choose_decay,
    "model.bn_momentum": _choose_decay,
    "method.statistics_decay": _choose_decay,
    "method.class_mean_decay": _choose_decay,
    # Where heads start from inferred labels, these labels stay a term of the loss.
    "method.inferred": lambda plan: (
        1.0 if plan.config.model.init_head == "inferred" else plan.config.method.inferred
    ),
    # Statistics of small batches would ruin pretrained features.
    "model.bn_frozen": lambda plan: bool(plan.config.model.init),
    # Both are then the same computation. Older runs chose the key this way and keep it.
    "method.weak_pass": lambda plan: "fast" if plan.config.model.bn_frozen else "joint",
    "eval_every": _choose_eval_interval,
    "checkpoint_every": _choose_interval,
    "log_every": lambda plan: min(
        max(plan.config.num_steps // 100, 1), OPTIONS["log_every"].default
    ),
    # Of docs/finetuning.md: the optimizer's rules are for pretrained weights only.
    "optimizer.name": lambda plan: "adamw",
    "optimizer.learning_rate": _choose_learning_rate,
    "optimizer.layer_decay": lambda plan: 0.9,
    "optimizer.warmup_steps": lambda plan: min(20, plan.config.num_steps // 10),
    "optimizer.frozen_stages": _choose_frozen_stages,
}


def apply_settings(config: ConfigDict, settings: Mapping[str, Any]) -> None:
    """Sets dotted keys. Raises a UserError if a key does not exist or a value has another type."""
    known = flatten(config.to_dict()).keys()
    for key, value in settings.items():
        if key == "method.name":
            raise UserError("method.name cannot be set by itself: choose the --method.")
        if key not in known:
            raise UserError(
                f"The configuration has no key {key}: see cls-jax help configuration for all keys."
            )
        try:
            config.update_from_flattened_dict({key: value})
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{key} cannot be {value!r:.100}: see cls-jax help configuration for its values."
            ) from error
