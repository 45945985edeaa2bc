"""The arrangement of devices."""

import types

import jax
import pytest

from cls_jax.errors import UserError
from cls_jax.parallel import mesh as mesh_lib
from cls_jax.parallel.mesh import DATA_AXIS, create_mesh, get_process_shard


def create_devices(devices_per_process):
    return [
        types.SimpleNamespace(process_index=i)
        for i, count in enumerate(devices_per_process)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("num_networks", "batch_sizes", "expected"),
    [(1, [8, 16], (1, 4)), (2, [8, 16], (2, 2)), (2, [3, 9], (2, 1)), (1, [6, 42], (1, 3))],
)
def test_mesh_chooses_networks_first_then_data(num_networks, batch_sizes, expected):
    mesh = create_mesh(num_networks, batch_sizes)
    assert tuple(mesh.shape.values()) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": 2, "num_networks": 1}, "does not divide 1 network"),
        ({"network": 1, "data": 3}, "does not divide the batch sizes"),
        ({"network": 2, "data": 8}, "needs 16 devices"),
    ],
)
def test_mesh_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        create_mesh(**({"num_networks": 2, "batch_sizes": [8, 16]} | arguments))


@pytest.mark.parametrize(
    ("devices_per_process", "network", "data", "idle"),
    [((1, 1, 1), 2, 1, [2]), ((1, 1, 1, 1), 1, 2, [2, 3]), ((2, 2), 2, 1, [1])],
)
def test_processes_outside_the_mesh_are_named(devices_per_process, network, data, idle):
    devices = create_devices(devices_per_process)
    num_busy = len(devices_per_process) - len(idle)
    with pytest.raises(UserError) as error:
        create_mesh(2, [8], network, data, devices)
    assert f"Processes {idle} have no device" in str(error.value)
    assert f"start {num_busy} process(es) only" in str(error.value)


@pytest.mark.parametrize(
    ("num_processes", "per_process", "expected"),
    [
        (1, 4, [(0, 8)]),
        (4, 2, [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (4, 1, [(0, 4)] * 2 + [(4, 8)] * 2),
    ],
)
def test_each_process_makes_its_share_of_a_batch(monkeypatch, num_processes, per_process, expected):
    """Devices of a process train different networks on the same images."""
    devices = create_devices([per_process] * num_processes)

    def arrange(devices, *_, **options):
        return types.SimpleNamespace(devices=devices, shape={DATA_AXIS: devices.shape[1]})

    monkeypatch.setattr(mesh_lib, "Mesh", arrange)
    mesh, found = create_mesh(2, [8], devices=devices), []
    for i in range(num_processes):
        monkeypatch.setattr(jax, "process_index", lambda i=i: i)
        rows = get_process_shard(mesh).take(8)
        found.append((rows.start, rows.stop))
    assert found == expected
