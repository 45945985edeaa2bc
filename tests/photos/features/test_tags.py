"""Tags from frozen features, and the instant classifier that has them."""

import jax
import numpy as np
import pytest
import scipy.optimize

from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.photos.features import tags
from cls_jax.photos.features.grouping import groups
from cls_jax.photos.features.instant import TaggedClassifier, read_instant, write_instant
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork, open_network
from cls_jax.photos.features.relations import Relations, scale
from cls_jax.photos.features.tags import InferredTags, choose_thresholds, infer_tags
from cls_jax.photos.inference.networks import open_instant_networks

T = 3
SHARE, PENALTY = 0.25, 0.2  # Of smoothed features, and of squared weights.


def _make_features():
    """Features of 120 images, and the tags [B, T] that depend on them."""
    rng = np.random.default_rng(0)
    truth = (rng.random((120, T)) < 0.4).astype(np.int8)
    directions = np.random.default_rng(9).standard_normal((T, 24))
    features = truth @ directions + 0.3 * rng.standard_normal((120, 24))
    return FrozenFeatures(features[:, :16], features[:, :16], features[:, 16:]), truth


def _mark(truth, rows):
    values = np.full(truth.shape, -1, np.int8)
    values[rows] = truth[rows]
    return values


FEATURES, TRUTH = _make_features()
RELATIONS = Relations(FEATURES)


def _fit_directly(x_LC, targets_L):
    """Ridge regression with a penalized bias, by least squares on rows that stand for it."""
    x = np.pad(x_LC.astype(float), ((0, 0), (0, 1)), constant_values=1)
    rows = np.vstack([x, np.sqrt(PENALTY) * np.eye(x.shape[1])])
    return np.linalg.lstsq(rows, np.append(targets_L, np.zeros(x.shape[1])))[0]


@pytest.mark.parametrize("num_labeled", [12, 60])  # Fewer than features, and more.
@pytest.mark.parametrize("is_grouped", [False, True])
def test_held_out_scores_are_those_of_a_fit_without_the_group(num_labeled, is_grouped, monkeypatch):
    monkeypatch.setattr(tags, "_calibrate", lambda *_: (1.0, np.zeros(T)))
    monkeypatch.setattr(tags, "_choose", lambda *_: (SHARE, PENALTY))
    rows = np.arange(0, 2 * num_labeled, 2)
    given, groups = _mark(TRUTH, rows), np.arange(120) // 6 if is_grouped else np.arange(120)
    # Nobody knows one tag of one image: this tag is learned from the others.
    given[rows[3], 1] = -1
    found = infer_tags(RELATIONS, given, groups)
    scaled = scale(FEATURES, found.head.mean, found.head.deviation)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-6)
    smoothed = scaled @ RELATIONS.smoothing.kernel
    x = np.concatenate([np.sqrt(1 - SHARE) * scaled, np.sqrt(SHARE) * smoothed], axis=1)
    for t in range(T):
        known = np.flatnonzero(given[:, t] >= 0)
        kernel = _fit_directly(x[known], 2.0 * TRUTH[known, t] - 1)
        scores = scaled @ found.head.kernel[:, t] + found.head.bias[t]
        np.testing.assert_allclose(scores, x @ kernel[:-1] + kernel[-1], atol=1e-5)
        for row in known:
            rest = known[groups[known] != groups[row]]
            kernel = _fit_directly(x[rest], 2.0 * TRUTH[rest, t] - 1)
            score = x[row] @ kernel[:-1] + kernel[-1]
            p = 1 / (1 + np.exp(-score))
            np.testing.assert_allclose(found.held_out[row, t], p, atol=1e-6)
    assert (np.isnan(found.held_out) == (given < 0)).all()


