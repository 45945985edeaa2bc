"""Which images are labeled, and what is in the batch of a step: pure functions of the seed."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.config import with_values
from cls_jax.data import label_split, sampling
from cls_jax.data.datasets import hold_out_validation, load_dataset
from cls_jax.data.types import NO_IMAGES, Dataset, Split
from cls_jax.errors import UserError
from cls_jax.methods import get_method
from cls_jax.parallel.mesh import BatchShard
from cls_jax.training.prepare import choose_images
from tests.conftest import create_tiny_config


def create_spec(config, num_images=None):
    """(spec, dataset) of a stream of the first images, 20 of them labeled."""
    dataset = load_dataset(config)
    indices = np.arange(num_images or len(dataset.train.images), dtype=np.int32)
    method = get_method(config.method.name)
    views = method.labeled_view, method.unlabeled_views
    return sampling.StreamSpec(config, *views, indices[:20], indices), dataset


def create_stream(*arguments):
    from cls_jax.data.pipelines import tfdata  # Imports TensorFlow, which takes seconds.

    return tfdata.create_stream(*arguments)


def create_batches(first_step, num_steps, argument="20", **changes):
    config = create_tiny_config(argument, **{"data__randaugment_ops": 2} | changes)
    return list(create_stream(*create_spec(config), first_step, num_steps))


@pytest.fixture(scope="module")
def batches():
    return create_batches(0, 5)


def test_batch_does_not_depend_on_where_the_stream_began(batches):
    jax.tree.map(np.testing.assert_array_equal, create_batches(3, 5), batches[3:])


def test_seed_step_and_view_decide_the_random_numbers():
    """One image everywhere, so that only its augmentation can differ."""
    views = []
    for seed in (0, 1):
        spec, dataset = create_spec(create_tiny_config("20,mean_teacher", seed=seed), num_images=1)
        for batch in create_stream(spec, dataset, 0, 2):
            views += [view[:8].tobytes() for view in (batch.x, *batch.u)]
    assert len(set(views)) == 12


def test_parts_of_a_batch_make_the_whole(batches):
    stream = create_spec(create_tiny_config(data__randaugment_ops=2))
    shards = BatchShard(0, 1, 4), BatchShard(1, 4, 4)
    parts = [next(create_stream(*stream, 0, 1, shard)) for shard in shards]
    for name, axis in {"x": 0, "y": 0, "u": 1, "u_index": 0, "u_truth": 0}.items():
        whole = np.concatenate([getattr(part, name) for part in parts], axis)
        np.testing.assert_array_equal(whole, getattr(batches[0], name))


def test_both_views_show_the_image_whose_truth_is_known_unless_training_sees_its_label():
    nothing = {"data__shift": 0, "data__cutout": 0, "data__randaugment_ops": 0}
    dataset = load_dataset(create_tiny_config())
    seen = set()
    for batch in create_batches(0, 85, **nothing):  # All images.
        for view in batch.u:
            np.testing.assert_array_equal(view, dataset.train.images[batch.u_index])
        truths = np.where(batch.u_index < 20, -1, dataset.train.labels[batch.u_index])
        np.testing.assert_array_equal(batch.u_truth, truths)
        seen |= set(batch.u_index)
    assert len(seen) == len(dataset.train.images)


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
    numbers = jnp.asarray(indices), np.int32(step), 64, np.uint32(3)
    theirs = on_device(*numbers, sampling.UNLABELED_STREAM, jnp)
    np.testing.assert_array_equal(ours, theirs)
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


def test_a_batch_of_pieces_is_the_batch_made_at_once(batches, monkeypatch):
    monkeypatch.setattr("cls_jax.data.pipelines.tfdata._cut_batches", lambda *_: (4, 3))
    for ours, theirs in zip(create_batches(0, 5), batches, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [30, 40, 50, 60, 70]))


@pytest.mark.parametrize("budget", [5, 150])
def test_budget_is_balanced_without_repeats_and_decided_by_the_seed(budget):
    first, again, other = (
        label_split.choose_labeled_indices(LABELS, budget, 5, seed) for seed in (0, 0, 1)
    )
    assert np.bincount(LABELS[first]).tolist() == [budget // 5] * 5
    assert len(set(first.tolist())) == budget
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    for wrong, message in ((7, "multiple of 5"), (3, "multiple of 5"), (155, "at most 150")):
        with pytest.raises(UserError, match=f"choose (a )?{message}"):
            label_split.choose_labeled_indices(LABELS, wrong, 5, seed=0)


def test_labels_that_nothing_can_be_drawn_from_are_named():
    labels = np.repeat([0, 1], 10)  # Of three classes, one has no image.
    for draw in (
        lambda: label_split.choose_labeled_indices(labels, 0, 3, seed=0, imbalance=10.0),
        lambda: label_split.choose_long_tail(labels, 3, imbalance=10.0, seed=0),
    ):
        with pytest.raises(UserError, match="needs images of all 3 classes, and 1 class has none"):
            draw()
    with pytest.raises(UserError, match="None of the 9 training images has a label"):
        label_split.choose_labeled_indices(np.full(9, -1), 0, 3, seed=0)


def test_long_tail_is_exponential_as_large_as_possible_and_decided_by_the_seed():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(5), 100))
    kept, again, other = (label_split.choose_long_tail(labels, 5, 10, seed) for seed in (0, 0, 1))
    assert np.bincount(labels[kept]).tolist() == [100, 56, 31, 17, 10]
    np.testing.assert_array_equal(kept, again)
    assert np.any(kept != other)
    assert len(np.unique(kept)) == len(kept)
    # The largest of these classes is the one that can keep least.
    tailed = label_split.choose_long_tail(LABELS, 5, 10, seed=0)
    assert np.bincount(LABELS[tailed]).tolist() == [30, 16, 9, 5, 3]
    reversed_tail = label_split.choose_long_tail(LABELS, 5, 0.1, seed=0)
    assert np.bincount(LABELS[reversed_tail]).tolist() == [7, 12, 22, 39, 70]
    # Balanced classes stay as they are. Other ones cannot be made of unknown classes.
    assert label_split.choose_long_tail(np.array([0, -1, 1]), 2, 1.0, seed=0).tolist() == [0, 1, 2]
    with pytest.raises(UserError, match=r"class of every training image, and 1 have none: set"):
        label_split.choose_long_tail(np.array([0, -1, 1]), 2, 10, seed=0)


@pytest.mark.parametrize(
    ("num_labels", "imbalance", "expected"),
    [
        *((5, 2, [1, 1, 1, 1, 1]), (7, 50, [3, 1, 1, 1, 1]), (20, 10, [9, 5, 3, 2, 1])),
        *((63, 2, [17, 15, 12, 10, 9]), (111, 100, [76, 24, 8, 2, 1])),
    ],
)
def test_long_tailed_budget_has_the_ratio_asked_for(num_labels, imbalance, expected):
    labels = np.repeat(np.arange(5), 200)
    indices = label_split.choose_labeled_indices(labels, num_labels, 5, seed=3, imbalance=imbalance)
    assert np.bincount(labels[indices]).tolist() == expected
    assert set(indices) <= set(label_split.choose_long_tail(labels, 5, imbalance, seed=3))
    # One that the tail does not hold is refused with one that it does.
    with pytest.raises(UserError, match="choose at most") as caught:
        label_split.choose_labeled_indices(labels, 900, 5, seed=0, imbalance=10)
    most = int(str(caught.value).rstrip(".").split()[-1])
    assert len(label_split.choose_labeled_indices(labels, most, 5, seed=0, imbalance=10)) == most


@pytest.mark.parametrize("unlabeled", [0, 1, 0.1])
def test_labeled_and_unlabeled_images_have_imbalances_of_their_own(tmp_path, unlabeled):
    config = create_tiny_config("20", data__imbalance=10.0, data__unlabeled_imbalance=unlabeled)
    dataset, labeled, rows = choose_images(config, tmp_path, load_dataset)
    counts, many = (np.bincount(dataset.train.labels[of]) for of in (labeled, rows))
    assert counts[0] >= 3 * counts[9] > 0
    if unlabeled == 1:
        assert len(rows) == len(dataset.train)
    else:
        first, last = (many[9], many[0]) if unlabeled else (many[0], many[9])
        assert first == pytest.approx(10 * last, rel=0.1)
    # Unlabeled images of unknown class keep their number, and the labels still have a tail.
    hidden = dataset.train.labels.copy()
    hidden[600:] = -1
    unknown = dataclasses.replace(dataset, train=Split(dataset.train.images, hidden))
    config.num_labels = 0
    if unlabeled == 1:
        _, labeled, rows = choose_images(config, tmp_path, lambda _: unknown)
        assert np.bincount(hidden[labeled])[0] == pytest.approx(
            10 * np.bincount(hidden[labeled])[9], rel=0.2
        )
        assert len(rows) == len(unknown.train)
    else:
        with pytest.raises(UserError, match=r"set --config\.data\.unlabeled_imbalance=1, which"):
            choose_images(config, tmp_path, lambda _: unknown)


def test_unlabeled_set_is_all_or_the_rest():
    labeled = label_split.choose_labeled_indices(LABELS, 20, 5, seed=0)
    everything = np.arange(250, dtype=np.int32)
    assert len(label_split.choose_unlabeled_indices(everything, labeled, True)) == 250
    rest = label_split.choose_unlabeled_indices(everything, labeled, False)
    np.testing.assert_array_equal(rest, np.setdiff1d(everything, labeled))
    with pytest.raises(UserError, match=r"set --config\.data\.unlabeled_includes_labeled=True"):
        label_split.choose_unlabeled_indices(labeled, labeled, False)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 100_000, '{"a": [1]}', '{"a": "x", "b": []}'),
        *('{"a": 1e400, "b": []}', '{"a": [true], "b": []}', '{"a": [], "b": []}'),
        '{"a": [1], "b": [2], "c": [3]}',
    ],
)
def test_stored_budget_comes_back_and_another_or_damaged_one_is_refused(tmp_path, text):
    labels, path = np.array([1, -1, 0, 1, 0, 0, 1]), tmp_path / "l.json"
    indices, names = np.array([2, 4, 0, 3]), ("a", "b")
    path.write_text(label_split.labeled_indices_to_json(indices, labels[indices], names))
    np.testing.assert_array_equal(label_split.read_labeled_indices(path, names)[0], indices)
    path.write_text(text)
    with pytest.raises(UserError, match="does not list labeled images"):
        label_split.read_labeled_indices(path, names)
    numbers = np.array([0, 1, 2, 4, 5, 7, 8])  # Of ten images, three of which are held out.

    def find(**rows):
        path.write_text(json.dumps(rows))
        return label_split.find_labeled_rows(path, names, labels, numbers, num_images=10)

    assert find(a=[7, 2], b=[4]).tolist() == [5, 2, 3]
    names = ("a", "b", "new")  # Of a test image.
    assert find(a=[7, 2], b=[4], old=[]).tolist() == [5, 2, 3]
    for a, b, message in (
        ([7], [10], "lists an image twice, or an image outside the 10"),
        ([-1], [0], "lists an image twice, or an image outside"),
        ([2, 2], [0], "lists an image twice, or an image outside"),
        ([2, 9], [3], r"lists 2 images that data.validation holds out, such as 9"),
        ([0], [2], r"2 images under a wrong class, such as 0 under 'a', .* is 'b': correct"),
        ([1], [0], "such as 1 under 'a', but its class is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            find(a=a, b=b)


def test_validation_images_are_a_share_of_every_class_and_leave_one():
    labels = np.repeat([0, 1, 2, -1], [60, 30, 1, 50])
    held = label_split.choose_validation_indices(labels, 3, 0.105, seed=0)  # 9.6 images.
    assert np.bincount(labels[held]).tolist() == [7, 3]
    again, other = (label_split.choose_validation_indices(labels, 3, 0.105, seed=i) for i in (0, 1))
    np.testing.assert_array_equal(held, again)
    assert set(held) != set(other)
    most = label_split.choose_validation_indices(labels, 3, 0.99, seed=0)
    assert np.bincount(labels[most]).tolist() == [59, 29]
    with pytest.raises(UserError, match="choose a larger share"):
        label_split.choose_validation_indices(labels, 3, 0.001, seed=0)


def test_validation_images_are_whole_groups():
    labels = np.repeat([0, 1, 2, -1], [60, 30, 5, 25])
    single = label_split.choose_validation_indices(labels, 3, 0.2, seed=0, groups=np.arange(120))
    without = label_split.choose_validation_indices(labels, 3, 0.2, seed=0)
    np.testing.assert_array_equal(single, without)
    groups = np.arange(120) // 5
    groups[labels == 2] = groups[0]  # Of two classes.
    for seed in range(5):
        held = label_split.choose_validation_indices(labels, 3, 0.2, seed, groups)
        assert np.bincount(labels[held]).tolist() == [10, 5]
        assert not np.isin(np.delete(groups, held), groups[held]).any()
        assert groups[0] not in groups[held]
    bursts = np.repeat([0, 1], 20)
    with pytest.raises(UserError, match=r"holds out none of 40 .* near-copies are held out toge"):
        label_split.choose_validation_indices(bursts, 2, 0.2, seed=0, groups=bursts)


def test_copies_of_an_image_are_held_out_together():
    images = np.random.default_rng(0).integers(0, 256, (30, 2, 2, 1), dtype=np.uint8)[
        np.arange(90) % 30
    ]
    dataset = Dataset("d", ("a", "b"), Split(images, np.arange(90) % 2), NO_IMAGES, (2, 2, 1))
    config = with_values(create_tiny_config(), {"data.validation": 0.3})
    held = hold_out_validation(config, dataset)
    assert len(held.validation) > 18
    kept = {image.tobytes() for image in held.train.images[:]}
    assert not kept & {image.tobytes() for image in held.validation.images[:]}
