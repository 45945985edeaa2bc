"""The batch of a step is a pure function of (seed, step), and few are in memory at once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import RawBatch
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import tfdata
from cls_jax.data.sampling import (
    LABELED_STREAM,
    UNLABELED_STREAM,
    create_stream_spec,
    sample_indices,
    shuffle_index,
    stream_key,
)
from cls_jax.methods import get_method
from cls_jax.parallel.mesh import FULL_BATCH, BatchShard
from tests.conftest import create_tiny_config


def create_batches(first_step, num_steps, argument="20", **changes):
    config = create_tiny_config(argument, **{"data__randaugment_ops": 2} | changes)
    dataset = load_dataset(config)
    indices = np.arange(len(dataset.train_images), dtype=np.int32)
    method = get_method(config.method.name)
    spec = create_stream_spec(
        config, method.labeled_view, method.unlabeled_views, indices[:20], indices
    )
    return list(tfdata.create_stream(spec, dataset, first_step, num_steps))


@pytest.fixture(scope="module")
def batches():
    return create_batches(0, 5)


def assert_same(a: RawBatch, b: RawBatch):
    for ours, theirs in zip(a, b, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_batch_does_not_depend_on_where_the_stream_began(batches):
    for ours, theirs in zip(create_batches(3, 5), batches[3:], strict=True):
        assert_same(ours, theirs)


def test_batches_have_the_sizes_and_types_the_step_expects(batches):
    shapes = {name: value.shape for name, value in batches[0]._asdict().items()}
    expected = {"x": (8, 8, 8, 1), "y": (8,), "u": (2, 16, 8, 8, 1)}
    assert shapes == expected | {"u_index": (16,), "u_truth": (16,)}
    assert [value.dtype for value in batches[0]] == ["uint8", "int32", "uint8", "int32", "int32"]


def test_seed_and_step_change_everything(batches):
    other = create_batches(0, 1, seed=1)[0]
    for a, b in itertools.combinations([batches[0], batches[1], other], 2):
        assert np.any(a.u != b.u)
        assert np.any(a.x != b.x)


def test_views_of_an_image_differ_but_show_the_same_image_to_which_the_label_belongs(batches):
    assert np.any(batches[0].u[0] != batches[0].u[1])
    (batch,) = create_batches(0, 1, data__shift=0, data__cutout=0, data__randaugment_ops=0)
    np.testing.assert_array_equal(batch.u[0], batch.u[1])
    dataset = load_dataset(create_tiny_config())
    is_hidden = batch.u_truth < 0
    for image, label in zip(batch.u[0][~is_hidden], batch.u_truth[~is_hidden], strict=True):
        same = np.all(dataset.train_images == image, axis=(1, 2, 3))
        assert label in dataset.train_labels[same]


def test_pseudo_labels_are_not_judged_by_images_whose_class_training_sees():
    batches = create_batches(0, 85, data__randaugment_ops=0)  # All images.
    truths = np.concatenate([batch.u_truth for batch in batches])
    indices = np.concatenate([batch.u_index for batch in batches])
    assert set(indices[truths < 0]) == set(range(20))
    assert (indices[truths >= 0] >= 20).all()


def test_supervised_stream_holds_no_unlabeled_images():
    (batch,) = create_batches(0, 1, "20,supervised", data__randaugment_ops=0)
    assert batch.u.size == 0
    assert batch.u_truth.size == 0


def shuffle_all(n: int, key: int) -> np.ndarray:
    return shuffle_index(np.arange(n, dtype=np.uint32), np.uint32(n), np.uint32(key))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 97, 1000])
def test_shuffle_is_a_permutation(n):
    assert sorted(shuffle_all(n, key=5)) == list(range(n))


def test_shuffle_looks_random():
    """Displacements are as those of a random permutation: uniform, without correlation."""
    n = 5000
    places = np.stack([shuffle_all(n, key) for key in range(20)])
    assert len(np.unique(places, axis=0)) == 20
    x = np.arange(n)
    correlations = [np.corrcoef(x, place)[0, 1] for place in places]
    neighbors = [np.corrcoef(place[:-1], place[1:])[0, 1] for place in places]
    assert np.abs(correlations + neighbors).max() < 5 / np.sqrt(n)
    histogram, _ = np.histogram(places[:, :50], bins=10, range=(0, n))
    assert np.all(np.abs(histogram - 100) < 5 * np.sqrt(100))


@pytest.mark.parametrize("step", [0, 7, 123_456])
def test_numpy_and_jax_draw_the_same_samples(step):
    indices = np.arange(100, 1447, dtype=np.int32)
    ours = sample_indices(indices, step, 64, 3, UNLABELED_STREAM)
    on_device = jax.jit(sample_indices, static_argnums=(2, 4, 5))
    theirs = on_device(
        jnp.asarray(indices), np.int32(step), 64, np.uint32(3), UNLABELED_STREAM, jnp
    )
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("tag", "step", "seed", "expected"),
    [
        (LABELED_STREAM, 0, 0, [8, 5, 0, 2, 3, 9]),
        (LABELED_STREAM, 3, 7, [0, 7, 6, 3, 7, 5]),
        (UNLABELED_STREAM, 0, 0, [0, 2, 4, 8, 1, 9]),
        (UNLABELED_STREAM, 3, 0, [8, 0, 5, 9, 3, 7]),
        (UNLABELED_STREAM, 3, 7, [9, 6, 4, 2, 1, 0]),
    ],
)
def test_samples_stay_what_they_were(tag, step, seed, expected):
    """Another order would resume a run of an earlier version with other batches."""
    indices = np.arange(10, dtype=np.int32)
    assert sample_indices(indices, step, 6, seed, tag).tolist() == expected


def test_every_epoch_holds_every_image_once_in_a_new_order():
    indices = np.arange(100, 130, dtype=np.int32)
    samples = np.concatenate(
        [sample_indices(indices, t, 8, 0, UNLABELED_STREAM) for t in range(30)]
    )
    epochs = samples.reshape(8, 30)
    for epoch in epochs:
        assert sorted(epoch) == list(indices)
    assert len(np.unique(epochs, axis=0)) == 8


def test_labeled_and_unlabeled_streams_are_independent():
    indices = np.arange(50, dtype=np.int32)
    labeled = sample_indices(indices, 0, 50, 0, LABELED_STREAM)
    assert np.any(labeled != sample_indices(indices, 0, 50, 0, UNLABELED_STREAM))


def test_late_steps_do_not_overflow():
    indices = np.arange(50_000, dtype=np.int32)
    late = sample_indices(indices, 10_000_000, 512, 0, UNLABELED_STREAM)
    assert late.min() >= 0
    assert len(set(late)) == 512


def test_no_two_uses_of_random_numbers_share_a_key():
    """Keys of all streams, and those that `split` or `fold_in` derives from them for an image."""
    root = jax.random.key(0)
    keys = [stream_key(root, name, i) for name in ("init", "method") for i in range(3)]
    keys += [
        stream_key(root, name, i, j)
        for name, i, j in itertools.product(("data", "rounds"), range(3), range(3))
    ]
    keys += [child for key in keys for child in jax.random.split(key, 3)]
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)


@pytest.fixture(scope="module")
def stream():
    """(spec, dataset) whose batches take 8 + 2 · 16 images of 64 bytes."""
    config = create_tiny_config()
    dataset = load_dataset(config)
    indices = np.arange(len(dataset.train_images), dtype=np.int32)
    return create_stream_spec(config, "weak", ("weak", "strong"), indices[:20], indices), dataset


@pytest.mark.parametrize(
    ("num_threads", "max_batches", "expected"),
    [(1, 100, 1), (7, 100, 7), (95, 100, 95), (95, 12, 10), (95, 1, 1), (1, 0, 1)],
)
def test_batches_in_flight_are_bounded_by_threads_and_bytes(
    stream, monkeypatch, num_threads, max_batches, expected
):
    monkeypatch.setattr(tfdata, "_MAX_BYTES_IN_FLIGHT", max_batches * 40 * 64)
    assert tfdata._count_parallel_batches(num_threads, *stream, FULL_BATCH) == expected


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 1), (8, 7)])
def test_a_stream_has_a_thread_less_than_there_are_cores(
    stream, monkeypatch, num_cores, num_threads
):
    asked = []
    make = tfdata.tf.data.Dataset.map

    def note(self, function, num_parallel_calls=None, **options):
        asked.append(num_parallel_calls)
        return make(self, function, num_parallel_calls=num_parallel_calls, **options)

    monkeypatch.setattr(tfdata.tf.data.Dataset, "map", note)
    monkeypatch.setattr(tfdata, "available_cpus", lambda: num_cores)
    batches = tfdata.create_stream(*stream, 0, 2)
    assert next(batches).u.shape == (2, 16, 8, 8, 1)
    batches.close()
    assert asked == [num_threads]


def test_part_of_a_batch_takes_part_of_the_bytes(stream, monkeypatch):
    monkeypatch.setattr(tfdata, "_MAX_BYTES_IN_FLIGHT", 12 * 40 * 64)
    count = tfdata._count_parallel_batches
    assert [count(96, *stream, BatchShard(0, n, 4)) for n in (4, 2, 1)] == [10, 22, 46]
