"""The input stream in tf.data: a dataset of step numbers mapped to batches, ahead of the step."""

import contextlib
import functools
import os
from collections.abc import Generator

import numpy as np
import tensorflow as tf
from jax.sharding import Mesh

from cls_jax.batch import RawBatch
from cls_jax.data.augment import tf_augment
from cls_jax.data.augment.randaugment import WEAK_UNIFORMS, count_strong_uniforms, create_table
from cls_jax.data.sampling import (
    LABELED_STREAM,
    UNLABELED_STREAM,
    InputPipeline,
    StreamSpec,
    get_batch_shapes,
    sample_indices,
)
from cls_jax.data.types import Dataset, ImageSource
from cls_jax.parallel.mesh import (
    BATCH_SPECS,
    FULL_BATCH,
    BatchShard,
    get_process_shard,
    to_global_arrays,
)

# Batches made ahead. Two hide the stream behind the step; more only hold memory.
_PREFETCH = 2
# Steps whose samples are drawn together.
_CHUNK = 64


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Batches made on the host, put on its devices while the step before them runs."""
    shapes, part = get_batch_shapes(spec, dataset.image_shape), get_process_shard(mesh)

    def put_on_devices():
        stream = create_stream(spec, dataset, first_step, num_steps, part)
        with contextlib.closing(stream) as batches:
            for batch in batches:
                yield to_global_arrays(batch, mesh, BATCH_SPECS, shapes)

    return InputPipeline(
        inputs=put_on_devices(),
        input_specs=BATCH_SPECS,
        create_batch=lambda state, batch: batch,
    )


def create_stream(
    spec: StreamSpec,
    dataset: Dataset,
    first_step: int,
    num_steps: int,
    part: BatchShard = FULL_BATCH,
) -> Generator[RawBatch, None, None]:
    """Generates a part of the batches of steps first_step, …, num_steps - 1 as NumPy arrays.

    To be closed when no more are wanted: TensorFlow's threads call back into Python, and a program
    that ends while they still do so waits for them for ever.
    """
    # TensorFlow would take the accelerator's memory from JAX.
    tf.config.set_visible_devices([], "GPU")
    steps = tf.data.Dataset.range(first_step, num_steps)
    # One core is left to the step where it runs on the same cores.
    num_threads = max(1, (os.cpu_count() or 2) - 1)
    batches = steps.map(
        create_batch_fn(spec, dataset, part), num_parallel_calls=num_threads, deterministic=True
    )
    batches = batches.prefetch(_PREFETCH).with_options(_create_options(num_threads))
    iterator = batches.as_numpy_iterator()
    try:
        yield from map(RawBatch._make, iterator)
    finally:
        del iterator  # Ends the threads.


def _create_options(num_threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = num_threads
    options.threading.max_intra_op_parallelism = 1
    # Its thread sleeps ever longer, and an iterator is not gone before it wakes.
    options.autotune.enabled = False
    return options


def create_batch_fn(spec: StreamSpec, dataset: Dataset, part: BatchShard = FULL_BATCH):
    """Returns a function from a step (int64 scalar tensor) to the fields of its `RawBatch`.

    Only a part of it, where several processes share a batch.
    """
    height, width, _ = dataset.image_shape
    table = create_table(spec.data.randaugment_pool, height, width, spec.data.randaugment_levels)

    def augment(images: tf.Tensor, view: str, seed: tf.Tensor) -> tf.Tensor:
        return augment_view(images, view, seed, table, spec.data, part)

    def make_batch(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Reads and augments the samples of one step."""
        x, y, _ = _read(
            dataset, spec.labeled_indices, spec.batch_size, step, spec.seed, LABELED_STREAM, part
        )
        x = augment(x, spec.labeled_view, _derive_seed(spec.seed, step, 0))
        if not spec.unlabeled_views:
            nothing = tf.zeros([0], tf.int32)
            return x, y, tf.zeros([0, 0, *dataset.image_shape], tf.uint8), nothing, nothing
        u, u_truth, u_index = _read(
            dataset,
            spec.unlabeled_indices,
            spec.unlabeled_batch_size,
            step,
            spec.seed,
            UNLABELED_STREAM,
            part,
        )
        views = [
            augment(u, view, _derive_seed(spec.seed, step, 1 + i))
            for i, view in enumerate(spec.unlabeled_views)
        ]
        return x, y, tf.stack(views), u_index, u_truth

    return make_batch


def augment_view(
    images: tf.Tensor, view: str, seed: tf.Tensor, table, data_config, part: BatchShard = FULL_BATCH
) -> tf.Tensor:
    """Draws what the view needs from a stateless seed and augments a batch.

    Args:
        images: uint8 [n, H, W, C], a part of a batch.
        view: "weak" or "strong".
        seed: int64 [2].
        table: the RandAugment pool for these images.
        data_config: `config.data`.
        part: which part.

    Returns:
        uint8 [n, H, W, C].
    """
    flip, shift = data_config.flip, data_config.shift
    strong = view == "strong"
    count = count_strong_uniforms(data_config.randaugment_ops) if strong else WEAK_UNIFORMS
    # Drawn for the whole batch: it does not depend on who makes which part.
    batch_size = part.count_whole(len(images))
    uniforms = tf.random.stateless_uniform([batch_size, count], seed)[part.take(batch_size)]
    if not strong:
        return tf_augment.flip_and_shift(images, uniforms, flip, shift)
    return tf_augment.strong_augment(
        images, uniforms, table, flip=flip, shift=shift, cut=data_config.cutout
    )


def _read(
    dataset: Dataset,
    indices: np.ndarray,
    batch_size: int,
    step,
    seed: int,
    tag: int,
    part: BatchShard,
):
    """Reads a part of one step's sample: uint8 [n, H, W, C], labels and indices int32 [n]."""
    images: ImageSource = dataset.train_images
    rows = part.take(batch_size)
    num_rows = rows.stop - rows.start

    # NumPy is slow on few numbers: many steps at once, kept while they are current.
    @functools.lru_cache(maxsize=4)
    def sample_chunk(chunk: int) -> np.ndarray:
        steps = np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK)
        return sample_indices(indices, steps, batch_size, seed, tag)

    def read(step):
        chunk, place = divmod(int(step), _CHUNK)
        chosen = sample_chunk(chunk)[place, rows]
        return images[chosen], dataset.train_labels[chosen], chosen

    x, y, chosen = tf.numpy_function(read, [step], (tf.uint8, tf.int32, tf.int32), stateful=False)
    return (
        tf.ensure_shape(x, (num_rows, *dataset.image_shape)),
        tf.ensure_shape(y, (num_rows,)),
        tf.ensure_shape(chosen, (num_rows,)),
    )


def _derive_seed(seed: int, step: tf.Tensor, view: int) -> tf.Tensor:
    """A seed for each (seed, step, view): the view is in the low bits of the first word."""
    return tf.stack([tf.constant(seed * 16 + view, tf.int64), step])
