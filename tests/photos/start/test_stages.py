"""Heads from features before the first step and after the last one, across interruptions."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from cls_jax.config import read_config
from cls_jax.data.sampling import StreamSpec
from cls_jax.errors import UserError
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.methods.options import INFERRED_LABELS
from cls_jax.photos.features.heads import Head, fit_heads
from cls_jax.photos.features.infer import LabelerWeights
from cls_jax.photos.folder.dataset import open_dataset
from cls_jax.photos.start import stages
from cls_jax.photos.start.fit_labels import fit_labels
from cls_jax.photos.start.frozen import compute_run_features
from cls_jax.photos.start.stages import (
    compute_trained_features,
    fit_final_heads,
    init_state_with_heads,
    replace_heads,
    train_with_stages,
)
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.folder import CONFIG, read_mean_and_std
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import create_setup
from cls_jax.training.setup import create_train_setup
from tests.conftest import create_tiny_config, one_of, train_interrupted
from tests.outcomes import describe_difference, read_end


def draw_features(num_networks, num_images, num_classes):
    rng = np.random.default_rng(0)
    labels = np.arange(num_images) % num_classes
    centers = rng.normal(0, 2, (num_classes, 40))
    features = 3 + centers[labels] * 5 + rng.normal(0, 9, (num_networks, num_images, 40))
    return features.astype(np.float32), labels


def shift(heads):
    """Heads with the same answers, as if from process 0."""
    return [head._replace(bias=head.bias + 9) for head in heads]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_single_network_starts_from_scikit_learns_logistic_regression(num_classes):
    features, labels = draw_features(1, 30, num_classes)
    [head] = fit_heads(features, labels, num_classes, (0, 0))
    standardized = StandardScaler().fit_transform(features[0])
    classifier = LogisticRegression(C=0.01).fit(standardized, labels)
    expected = classifier.predict_proba(standardized)
    np.testing.assert_allclose(head.compute_probabilities(features[0]), expected, atol=1e-4)
    # Features that hardly vary get no large weights, and classes without a label none at all.
    features[0, :, 7] = 1e-4 * (labels == 0)
    [head] = fit_heads(features, 2 * labels, 2 * num_classes, (0, 0))
    assert np.abs(head.kernel[7]).max() < np.abs(head.kernel).max()
    is_known = np.arange(2 * num_classes) % 2 == 0
    np.testing.assert_array_equal(head.kernel.any(axis=0), is_known)
    np.testing.assert_array_equal(head.bias != 0, is_known)


def test_networks_divide_the_features_among_them():
    features, labels = draw_features(2, 30, 3)
    first, second = (head.kernel.any(axis=1) for head in fit_heads(features, labels, 3, (0, 0)))
    np.testing.assert_array_equal(first, ~second)
    assert first.sum() == 20
    others = fit_heads(features, labels, 3, (1, 0))
    assert (others[0].kernel.any(axis=1) != first).any()


@pytest.mark.parametrize(("mesh", "heads"), [((1, 1), {"head"}), ((2, 1), {"head", METHOD_HEAD})])
def test_both_kinds_of_parameters_start_from_the_heads(mesh, heads, trained_run, monkeypatch):
    monkeypatch.setattr("cls_jax.photos.start.stages.arrays_from_main_process", shift)
    config = create_tiny_config(model__init=str(trained_run), model__init_head="probe")
    config.method.balanced_head = METHOD_HEAD in heads
    config.mesh.network, config.mesh.data = mesh
    dataset, labeled = open_dataset(config), np.arange(50)
    setup = create_train_setup(config, dataset.shape)
    spec = StreamSpec(config, "weak", ("weak", "weak"), labeled, np.arange(1000))
    state = init_state_with_heads(setup, dataset, spec, None)
    for leaf, shape in zip(
        jax.tree.leaves(state), jax.tree.leaves(setup.state_shapes), strict=True
    ):
        assert (leaf.shape, leaf.dtype, leaf.sharding) == (shape.shape, shape.dtype, shape.sharding)
    jax.tree.map(np.testing.assert_array_equal, state.params, state.ema_params)
    features = compute_trained_features(setup, state, dataset.train.images, labeled)
    labels = dataset.train.labels[labeled]
    for i, head in enumerate(fit_heads(features, labels, 10, (config.seed, 0))):
        for name in heads:
            np.testing.assert_allclose(state.params[name]["kernel"][i], head.kernel, atol=1e-5)
            np.testing.assert_allclose(state.params[name]["bias"][i], head.bias + 9, atol=1e-5)
        assert np.mean(head.predict(features[i]) == labels) > 0.3  # Chance is 0.1.
    start = setup.init_state().params
    for name in start.keys() - heads:
        jax.tree.map(np.testing.assert_array_equal, state.params[name], start[name])


def fit_pixels(config, dataset, labeled, unlabeled):
    return fit_labels(
        dataset, labeled, compute_run_features(config, dataset, labeled, unlabeled, ())
    )


def test_labels_spread_only_to_the_images_that_the_run_uses():
    config = create_tiny_config(method__inferred=1.0)
    dataset, labeled = open_dataset(config), np.arange(0, 900, 9)
    used = np.arange(0, 1000, 2)
    setup, spec = create_setup(config, dataset, labeled, used, None)
    labels_of_all = fit_pixels(config, dataset, labeled, used)
    state = init_state_with_heads(setup, dataset, spec, labels_of_all)
    is_new = ~labels_of_all.is_labeled
    unlabeled, labels = labels_of_all.rows[is_new], labels_of_all.inferred.labels[is_new]
    np.testing.assert_array_equal(unlabeled, np.setdiff1d(used, labeled))
    assert np.mean(labels == dataset.train.labels[unlabeled]) > 0.8
    targets = jax.device_get(state.method_state[INFERRED_LABELS])
    np.testing.assert_array_equal(targets.pseudo[:, unlabeled], [labels] * 2)
    assert not np.delete(targets.weight, np.union1d(used, labeled), axis=1).any()
    assert targets.weight[:, used].all()
    # All other classes are equally improbable for a labeled image. None of them is preferred.
    complementary = targets.complementary[0, labeled]
    assert (complementary != dataset.train.labels[labeled]).all()
    assert np.bincount(complementary).max() < len(labeled) / 3


@pytest.mark.parametrize("most", one_of(600, 10_000))
def test_final_heads_say_what_start_and_trained_networks_say_together(most, monkeypatch):
    """Images beyond those that the heads are fitted to are labeled by the networks."""
    monkeypatch.setattr(stages, "MAX_REFITTED", most)
    monkeypatch.setattr(stages, "arrays_from_main_process", shift)
    config = create_tiny_config(model__final_head="inferred")
    dataset, labeled, recorded = open_dataset(config), np.arange(0, 600, 6), []
    used = np.arange(len(dataset.train) - 100)
    setup, _ = create_setup(config, dataset, labeled, used, None)
    state, start = setup.init_state(), fit_pixels(config, dataset, labeled, used)
    record = lambda *columns: recorded.append(columns)  # noqa: E731
    fitted = fit_final_heads(setup, state, dataset, start, record)
    [(unlabeled, labels, weights)] = recorded
    assert sorted([*labeled, *unlabeled]) == list(used)
    assert np.mean(labels == dataset.train.labels[unlabeled]) > (0.8 if most > 1000 else 0.6)
    assert ((weights >= 0) & (weights <= 1)).all()
    features = compute_trained_features(setup, state, dataset.train.images, unlabeled)
    head = jax.device_get(fitted.ema_params["head"])
    assert head["bias"].mean() > 5
    for i in range(2):
        network = Head(head["kernel"][i], head["bias"][i])
        assert network.kernel.any(axis=1).all()
        assert np.mean(network.predict(features[i]) == labels) > 0.6  # Chance is 0.1.
    given = fitted.replace(ema_params=fitted.ema_params | {"head": state.ema_params["head"]})
    jax.tree.map(np.testing.assert_array_equal, given, state)
    # Confident networks overrule an uncertain start, but no given label.
    sure = np.zeros_like(head["bias"])
    sure[:, 3] = 100
    forced = jax.tree.map(np.zeros_like, head) | {"bias": sure}
    heads = [Head(*pair) for pair in zip(forced["kernel"], forced["bias"], strict=True)]
    state = state.replace(ema_params=replace_heads(setup, state.ema_params, heads))
    uniform = np.full_like(start.inferred.probabilities, 0.1)
    for ratios in ((0, 0), (9, 0), (0, 9)):  # A graph overrules them where it was right before.
        weights = LabelerWeights(np.array([ratios]), np.ones((1, 1)))
        inferred = dataclasses.replace(
            start.inferred, probabilities=uniform, labeler_weights=weights
        )
        changed = dataclasses.replace(start, inferred=inferred)
        fit_final_heads(setup, state, dataset, changed, record)
        assert ((recorded[-1][1] == 3).mean() > 0.5) == (ratios == (0, 0))


@pytest.mark.slow
def test_a_run_starts_from_another_and_resumes_exactly_without_it(trained_run, tmp_path):
    source, workdir = shutil.copytree(trained_run, tmp_path / "source"), tmp_path / "run"
    config = create_tiny_config(model__init=str(source), data__mean=(), data__std=())
    config.model.init_head, config.model.final_head = "probe", "inferred"
    config.method.balanced_head, config.method.inferred = True, 1.0
    config.data.imbalance = 10.0  # Or else all shares of the balanced head are 1.
    train_with_stages(config, tmp_path / "whole")
    train_interrupted(config, workdir, 3, train=train_with_stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "fit_final_heads", None)
        with pytest.raises(TypeError):
            train_with_stages(config, workdir)
    assert Checkpointer(workdir, 3).latest_step() == config.num_steps - 1
    assert read_config(workdir / CONFIG).model.init == str(source)
    assert read_mean_and_std(workdir) == ((0.3053,), (0.3186,))  # Of the source's configuration.
    shutil.rmtree(source)
    assert train_with_stages(config, workdir)[0]["step"] == config.num_steps
    assert not describe_difference(read_end(workdir), read_end(tmp_path / "whole"))
    with pytest.raises(UserError, match=r"set model\.init to a \.safetensors file"):
        train_with_stages(config, tmp_path / "new")


@pytest.mark.parametrize(
    "changes",
    [{"model__init_head": "probe"}, {"model__final_head": "inferred"}, {"method__inferred": 1.0}],
)
def test_the_core_alone_refuses_what_needs_features(changes, tmp_path):
    config = create_tiny_config(model__init="a.safetensors", data__mean=(0.5,), **changes)
    config.data.std = (0.5,)
    with pytest.raises(UserError, match=r"part of cls_jax\.photos: train with main\.py"):
        run_training(config, tmp_path)
