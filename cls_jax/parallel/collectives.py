"""What the devices of a step tell each other, for use inside `shard_map` over the mesh of a run.

Devices along the axis "data" share a batch, those along "network" share the networks. On a single
device, every function is the identity or a local operation.

Shape suffixes: N networks (those on this device), B images (those on this device).
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import PyTree
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS


def average_over_data(value: jax.Array) -> jax.Array:
    """The mean of a batch mean over the devices that share the batch."""
    mean: jax.Array = jax.lax.pmean(value, DATA_AXIS)
    return mean


def sum_over_data(value: jax.Array) -> jax.Array:
    """The sum of a batch's sums over the devices that share the batch."""
    total: jax.Array = jax.lax.psum(value, DATA_AXIS)
    return total


def draw_uniform(key: jax.Array, num_images: int) -> jax.Array:
    """A number from [0, 1) for each of this device's images, float32 [B].

    All networks draw alike, and so does any number of devices that share the batch.
    """
    num_parts = jax.lax.axis_size(DATA_AXIS)
    part = jax.lax.axis_index(DATA_AXIS)
    return jax.random.uniform(key, (num_parts, num_images), jnp.float32)[part]


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Shares of a mean over the images of all devices that pass a mask, or 0 if none does.

    The mean of the shares over devices, which the step takes of every loss, is the mean over all
    images that pass. Values are float32 and the mask bool [N, B], the result float32 [N].
    """
    num_images = average_over_data(jnp.sum(mask, axis=-1))
    return jnp.sum(mask * values, axis=-1) / jnp.maximum(num_images, 1e-6)


def gather_over_data(tree: PyTree) -> PyTree:
    """The parts of all devices that share the batch, in its order, along each last axis.

    A psum of parts padded with zeros instead of an all-gather: `shard_map` tracks in the types
    which values vary over an axis. The result of a psum does not, an all-gather's does, and a value
    that varies over "data" cannot become part of the state.
    """
    num_parts = jax.lax.axis_size(DATA_AXIS)
    part = jax.lax.axis_index(DATA_AXIS)

    def gather(leaf: jax.Array) -> jax.Array:
        is_own = (jnp.arange(num_parts) == part).astype(leaf.dtype)
        padded = is_own[:, None] * leaf[..., None, :]
        return sum_over_data(padded.reshape((*leaf.shape[:-1], -1)))

    return jax.tree.map(gather, tree)


def exchange(tree: PyTree) -> PyTree:
    """Gives each network the leaves [N, ...] of the one before it. With two, of the other."""
    num_shards = jax.lax.axis_size(NETWORK_AXIS)
    if num_shards == 1:
        return jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), tree)
    # Only the last network of a device has its successor on another device.
    pairs = [(i, (i + 1) % num_shards) for i in range(num_shards)]

    def receive(leaf: jax.Array) -> jax.Array:
        from_previous_device = jax.lax.ppermute(leaf[-1:], NETWORK_AXIS, pairs)
        return jnp.concatenate([from_previous_device, leaf[:-1]])

    return jax.tree.map(receive, tree)
