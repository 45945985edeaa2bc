"""`method.graph`: labels from a graph of similar images as one more target."""

import dataclasses

import jax
import numpy as np
import pytest

from cls_jax.methods import METHODS
from cls_jax.methods.losses import PseudoLabels
from cls_jax.parallel.mesh import to_shardings
from cls_jax.training.loop import train
from tests.conftest import create_tiny_config, train_interrupted
from tests.methods.oracles import K, forward_groups, softmax
from tests.methods.test_oracles import NUM_ROWS, compute_output, create_inputs
from tests.outcomes import assert_close, describe_difference, read_end
from tests.training.test_step import Step


def draw_labels(num_networks, num_images, num_classes):
    rng = np.random.default_rng(0)
    shape = (num_networks, num_images)
    pseudo, complementary = rng.integers(0, num_classes, (2, *shape)).astype(np.int32)
    weight, confidence = rng.uniform(0, 2, (2, *shape)).astype(np.float32)
    return PseudoLabels(pseudo, complementary, weight, confidence)


@pytest.mark.parametrize("name", ["cls", "fixmatch"])
def test_graph_adds_a_fading_loss_on_the_strong_views(name):
    inputs = create_inputs(name, "random, equal groups")
    labels = draw_labels(METHODS[name].num_networks, NUM_ROWS, K)
    with_graph = dataclasses.replace(
        inputs, settings=inputs.settings | {"graph": 0.8}, state=(inputs.state, labels)
    )
    without, _ = compute_output(name, (), inputs, inputs.x, inputs.u)
    losses, (output, _) = compute_output(name, (), with_graph, inputs.x, inputs.u)
    assert output.method_state[1] is labels
    for n in range(len(losses)):
        [_, _, strong], _ = forward_groups(inputs, n)
        pseudo, complementary, weight, _ = (leaf[n, inputs.u_index] for leaf in labels)
        rows = zip(map(softmax, strong), pseudo, complementary, weight, strict=True)
        expected = np.mean([w * (-np.log(p[yes]) - np.log(1 - p[no])) for p, yes, no, w in rows])
        added = 0.8 * (1 - inputs.progress) * expected
        np.testing.assert_allclose(losses[n] - without[n], added, rtol=1e-4)
        np.testing.assert_allclose(output.monitors["train/loss_graph"][n], expected, rtol=1e-4)


def take_steps(mesh):
    config = create_tiny_config(method__graph=1.0)
    config.mesh.network, config.mesh.data = mesh
    step = Step(config)
    own, zeros = step.initial_state().method_state
    labels = jax.device_put(
        draw_labels(*zeros.pseudo.shape, 10),
        to_shardings(step.setup.mesh, step.setup.state_specs.method_state[1]),
    )
    return step.run(state=step.initial_state().replace(method_state=(own, labels)))


def test_graph_is_the_same_on_one_and_on_four_devices():
    (state, history), (expected_state, expected_history) = map(take_steps, [(2, 2), (1, 1)])
    assert all(monitors["train/loss_graph"] > 0 for monitors in expected_history)
    assert_close(history, expected_history, rtol=1e-3, atol=1e-5)
    assert_close(state.params, expected_state.params, rtol=1e-3, atol=1e-4)
    assert_close(state.method_state, expected_state.method_state, rtol=1e-3, atol=1e-4)


def test_a_run_with_a_graph_of_pixels_resumes_exactly(tmp_path):
    config = create_tiny_config(method__graph=1.0)
    train(config, tmp_path / "whole")
    train_interrupted(config, tmp_path / "resumed", 5)
    train(config, tmp_path / "resumed")
    assert not describe_difference(*(read_end(tmp_path / name) for name in ("whole", "resumed")))
