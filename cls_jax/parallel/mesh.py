"""The devices of a run, arranged as ("network", "data"), and how arrays come to lie on them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from cls_jax.batch import RawBatch
from cls_jax.errors import UserError

NETWORK_AXIS = "network"
DATA_AXIS = "data"

# How a batch is spread over the mesh: every network sees all of it.
BATCH_SPECS = RawBatch(
    x=P(DATA_AXIS), y=P(DATA_AXIS), u=P(None, DATA_AXIS), u_index=P(DATA_AXIS), u_truth=P(DATA_AXIS)
)

PyTree = Any


def create_mesh(
    num_networks: int,
    batch_sizes: Sequence[int],
    network: int = 0,
    data: int = 0,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Arranges the devices as ("network", "data").

    Args:
        num_networks: N; the axis "network" must divide it.
        batch_sizes: of labelled and unlabelled images; the axis "data" must divide each.
        network: devices over which networks are spread; 0 chooses: as many as there are networks
            where the devices allow it, since networks exchange only labels.
        data: devices over which a batch is spread; 0 chooses as many as are left and divide it.
        devices: to arrange; all of the default backend's by default.

    Raises:
        UserError: if the axes do not divide what they spread or exceed the devices.
    """
    devices = devices or jax.devices()
    num_devices = len(devices)
    if network == 0:
        fits = [n for n in range(1, num_networks + 1) if num_networks % n == 0]
        network = max(n for n in fits if n <= num_devices)
    if num_networks % network:
        raise UserError(
            f"mesh.network={network} does not divide {num_networks} network(s): "
            "set it to 0 to choose it automatically."
        )
    if data == 0:
        limit = max(1, num_devices // network)
        data = max(n for n in range(1, limit + 1) if not any(b % n for b in batch_sizes))
    if any(b % data for b in batch_sizes):
        raise UserError(
            f"mesh.data={data} does not divide the batch sizes {list(batch_sizes)}: "
            "set it to 0 to choose it automatically."
        )
    if network * data > num_devices:
        raise UserError(
            f"A mesh of {network} x {data} needs {network * data} devices but there are "
            f"{num_devices}: set mesh.network and mesh.data to 0 to choose them automatically."
        )
    return jax.make_mesh(
        (network, data),
        (NETWORK_AXIS, DATA_AXIS),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[: network * data],
    )


def to_shardings(mesh: Mesh, specs: PyTree) -> PyTree:
    """Turns a pytree of partition specs into one of shardings on the mesh."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda node: isinstance(node, PartitionSpec),
    )


class BatchShard(NamedTuple):
    """Which part of every batch a process makes: shards `first` to `last` - 1 of `count`."""

    first: int
    last: int
    count: int

    def take(self, size: int) -> slice:
        """The rows of a batch of `size`, which `count` divides."""
        return slice(size * self.first // self.count, size * self.last // self.count)

    def count_whole(self, num_rows: int) -> int:
        """The size of a batch of which this part has `num_rows`."""
        return num_rows * self.count // (self.last - self.first)


FULL_BATCH = BatchShard(0, 1, 1)


def get_process_shard(mesh: Mesh) -> BatchShard:
    """The part of a batch that the devices of this process work on."""
    is_local = np.vectorize(lambda device: device.process_index == jax.process_index())
    shards = np.flatnonzero(is_local(mesh.devices).any(axis=0))
    return BatchShard(int(shards[0]), int(shards[-1]) + 1, mesh.shape[DATA_AXIS])


def to_global_arrays(tree: PyTree, mesh: Mesh, specs: PyTree, shapes: PyTree = None) -> PyTree:
    """Puts NumPy arrays of this process on its devices of the mesh.

    Args:
        tree: of arrays, whole or, where `shapes` says that they are parts, this process's rows.
        mesh: from `create_mesh`.
        specs: partition specs, one for each array.
        shapes: of the whole arrays, one for each; by default the arrays are whole.
    """
    shardings = to_shardings(mesh, specs)
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)  # All arrays at once.
    shapes = jax.tree.map(np.shape, tree) if shapes is None else shapes
    with jax.transfer_guard("allow"):  # This function does not count as asking for a transfer.
        return jax.tree.map(jax.make_array_from_process_local_data, shardings, tree, shapes)
