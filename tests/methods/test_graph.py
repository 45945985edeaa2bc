"""`method.graph`: labels from a graph of similar images as one more target.

On meshes and in resumed runs it is in `test_balanced_head.py`.
"""

import dataclasses

import numpy as np
import pytest

from cls_jax.methods import METHODS
from cls_jax.methods.losses import PseudoLabels
from tests.methods.oracles import K, forward_groups, softmax
from tests.methods.test_oracles import NUM_ROWS, compute_output, create_inputs


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
