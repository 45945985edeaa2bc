"""The input stream, made on the accelerator inside the compiled step.

The whole dataset is on the accelerator as bytes, or, if it takes more than half of the device's
memory, a thread reads the images of the next steps by index. The step augments its batch from
(seed, step), with bitwise identical results in both cases. The samples are the same as in the
tf.data pipeline, and the augmentations have the same distribution.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cls_jax.batch import PyTree, RawBatch
from cls_jax.data.augment import jax_augment
from cls_jax.data.augment.views import augment, create_augmentation
from cls_jax.data.sampling import (
    LABELED_STREAM,
    UNLABELED_STREAM,
    InputPipeline,
    StateWithStep,
    StreamSpec,
    get_batch_shapes,
    sample_indices,
    stream_key,
)
from cls_jax.data.types import Dataset
from cls_jax.parallel.ahead import compute_ahead
from cls_jax.parallel.distributed import all_processes
from cls_jax.parallel.machine import get_device_memory
from cls_jax.parallel.mesh import BATCH_SPECS, DATA_AXIS, get_process_shard, to_global_arrays

# The share of a device's memory that the dataset may take. The rest is for training.
_MAX_SHARE = 0.5
_NUM_AHEAD = 2  # Batches read ahead while a step runs.
# Of the seed and the samples of a step, whose unlabeled images have no views yet.
_SAMPLE_SPECS = (P(), BATCH_SPECS._replace(u=P(DATA_AXIS)))
# Of a whole dataset: the seed, images uint8 [n, H, W, C], labels and `StreamSpec.hide_labeled`,
# int32 [n], and the labeled and the unlabeled indices.
_DATA_SPECS = (P(),) * 6


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Puts the dataset on the devices of the mesh at once if it fits, else batch by batch."""
    if not all_processes(is_small(dataset, mesh.local_devices[0])):
        make_views = make_view_creator(spec, dataset.image_shape, mesh)

        def create_batch_of_samples(state: StateWithStep, step_input: PyTree) -> RawBatch:
            seed, samples = step_input
            return make_views(state, seed, samples)

        inputs = read_ahead(spec, dataset, mesh, range(first_step, num_steps))
        return InputPipeline(inputs, _SAMPLE_SPECS, create_batch_of_samples)
    # The seed is an argument of the step, not a constant in it, so that runs with different seeds
    # share one compiled program.
    data = (
        np.uint32(spec.config.seed),
        dataset.train.images[:],
        dataset.train.labels,
        spec.hide_labeled(dataset.train.labels),
        spec.labeled_indices,
        spec.unlabeled_indices,
    )
    on_devices = to_global_arrays(data, mesh, _DATA_SPECS)
    create_batch = make_batch_creator(spec, dataset.image_shape, mesh)
    same_every_step = (on_devices for _ in itertools.count())
    return InputPipeline(same_every_step, _DATA_SPECS, create_batch)


def make_batch_creator(
    spec: StreamSpec, image_shape: tuple[int, int, int], mesh: Mesh
) -> Callable[[StateWithStep, PyTree], RawBatch]:
    """Returns (state, whole dataset) → this device's part of a `RawBatch`. Part of the step.

    Every device draws the samples and the random numbers of the *whole* batch and takes its slice
    of them. Keys do not depend on the device's index in the mesh, so the batch is the same over
    any number of devices, and yet no two images share a draw.
    """
    num_shards = mesh.shape[DATA_AXIS]
    make_views = make_view_creator(spec, image_shape, mesh)

    def create_batch(state: StateWithStep, data: PyTree) -> RawBatch:
        """This device's part of the batch of the state's step."""
        seed, images, labels, truths, labeled_indices, unlabeled_indices = data

        def sample(indices: jax.Array, batch_size: int, tag: int) -> jax.Array:
            whole = sample_indices(indices, state.step, batch_size, seed=seed, tag=tag, xp=jnp)
            return _take_shard(whole, num_shards)

        labeled = sample(labeled_indices, spec.config.batch_size, LABELED_STREAM)
        x = images[labeled]
        y = labels[labeled]
        if not spec.unlabeled_views:
            labeled_only = RawBatch(x=x, y=y, u=x[:0], u_index=y[:0], u_truth=y[:0])
            return make_views(state, seed, labeled_only)
        rows = sample(unlabeled_indices, spec.unlabeled_batch_size, UNLABELED_STREAM)
        samples = RawBatch(x=x, y=y, u=images[rows], u_index=rows, u_truth=truths[rows])
        return make_views(state, seed, samples)

    return create_batch


