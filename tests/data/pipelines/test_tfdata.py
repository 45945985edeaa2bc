"""The stream in tf.data holds no more memory on many cores than on few."""

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.data.sampling import create_stream_spec
from cls_jax.parallel.mesh import BatchShard
from tests.conftest import create_tiny_config


@pytest.fixture
def tfdata():
    pytest.importorskip("tensorflow")
    from cls_jax.data.pipelines import tfdata

    return tfdata


@pytest.fixture
def stream():
    """(spec, dataset) whose batches take 8 + 2 · 16 images of 64 bytes."""
    config = create_tiny_config()
    dataset = load_dataset(config)
    indices = np.arange(len(dataset.train_images), dtype=np.int32)
    return create_stream_spec(config, "weak", ("weak", "strong"), indices[:20], indices), dataset


@pytest.mark.parametrize(
    ("num_cores", "max_batches", "expected"),
    [(1, 100, 1), (8, 100, 7), (96, 100, 95), (96, 12, 10), (96, 1, 1), (2, 0, 1)],
)
def test_batches_in_flight_are_bounded_by_cores_and_bytes(
    tfdata, stream, monkeypatch, num_cores, max_batches, expected
):
    asked = []
    make = tfdata.tf.data.Dataset.map

    def note(self, function, num_parallel_calls=None, **options):
        asked.append(num_parallel_calls)
        return make(self, function, num_parallel_calls=num_parallel_calls, **options)

    monkeypatch.setattr(tfdata.tf.data.Dataset, "map", note)
    monkeypatch.setattr(tfdata, "available_cpus", lambda: num_cores)
    monkeypatch.setattr(tfdata, "_MAX_BYTES_IN_FLIGHT", max_batches * 40 * 64)
    batches = tfdata.create_stream(*stream, 0, 2)
    assert next(batches).u.shape == (2, 16, 8, 8, 1)
    batches.close()
    assert asked == [expected]


def test_part_of_a_batch_takes_part_of_the_bytes(tfdata, stream, monkeypatch):
    monkeypatch.setattr(tfdata, "_MAX_BYTES_IN_FLIGHT", 12 * 40 * 64)
    count = tfdata._count_parallel_batches
    assert [count(96, *stream, BatchShard(0, n, 4)) for n in (4, 2, 1)] == [10, 22, 46]
