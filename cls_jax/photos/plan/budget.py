"""`--minutes`: the resolution and number of steps that fit a time budget, by rehearsal."""

import contextlib
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import validate_config
from cls_jax.data.datasets import add_mean_and_std
from cls_jax.data.pipelines import create_pipeline
from cls_jax.methods import get_method
from cls_jax.models.weights.sources import BUILTIN
from cls_jax.parallel.distributed import from_main_process
from cls_jax.photos.features.extract import extract_from_arrays
from cls_jax.photos.folder.dataset import FolderSummary, find_short_side, load_sample
from cls_jax.photos.images.decode import get_decode_options, get_image_shape
from cls_jax.photos.inference import suspects
from cls_jax.photos.plan.rules import RULES, Plan, fit_to_folder, limit_steps_on_labels
from cls_jax.photos.start import final_heads
from cls_jax.photos.start.start import open_frozen_network
from cls_jax.training.prepare import create_setup, resolve_model, use_own_normalization
from cls_jax.training.step import compile_step, create_train_step

# The default number of minutes, by whether there is an accelerator.
_ACCELERATOR_MINUTES, _CPU_MINUTES = 30.0, 10.0
# At most this share of the time goes to features of the unlabeled images, and to one evaluation.
# Beyond it, the graph leaves out images, and networks are evaluated after the last step only.
_FEATURE_SHARE, _EVAL_SHARE = 0.25, 0.05
# Seconds per image in the graph: label propagation, probes and heads. And fixed seconds: imports,
# compiling evaluation and features, the report (measured on two cores).
_FIT_SECONDS, _FIXED_SECONDS = 0.006, 25.0
_SIZES = (224, 160, 128, 96)  # For pretrained networks, in pixels.
_LARGEST_ENLARGED = 160  # Smaller images are enlarged to at most this.
# From this many steps on, a higher resolution is preferred. Below, batches get smaller. On rubbish,
# 40 steps at 224 pixels ended at 65.0% and 55.1% (two draws), 80 steps at 63.3% and 56.3%, and 80
# steps at 160 pixels at 57.0% (the first draw, experiments/results/any_folder.md).
_ENOUGH_STEPS = 40
_MAX_STEPS, _MAX_DEFAULT_STEPS = 20_000, 2_000
_MIN_BATCH_SIZE = 4
_ROUNDING = 20  # The number of steps is a multiple of this.
_NUM_STEPS, _NUM_SAMPLED = 5, 64
_ENOUGH_SECONDS = 10.0  # After this, three steps suffice.


class Rehearsal(NamedTuple):
    """Measured times of a few real steps and images."""

    compile_seconds: float
    step_seconds: float  # The median of the steps after the first.
    memory: str  # A sentence that compares a step's memory with the device's.
    image_size: int
    batch_size: int
    decode_seconds: float = 0.0  # For an image.
    # For an image, of the frozen network at its own resolution. 0 for runs without a graph.
    feature_seconds: float = 0.0


