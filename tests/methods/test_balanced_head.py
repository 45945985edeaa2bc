"""`method.balanced_head`, and runs that have `method.graph` as well.

Its loss and gradients are among the variants of `test_oracles.py`, those of the graph are in
`test_graph.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import TrainingSplit
from cls_jax.config.from_folder import apply_settings
from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import choose_long_tail
from cls_jax.errors import UserError
from cls_jax.inference import export
from cls_jax.inference.classifier import load
from cls_jax.methods import METHODS, balanced_head
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.runs.folder import load_labeled_indices, read_result
from cls_jax.training import setup as setup_lib
from cls_jax.training import start
from cls_jax.training.loop import train
from cls_jax.training.setup import create_train_setup
from cls_jax.training.start import restore_run
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config, train_interrupted
from tests.methods.test_graph import draw_labels
from tests.methods.tiny_model import tiny_model
from tests.outcomes import assert_close, describe_difference, read_end

__all__ = ["tiny_model"]
pytestmark = pytest.mark.usefixtures("tiny_model")

FREQUENCIES = tuple(np.arange(10, 0, -1) / 55)
K = 4


def test_the_rarest_class_is_always_kept_and_the_others_as_often():
    shares = balanced_head.compute_shares([0.5, 0.3, 0.2, 0.0])
    np.testing.assert_allclose(shares, [0.4, 2 / 3, 1, 1], rtol=1e-6)
    assert shares[2] == shares[3] == 1
    assert balanced_head.compute_shares(np.arange(1, 8) / 28).max() == 1


def compute_loss(y, predicted, draw, progress):
    """Loss of one labeled and one confident unlabeled image, each of which costs log K."""
    flat, confident = jnp.zeros((1, 1, K)), 99 * jax.nn.one_hot(jnp.array([[predicted]]), K)
    shares, draws = jnp.array([[1, 0.5, 0.25, 0.1]]), jnp.array([draw])
    logits = flat, confident, flat
    loss = balanced_head.compute_loss(logits, jnp.array([y]), shares, (draws, draws), progress)
    return float(loss[0]) / np.log(K)


@pytest.mark.parametrize(
    ("y", "predicted", "draw", "progress", "num_kept"),
    [
        (0, 0, np.nextafter(np.float32(1), np.float32(0)), 0.99, 2),  # The rarest class.
        (1, 1, 0.51, 0.0, 1),  # All pseudo-labels count at the start, not all labels.
        (3, 1, 0.51, 0.5, 1),  # A share of 1 - 0.5 · (1 - 0.5) = 0.75.
        (3, 1, 0.76, 0.5, 0),
        (3, 3, 0.11, 1.0, 0),  # In the end as many as of the labels.
        (3, 3, 0.09, 1.0, 2),
    ],
)
def test_frequent_classes_are_thinned_out(y, predicted, draw, progress, num_kept):
    assert compute_loss(y, predicted, draw, progress) == pytest.approx(num_kept)


def test_a_label_without_confidence_teaches_nothing():
    flat = jnp.zeros((1, 1, K))
    arguments = jnp.array([3]), jnp.array([[1, 1, 1, 0.1]]), jnp.full((2, 1), 0.5), 0.0
    assert balanced_head.compute_loss((flat, flat, flat), *arguments) == 0


def take_steps(mesh):
    """Monitors of two steps, and the state after them, of unequal classes, with a graph."""
    config = create_tiny_config(method__balanced_head=True, method__graph=1.0)
    config.mesh.network, config.mesh.data = mesh
    split = TrainingSplit(FREQUENCIES, DATASET_SPEC.num_images)
    setup = create_train_setup(config, DATASET_SPEC, split=split)
    state = setup.init_state()
    own, zeros = state.method_state
    shardings = to_shardings(setup.mesh, setup.state_specs.method_state[1])
    labels = jax.device_put(draw_labels(*zeros.pseudo.shape, 10), shardings)
    state = state.replace(method_state=(own, labels))
    step, history = create_train_step(setup), []
    for seed in range(2):
        batch = create_raw_batch(config, seed=seed)
        state, monitors = step(state, jax.device_put(batch, to_shardings(setup.mesh, BATCH_SPECS)))
        history.append({key: float(value) for key, value in monitors.items()})
    return history, jax.device_get(state)


def test_the_loss_does_not_depend_on_the_number_of_devices():
    (history, state), (expected_history, expected) = take_steps((2, 2)), take_steps((1, 1))
    for monitors, wanted in zip(history, expected_history, strict=True):
        assert wanted["train/loss_balanced"] > 0
        assert wanted["train/loss_graph"] > 0
        assert monitors == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    assert_close(state.params, expected.params, rtol=1e-3, atol=1e-4)
    assert_close(state.method_state, expected.method_state, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model):
    """A finished run of CLS with unequal classes and a graph of pixels, and its configuration."""
    config = create_tiny_config(
        method__balanced_head=True, data__imbalance=10.0, data__pipeline="device"
    )
    config.method.graph = 1.0
    workdir = tmp_path_factory.mktemp("balanced") / "whole"
    train(config, workdir)
    return config, workdir


def test_a_run_resumes_exactly(run, tmp_path):
    config, whole = run
    train_interrupted(config, tmp_path, 5)
    train(config, tmp_path)
    assert not describe_difference(read_end(tmp_path), read_end(whole))


def test_a_run_counts_its_labels(run):
    config, workdir = run
    dataset, (_, state, _) = load_dataset(config), restore_run(workdir)
    labeled = load_labeled_indices(workdir, dataset, 20, config.seed, 10.0)
    counts = np.bincount(dataset.train_labels[labeled])
    (_, shares), labels = state.method_state
    used = choose_long_tail(dataset.train_labels, 10, 10.0, config.seed)
    assert np.mean(labels.weight[:, used]) == pytest.approx(1, rel=1e-4)
    np.testing.assert_allclose(shares, np.tile(counts.min() / counts, (2, 1)), rtol=1e-6)
    assert counts.max() > counts.min()


def test_the_balanced_head_predicts_everywhere(run, monkeypatch):
    """In evaluation, prediction and export, which all read the same head, and to other runs."""
    config, workdir = run
    setup, state, _ = restore_run(workdir)
    dataset = load_dataset(config)
    images, labels = dataset.test_images, dataset.test_labels

    def predict(head):
        logits, _ = setup.ensemble.forward(
            state.ema_params, state.batch_stats, setup.normalize(images), train=False, head=head
        )
        return np.asarray(jax.nn.softmax(logits))

    expected = predict("head")
    assert np.abs(expected - predict(METHOD_HEAD)).max() > 0.01
    np.testing.assert_allclose(load(workdir).predict_probabilities(images), expected, atol=1e-5)
    monkeypatch.setattr(export, "create_model", setup_lib.create_model)
    exported = export.create_function(load(workdir))(images)
    np.testing.assert_allclose(exported, expected.mean(axis=0), atol=1e-5)
    accuracy = 100 * np.mean(expected[0].argmax(axis=-1) == labels)
    assert read_result(workdir)["test_accuracy"] == pytest.approx(accuracy)
    monkeypatch.setattr(start, "to_torch", lambda variables, layout: variables["params"])
    weights = start.collect_weights(setup, state).arrays
    assert set(weights) == set(state.params) - {METHOD_HEAD}
    np.testing.assert_array_equal(weights["head"]["kernel"], state.ema_params["head"]["kernel"][0])


def test_without_it_a_state_has_what_it_had():
    setup = create_train_setup(create_tiny_config(), DATASET_SPEC)
    assert METHOD_HEAD not in setup.state_shapes.params
    assert setup.state_shapes.method_state == ()


@pytest.mark.parametrize("name", METHODS)
def test_methods_without_a_loss_on_strong_views_refuse_it(name):
    config, method = create_tiny_config(f"20,{name}"), METHODS[name]
    is_on_classes = method.loss is not None and method.extra_heads is None
    if is_on_classes and {"weak", "strong"} <= {*method.unlabeled_views}:
        apply_settings(config, {"method.balanced_head": True})
    else:
        with pytest.raises(UserError, match=r"has no key method\.balanced_head"):
            apply_settings(config, {"method.balanced_head": True})
