"""The input stream in tf.data: a dataset of step numbers mapped to batches, ahead of the step."""

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Generator, Iterable

import numpy as np
from jax.sharding import Mesh

from cls_jax.batch import PyTree, RawBatch
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
from cls_jax.parallel.machine import available_cpus
from cls_jax.parallel.mesh import (
    BATCH_SPECS,
    FULL_BATCH,
    BatchShard,
    get_process_shard,
    to_global_arrays,
)

# Finished batches in the queue. Two hide the stream behind the step. More only take memory.
_PREFETCH = 2
# Bytes of all images in progress or waiting. Batches of many large images would fill memory.
_MAX_BYTES_IN_FLIGHT = 2**30
# Steps whose samples are drawn together.
_CHUNK = 64
_DTYPES = RawBatch(x=np.uint8, y=np.int32, u=np.uint8, u_index=np.int32, u_truth=np.int32)
_ROW_AXES = RawBatch(x=0, y=0, u=1, u_index=0, u_truth=0)  # The axes along which a batch is cut.


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Batches made on the host, put on its devices while the step before them runs."""
    shapes = get_batch_shapes(spec, dataset.image_shape)
    part = get_process_shard(mesh)

    def put_on_devices() -> Generator[PyTree, None, None]:
        stream = create_stream(spec, dataset, first_step=first_step, num_steps=num_steps, part=part)
        with contextlib.closing(stream) as batches:
            for batch in batches:
                yield to_global_arrays(batch, mesh, BATCH_SPECS, shapes)

    return InputPipeline(put_on_devices(), BATCH_SPECS, lambda state, batch: batch)


def create_stream(
    spec: StreamSpec,
    dataset: Dataset,
    first_step: int,
    num_steps: int,
    part: BatchShard = FULL_BATCH,
) -> Generator[RawBatch, None, None]:
    """Generates a part of the batches of steps first_step, …, num_steps - 1 as NumPy arrays.

    Close it when done: TensorFlow's threads call back into Python, and a program that exits while
    they do so waits forever.
    """
    # If the step runs on the same cores, one is left for it.
    num_threads = max(1, available_cpus() - 1)
    shapes = _take_part(get_batch_shapes(spec, dataset.image_shape), part)
    num_pieces, num_parallel = _cut_batches(num_threads, shapes)
    read, make_views = _create_piece_functions(spec, dataset, part, num_pieces)
    pieces = tf.data.Dataset.range(first_step * num_pieces, num_steps * num_pieces)
    at_once = min(num_parallel, num_threads)
    for function in (read, make_views):
        # No Python code branches on tensors, and AutoGraph would take longer than all the rest.
        function = tf.autograph.experimental.do_not_convert(function)
        pieces = pieces.map(function, num_parallel_calls=at_once, deterministic=True)
    pieces = pieces.prefetch(num_parallel - at_once)
    options = tf.data.Options()
    # Reading waits for disks, making views for cores, so each has its own threads.
    options.threading.private_threadpool_size = 2 * num_threads
    options.threading.max_intra_op_parallelism = 1
    # An iterator cannot be freed before Autotune's thread wakes, which sleeps longer each time.
    options.autotune.enabled = False
    iterator = pieces.with_options(options).as_numpy_iterator()
    made = map(RawBatch._make, iterator)
    try:
        if num_pieces == 1:
            yield from made
        else:
            for _ in range(first_step, num_steps):
                yield _join(itertools.islice(made, num_pieces), shapes, num_pieces)
    finally:
        del made, iterator  # Ends the threads.


def _take_part(shapes: RawBatch, part: BatchShard) -> RawBatch:
    """The shapes of a part of a batch."""
    cut: list[tuple[int, ...]] = []
    for shape, axis in zip(shapes, _ROW_AXES, strict=True):
        rows = part.take(shape[axis])
        cut.append((*shape[:axis], rows.stop - rows.start, *shape[axis + 1 :]))
    return RawBatch._make(cut)


def _cut_batches(num_threads: int, shapes: RawBatch) -> tuple[int, int]:
    """How many pieces to make a batch of, and how many of them at a time.

    Whole batches, one per thread, within the bound on bytes. Otherwise pieces with equally many
    labeled images, and only as many as keep all threads busy.
    """
    made = math.prod(shapes.x) + math.prod(shapes.u)
    num_bytes = made + math.prod(shapes.x) + math.prod(shapes.u[1:])  # With the images as read.
    # The finished batch and its pieces. A batch that exceeds the bound must still be made.
    left = max(_MAX_BYTES_IN_FLIGHT - made, _MAX_BYTES_IN_FLIGHT // 8)
    counts = [n for n in range(1, shapes.x[0] + 1) if shapes.x[0] % n == 0]
    most = {n: n * (_MAX_BYTES_IN_FLIGHT if n == 1 else left) // num_bytes for n in counts}
    enough = [n for n in counts if most[n] >= num_threads + _PREFETCH]
    num_pieces = min(enough, default=counts[-1])
    return num_pieces, max(1, min(num_threads + _PREFETCH * num_pieces, most[num_pieces]))


def _join(pieces: Iterable[RawBatch], shapes: RawBatch, num_pieces: int) -> RawBatch:
    """Joins pieces into a batch, freeing each once it is copied."""
    batch = RawBatch._make(map(np.empty, shapes, _DTYPES))
    for i, piece in enumerate(pieces):
        for whole, rows, axis in zip(batch, piece, _ROW_AXES, strict=True):
            np.split(whole, num_pieces, axis)[i][...] = rows
    return batch


def _create_piece_functions(
    spec: StreamSpec, dataset: Dataset, part: BatchShard, num_pieces: int
) -> tuple[Callable[..., tuple[tf.Tensor, ...]], Callable[..., tuple[tf.Tensor, ...]]]:
    """Functions from the number of a piece to its images, and from these to its views.

    Piece i is one of step i // num_pieces, int64 scalar tensor.
    """
    augmentation = create_augmentation(spec.config.data, dataset.image_shape)
    shapes = _take_part(get_batch_shapes(spec, dataset.image_shape), part)
    num_labeled = shapes.x[0] // num_pieces
    num_unlabeled = shapes.u[1] // num_pieces
    read_rows = _create_reader(spec, dataset, part, num_pieces)
    dtypes = [tf.int64, *map(tf.as_dtype, _DTYPES)]

    def make_view(
        images: tf.Tensor, view: str, piece: tf.Tensor, batch_size: int, index: int
    ) -> tf.Tensor:
        num_rows = images.shape[0]
        width = augmentation.count_uniforms(view)
        first = part.take(batch_size).start + piece % num_pieces * num_rows
        seed = tf.stack([tf.constant(spec.config.seed * 16 + index, tf.int64), piece // num_pieces])
        uniforms = _draw_rows(seed, first, num_rows, width)  # At most 16 views.
        return augment(images, uniforms, view, augmentation, tf_augment)

    def read(piece: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The piece's number, and its samples."""
        return tuple(tf.numpy_function(read_rows, [piece], dtypes, stateful=False))

    def make_views(
        piece: tf.Tensor, x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, *about_u: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Augments the samples of a piece."""
        # TensorFlow cannot infer the shapes of a Python function's results.
        piece = tf.ensure_shape(piece, ())
        x = tf.ensure_shape(x, (num_labeled, *dataset.image_shape))
        u = tf.ensure_shape(u, (num_unlabeled, *dataset.image_shape))
        views = [
            make_view(u, view, piece, batch_size=spec.unlabeled_batch_size, index=1 + i)
            for i, view in enumerate(spec.unlabeled_views)
        ]
        # Without views no unlabeled image is read: [0, 0, H, W, C].
        u_views = tf.stack(views) if views else tf.zeros([0, *u.shape], tf.uint8)
        x = make_view(x, spec.labeled_view, piece, batch_size=spec.config.batch_size, index=0)
        return x, y, u_views, *about_u

    return read, make_views


def _draw_rows(seed: tf.Tensor, first: tf.Tensor, num_rows: int, width: int) -> tf.Tensor:
    """Rows `first`, … of `tf.random.stateless_uniform([…, width], seed)`, and only these.

    The generator (Philox: Salmon et al., SC 2011) hashes a counter, and each value yields four
    numbers. So the numbers do not depend on how rows are divided among processes and pieces.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    start = first * width
    counter += tf.stack([tf.cast(start // 4, tf.uint64), tf.constant(0, tf.uint64)])
    algorithm = tf.raw_ops.StatelessRandomGetAlg()
    numbers = tf.raw_ops.StatelessRandomUniformV2(
        shape=[num_rows * width + 3], key=key, counter=counter, alg=algorithm
    )
    skipped = start % 4
    return tf.reshape(numbers[skipped : skipped + num_rows * width], [num_rows, width])


def _create_reader(
    spec: StreamSpec, dataset: Dataset, part: BatchShard, num_pieces: int
) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Returns a function from the number of a piece to that number and its samples.

    They have the order and the types of `RawBatch`, but each unlabeled image occurs once.
    """
    images = dataset.train.images
    labels = dataset.train.labels
    truths = spec.hide_labeled(labels)
    streams = (
        (spec.labeled_indices, spec.config.batch_size, LABELED_STREAM),
        (spec.unlabeled_indices, spec.unlabeled_batch_size, UNLABELED_STREAM),
    )
    drawing = threading.Lock()  # Otherwise all threads would draw the same samples.

    # NumPy is slow on few numbers, so samples of many steps are drawn together.
    @functools.lru_cache(maxsize=4)
    def sample_chunk(chunk: int) -> list[np.ndarray]:
        """This process's samples of both streams, int32 [_CHUNK, n] each."""
        steps = np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK)
        return [
            sample_indices(
                indices, steps, size, seed=spec.config.seed, tag=tag, rows=part.take(size)
            )
            for indices, size, tag in streams
        ]

    def read(piece: np.ndarray) -> tuple[np.ndarray, ...]:
        """One piece of a step's samples: its number, images, labels, and what is known of them."""
        step, place = divmod(int(piece), num_pieces)
        with drawing:
            samples = sample_chunk(step // _CHUNK)
        labeled, unlabeled = (np.split(rows[step % _CHUNK], num_pieces)[place] for rows in samples)
        return (
            piece,
            images[labeled],
            labels[labeled],
            images[unlabeled],
            unlabeled,
            truths[unlabeled],
        )

    return read