def test_held_out_labels_choose_smoothed_features_where_these_tell_and_a_penalty_where_labels_err():
    rng = np.random.default_rng(0)
    truth, groups = rng.choice([-1.0, 1.0], (80, T)), np.arange(80)
    clear, noise = rng.standard_normal((2, 80, 40))
    clear[:, :T] += 4 * truth
    clear, noise = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (clear, noise))
    share, penalty = tags._choose(noise, clear, truth, groups)
    assert share > 0.7
    assert tags._choose(clear, noise, truth, groups)[0] < 0.3
    wrong = np.where(rng.random(truth.shape) < 0.3, -truth, truth)
    assert tags._choose(noise, clear, wrong, groups)[1] > penalty
    # Copies that predict each other say nothing if they are held out together.
    copies, groups = (np.concatenate([each, each]) for each in (noise, groups))
    twice = np.concatenate([clear, clear]), np.concatenate([truth, truth])
    assert tags._choose(copies, *twice, groups)[0] > 0.7


def test_a_share_is_at_most_1():
    rng = np.random.default_rng(13)  # With these numbers, rounding exceeds it.
    truth = rng.choice([-1.0, 1.0], (200, 12))
    clear, noise = rng.standard_normal((2, 200, 40))
    clear[:, :12] += 4 * truth
    clear, noise = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (clear, noise))
    targets = np.where(rng.random(truth.shape) < 0.05, -truth, truth)
    share, _ = tags._choose(noise, clear, targets, np.arange(200))
    assert share == 1


def test_tags_of_other_images_follow_from_a_few_and_given_ones_stay():
    given = _mark(TRUTH, np.arange(30))
    given[:5, 2] = -1
    found = infer_tags(RELATIONS, given)
    assert np.mean((found.probabilities > 0.5) == TRUTH) > 0.95
    is_given = given >= 0
    np.testing.assert_array_equal(found.probabilities[is_given], TRUTH[is_given])
    # The head says the same of images without labels.
    p_BT = found.head.predict(FEATURES)
    np.testing.assert_allclose(p_BT[~is_given], found.probabilities[~is_given], atol=1e-6)


@pytest.mark.parametrize("num_labeled", [1, 40])
def test_tags_that_all_or_no_labeled_images_have_and_a_single_label(num_labeled):
    truth = TRUTH.copy()
    truth[:, :2] = 1, 0
    found = infer_tags(RELATIONS, _mark(truth, np.arange(num_labeled)))
    assert np.isfinite(found.probabilities).all()
    assert np.isfinite(found.held_out[:num_labeled]).all()
    others = found.probabilities[num_labeled:]
    assert others[:, 0].min() > 0.5 > others[:, 1].max()


def test_no_label_and_no_tag_are_no_special_cases():
    np.testing.assert_allclose(infer_tags(RELATIONS, _mark(TRUTH, [])).probabilities, 0.5)
    assert infer_tags(RELATIONS, _mark(TRUTH[:, :0], np.arange(9))).probabilities.shape == (120, 0)


def test_near_copies_belong_together_whatever_their_tags():
    relations = Relations(FEATURES.convert(lambda columns: columns[[0, 0, *range(2, 120)]]))
    labels = np.array([3, 5, 5, 3, *[-1] * 116])  # Numbers of sets of tags.
    given = np.minimum(labels, 0), 1
    found = groups(relations, *given)
    assert found[0] == found[1] != found[2]
    sources = np.array([0, 1, 1, *[2] * 117])  # What is joined by a source is together, too.
    found = groups(relations, *given, sources)
    assert found[0] == found[1] == found[2] != found[3]


def test_calibration_has_the_gradient_of_its_loss(monkeypatch):
    seen = []
    minimize = scipy.optimize.minimize
    monkeypatch.setattr(
        "scipy.optimize.minimize",
        lambda loss, *args, **kwargs: seen.append(loss) or minimize(loss, *args, **kwargs),
    )
    infer_tags(RELATIONS, _mark(TRUTH, np.arange(30)))
    for values in np.random.default_rng(0).uniform(0.5, 3, (3, 1 + T)):
        gradient = seen[0](values)[1]
        numeric = scipy.optimize.approx_fprime(values, lambda v: seen[0](v)[0])
        np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