def make_view_creator(
    spec: StreamSpec, image_shape: tuple[int, int, int], mesh: Mesh
) -> Callable[[StateWithStep, jax.Array, RawBatch], RawBatch]:
    """Returns (state, seed, samples) → this device's part of a `RawBatch`. Part of the step.

    The samples are this device's, and their unlabeled images, [U, H, W, C], have no views yet.
    """
    augmentation = create_augmentation(spec.config.data, image_shape)
    num_shards = mesh.shape[DATA_AXIS]

    def make_views(state: StateWithStep, seed: jax.Array, samples: RawBatch) -> RawBatch:
        """The samples with their views, whose random numbers depend on seed, step and view."""

        def make_view(images: jax.Array, view: str, index: int) -> jax.Array:
            key = stream_key(jax.random.key(seed), "data", state.step, index)
            shape = (len(images) * num_shards, augmentation.count_uniforms(view))
            uniforms = _take_shard(jax.random.uniform(key, shape), num_shards)
            made: jax.Array = augment(images, uniforms, view, augmentation, jax_augment)
            return made

        x = make_view(samples.x, spec.labeled_view, 0)
        if not spec.unlabeled_views:
            return samples._replace(x=x, u=x[None][:0, :0])
        views = [make_view(samples.u, view, 1 + i) for i, view in enumerate(spec.unlabeled_views)]
        return samples._replace(x=x, u=jnp.stack(views))

    return make_views


def read_ahead(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, steps: range
) -> Generator[PyTree, None, None]:
    """The seed and this process's samples of each step, on the devices. A thread reads ahead."""
    images = dataset.train.images
    labels = dataset.train.labels
    truths = spec.hide_labeled(labels)
    part = get_process_shard(mesh)
    seed = spec.config.seed
    one_view = (spec.unlabeled_batch_size, *dataset.image_shape)
    shapes = ((), get_batch_shapes(spec, dataset.image_shape)._replace(u=one_view))

    def sample(indices: np.ndarray, step: int, size: int, tag: int) -> np.ndarray:
        rows = part.take(size)
        drawn: np.ndarray = sample_indices(indices, step, size, seed=seed, tag=tag, rows=rows)
        return drawn

    def read(step: int) -> tuple[np.uint32, RawBatch]:
        i = sample(spec.labeled_indices, step, spec.config.batch_size, LABELED_STREAM)
        j = sample(spec.unlabeled_indices, step, spec.unlabeled_batch_size, UNLABELED_STREAM)
        return np.uint32(seed), RawBatch(
            x=images[i], y=labels[i], u=images[j], u_index=j, u_truth=truths[j]
        )

    with contextlib.closing(compute_ahead(read, steps, _NUM_AHEAD)) as samples:
        for sample_of_step in samples:
            yield to_global_arrays(sample_of_step, mesh, _SAMPLE_SPECS, shapes)


def _take_shard(whole: jax.Array, num_shards: int) -> jax.Array:
    """The slice of a whole batch that this device works on."""
    size = len(whole) // num_shards
    start = jax.lax.axis_index(DATA_AXIS) * size
    return jax.lax.dynamic_slice_in_dim(whole, start, size)


def is_small(dataset: Dataset, device: jax.Device) -> bool:
    """Whether the training images take at most half of the device's memory."""
    needed = len(dataset.train.images) * int(np.prod(dataset.image_shape))
    return needed <= _MAX_SHARE * get_device_memory(device)
