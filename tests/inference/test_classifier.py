"""A trained run as a function from images to classes."""

import json
import shutil

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.errors import UserError
from cls_jax.inference import classifier as classifier_module
from cls_jax.inference.classifier import Classifier, Outputs, load
from cls_jax.runs.folder import DATASET
from tests.conftest import create_tiny_config


@pytest.fixture(scope="module")
def run(trained_run):
    return trained_run, load_dataset(create_tiny_config())


def test_an_image_counts_the_same_alone_and_among_others(run):
    workdir, dataset = run
    classifier = load(workdir)
    together = classifier.predict_probabilities(dataset.test_images[:7])
    alone = classifier.predict_probabilities(dataset.test_images[3:4])
    np.testing.assert_allclose(alone[:, 0], together[:, 3], rtol=1e-5)
    assert classifier.predict_probabilities(dataset.test_images[:0]).shape == (2, 0, 10)
    for images in (np.zeros((1, 9, 8, 1), np.uint8), np.zeros((1, 8, 8, 1), np.float32)):
        with pytest.raises(ValueError, match="the classifier expects uint8"):
            classifier.predict_probabilities(images)


def test_a_batch_is_padded_no_further_than_needed(run):
    workdir, dataset = run
    classifier = load(workdir)
    sizes = []
    for n in (1, 3, 2, 450, 5):
        classifier.predict_probabilities(dataset.test_images[:n])
        sizes.append(classifier._compiled_size)
    # Rounded up to what the devices can share. Nothing is compiled again for a smaller batch.
    assert sizes[0] < sizes[-1] == classifier.batch_size
    assert sizes == sorted(sizes)


def test_each_image_is_looked_at_once(run):
    classifier, images = load(run[0]), run[1].test_images
    expected, seen = classifier.compute_both(images), []
    outputs = Outputs(classifier, images)
    classifier.compute_both = lambda part: (
        seen.append(part.indices) or Classifier.compute_both(classifier, part)
    )
    for rows in ([5, 3], [3, 9, 3, 1], [9, 5], []):
        p_NBK, features = outputs.compute(np.array(rows, np.int64))
        np.testing.assert_allclose(p_NBK, expected[0][:, rows], atol=1e-6)
        np.testing.assert_allclose(features, expected[1][rows], atol=1e-6)
    assert np.concatenate(seen).tolist() == [3, 5, 1, 9]


def test_many_images_take_the_program_of_fewer_where_these_are_enough(run, monkeypatch):
    """As the report does after training: predictions, then suspects among more images."""
    monkeypatch.setattr(classifier_module, "_ENOUGH_IMAGES", 100)
    classifier, images = load(run[0]), run[1].test_images
    few = classifier.compute_features(images[:100])
    size = classifier._compiled_size
    probabilities, features = classifier.compute_both(images)
    assert classifier._compiled_size == size < len(images)
    assert classifier._forward._cache_size() == 1
    np.testing.assert_allclose(features[:100], few, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(classifier.predict_probabilities(images), probabilities)


def test_features_are_what_the_last_layers_see(run):
    """The heads' weights turn them into the probabilities, up to each network's length."""
    classifier, images = load(run[0]), run[1].test_images[:7]
    p_NBK, features = classifier.compute_both(images)
    head = classifier.state.ema_params["head"]
    for i, f_BC in enumerate(np.split(features, 2, axis=1)):
        np.testing.assert_allclose(np.linalg.norm(f_BC, axis=1), 1, rtol=1e-5)
        # log p = length · (f @ kernel) + bias + constant, so centered they have one ratio.
        ours, theirs = f_BC @ head["kernel"][i], np.log(p_NBK[i]) - head["bias"][i]
        ours, theirs = (x - x.mean(axis=1, keepdims=True) for x in (ours, theirs))
        lengths = (ours * theirs).sum(axis=1, keepdims=True) / (ours**2).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(lengths * ours, theirs, atol=1e-4)
        assert (lengths > 0).all()


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"class_names": ["a"]})])
def test_a_damaged_description_of_the_dataset_is_named(run, tmp_path, text):
    copy = shutil.copytree(run[0], tmp_path / "run")
    (copy / DATASET).write_text(text)
    with pytest.raises(UserError, match="does not describe the run's dataset"):
        load(copy)
