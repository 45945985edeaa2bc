"""`--minutes`: chooses resolution and number of steps from a few measured steps."""

import contextlib
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import validate_config
from cls_jax.config.from_folder import FolderContext, fit_to_folder
from cls_jax.data.datasets import add_mean_and_std
from cls_jax.data.images.decode import get_decode_options, get_image_shape
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sources.folder import FolderSummary, find_short_side, load_sample
from cls_jax.models.weights.sources import BUILTIN
from cls_jax.parallel.distributed import from_main_process
from cls_jax.training.start import create_setup, resolve_model, use_own_normalization
from cls_jax.training.step import compile_step, create_train_step

# Minutes where the user names none, with and without an accelerator.
_ACCELERATOR_MINUTES, _CPU_MINUTES = 30.0, 10.0
# Share of the time for steps. The rest is for the rehearsal itself, features, evaluations and the
# report: on two cores and 3,068 photographs, as much again.
_STEP_SHARE = 0.5
_SIZES = (224, 160, 128, 96)  # For pretrained networks, in pixels.
_CPU_SIZE = 160  # What two cores can afford in the default time.
_LARGEST_ENLARGED = 160  # Smaller images are enlarged to at most this.
# From here on, a higher resolution comes before more steps. Below, batches get smaller. On
# photographs at 160 pixels, 80 steps ended at 79.2%, 40 steps at 78.4%.
_ENOUGH_STEPS = 80
_MAX_STEPS, _MAX_DEFAULT_STEPS = 20_000, 2_000
_MIN_BATCH_SIZE = 4
_ROUNDING = 20  # Fewer steps than enough are multiples of this, others of enough.
_NUM_STEPS, _NUM_SAMPLED = 5, 64
_ENOUGH_SECONDS = 10.0  # From then on, three steps suffice.


class Rehearsal(NamedTuple):
    """Measurements of a few training steps."""

    compile_seconds: float
    step_seconds: float  # The median of the steps after the first.
    memory: str  # A sentence that compares what a step needs with what the device has.


def fit_to_minutes(given: FolderContext, minutes: float | None) -> str | None:
    """Chooses steps, and for pretrained networks resolution and batch size, unless they are set.

    Everything but the number of steps is validated first. Cost is assumed to grow in proportion to
    pixels and to images per batch. The most likely choice is measured, because the run can then
    reuse its compiled program.

    Args:
        given: The context. Its configuration comes from `fit_to_folder` and is modified.
        minutes: How long the whole training should take. None for the default, which only weights
            that come with the project have.

    Returns:
        A sentence about the choice and its reason. None if there was nothing to choose.

    Raises:
        UserError: Same as `profile_folder` and `validate_config`.
    """
    config, is_pretrained = given.config, given.config.model.init.startswith(BUILTIN)
    is_fast, most = given.resources.has_accelerator, _MAX_STEPS
    if "num_steps" in given.is_set or (minutes is None and not is_pretrained):
        return None
    if minutes is None:
        minutes, most = _ACCELERATOR_MINUTES if is_fast else _CPU_MINUTES, _MAX_DEFAULT_STEPS

    def fit_rest(*chosen: str) -> None:
        fit_to_folder(given._replace(is_set={*given.is_set, *chosen}))

    sizes = [config.data.image_size]
    if is_pretrained:
        config.num_steps = _MAX_DEFAULT_STEPS if is_fast else _ENOUGH_STEPS
        if "data.image_size" not in given.is_set:
            largest = max(find_short_side(given.summary.sizes), _LARGEST_ENLARGED)
            sizes = [candidate for candidate in _SIZES if candidate <= largest]
            config.data.image_size = max(sizes) if is_fast else _CPU_SIZE
        fit_rest("data.image_size", "num_steps")
    likely, config.num_steps = config.num_steps, most
    validate_config(resolve_model(config))
    config.num_steps = likely
    measured = profile_folder(resolve_model(config), given.summary)
    measured = Rehearsal(*from_main_process(measured))  # Others measure other times.
    measured_size, seconds = config.data.image_size, 60 * _STEP_SHARE * minutes
    cost = measured.step_seconds / (measured_size**2 * config.batch_size)
    enough = _ENOUGH_STEPS * cost
    fitting = [size for size in sizes if seconds >= enough * size**2 * config.batch_size]
    config.data.image_size = size = max(fitting, default=min(sizes))
    fit_rest("data.image_size")  # With as many images as the memory then holds.
    batch_size = config.batch_size
    if "batch_size" not in given.is_set:
        smallest = max(2 * _MIN_BATCH_SIZE, 2 * config.accumulate_steps)
        while batch_size >= smallest and seconds < enough * size**2 * batch_size:
            # One of the parts that the batch is accumulated from has half as many, rounded down.
            batch_size = batch_size // 2 // config.accumulate_steps * config.accumulate_steps
    config.batch_size = batch_size
    step = cost * size**2 * batch_size
    affordable = max(int(seconds / step), _ROUNDING)
    unit = _ENOUGH_STEPS if affordable >= _ENOUGH_STEPS else _ROUNDING
    config.num_steps = min(affordable // unit * unit, most)
    fit_rest("data.image_size", "batch_size", "num_steps")
    reason = ""
    if len(sizes) > 1 and fitting:
        shown = ", ".join(map(str, sizes))
        reason = f", the highest of {shown} pixels with at least {_ENOUGH_STEPS} steps"
    elif len(sizes) > 1:
        reason = f", too few steps for more than {size} pixels"
    return (
        f"{minutes:g} minutes: {config.num_steps:,} steps of about {step:.2f} s at {size} pixels "
        f"with {batch_size} labeled images each (measured: {measured.step_seconds:.2f} s at "
        f"{measured_size} pixels{reason})."
    )


def profile_folder(config: ConfigDict, summary: FolderSummary) -> Rehearsal:
    """Compiles the step of a run and takes a few on a sample of its images. Writes nothing.

    Raises:
        UserError: If pretrained weights cannot be read, the step does not fit into the device's
            memory, or the devices cannot be arranged as `config.mesh` says.
    """
    options, shape = get_decode_options(config.data), get_image_shape(config.data)
    dataset = load_sample(summary, shape, _NUM_SAMPLED, options)
    # Constants of the program, which must be the run's for JAX to keep it for the run.
    dataset = use_own_normalization(config, add_mean_and_std(config, dataset))
    labeled = np.flatnonzero(dataset.train_labels >= 0).astype(np.int32)
    everything = np.arange(len(dataset.train_images), dtype=np.int32)
    num_images = summary.num_labeled + summary.num_unlabeled  # Some methods keep a state for each.
    setup, stream = create_setup(config, dataset, labeled, everything, num_images)
    pipeline = create_pipeline(stream, dataset, setup.mesh, 0, _NUM_STEPS)
    step: Any = create_train_step(setup, pipeline.create_batch, pipeline.input_specs)
    with contextlib.closing(pipeline.inputs):
        state, step_input = setup.init_state(), next(pipeline.inputs)
        device = jax.local_devices()[0]
        compiled, compile_seconds, memory = compile_step(step, state, step_input, device)
        seconds = []
        for i in range(_NUM_STEPS):
            started = time.perf_counter()
            if i:
                step_input = next(pipeline.inputs)
            state, metrics = compiled(state, step_input)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - started)
            if len(seconds) > 2 and sum(seconds) > _ENOUGH_SECONDS:
                break
    return Rehearsal(compile_seconds, statistics.median(seconds[1:]), memory)
