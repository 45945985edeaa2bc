"""A few real steps before a run: how long it will take and how much memory it needs."""

import contextlib
import dataclasses
import functools
import statistics
import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.batch import create_split
from cls_jax.data.datasets import compute_mean_and_std
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sampling import create_stream_spec
from cls_jax.data.types import Dataset
from cls_jax.runs.folder import use_mean_and_std
from cls_jax.training.setup import create_train_setup
from cls_jax.training.start import read_weights
from cls_jax.training.step import compile_step, create_train_step

_NUM_STEPS = 5


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """The outcome.

    Attributes:
        compile_seconds: to compile the step.
        step_seconds: the median of the steps after the first.
        memory: a sentence that compares what a step needs with what the device has.
    """

    compile_seconds: float
    step_seconds: float
    memory: str


def profile_steps(config: ConfigDict, dataset: Dataset, num_images: int) -> Rehearsal:
    """Compiles the step of a run and takes five of them; writes nothing.

    Args:
        config: a validated configuration.
        dataset: a sample of the run's training images; every label in it counts.
        num_images: training images of the whole dataset, which some methods keep a state for.

    Raises:
        UserError: if pretrained weights cannot be read, the step does not fit into the device's
            memory, or the devices cannot be arranged as `config.mesh` says.
    """
    config = use_mean_and_std(config, *compute_mean_and_std(dataset.train_images))
    weights = functools.partial(read_weights, config)
    labeled = np.flatnonzero(dataset.train_labels >= 0).astype(np.int32)
    everything = np.arange(len(dataset.train_images), dtype=np.int32)
    split = create_split(dataset.train_labels[labeled], dataset.num_classes, num_images)
    spec = dataset.shape._replace(num_images=num_images)
    setup = create_train_setup(config, spec, split=split, read_weights=weights)
    views = (setup.method.labeled_view, setup.method.unlabeled_views)
    stream = create_stream_spec(config, *views, labeled, everything)
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
    return Rehearsal(compile_seconds, statistics.median(seconds[1:]), memory)
