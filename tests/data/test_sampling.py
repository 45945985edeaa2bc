"""The batch of a step is a pure function of (seed, step), and few are in memory at once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.data import sampling
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import tfdata
from cls_jax.methods import get_method
from cls_jax.parallel.mesh import BatchShard
from tests.conftest import create_tiny_config


def create_spec(config, num_images=None):
    """(spec, dataset) of a stream of the first images, 20 of them labeled."""
    dataset = load_dataset(config)
    indices = np.arange(num_images or len(dataset.train_images), dtype=np.int32)
    method = get_method(config.method.name)
    views = method.labeled_view, method.unlabeled_views
    return sampling.create_stream_spec(config, *views, indices[:20], indices), dataset


def create_batches(first_step, num_steps, argument="20", **changes):
    config = create_tiny_config(argument, **{"data__randaugment_ops": 2} | changes)
    return list(tfdata.create_stream(*create_spec(config), first_step, num_steps))


@pytest.fixture(scope="module")
def batches():
    return create_batches(0, 5)


def test_batch_does_not_depend_on_where_the_stream_began(batches):
    jax.tree.map(np.testing.assert_array_equal, create_batches(3, 5), batches[3:])


def test_batches_have_the_sizes_and_types_the_step_expects(batches):
    shapes = [(8, 8, 8, 1), (8,), (2, 16, 8, 8, 1), (16,), (16,)]
    (supervised,) = create_batches(0, 1, "20,supervised", data__randaugment_ops=0)
    none = [*shapes[:2], (0, 0, 8, 8, 1), (0,), (0,)]
    for batch, expected in ((batches[0], shapes), (supervised, none)):
        assert [value.shape for value in batch] == expected
        assert [value.dtype for value in batch] == ["uint8", "int32", "uint8", "int32", "int32"]


def test_seed_step_and_view_decide_the_random_numbers():
    """One image everywhere, so that only its augmentation can differ."""
    views = []
    for seed in (0, 1):
        spec, dataset = create_spec(create_tiny_config("20,mean_teacher", seed=seed), num_images=1)
        for batch in tfdata.create_stream(spec, dataset, 0, 2):
            views += [view[:8].tobytes() for view in (batch.x, *batch.u)]
    assert len(set(views)) == 12


def test_parts_of_a_batch_make_the_whole(batches):
    stream = create_spec(create_tiny_config(data__randaugment_ops=2))
    parts = [next(tfdata.create_stream(*stream, 0, 1, BatchShard(i, i + 1, 4))) for i in range(4)]
    for name, axis in {"x": 0, "y": 0, "u": 1, "u_index": 0, "u_truth": 0}.items():
        whole = np.concatenate([getattr(part, name) for part in parts], axis)
        np.testing.assert_array_equal(whole, getattr(batches[0], name))


def test_both_views_show_the_image_whose_truth_is_known_unless_training_sees_its_label():
    nothing = {"data__shift": 0, "data__cutout": 0, "data__randaugment_ops": 0}
    dataset = load_dataset(create_tiny_config())
    seen = set()
    for batch in create_batches(0, 85, **nothing):  # All images.
        for view in batch.u:
            np.testing.assert_array_equal(view, dataset.train_images[batch.u_index])
        truths = np.where(batch.u_index < 20, -1, dataset.train_labels[batch.u_index])
        np.testing.assert_array_equal(batch.u_truth, truths)
        seen |= set(batch.u_index)
    assert len(seen) == len(dataset.train_images)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 97, 1000])
def test_every_epoch_holds_every_image_once_in_a_new_order(n):
    indices = np.arange(100, 100 + n, dtype=np.int32)
    samples = sampling.sample_indices(indices, np.arange(4 * n), 2, 0, sampling.UNLABELED_STREAM)
    epochs = samples.reshape(8, n)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(indices, (8, 1)))
    assert n < 10 or len(np.unique(epochs, axis=0)) == 8


@pytest.mark.parametrize("step", [0, 7, 123_456, 100_000_000])
def test_numpy_and_jax_draw_the_same_samples(step):
    indices = np.arange(100, 1447, dtype=np.int32)
    ours = sampling.sample_indices(indices, step, 64, 3, sampling.UNLABELED_STREAM)
    on_device = jax.jit(sampling.sample_indices, static_argnums=(2, 4, 5))
    arguments = (
        jnp.asarray(indices),
        np.int32(step),
        64,
        np.uint32(3),
        sampling.UNLABELED_STREAM,
        jnp,
    )
    np.testing.assert_array_equal(ours, on_device(*arguments))
    assert set(ours) <= set(indices)


@pytest.mark.parametrize(
    ("tag", "step", "seed", "expected"),
    [
        (sampling.LABELED_STREAM, 0, 0, [8, 5, 0, 2, 3, 9]),
        (sampling.LABELED_STREAM, 3, 7, [0, 7, 6, 3, 7, 5]),
        (sampling.UNLABELED_STREAM, 0, 0, [0, 2, 4, 8, 1, 9]),
        (sampling.UNLABELED_STREAM, 3, 0, [8, 0, 5, 9, 3, 7]),
        (sampling.UNLABELED_STREAM, 3, 7, [9, 6, 4, 2, 1, 0]),
    ],
)
def test_samples_stay_what_they_were(tag, step, seed, expected):
    """Another order would resume a run of an earlier version with other batches."""
    indices = np.arange(10, dtype=np.int32)
    assert sampling.sample_indices(indices, step, 6, seed, tag).tolist() == expected


def test_no_two_uses_of_random_numbers_share_a_key():
    """Keys of all streams, and those that `split` or `fold_in` derives from them for an image."""
    root = jax.random.key(0)
    keys = [sampling.stream_key(root, name, i) for name in ("init", "method") for i in range(3)]
    keys += [
        sampling.stream_key(root, name, i, j)
        for name, i, j in itertools.product(("data", "rounds"), range(3), range(3))
    ]
    keys += [child for key in keys for child in jax.random.split(key, 3)]
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == len(keys)


def test_a_batch_of_pieces_is_the_batch_made_at_once(batches, monkeypatch):
    monkeypatch.setattr(tfdata, "_cut_batches", lambda *_: (4, 3))
    for ours, theirs in zip(create_batches(0, 5), batches, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
