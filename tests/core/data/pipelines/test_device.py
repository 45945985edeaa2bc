"""The stream on the accelerator: the same samples as tf.data's, over any number of devices.

A run with it resumes in `tests/core/methods/test_ups.py`.
"""

import importlib.util

import jax
import numpy as np
import pytest

from cls_jax.data.pipelines import create_pipeline, device
from cls_jax.errors import UserError
from cls_jax.parallel.mesh import FULL_BATCH, BatchShard, create_mesh
from cls_jax.training.setup import create_train_setup, set_step
from cls_jax.training.step import make_batch_fn
from tests.conftest import create_tiny_config
from tests.core.data.test_sampling import create_spec

pytestmark = pytest.mark.usefixtures("tiny_model")


def create_device_batches(mesh=(1, 1), steps=(0,), argument="20", num_images=None, **changes):
    """(batches of some steps, each the first one of a stream, its specification, its dataset)."""
    changes = {"data__randaugment_ops": 2, "data__pipeline": "device"} | changes
    config = create_tiny_config(argument, **changes)
    config.mesh.network, config.mesh.data = mesh
    spec, dataset = create_spec(config, num_images)
    setup = create_train_setup(config, dataset.shape)
    state = setup.init_state()
    streams = [create_pipeline(spec, dataset, setup.mesh, step, 10) for step in steps]
    make = make_batch_fn(setup, streams[0].create_batch, streams[0].specs)
    batches = [
        jax.device_get(make(set_step(setup.mesh, state, step), next(stream.inputs)))
        for step, stream in zip(steps, streams, strict=True)
    ]
    return batches, spec, dataset


def test_batch_does_not_depend_on_the_number_of_devices():
    found, expected = (
        create_device_batches(mesh, data__randaugment_ops=1)[0] for mesh in ((2, 2), (1, 1))
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_without_augmentation_batches_equal_the_tf_pipelines():
    pytest.importorskip("tensorflow")
    from cls_jax.data.pipelines import tfdata

    nothing = {"data__shift": 0, "data__randaugment_ops": 0, "data__cutout": 0}
    # Half of the images are labeled.
    [batch], spec, dataset = create_device_batches(steps=(3,), num_images=40, **nothing)
    theirs = next(tfdata.create_stream(spec, dataset, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, batch, theirs)
    assert [value.dtype for value in batch] == [value.dtype for value in theirs]
    # Seed, step and view decide how one image is augmented.
    batches = [
        batch
        for steps, seed in (((0, 1), 0), ((0,), 1))
        for batch in create_device_batches((1, 1), steps, "20,mean_teacher", 1, seed=seed)[0]
    ]
    views = [view[:8].tobytes() for batch in batches for view in (batch.x, *batch.u)]
    assert len(set(views)) == 9


@pytest.mark.parametrize(("method", "mesh"), [("cls", (2, 2)), ("supervised", (1, 2))])
def test_more_images_are_read_by_index_and_make_the_same_batches(method, mesh, monkeypatch):
    found = []
    for memory in (2**40, 1):
        monkeypatch.setattr(device, "get_device_memory", lambda device, m=memory: m)
        changes = {"data__randaugment_ops": 0}
        found.append(create_device_batches(mesh, (0, 3, 9), f"20,{method}", **changes)[0])
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_a_process_reads_only_the_images_of_its_own_devices(monkeypatch):
    spec, dataset = create_spec(create_tiny_config("20"))
    mesh, read = create_mesh(1, [8]), []
    monkeypatch.setattr(device, "to_global_arrays", lambda *given: given)
    for shard in (FULL_BATCH, BatchShard(0, 1, 2), BatchShard(1, 2, 2)):
        monkeypatch.setattr(device, "get_process_shard", lambda mesh, shard=shard: shard)
        (_, samples), _, _, (_, shapes) = next(device.read_ahead(spec, dataset, mesh, range(2)))
        read.append(samples)
        assert shapes == tuple(array.shape for array in read[0])  # Of the whole batch.
    whole, *parts = read
    joined = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    jax.tree.map(np.testing.assert_array_equal, whole, joined)


def test_a_missing_tensorflow_names_the_extra_and_the_other_pipeline(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"'\.\[tf\]', or set --config\.data\.pipeline=device"):
        create_device_batches(data__pipeline="tfdata")
