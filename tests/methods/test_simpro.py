"""What SimPro makes of class frequencies over many steps, with a classifier that does not learn."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import Batch, DatasetSpec
from cls_jax.methods import METHODS, Context

TRUTH = np.array([0.6, 0.25, 0.1, 0.05])
K, NUM_STEPS, B, U = len(TRUTH), 300, 8, 32
ENSEMBLE = types.SimpleNamespace(sum_over_data=lambda value: value)


@functools.partial(jax.jit, static_argnames="tau")
def advance(state, step, logits, y, tau):
    hparams = {name: value.default for name, value in METHODS["simpro"].hyperparameters.items()}
    context = Context(ENSEMBLE, hparams | {"tau": tau}, None, state, None, step / NUM_STEPS)
    batch = Batch(x=jnp.zeros(0), y=y, u=jnp.zeros(0), u_index=jnp.zeros(0, int))
    return METHODS["simpro"].loss([logits[:, :B], logits[:, B:], logits[:, B:]], batch, context)


def estimate(tau, labels):
    """Frequencies after a run on four Gaussians, with the logits of equally frequent classes."""
    spec, rng = DatasetSpec((1, 1, 1), K, 0, 0, tuple(labels)), np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: leaf[None], METHODS["simpro"].create_state({}, spec))
    for step in range(NUM_STEPS):
        y, u = rng.choice(K, B, p=labels), rng.choice(K, U, p=TRUTH)
        points = 3 * np.eye(K)[np.append(y, u)] + rng.normal(size=(B + U, K))
        logits = jnp.asarray(3 * points[None], jnp.float32)
        state = advance(state, step, logits, y, tau).method_state
    return np.asarray(state["unlabeled"][0]), np.asarray(state["all"][0])


@pytest.mark.parametrize("labels", [TRUTH, np.full(K, 0.25), TRUTH[::-1]])
def test_frequencies_of_unlabeled_images_are_found_whatever_those_of_the_labels(labels):
    unlabeled, everything = estimate(METHODS["simpro"].hyperparameters["tau"].default, labels)
    np.testing.assert_allclose(unlabeled, TRUTH, atol=0.06)
    np.testing.assert_allclose(everything, (B * labels + U * TRUTH) / (B + U), atol=0.06)
