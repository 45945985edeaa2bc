"""Strangers among the unlabeled images: the score, its file, and its column of predictions."""

import shutil

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.features.graph import build_graph
from cls_jax.inference.calibration import write_fitted
from cls_jax.inference.classifier import load
from cls_jax.inference.evaluate_run import OpenRun, assess_run
from cls_jax.inference.predict_files import predict_files
from cls_jax.inference.unknown import (
    UNKNOWN,
    UnknownScore,
    describe_far,
    fit_unknown,
    measure_reach,
    read_unknown,
)
from tests.conftest import create_tiny_config
from tests.outcomes import read_table

K, PER_CLASS = 3, 60


def sample(num_groups, seed=0):
    """Features of groups of images of norm 1, and their groups."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(num_groups), PER_CLASS)
    features = np.eye(8)[groups] + 0.25 * rng.normal(size=(len(groups), 8))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features.astype(np.float32), groups


def label(groups, per_class=4):
    """Labels of the first images of each of the K classes. Other groups are strangers."""
    labels = np.full(len(groups), -1)
    for k in range(K):
        labels[np.flatnonzero(groups == k)[:per_class]] = k
    return labels


def test_strangers_that_were_never_seen_score_higher():
    features, groups = sample(5)
    score = fit_unknown(features, label(groups), K)
    new, new_groups = sample(5, seed=1)
    unknown = score.apply(new)
    assert ((unknown >= 0) & (unknown <= 1)).all()
    assert roc_auc_score(new_groups >= K, unknown) > 0.95


def test_the_score_counts_unlabeled_training_images():
    features, groups = sample(5)
    labels = label(groups)
    unknown = fit_unknown(features, labels, K).apply(features[labels < 0])
    np.testing.assert_allclose(np.quantile(unknown, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)


def test_many_strangers_are_noticed_and_none_are_not():
    features, groups = sample(5)
    labels, is_known = label(groups, 12), groups < K
    with_strangers = fit_unknown(features, labels, K)
    without = fit_unknown(features[is_known], labels[is_known], K)
    assert "of the unlabeled images are farther" in describe_far(with_strangers)
    assert describe_far(without) is None
    # With one label per class nothing says how far the images of a class are from each other.
    assert fit_unknown(features, label(groups, 1), K).far_share is None


def test_reach_does_not_count_an_images_own_label():
    features, groups = sample(K)
    alone, labels = np.zeros(8, np.float32), label(groups)
    alone[7] = 1
    graph = build_graph(np.concatenate([features, alone[None]]))
    reach = measure_reach(graph, np.append(labels, 0), K)
    assert reach[-1] < 0.2 * np.median(reach)


def test_a_class_with_more_labels_does_not_reach_further():
    features, groups = sample(2)
    few = label(groups, 5)
    many = few.copy()
    many[groups == 0] = np.where(np.arange(PER_CLASS) < 40, 0, -1)
    graph, rest = build_graph(features), (groups == 0) & (many < 0)
    assert np.median(measure_reach(graph, many, K)[rest]) == pytest.approx(
        np.median(measure_reach(graph, few, K)[rest]), rel=0.3
    )


def test_without_labels_or_unlabeled_images_there_is_no_score():
    features, groups = sample(2)
    assert fit_unknown(features, groups, 2) is None
    assert fit_unknown(features, np.full(len(groups), -1), 2) is None


@pytest.fixture(scope="module")
def classifier(trained_run, tmp_path_factory):
    """Of a run that was assessed after its training."""
    workdir = shutil.copytree(trained_run, tmp_path_factory.mktemp("unknown") / "run")
    assess_run(OpenRun(create_tiny_config(), workdir))
    assert (workdir / UNKNOWN).exists()
    return load(workdir)


def test_networks_that_have_learned_the_labels_do_not_count_strangers(classifier):
    assert classifier.unknown.step == 6
    assert classifier.unknown.far_share is None


def test_an_assessed_run_fills_the_column_and_changes_no_other(classifier, trained_run, tmp_path):
    images = load_dataset(create_tiny_config()).test_images[:50]
    plain = load(trained_run).predict(images)
    prediction = classifier.predict(images)
    assert plain.unknown is None
    np.testing.assert_allclose(prediction.probabilities, plain.probabilities, rtol=1e-5, atol=1e-7)
    assert ((prediction.unknown >= 0) & (prediction.unknown <= 1)).all()
    assert np.ptp(prediction.unknown) > 0.5
    expected = classifier.unknown.apply(classifier.compute_features(images))
    np.testing.assert_allclose(prediction.unknown, expected, atol=1e-3)
    empty = classifier.predict(images[:0])
    assert empty.unknown.shape == (0,)
    assert classifier.predict([]).probabilities.shape == (0, 10)
    assert classifier.compute_fingerprint() != load(trained_run).compute_fingerprint()


def test_files_get_the_score_of_their_pixels(classifier, tmp_path):
    images = load_dataset(create_tiny_config()).test_images[:3]
    files = [str(tmp_path / f"{i}.png") for i in range(3)]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image[..., 0]).save(file)
    predict_files(classifier, files, tmp_path / "p.csv")
    column = [float(row["unknown"]) for row in read_table(tmp_path / "p.csv")]
    np.testing.assert_allclose(column, classifier.predict(files).unknown, atol=1e-5)
    np.testing.assert_allclose(column, classifier.predict(images).unknown, atol=1e-5)


def test_both_outputs_take_one_pass(classifier):
    """XLA merges the passes for probabilities and features: prediction costs what it did."""
    images = jax.ShapeDtypeStruct((50, 8, 8, 1), np.uint8)

    def count(function):
        return function.lower(classifier.state, images).compile().cost_analysis()["flops"]

    one = jax.jit(lambda state, images: classifier._forward(state, images)[0])
    assert count(classifier._forward) < 1.1 * count(one)


def test_the_score_of_another_checkpoint_is_left_out(tmp_path):
    score = UnknownScore(3, (0.5, -1.0), (0.0, 1.0), None)
    write_fitted(tmp_path / UNKNOWN, score)
    assert read_unknown(tmp_path, 3) == score
    assert read_unknown(tmp_path, 6) is None
    np.testing.assert_allclose(score.apply(np.float32([[1, 0], [9, 0], [0, 1]])), [0.5, 1, 0])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"step": 3, "kernel": ["a"], "quantiles": [1]}', '{"step": 3}']
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / UNKNOWN).write_text(text)
    with pytest.raises(UserError, match="is not a score of unknown images"):
        read_unknown(tmp_path, 3)


def test_a_score_for_other_networks_is_refused_in_one_sentence(trained_run, tmp_path):
    workdir = shutil.copytree(trained_run, tmp_path / "run")
    write_fitted(workdir / UNKNOWN, UnknownScore(6, (0.5, -1.0, 2.0), (0.0, 1.0)))
    with pytest.raises(UserError, match=r"it weighs 3 features, .*: delete it, and .* again\.$"):
        load(workdir)
    assert load(trained_run).unknown is None