def fit_to_minutes(given: Plan, minutes: float | None) -> str | None:
    """Chooses steps, and for pretrained networks resolution and batch size, unless they are set.

    Everything but the number of steps is validated first. Cost is assumed to grow in proportion to
    pixels and to images per batch. The most likely choice is measured, because the run can then
    reuse its compiled program. The configuration of `given`, from `fit_to_folder`, is modified.
    `minutes` is the time for the whole training, None for the default, which exists only for
    weights that come with the project. Returns a sentence about the choice and its reason, or None
    if there was nothing to choose. Raises as `profile_folder` and `validate_config` do.
    """
    config, is_pretrained = given.config, given.config.model.init.startswith(BUILTIN)
    is_fast, most = given.resources.has_accelerator, _MAX_STEPS
    if "num_steps" in given.set_by_user or (minutes is None and not is_pretrained):
        return None
    if minutes is None:
        minutes, most = _ACCELERATOR_MINUTES if is_fast else _CPU_MINUTES, _MAX_DEFAULT_STEPS

    def fit_rest(*chosen: str) -> None:
        # Again, because the rules for decays, intervals and so on read what was chosen here.
        fit_to_folder(given._replace(set_by_user={*given.set_by_user, *chosen}))

    sizes = [config.data.image_size]
    if is_pretrained:
        config.num_steps = _MAX_DEFAULT_STEPS if is_fast else _ENOUGH_STEPS
        if "data.image_size" not in given.set_by_user:
            largest = max(find_short_side(given.summary.sizes), _LARGEST_ENLARGED)
            sizes = [candidate for candidate in _SIZES if candidate <= largest]
            config.data.image_size = max(sizes)
        fit_rest("data.image_size", "num_steps")
    likely, config.num_steps = config.num_steps, most
    validate_config(resolve_model(config))
    config.num_steps, started, total = likely, time.monotonic(), 60 * minutes
    measured = profile_folder(resolve_model(config), given.summary)
    # Measured times differ between processes.
    *numbers, spent = from_main_process((*measured, time.monotonic() - started))
    measured = Rehearsal(*numbers)
    if measured.feature_seconds and "model.graph_images" not in given.set_by_user:
        per_image = measured.feature_seconds + measured.decode_seconds + _FIT_SECONDS
        affordable = int(_FEATURE_SHARE * total / per_image)
        if affordable < _count_training(given)[1]:
            config.model.graph_images = max(affordable, 1)
    cost = measured.step_seconds / (measured.image_size**2 * measured.batch_size)
    enough = _ENOUGH_STEPS * cost
    left, num_evaluations = {}, {}
    for size in sizes:
        rest, evaluation = _estimate_rest(given, measured, size)
        num_evaluations[size] = 3 if evaluation <= _EVAL_SHARE * total else 1
        left[size] = total - spent - rest - num_evaluations[size] * evaluation
    fitting = [size for size in sizes if left[size] >= enough * size**2 * config.batch_size]
    config.data.image_size = size = max(fitting, default=min(sizes))
    batch_size = config.batch_size
    if "batch_size" not in given.set_by_user:
        batch_size = RULES["batch_size"](given)  # What then fits into memory.
        smallest = max(2 * _MIN_BATCH_SIZE, 2 * config.accumulate_steps)
        while batch_size >= smallest and left[size] < enough * size**2 * batch_size:
            # One of the parts that the batch is accumulated from has half as many, rounded down.
            batch_size = batch_size // 2 // config.accumulate_steps * config.accumulate_steps
    config.batch_size = batch_size
    step = cost * size**2 * batch_size
    affordable = min(max(int(left[size] / step) // _ROUNDING, 1) * _ROUNDING, most)
    config.num_steps = min(affordable, limit_steps_on_labels(given) or affordable)
    fit_rest("data.image_size", "batch_size", "num_steps")
    if "eval_every" not in given.set_by_user and num_evaluations[size] == 1:
        config.eval_every = config.num_steps
    reason = _explain_choice(config, sizes, bool(fitting))
    is_short = config.num_steps < affordable
    if is_short or left[size] < _ROUNDING * step:
        minutes = (total - left[size] + config.num_steps * step) / 60
        reason += ", no more steps for so few labels" if is_short else ", more than requested"
    return (
        f"{minutes:.3g} minutes: {config.num_steps:,} steps of about {step:.2f} s at {size} pixels "
        f"with {batch_size} labeled images each, and {total - left[size]:.0f} s for all else "
        f"(measured: {measured.step_seconds:.2f} s at {measured.image_size} pixels{reason})."
    )


def _explain_choice(config: ConfigDict, sizes: list[int], is_enough: bool) -> str:
    """Why this resolution among `sizes`, if there was a choice, and how large the graph is."""
    reason = ""
    if len(sizes) > 1 and is_enough:
        shown = ", ".join(map(str, sizes))
        reason = f", the highest of {shown} pixels with at least {_ENOUGH_STEPS} steps"
    elif len(sizes) > 1:
        reason = f", too few steps for more than {config.data.image_size} pixels"
    if config.model.graph_images:
        reason += f", {config.model.graph_images:,} unlabeled images in the graph"
    return reason


def _estimate_rest(given: Plan, measured: Rehearsal, image_size: int) -> tuple[float, float]:
    """Seconds at this resolution for all but rehearsal, steps and evaluations, and per evaluation.

    Per image, a step takes about three times as long as a prediction. Evaluations see each image
    with raw and with averaged parameters.
    """
    config, summary, method = given.config, given.summary, get_method(given.config.method.name)
    num_networks, num_views = method.num_networks, 1 + config.mu * len(method.unlabeled_views)
    infer = measured.step_seconds * (image_size / measured.image_size) ** 2
    infer /= 3 * measured.batch_size * num_views * num_networks
    num_held_out = summary.num_validation + summary.num_test
    num_labeled, num_others = _count_training(given)
    num_linked = min(num_others, config.model.graph_images or num_others)
    seconds = _FIXED_SECONDS + measured.compile_seconds
    seconds += (num_labeled + num_others + num_held_out) * measured.decode_seconds
    if measured.feature_seconds:
        per_image = measured.feature_seconds + measured.decode_seconds
        seconds += (num_labeled + num_linked) * (per_image + _FIT_SECONDS)
        seconds += num_held_out * per_image
    # What the trained networks see after the last step: for the report, and for their last layers.
    num_seen = min(num_labeled, suspects.MAX_IMAGES) + min(num_others, suspects.MAX_UNLABELED)
    if config.model.final_head == "graph":
        num_seen += min(num_labeled, final_heads.MAX_IMAGES) + num_linked
        seconds += (num_labeled + num_linked) * _FIT_SECONDS
    seconds += num_networks * num_seen * infer
    return seconds, 2 * num_networks * num_held_out * infer


def _count_training(given: Plan) -> tuple[int, int]:
    """The numbers of training images whose label is used, and of all others."""
    most = given.summary.num_labeled
    num_labeled = min(given.config.num_labels or most, most)
    return num_labeled, most - num_labeled + given.summary.num_unlabeled


def profile_folder(config: ConfigDict, summary: FolderSummary) -> Rehearsal:
    """Compiles the step of a run and takes a few on a sample of its images. Writes nothing.

    Raises a UserError if pretrained weights cannot be read, the step does not fit into the device's
    memory, or the devices cannot be arranged as `config.mesh` says.
    """
    options, shape = get_decode_options(config.data), get_image_shape(config.data)
    started = time.perf_counter()
    dataset = load_sample(summary, shape, _NUM_SAMPLED, options)
    decode_seconds = (time.perf_counter() - started) / len(dataset.train_images)
    # Constants of the program. They must equal the run's for it to be reused.
    dataset = use_own_normalization(config, add_mean_and_std(config, dataset))
    labeled = np.flatnonzero(dataset.train_labels >= 0).astype(np.int32)
    everything = np.arange(len(dataset.train_images), dtype=np.int32)
    num_images = summary.num_labeled + summary.num_unlabeled  # Some methods keep a state per image.
    setup, stream = create_setup(config, dataset, labeled, everything, num_images)
    inputs, input_specs, create_batch = create_pipeline(stream, dataset, setup.mesh, 0, _NUM_STEPS)
    step: Any = create_train_step(setup, create_batch, input_specs)
    with contextlib.closing(inputs):
        state, step_input = setup.init_state(), next(inputs)
        device = jax.local_devices()[0]
        compiled, compile_seconds, memory = compile_step(step, state, step_input, device)
        seconds = []
        for i in range(_NUM_STEPS):
            started = time.perf_counter()
            if i:
                step_input = next(inputs)
            state, metrics = compiled(state, step_input)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - started)
            if len(seconds) > 2 and sum(seconds) > _ENOUGH_SECONDS:
                break
    feature_seconds = 0.0
    if config.model.init and config.method.get("graph"):
        network, images = open_frozen_network(setup), dataset.train_images
        extract_from_arrays(images[:1], network, lambda *_: None)
        started = time.perf_counter()
        extract_from_arrays(images, network, lambda *_: None)
        feature_seconds = (time.perf_counter() - started) / len(images)
    sizes = config.data.image_size, config.batch_size
    step_seconds = statistics.median(seconds[1:])
    return Rehearsal(compile_seconds, step_seconds, memory, *sizes, decode_seconds, feature_seconds)
