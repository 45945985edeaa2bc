"""The input stream made on the accelerator, inside the compiled step.

The whole dataset is there as bytes. The step samples and augments its batch from (seed, step). The
samples are the same as in the tf.data pipeline, and the augmentations have the same distribution.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from cls_jax.batch import RawBatch
from cls_jax.data.augment import jax_augment
from cls_jax.data.augment.views import augment, create_augmentation
from cls_jax.data.sampling import (
    LABELED_STREAM,
    UNLABELED_STREAM,
    InputPipeline,
    StreamSpec,
    sample_indices,
    stream_key,
)
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.parallel.mesh import DATA_AXIS, to_global_arrays

# The share of a device's memory that the dataset may take. The rest is for training.
_MAX_SHARE = 0.5


class DeviceData(NamedTuple):
    """The dataset, replicated on every device of the mesh.

    The seed is an argument of the step, not a constant in it, so that runs with different seeds
    share one compiled program.
    """

    seed: Any  # uint32 scalar.
    images: Any  # uint8 [n, H, W, C], all training images.
    labels: Any  # int32 [n].
    truths: Any  # int32 [n], see `StreamSpec.hide_labeled`.
    labeled_indices: Any  # int32, as in `StreamSpec`.
    unlabeled_indices: Any  # int32, as in `StreamSpec`.


def create_pipeline(spec: StreamSpec, dataset: Dataset, mesh: Mesh) -> InputPipeline:
    """Puts the dataset on the devices of the mesh.

    Raises:
        UserError: if it takes more than half of a device's memory.
    """
    _check_memory(dataset, mesh.local_devices[0])
    data = DeviceData(
        seed=np.uint32(spec.seed),
        images=dataset.train_images[:],
        labels=dataset.train_labels,
        truths=spec.hide_labeled(dataset.train_labels),
        labeled_indices=spec.labeled_indices,
        unlabeled_indices=spec.unlabeled_indices,
    )
    specs = DeviceData(*(P() for _ in data))
    on_devices = to_global_arrays(data, mesh, specs)
    create_batch = make_batch_creator(spec, dataset.image_shape, mesh)
    return InputPipeline((on_devices for _ in itertools.count()), specs, create_batch)


def make_batch_creator(
    spec: StreamSpec, image_shape: tuple[int, int, int], mesh: Mesh
) -> Callable[[Any, DeviceData], RawBatch]:
    """Returns (state, `DeviceData`) → this device's part of a `RawBatch`. Part of the step.

    Every device draws the samples and the random numbers of the *whole* batch and takes its slice
    of them. Its index in the mesh is in no key, so the batch is the same over any number of
    devices, and yet no two images of it share a draw.
    """
    augmentation = create_augmentation(spec.data, image_shape)
    num_shards = mesh.shape[DATA_AXIS]

    def create_batch(state: Any, data: DeviceData) -> RawBatch:
        """This device's part of the batch of the state's step."""

        def sample(indices: jax.Array, batch_size: int, tag: int) -> jax.Array:
            whole = sample_indices(indices, state.step, batch_size, data.seed, tag, jnp)
            return _take_shard(whole, num_shards)

        def make_view(images: jax.Array, view: str, index: int) -> jax.Array:
            key = stream_key(jax.random.key(data.seed), "data", state.step, index)
            shape = (len(images) * num_shards, augmentation.count_uniforms(view))
            uniforms = _take_shard(jax.random.uniform(key, shape), num_shards)
            return augment(images, uniforms, view, augmentation, jax_augment)

        labeled = sample(data.labeled_indices, spec.batch_size, LABELED_STREAM)
        x = make_view(data.images[labeled], spec.labeled_view, 0)
        y = data.labels[labeled]
        if not spec.unlabeled_views:
            nothing = y[:0]
            return RawBatch(x, y, x[None][:0, :0], nothing, nothing)
        unlabeled = sample(data.unlabeled_indices, spec.unlabeled_batch_size, UNLABELED_STREAM)
        images = data.images[unlabeled]
        views = [make_view(images, view, 1 + i) for i, view in enumerate(spec.unlabeled_views)]
        return RawBatch(x, y, jnp.stack(views), unlabeled, data.truths[unlabeled])

    return create_batch


def _take_shard(whole: jax.Array, num_shards: int) -> jax.Array:
    """The slice of a whole batch that this device works on."""
    size = len(whole) // num_shards
    start = jax.lax.axis_index(DATA_AXIS) * size
    return jax.lax.dynamic_slice_in_dim(whole, start, size)


def _check_memory(dataset: Dataset, device: jax.Device) -> None:
    limit = (device.memory_stats() or {}).get("bytes_limit")
    needed = len(dataset.train_images) * int(np.prod(dataset.image_shape))
    if limit and needed > _MAX_SHARE * limit:
        raise UserError(
            f"The training images of {dataset.name} take {needed / 2**30:.1f} GiB, more than half "
            f"of the device's {limit / 2**30:.1f} GiB: use --config.data.pipeline=tfdata."
        )
