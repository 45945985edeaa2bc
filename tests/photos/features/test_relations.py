"""What lies between images is made once, and parts, other orders and more images derive theirs."""

import numpy as np
import pytest

from cls_jax.photos.features import graph as graph_lib
from cls_jax.photos.features import relations as relations_lib
from cls_jax.photos.features.graph import build_graph, solve
from cls_jax.photos.features.infer import infer
from cls_jax.photos.features.instant import find_known
from cls_jax.photos.features.neighbors import find_neighbors, fit_whitening
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import (
    EARLY,
    LAST,
    STAGES,
    Relations,
    scale,
    take_blocks,
)
from cls_jax.photos.labeling.fitting import fit
from cls_jax.photos.labeling.known import Features
from cls_jax.photos.labeling.photos import open_session
from tests.outcomes import count_calls
from tests.photos.labeling.sessions import create_photos, decide

K = 4


def create(num_images, seed=0):
    """Features of two networks, of images in bursts of three, and their classes."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(9).standard_normal((K, 120))
    truth = np.arange(num_images) // 3 % K
    photos = (
        0.3 * centers[truth]
        + rng.standard_normal((num_images // 3 + 1, 120))[np.arange(num_images) // 3]
    )

    def see(spread):
        rows = photos + spread * rng.standard_normal(photos.shape)
        return FrozenFeatures(*[rows.astype(np.float16)] * 3)

    return see(0.1)._replace(others=(see(0.4),)), truth


def connect_all(found):
    return [found.connect(i, depth) for i in range(2) for depth in (LAST, STAGES, EARLY)]


def assert_same_graphs(actual, expected):
    for one, other in zip(connect_all(actual), connect_all(expected), strict=True):
        np.testing.assert_allclose(one.toarray(), other.toarray(), atol=1e-6)


def test_another_order_has_the_same_relations():
    features, truth = create(240)
    whole, order = Relations(features), np.random.default_rng(1).permutation(240)
    taken, fresh = whole.take(order), Relations(features.convert(lambda rows: rows[order]))
    assert_same_graphs(taken, fresh)
    given = np.where(np.arange(240) % 5 < 2, truth, -1)[order], K
    infer(whole.take(order[::-1]), np.where(truth > 1, truth, -1)[order[::-1]], K)
    again, inferred = infer(taken, *given), infer(fresh, *given)
    np.testing.assert_allclose(again.probabilities, inferred.probabilities, atol=1e-6)
    np.testing.assert_array_equal(again.groups, inferred.groups)
    assert again.figures == pytest.approx(inferred.figures, abs=1e-4)
    known, of_taken = (find_known(each, np.zeros((240, K))) for each in (whole, taken))
    np.testing.assert_array_equal(of_taken.known, known.known[order])


def test_a_label_that_was_held_out_before_is_not_followed_again(monkeypatch):
    """In any order of the images. All labels of a class are two more columns of the solver."""
    columns = []

    def count(graph, source, *arguments, **named):
        columns.append(source.shape[1])
        return solve(graph, source, *arguments, **named)

    monkeypatch.setattr(graph_lib, "solve", count)
    features, truth = create(120)
    whole = Relations(features._replace(others=()).convert(lambda rows: rows[::3]))
    for num_labels, num_new in ((20, 20), (22, 2)):
        order = np.random.default_rng(num_labels).permutation(40)
        labels = np.where(np.arange(40) < num_labels, truth[::3], -1)
        infer(whole.take(order), labels[order], K)
        assert sum(columns) == 3 * (2 * K + num_new)
        columns.clear()


def test_a_part_is_compared_by_the_whitening_of_the_whole():
    features, _ = create(240)
    whole = Relations(features)
    rows = np.flatnonzero(np.random.default_rng(1).random(240) < 0.8)[::-1]
    part = whole.take(rows)
    for i, each in enumerate(part.networks):
        np.testing.assert_allclose(
            part.connect(i, LAST).toarray(), build_graph(each.descriptors).toarray(), atol=1e-6
        )
        whitened = whole._take_features(i, STAGES, whole._compare(i, STAGES)[1])
        np.testing.assert_allclose(
            part.connect(i, STAGES).toarray(), build_graph(whitened[rows]).toarray(), atol=1e-6
        )
    groups = np.unique(whole.copies[rows], return_inverse=True)[1]
    np.testing.assert_array_equal(part.copies[:, None] == part.copies, groups[:, None] == groups)
    for few in (rows[:1], rows[:0]):
        assert whole.take(few).connect(0, LAST).shape == (len(few), len(few))


def test_few_new_images_join_the_others_and_many_make_all_anew():
    features, _ = create(264)
    first = Relations(features.convert(lambda rows: rows[:240]))
    connect_all(first)
    with count_calls(find_neighbors) as calls:
        extended = first.extend(features.convert(lambda rows: rows[240:]))
        graphs = connect_all(extended)
    assert not calls
    for i, each in enumerate(extended.networks):
        whitened = extended._take_features(i, STAGES, first._compare(i, STAGES)[1])
        for graph, compared in zip(graphs[3 * i :], (each.descriptors, whitened), strict=False):
            np.testing.assert_allclose(graph.toarray(), build_graph(compared).toarray(), atol=1e-6)
    more = features.convert(lambda rows: rows[:3])
    fresh = Relations(features.convert(lambda rows: np.concatenate([rows, rows[:3]])))
    assert_same_graphs(extended.extend(more), fresh)


@pytest.mark.slow
def test_a_session_compares_its_photos_once(tmp_path):
    """Whatever the number of fits, also where some photos are of no class."""
    features, truth = create(120)
    create_photos(tmp_path / "photos", 120)
    with count_calls(find_neighbors, fit_whitening) as calls:
        session = open_session(tmp_path / "photos")
        session.load(lambda report: Features(np.arange(120), features))
        for image in range(0, 24, 2):
            decide(session, image, "abcd"[truth[image]])
        fit(session.known)
        for image, decision in ((1, "none"), (3, "skip")):
            decide(session, image, "", decision=decision)
            fit(session.known)
    # Of each network the last layer, all stages and early ones, which are whitened. One more
    # whitening is for new photos.
    assert calls == {"find_neighbors": 2 * 3, "fit_whitening": 2 * 2 + 1}


def _make_features(num_images):
    rng = np.random.default_rng(0)
    columns = (rng.standard_normal((num_images, size)) for size in (50, 50, 30))
    return FrozenFeatures(*columns)


def test_smoothed_features_are_means_over_similar_images_at_unit_length(monkeypatch):
    monkeypatch.setattr(relations_lib, "_PENALTY", 1e-6)
    features = _make_features(40)
    found = Relations(features)
    x = scale(features, *found.smoothing[:2])
    graph = (found.connect(0, LAST) + found.connect(0, STAGES)).toarray() / 2
    expected = own = x.astype(float)
    for _ in range(5):
        expected = 0.8 * graph @ expected + 0.2 * own
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    expected = (
        x @ np.linalg.lstsq(x, expected, rcond=1e-4)[0]
    )  # What a linear function can predict.
    expected /= np.sqrt(np.square(expected).sum(axis=1).mean())
    smoothed = x @ found.smoothing.kernel
    np.testing.assert_allclose(smoothed @ smoothed.T, expected @ expected.T, atol=2e-3)


def test_both_parts_have_the_same_size_and_features_of_the_last_layer_keep_their_deviations():
    features = _make_features(200)
    features.pooled[:, 0] *= 10
    mean, deviation, _ = Relations(features).smoothing
    x = (np.concatenate([features.pooled, features.stages], axis=1) - mean) / deviation
    for part in np.split(x, [50], axis=1):
        np.testing.assert_allclose(np.square(part).sum(axis=1).mean(), 1, rtol=1e-4)
    assert len(np.unique(deviation[:50])) == 1


def test_it_is_that_of_all_images_for_a_part_and_fitted_to_some_of_many(monkeypatch):
    whole = Relations(_make_features(90))
    assert whole.take(np.arange(10, 40)).smoothing is whole.smoothing
    monkeypatch.setattr(relations_lib, "_MAX_PLACED", 30)
    some = Relations(whole.features).smoothing
    few = whole.features.convert(lambda columns: columns[np.linspace(0, 89, 30).astype(int)])
    np.testing.assert_array_equal(some.kernel, Relations(few).smoothing.kernel)


def test_images_are_scaled_in_blocks(monkeypatch):
    monkeypatch.setattr(relations_lib, "_BLOCK_ROWS", 7)
    features = _make_features(20)
    blocks = [block.pooled for block in take_blocks(features)]
    assert [len(block) for block in blocks] == [7, 7, 6]
    np.testing.assert_array_equal(np.concatenate(blocks), features.pooled)
    (nothing,) = take_blocks(features.convert(lambda columns: columns[:0]))
    assert len(nothing.pooled) == 0


def test_images_without_features_and_equal_ones_are_no_special_cases():
    features = _make_features(30)
    for columns in features.arrays:
        columns[5:] = 0
    found = Relations(features).smoothing
    assert np.isfinite(found.kernel).all()
    equal = Relations(features.convert(np.zeros_like)).smoothing
    assert np.isfinite(scale(features, *equal[:2])).all()
