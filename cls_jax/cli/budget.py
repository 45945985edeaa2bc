"""`--minutes`: resolution and number of steps that fit a time, from a few measured steps."""

import contextlib
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.config.from_folder import FolderContext, fit_to_folder
from cls_jax.data.datasets import add_mean_and_std
from cls_jax.data.images.decode import get_decode_options, get_image_shape
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sources.folder import FolderSummary, find_short_side, load_sample
from cls_jax.data.types import Dataset
from cls_jax.models.weights.sources import BUILTIN
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
    """What a few real steps took."""

    compile_seconds: float  # The time to compile the step.
    step_seconds: float  # The median of the steps after the first.
    memory: str  # A sentence that compares what a step needs with what the device has.


def fit_to_minutes(given: FolderContext, minutes: float | None) -> str | None:
    """Chooses steps, and for pretrained networks resolution and batch size, unless they are set.

    One step is measured. Another size is taken to cost in proportion to its pixels, another batch
    in proportion to its images. The step is that of the most likely choice, because JAX keeps its
    compiled program for the run.

    Args:
        given: The context, whose configuration is from `fit_to_folder` and is changed.
        minutes: How long the whole training should take. None for the default, which only weights
            that come with the project have.

    Returns:
        A sentence about the choice and its reason. None if there was nothing to choose.

    Raises:
        UserError: Same as `profile_steps`.
    """
    config, is_pretrained = given.config, given.config.model.init.startswith(BUILTIN)
    if "num_steps" in given.is_set or (minutes is None and not is_pretrained):
        return None
    most = _MAX_STEPS
    if minutes is None:
        most = _MAX_DEFAULT_STEPS
        is_fast = given.resources.has_accelerator
        minutes = _ACCELERATOR_MINUTES if is_fast else _CPU_MINUTES
    sizes = [config.data.image_size]
    if is_pretrained:
        config.num_steps = _MAX_DEFAULT_STEPS if given.resources.has_accelerator else _ENOUGH_STEPS
        if "data.image_size" not in given.is_set:
            largest = max(find_short_side(given.summary.sizes), _LARGEST_ENLARGED)
            sizes = [candidate for candidate in _SIZES if candidate <= largest]
            most_likely = max(sizes) if given.resources.has_accelerator else _CPU_SIZE
            config.data.image_size = most_likely
        fit_to_folder(given._replace(is_set={*given.is_set, "data.image_size", "num_steps"}))
    measured = profile_folder(resolve_model(config), given.summary)
    size, seconds = config.data.image_size, 60 * _STEP_SHARE * minutes
    cost = measured.step_seconds / (size**2 * config.batch_size)
    fitting = [s for s in sizes if seconds >= _ENOUGH_STEPS * cost * s**2 * config.batch_size]
    chosen = max(fitting, default=min(sizes))
    config.data.image_size = chosen
    is_set = {*given.is_set, "data.image_size"}
    fit_to_folder(given._replace(is_set=is_set))  # With as many images as the memory then holds.
    batch_size = config.batch_size
    while (
        "batch_size" not in given.is_set
        and batch_size >= 2 * _MIN_BATCH_SIZE
        and seconds < _ENOUGH_STEPS * cost * chosen**2 * batch_size
    ):
        batch_size //= 2
    step = cost * chosen**2 * batch_size
    config.batch_size = batch_size
    affordable = max(int(seconds / step), _ROUNDING)
    unit = _ENOUGH_STEPS if affordable >= _ENOUGH_STEPS else _ROUNDING
    config.num_steps = min(affordable // unit * unit, most)
    fit_to_folder(given._replace(is_set={*is_set, "batch_size", "num_steps"}))
    reason = ""
    if len(sizes) > 1:
        reason = (
            f", the highest of {', '.join(map(str, sizes))} pixels with at least {_ENOUGH_STEPS} "
            "steps"
            if fitting
            else f", too few steps for more than {chosen} pixels"
        )
    return (
        f"{minutes:g} minutes: {config.num_steps:,} steps of about {step:.2f} s at {chosen} pixels "
        f"with {batch_size} labeled images each (measured: {measured.step_seconds:.2f} s at "
        f"{size} pixels{reason})."
    )


def profile_folder(config: ConfigDict, summary: FolderSummary) -> Rehearsal:
    """Measures a few steps of a configuration on a sample of the folder's images."""
    options, shape = get_decode_options(config.data), get_image_shape(config.data)
    sample = load_sample(summary, shape, _NUM_SAMPLED, options)
    return profile_steps(config, sample, summary.num_labeled + summary.num_unlabeled)


def profile_steps(config: ConfigDict, dataset: Dataset, num_images: int) -> Rehearsal:
    """Compiles the step of a run and takes a few on a sample of its images. Writes nothing.

    `num_images` are the training images of the whole dataset, which some methods keep a state for.

    Raises:
        UserError: If pretrained weights cannot be read, the step does not fit into the device's
            memory, or the devices cannot be arranged as `config.mesh` says.
    """
    # Constants of the program, which must be the run's for JAX to keep it for the run.
    dataset = use_own_normalization(config, add_mean_and_std(config, dataset))
    labeled = np.flatnonzero(dataset.train_labels >= 0).astype(np.int32)
    everything = np.arange(len(dataset.train_images), dtype=np.int32)
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
