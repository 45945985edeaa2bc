"""Features that are smoothed over similar images."""

import numpy as np

from cls_jax.photos.features import relations, smoothing
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import LAST, STAGES, Relations


def _make_features(num_images):
    rng = np.random.default_rng(0)
    columns = (rng.standard_normal((num_images, size)) for size in (50, 50, 30))
    return FrozenFeatures(*columns)


def test_smoothed_features_are_means_over_similar_images_at_unit_length(monkeypatch):
    monkeypatch.setattr(smoothing, "_PENALTY", 1e-6)
    features = _make_features(40)
    found = Relations(features)
    x = smoothing.scale(features, *found.smoothing[:2])
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
    monkeypatch.setattr(relations, "_MAX_PLACED", 30)
    some = Relations(whole.features).smoothing
    few = whole.features.convert(lambda columns: columns[np.linspace(0, 89, 30).astype(int)])
    np.testing.assert_array_equal(some.kernel, Relations(few).smoothing.kernel)


def test_images_are_scaled_in_blocks(monkeypatch):
    monkeypatch.setattr(smoothing, "_BLOCK_ROWS", 7)
    features = _make_features(20)
    blocks = [block.pooled for block in smoothing.take_blocks(features)]
    assert [len(block) for block in blocks] == [7, 7, 6]
    np.testing.assert_array_equal(np.concatenate(blocks), features.pooled)
    (nothing,) = smoothing.take_blocks(features.convert(lambda columns: columns[:0]))
    assert len(nothing.pooled) == 0


def test_images_without_features_and_equal_ones_are_no_special_cases():
    features = _make_features(30)
    for columns in features.arrays:
        columns[5:] = 0
    found = Relations(features).smoothing
    assert np.isfinite(found.kernel).all()
    equal = Relations(features.convert(np.zeros_like)).smoothing
    assert np.isfinite(smoothing.scale(features, *equal[:2])).all()
