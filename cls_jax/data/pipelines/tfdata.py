"""The input stream in tf.data: a dataset of step numbers mapped to batches, ahead of the step."""

import contextlib
import functools
import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from cls_jax.batch import RawBatch
from cls_jax.data.augment import tf_augment
from cls_jax.data.augment.views import augment, create_augmentation
from cls_jax.data.host_tensorflow import tf
from cls_jax.data.sampling import (
    LABELED_STREAM,
    UNLABELED_STREAM,
    InputPipeline,
    StreamSpec,
    get_batch_shapes,
    sample_indices,
)
from cls_jax.data.types import Dataset
from cls_jax.parallel.cpus import available_cpus
from cls_jax.parallel.mesh import (
    BATCH_SPECS,
    FULL_BATCH,
    BatchShard,
    get_process_shard,
    to_global_arrays,
)

# Finished batches that wait. Two hide the stream behind the step. More only hold memory.
_PREFETCH = 2
# All batches in the making or waiting. One of large images on each of many cores would fill memory.
_MAX_BYTES_IN_FLIGHT = 2**30
# Steps whose samples are drawn together.
_CHUNK = 64


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Batches made on the host, put on its devices while the step before them runs."""
    shapes, part = get_batch_shapes(spec, dataset.image_shape), get_process_shard(mesh)

    def put_on_devices() -> Generator[Any, None, None]:
        stream = create_stream(spec, dataset, first_step, num_steps, part)
        with contextlib.closing(stream) as batches:
            for batch in batches:
                yield to_global_arrays(batch, mesh, BATCH_SPECS, shapes)

    return InputPipeline(
        inputs=put_on_devices(), input_specs=BATCH_SPECS, create_batch=lambda state, batch: batch
    )


def create_stream(
    spec: StreamSpec,
    dataset: Dataset,
    first_step: int,
    num_steps: int,
    part: BatchShard = FULL_BATCH,
) -> Generator[RawBatch, None, None]:
    """Generates a part of the batches of steps first_step, …, num_steps - 1 as NumPy arrays.

    Close it when no more are wanted: TensorFlow's threads call back into Python, and a program that
    ends while they still do so waits for them forever.
    """
    steps = tf.data.Dataset.range(first_step, num_steps)
    # One core is left to the step where it runs on the same cores.
    num_threads = max(1, available_cpus() - 1)
    batches = steps.map(
        # Nothing branches on tensors in Python. Converting all functions in case one did takes
        # longer than anything else here.
        tf.autograph.experimental.do_not_convert(_create_batch_fn(spec, dataset, part)),
        num_parallel_calls=_count_parallel_batches(num_threads, spec, dataset, part),
        deterministic=True,
    )
    batches = batches.prefetch(_PREFETCH).with_options(_create_options(num_threads))
    iterator = batches.as_numpy_iterator()
    try:
        yield from map(RawBatch._make, iterator)
    finally:
        del iterator  # Ends the threads.


def _count_parallel_batches(
    num_threads: int, spec: StreamSpec, dataset: Dataset, part: BatchShard
) -> int:
    """How many batches to work on at a time: one per thread, while their bytes are bounded."""
    shapes = get_batch_shapes(spec, dataset.image_shape)
    num_bytes = math.prod(shapes.x) + math.prod(shapes.u)
    num_bytes = num_bytes * (part.last - part.first) // part.count
    return min(num_threads, max(1, _MAX_BYTES_IN_FLIGHT // num_bytes - _PREFETCH))


def _create_options(num_threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = num_threads
    options.threading.max_intra_op_parallelism = 1
    # An iterator cannot be freed before Autotune's thread wakes, which sleeps longer each time.
    options.autotune.enabled = False
    return options


def _create_batch_fn(
    spec: StreamSpec, dataset: Dataset, part: BatchShard
) -> Callable[[tf.Tensor], Any]:
    """Returns a function from a step (int64 scalar tensor) to this process's part of its batch."""
    augmentation = create_augmentation(spec.data, dataset.image_shape)
    read = _create_reader(spec, dataset, part)
    dtypes = (tf.uint8, tf.int32, tf.uint8, tf.int32, tf.int32)
    parts = part.take(spec.batch_size), part.take(spec.unlabeled_batch_size)
    num_labeled, num_unlabeled = (rows.stop - rows.start for rows in parts)

    def make_view(images: tf.Tensor, view: str, step: tf.Tensor, index: int) -> tf.Tensor:
        # Drawn for the whole batch: it does not depend on which process makes which shard.
        batch_size = part.count_whole(images.shape[0])
        shape = [batch_size, augmentation.count_uniforms(view)]
        seed = [tf.constant(spec.seed * 16 + index, tf.int64), step]  # At most 16 views.
        uniforms = tf.random.stateless_uniform(shape, tf.stack(seed))
        return augment(images, uniforms[part.take(batch_size)], view, augmentation, tf_augment)

    def make_batch(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Reads and augments the samples of one step."""
        x, y, u, u_index, u_truth = tf.numpy_function(read, [step], dtypes, stateful=False)
        # TensorFlow cannot know the shapes of what a Python function returns.
        x = tf.ensure_shape(x, (num_labeled, *dataset.image_shape))
        u = tf.ensure_shape(u, (num_unlabeled, *dataset.image_shape))
        views = [make_view(u, view, step, 1 + i) for i, view in enumerate(spec.unlabeled_views)]
        # Without views no unlabeled image is read: [0, 0, H, W, C].
        u_views = tf.stack(views) if views else tf.zeros([0, *u.shape], tf.uint8)
        return make_view(x, spec.labeled_view, step, 0), y, u_views, u_index, u_truth

    return make_batch


def _create_reader(
    spec: StreamSpec, dataset: Dataset, part: BatchShard
) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Returns a function from a step to its part of the samples, not augmented.

    They have the order and the types of `RawBatch`, but the unlabeled images are there only once.
    """
    images, labels = dataset.train_images, dataset.train_labels
    truths = spec.hide_labeled(labels)
    streams = (
        (spec.labeled_indices, spec.batch_size, LABELED_STREAM),
        (spec.unlabeled_indices, spec.unlabeled_batch_size, UNLABELED_STREAM),
    )

    # NumPy is slow on few numbers: many steps at once, kept while they are current.
    @functools.lru_cache(maxsize=4)
    def sample_chunk(chunk: int) -> list[np.ndarray]:
        """The samples of both streams, int32 [_CHUNK, n] each."""
        steps = np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK)
        return [
            sample_indices(indices, steps, size, spec.seed, tag)[:, part.take(size)]
            for indices, size, tag in streams
        ]

    def read(step: np.ndarray) -> tuple[np.ndarray, ...]:
        chunk, place = divmod(int(step), _CHUNK)
        labeled, unlabeled = (samples[place] for samples in sample_chunk(chunk))
        return images[labeled], labels[labeled], images[unlabeled], unlabeled, truths[unlabeled]

    return read
