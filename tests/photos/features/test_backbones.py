"""The table of pretrained networks, and labels inferred by several of them."""

import numpy as np
import pytest

from cls_jax.config import create_defaults, with_values
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.weights.backbones import BACKBONES, BUILTIN, HUB, Package
from cls_jax.models.weights.layout import Weights
from cls_jax.photos.features import extract
from cls_jax.photos.features.backbones import (
    DEFAULT_BACKBONES,
    Backbones,
    format_backbones,
)
from cls_jax.photos.features.infer import hold_out_labels, infer
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.plan.plan import Request

LITE0, LITE2 = (f"{BUILTIN}efficientnet_lite{i}" for i in (0, 2))
NUM_CLASSES = 4


def create_features(rng, labels_B, noise):
    """Clusters around the centers of classes."""
    centers_KC = rng.normal(size=(NUM_CLASSES, 16))
    rows = (centers_KC[labels_B] + noise * rng.normal(size=(len(labels_B), 16))).astype(np.float32)
    return FrozenFeatures(rows, rows / np.linalg.norm(rows, axis=1, keepdims=True), rows[:, :8])


@pytest.fixture
def images():
    """True classes, those that are known, and features of a good and of a useless network."""
    rng = np.random.default_rng(0)
    truth = np.tile(np.arange(NUM_CLASSES), 60)
    known = np.where(np.arange(len(truth)) < 8 * NUM_CLASSES, truth, -1)
    return truth, known, create_features(rng, truth, 0.7), create_features(rng, truth * 0, 1.0)


def test_every_row_is_an_architecture_and_a_package():
    for init, row in BACKBONES.items():
        if isinstance(row.origin, Package):
            assert init.removeprefix(BUILTIN) == row.name
        else:
            assert init.startswith(HUB)
        assert row.name in MODELS
        assert not row.partner or row.partner in BACKBONES
    table = format_backbones().splitlines()
    assert len(table) == 2 + len(BACKBONES)
    assert "Apache-2.0" in table[1]


def test_names_become_the_trained_network_and_the_others():
    assert Backbones.read("") == DEFAULT_BACKBONES == Backbones(LITE0)
    assert DEFAULT_BACKBONES.to_arguments() == []
    assert Backbones.read("efficientnet_lite0") == Backbones(LITE0, is_chosen=True)
    both = Backbones.read(f"{LITE2}, efficientnet_lite0")
    assert both == Backbones(LITE2, (LITE0,), is_chosen=True)
    assert both.inits == (LITE2, LITE0)
    assert both.to_arguments() == ["--backbone", "efficientnet_lite2,efficientnet_lite0"]
    assert Backbones.read(both.to_arguments()[1]) == both
    assert both.to_settings() == {"model.init": LITE2, "model.inferred_by": LITE0}
    config = with_values(create_defaults(20, "cls"), both.to_settings())
    assert Backbones.of(config.model) == both
    Backbones("a.safetensors", (LITE0,)).check()  # The first one may be any weights.


def test_sentences_say_what_each_network_does():
    one, two = Backbones(LITE0), Backbones(LITE2, (LITE0,))
    assert one.describe_others() == one.describe_chooser() == ""
    assert one.describe() == "The classifier sees photos with EfficientNet-Lite0."
    assert two.describe() == (
        "The classifier sees photos with EfficientNet-Lite2; labels are inferred with "
        "EfficientNet-Lite0, too."
    )


@pytest.mark.parametrize(
    ("read", "remedy"),
    [
        (
            lambda: Backbones.read("efficientnet_lite0,resnet18"),
            "no backbone 'resnet18': choose from efficientnet_lite0",
        ),
        (Backbones(LITE0, (LITE2, "hf:a/b")).check, "no backbone 'hf:a/b'"),
        (
            Backbones(LITE0, ("efficientnet_lite2",)).check,
            "no backbone 'efficientnet_lite2': choose from builtin:",
        ),
        (Backbones(LITE0, (LITE2, LITE2)).check, "named twice"),
        (
            Request("x", start_from="runs/a", backbone="efficientnet_lite0").read_settings,
            "--from and --backbone both choose the weights",
        ),
    ],
)
def test_other_networks_are_of_the_table_and_named_once(read, remedy):
    with pytest.raises(UserError, match=remedy):
        read()


def test_a_network_beside_itself_changes_nothing_without_held_out_labels(images):
    truth, _, good, _ = images
    labels = np.where(np.arange(len(truth)) < NUM_CLASSES, truth, -1)  # One per class.
    alone = infer(Relations(good), labels, NUM_CLASSES)
    doubled = infer(Relations(good._replace(others=(good,))), labels, NUM_CLASSES)
    np.testing.assert_allclose(doubled.probabilities, alone.probabilities, atol=1e-5)
    assert doubled.figures["weight_others"] == pytest.approx(50)
    assert "weight_others" not in alone.figures


def test_held_out_labels_weigh_networks(images):
    truth, known, good, useless = images
    accuracies, weights = {}, {}
    for name, features in {
        "good": good,
        "useless": useless,
        "good first": good._replace(others=(useless,)),
        "useless first": useless._replace(others=(good,)),
    }.items():
        inferred = infer(Relations(features), known, NUM_CLASSES)
        accuracies[name] = np.mean(inferred.labels[known < 0] == truth[known < 0])
        weights[name] = inferred.figures.get("weight_others")
    assert weights["useless first"] > 50 > weights["good first"]
    assert accuracies["useless"] < 0.5
    for both in ("good first", "useless first"):
        assert accuracies[both] > accuracies["good"] - 0.03
    held_out = hold_out_labels(Relations(useless._replace(others=(good,))), known, NUM_CLASSES)
    right = held_out.probabilities.argmax(axis=1)[known >= 0] == truth[known >= 0]
    assert right.mean() > 0.8


def test_several_networks_see_images_of_one_size(monkeypatch):
    """Weights and features are made up: compiling a network takes seconds."""
    progress = []

    def extract_features(files, network, report, images):
        for done in (1, 2):
            report(done, 2)
        rows = np.full((len(files), 3), len(network.name), np.float16)
        return FrozenFeatures(rows, rows, rows)

    monkeypatch.setattr(extract, "read_init", lambda init: Weights({}))
    monkeypatch.setattr(extract, "extract_features", extract_features)
    networks = extract.read_backbones([LITE2, LITE0], channels=1)
    assert [(each.image_size, each.channels) for each in networks] == [(260, 1)] * 2
    assert {each.image_size for each in extract.read_backbones([LITE0, LITE2], 96)} == {96}
    found = extract.extract_all_features(
        ["a", "b"], networks, lambda *counts: progress.append(counts)
    )
    assert len(found.others) == 1
    assert {total for _, total in progress} == {2}
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    assert progress[-1] == (2, 2)
