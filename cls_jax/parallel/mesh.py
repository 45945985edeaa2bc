"""The devices of a run, arranged as ("network", "data"), and arrays spread over them."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.batch import PyTree, RawBatch
from cls_jax.errors import UserError
from cls_jax.io import write_count

NETWORK_AXIS = "network"
DATA_AXIS = "data"

# A batch is split over the data axis and the same for every network.
BATCH_SPECS = RawBatch(
    x=P(DATA_AXIS), y=P(DATA_AXIS), u=P(None, DATA_AXIS), u_index=P(DATA_AXIS), u_truth=P(DATA_AXIS)
)


def create_mesh(
    num_networks: int,
    batch_sizes: Sequence[int],
    network: int = 0,
    data: int = 0,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Arranges the devices as ("network", "data"), by default all of the default backend's.

    The networks are spread over `network` devices. 0 chooses as many as there are networks if the
    devices allow it, since networks exchange nothing but labels. A batch, with numbers of labeled
    and unlabeled images in `batch_sizes`, is spread over `data` devices. 0 chooses as many as are
    left and divide these numbers. Raises a UserError, in every process, if the axes do not divide
    what they spread, exceed the devices, or leave a process without any, which could not follow
    the run.
    """
    devices = devices or jax.devices()
    num_devices = len(devices)
    network, data = _choose_sides(
        num_networks, batch_sizes, network=network, data=data, num_devices=num_devices
    )
    used = devices[: network * data]
    busy = {device.process_index for device in used}
    if idle := sorted({device.process_index for device in devices} - busy):
        raise UserError(
            f"Processes {idle} have no device in the mesh of {network} x {data} (mesh.network "
            f"x mesh.data): start {len(busy)} process(es) only, or choose mesh.network, mesh.data "
            f"and batch sizes that use all {num_devices} devices."
        )
    # Neighboring devices train different networks on the same images: a process has columns of the
    # mesh, not rows, so that it makes no more than its share of a batch.
    return Mesh(
        np.array(used).reshape(data, network).T,
        (NETWORK_AXIS, DATA_AXIS),
        # Not `Explicit`, the default: code outside of `shard_map`, such as the initialization and
        # the copies of a state, relies on the compiler to propagate shardings.
        axis_types=(AxisType.Auto, AxisType.Auto),
    )


def _choose_sides(
    num_networks: int, batch_sizes: Sequence[int], network: int, data: int, num_devices: int
) -> tuple[int, int]:
    """The sides of the mesh, of which 0 is chosen. Raises the UserErrors of `create_mesh`."""
    if network == 0:
        fits = [n for n in range(1, num_networks + 1) if num_networks % n == 0]
        network = max(n for n in fits if n <= num_devices)
    if num_networks % network:
        raise UserError(
            f"mesh.network={network} does not divide "
            f"{write_count(num_networks, 'network', 'networks')}: set it to 0 to choose it "
            "automatically."
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
    return network, data


def to_shardings(mesh: Mesh, specs: PyTree) -> PyTree:
    """Turns a pytree of partition specs into one of shardings on the mesh."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda node: isinstance(node, P)
    )


class BatchShard(NamedTuple):
    """The part of every batch that a process makes: shards `first` to `last` - 1 of `count`."""

    first: int
    last: int
    count: int  # type: ignore[assignment] # Hides tuple.count.

    def take(self, size: int) -> slice:
        """The rows of a batch of `size`, which `count` divides."""
        return slice(size * self.first // self.count, size * self.last // self.count)


FULL_BATCH = BatchShard(0, 1, 1)


def get_process_shard(mesh: Mesh) -> BatchShard:
    """The part of a batch that the devices of this process work on.

    Every process needs its rows once, whichever networks its devices train: on a mesh of (2, 1)
    with two processes each makes the whole batch.
    """
    is_local = np.vectorize(lambda device: device.process_index == jax.process_index())
    # Contiguous, since `create_mesh` takes the devices in their order, process by process.
    shards = np.flatnonzero(is_local(mesh.devices).any(axis=0))
    return BatchShard(int(shards[0]), int(shards[-1]) + 1, mesh.shape[DATA_AXIS])


def to_global_arrays(tree: PyTree, mesh: Mesh, specs: PyTree, shapes: PyTree = None) -> PyTree:
    """Puts NumPy arrays of this process on its devices of the mesh, by their partition specs.

    The arrays are whole or, with `shapes` of the whole ones, this process's rows.
    """
    shardings = to_shardings(mesh, specs)
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)  # One call for all arrays.
    shapes = jax.tree.map(np.shape, tree) if shapes is None else shapes
    with jax.transfer_guard("allow"):  # The call below counts as an implicit transfer.
        return jax.tree.map(jax.make_array_from_process_local_data, shardings, tree, shapes)
