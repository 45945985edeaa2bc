"""Images of one source are held out together, and the interval for new sources holds."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from cls_jax.data.types import NO_IMAGES, Dataset, Split
from cls_jax.errors import UserError
from cls_jax.photos.features.accuracy import (
    count_single,
    describe_new_sources,
    estimate_new_sources,
    read_new_sources,
)
from cls_jax.photos.features.coverage import Coverage
from cls_jax.photos.features.graph import build_graph
from cls_jax.photos.features.grouping import join_groups
from cls_jax.photos.features.infer import hold_out_labels, infer
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.start.hold_out import choose_validation_sources, hold_out_images

K = 4


def test_groups_that_share_an_image_are_joined():
    copies, sources = np.array([0, 0, 1, 2, 3, 4]), np.array([-1, 7, 7, 2, -1, 2])
    assert join_groups(copies, sources).tolist() == [0, 0, 0, 1, 2, 1]
    assert join_groups(copies).tolist() == copies.tolist()
    alone = np.full(3, -1)
    assert join_groups(alone, alone).tolist() == [0, 1, 2]
    assert not len(join_groups(alone[:0]))


@pytest.mark.parametrize(("mean", "deviation"), [(0.7, 0.15), (0.95, 0.05), (0.5, 0.2)])
@pytest.mark.parametrize("num_sources", [5, 8, 20])
def test_the_interval_holds_for_as_many_new_sources(mean, deviation, num_sources):
    """Where the accuracy of sources varies, and so does the number of their labels."""
    rng = np.random.default_rng(0)
    total = mean * (1 - mean) / deviation**2 - 1
    held = []
    for _ in range(400):
        accuracies, new = rng.beta(mean * total, (1 - mean) * total, (2, num_sources))
        sources = np.repeat(np.arange(num_sources), 1 + rng.poisson(rng.gamma(2, 3, num_sources)))
        found = estimate_new_sources(rng.random(len(sources)) < accuracies[sources], sources)
        low, high = found.accuracy_new_sources_low, found.accuracy_new_sources_high
        held.append(low <= 100 * new.mean() <= high)
    assert np.mean(held) > 0.92


def test_few_sources_are_too_early():
    sources = np.repeat(np.arange(4), 30)
    found = estimate_new_sources(np.ones(120, bool), sources)
    assert found.accuracy_new_sources is None
    assert "too early to say. 4 sources have labels, and it takes 5" in describe_new_sources(found)
    found = estimate_new_sources(np.ones(150, bool), np.repeat(np.arange(5), 30))
    assert found.accuracy_new_sources == 100
    assert 80 < found.accuracy_new_sources_low < 99  # All right is no proof.


@pytest.fixture(scope="module")
def folder():
    """Features with a part of each source, classes that depend on it, sources, and some labels."""
    num_sources, rng = 8, np.random.default_rng(0)
    sources = np.repeat(np.arange(num_sources), 30)
    mixtures_SK = rng.dirichlet(np.full(K, 0.2), num_sources)
    truth = np.array([rng.choice(K, p=mixtures_SK[source]) for source in sources])
    centers, styles = rng.standard_normal((K, 120)), rng.standard_normal((num_sources, 120))
    rows = 0.12 * centers[truth] + styles[sources]
    rows = (rows + rng.standard_normal(rows.shape)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.where(np.arange(len(truth)) % 3 == 0, truth, -1)
    return Relations(FrozenFeatures(rows, unit, rows)), truth, sources, labels


def test_classes_with_a_single_source_are_told(folder):
    labels, sources = np.array([0, 0, 1, 1, 2, 2, 3, 3]), np.array([5, 5, 5, 6, -1, -1, 7, -1])
    assert count_single(labels, sources) == 1
    relations, truth, sources, labels = folder
    is_of_others = (truth == 0) & (sources != sources[np.argmax(labels == 0)])
    labels = np.where(is_of_others, -1, labels)
    figures = infer(relations, labels, K, sources).figures
    found = read_new_sources({f"labels_{name}": value for name, value in figures.items()})
    assert found.classes_with_one_source == 1
    assert "All labels of 1 class are from one source each" in describe_new_sources(found)


def test_labels_are_held_out_with_those_of_their_source(folder):
    relations, _, sources, labels = folder
    known, of_new = (
        hold_out_labels(relations, labels, K, given).probabilities.argmax(axis=1)[labels >= 0]
        for given in (None, sources)
    )
    given = labels[labels >= 0]
    assert np.mean(known == given) > np.mean(of_new == given) + 0.1
    inferred = infer(relations, labels, K, sources)
    assert inferred.figures["sources"] == 8
    judged = inferred.held_out.is_judged
    right = (inferred.held_out.probabilities.argmax(axis=1) == labels)[judged]
    assert inferred.figures["accuracy_new_sources"] == pytest.approx(100 * right.mean())
    assert np.mean(known == given) > right.mean() + 0.1
    # Sources change no label.
    without = infer(relations, labels, K)
    assert "sources" not in without.figures
    np.testing.assert_array_equal(inferred.probabilities, without.probabilities)


@pytest.mark.slow
def test_a_class_is_at_no_disadvantage_when_its_source_is_left_out():
    """Its labels are judged as the other images of the source are that is left out."""
    num_classes, num_sources = 12, 8
    sources = np.repeat(np.arange(num_sources), 2 * num_classes)
    truth = np.tile(np.arange(num_classes), 2 * num_sources)
    stated, unbalanced, expected = [], [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        centers, styles = rng.standard_normal((num_classes, 12)), rng.standard_normal((8, 12))
        rows = 0.7 * centers[truth] + styles[sources] + 0.7 * rng.standard_normal((len(truth), 12))
        features = FrozenFeatures(*[rows.astype(np.float32)] * 3)
        labels = np.full(len(truth), -1)
        for label in range(num_classes):
            labels[rng.choice(np.flatnonzero(truth == label), 4, replace=False)] = label
        inferred = infer(Relations(features), labels, num_classes, sources)
        stated.append(inferred.figures["accuracy_new_sources"])
        together = hold_out_labels(Relations(features), labels, num_classes, sources)
        right = together.probabilities.argmax(axis=1) == labels
        unbalanced.append(100 * right[together.is_judged].mean())
        for source in range(num_sources):
            others = np.where(sources == source, -1, labels)
            right = infer(Relations(features), others, num_classes).labels == truth
            expected.append(100 * right[(sources == source) & (labels < 0)].mean())
    assert abs(np.mean(stated) - np.mean(expected)) < 7
    assert np.mean(unbalanced) < np.mean(expected) - 8


def test_with_one_source_for_each_class_the_labels_are_those_without_sources(folder):
    relations, truth, sources, labels = folder
    inferred, without = (infer(relations, labels, K, given) for given in (truth, None))
    np.testing.assert_array_equal(inferred.probabilities, without.probabilities)
    assert inferred.figures["classes_with_one_source"] == K
    assert "accuracy_new_sources" not in inferred.figures
    # Also with more sources than it takes to judge new ones.
    labels = np.where(labels >= 0, sources, -1)
    assert "accuracy_new_sources" not in infer(relations, labels, 8, sources).figures


def test_suggestions_take_turns_among_sources():
    """Also where one source has most photos, and another one most labels."""
    rng = np.random.default_rng(0)
    sizes = [200, 40, 30, 20, 10, 10, 5, 5]
    sources = rng.permutation(np.repeat(np.arange(8), sizes))
    coverage = Coverage(build_graph(rng.standard_normal((320, 16)).astype(np.float32)))
    is_open = np.ones(320, bool)
    chosen, _ = coverage.choose(is_open, 40, sources_B=sources)
    assert len(set(chosen)) == 40
    assert np.bincount(sources[chosen]).tolist() == [5] * 8
    is_open[np.flatnonzero(sources == 1)[:10]] = False
    chosen, _ = coverage.choose(is_open, 21, sources_B=sources)
    assert np.bincount(sources[chosen], minlength=8).tolist() == [3, 0, 3, 3, 3, 3, 3, 3]
    # As before where nothing is known of sources, or all is one.
    plain, gains = coverage.choose(is_open, 20)
    for same in (np.zeros(320, int), np.full(320, -1)):
        again, increases = coverage.choose(is_open, 20, sources_B=same)
        np.testing.assert_array_equal(again, plain)
        np.testing.assert_array_equal(increases, gains)


def test_validation_takes_whole_sources_and_leaves_every_class():
    rng = np.random.default_rng(0)
    sources = np.repeat(np.arange(10), 12)
    labels = np.where(rng.random(120) < 0.5, rng.integers(0, K, 120), -1)
    for seed in range(20):
        rows = choose_validation_sources(labels, 0.25, seed, sources)
        held = np.isin(np.arange(120), rows)
        assert not set(sources[held]) & set(sources[~held])
        assert 0 < (labels[held] >= 0).sum() <= 0.25 * (labels >= 0).sum()
        assert set(labels[~held]) >= set(range(K))
    with pytest.raises(UserError, match="holds out none of 2 sources"):
        choose_validation_sources(labels, 0.2, 0, np.repeat([0, 1], 60))


def test_validation_images_that_are_there_come_before_what_sources_allow(tmp_path):
    labels, sources = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    split = Split(np.zeros((4, 1, 1, 3), np.uint8), labels, sources=sources)
    dataset = Dataset("photos", ("a", "b"), split, NO_IMAGES, (1, 1, 3), validation=split)
    config = ConfigDict({"data": {"name": "npz", "validation": 0.1}, "seed": 0})
    with pytest.raises(UserError, match="photos has 4 validation images already"):
        hold_out_images(tmp_path, config, dataset)