def test_a_threshold_is_the_smallest_at_which_images_are_expected_to_have_the_precision():
    given = np.zeros((120, T), np.int8)
    found = infer_tags(RELATIONS, _mark(TRUTH, []))._replace(given=_mark(given, np.arange(4)))
    p, held_out = np.full((120, T), 0.01, np.float32), np.full((120, T), np.nan, np.float32)
    p[4:7] = [[0.9] * T, [0.8] * T, [0.6] * T]
    held_out[:4] = 0.01
    found = found._replace(probabilities=p, held_out=held_out)
    np.testing.assert_allclose(choose_thresholds(found, 0.8), 0.8)  # Their mean is .85.
    np.testing.assert_allclose(choose_thresholds(found, 0.76), 0.6)
    np.testing.assert_allclose(choose_thresholds(found, 0.95), 1)
    np.testing.assert_allclose(choose_thresholds(found), 0.5)
    # Given images that seem to have the first two tags. They lack the first, and have the second.
    given[:4, 1] = 1
    held_out[:4, :2] = 0.95
    found = found._replace(given=_mark(given, np.arange(4)), held_out=held_out)
    np.testing.assert_allclose(choose_thresholds(found, 0.8), [1, 0.6, 0.8])
    # Equal ones are selected together.
    p[4:7] = [[0.9] * T, [0.6] * T, [0.6] * T]
    np.testing.assert_allclose(choose_thresholds(found, 0.75)[2], 0.9)


def test_a_promised_precision_is_had_by_other_images():
    rng, shares = np.random.default_rng(0), []
    for _ in range(60):
        p = rng.beta(0.4, 0.8, (400, T)).astype(np.float32)
        truth = (rng.random(p.shape) < p).astype(np.int8)
        given = _mark(truth, np.arange(20))
        held_out = np.where(given < 0, np.nan, p).astype(np.float32)
        found = InferredTags(given, np.where(given < 0, p, truth), held_out, None)
        says = p[20:] >= choose_thresholds(found, 0.9)
        shares += [truth[20:, t][says[:, t]].mean() for t in range(T) if says[:, t].any()]
    assert np.mean(shares) > 0.88


@pytest.fixture(scope="module", params=["wide_resnet", "vit_tiny"])
def classifier(request):
    """A network with random weights and a random head, with images and their features."""
    name, size = request.param, 32
    settings = {"depth": 10, "width": 1} if name == "wide_resnet" else {}
    entry, shape = MODELS[name], (size, size, 3)
    model = entry.create(num_classes=1, **settings)
    variables = jax.jit(model.init)(jax.random.key(0), np.zeros((1, *shape), np.float32))
    weights = Weights(to_torch(variables, entry.layout), ((0.5,) * 3, (0.25,) * 3))
    network = FrozenNetwork(name, weights, size, tuple(settings.items()))
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    images //= np.arange(1, 7, dtype=np.uint8)[:, None, None, None]  # Of different brightness.
    features = open_network(network).extract(images, on_progress=lambda *_: None)
    truth = np.zeros((6, T), np.int8)
    head = infer_tags(Relations(features), _mark(truth, np.arange(6))).head
    kernel = np.random.default_rng(1).standard_normal(head.kernel.shape).astype(np.float32)
    tagged = TaggedClassifier(
        network,
        head._replace(kernel=3 * kernel, bias=0 * head.bias),
        ("a", "b c", "ü"),
        np.float32([0.5] * T),
    )
    return tagged, images, features


def test_networks_say_what_their_features_say(classifier, tmp_path):
    tagged, images, features = classifier
    write_instant(tmp_path / "instant.npz", tagged)
    again = read_instant(tmp_path / "instant.npz")
    assert again.names == tagged.names
    networks = open_instant_networks(again)
    assert networks.num_classes == T
    p_NBT, f_BC = networks.predict_with_features(images)
    expected_p, expected_f = again.predict_with_features(features)
    np.testing.assert_allclose(p_NBT, expected_p, atol=2e-3)  # Features on disk are rounded.
    np.testing.assert_allclose(f_BC, expected_f, atol=2e-3)
    assert p_NBT.std() > 0.1
    maps = networks.compute_heat_maps(images, np.zeros(6, int))
    assert maps.shape[0] == 6
    assert maps.max() == 1


def test_a_damaged_head_is_refused(classifier, tmp_path):
    tagged, *_ = classifier
    path = tmp_path / "instant.npz"
    write_instant(path, tagged._replace(names=tagged.names[1:]))
    with pytest.raises(UserError, match="its head does not fit its network"):
        read_instant(path)
