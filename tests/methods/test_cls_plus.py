"""`cls_plus` against a NumPy reading of its formulas."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods.cls import exchange_labels
from cls_jax.methods.labeling import PseudoLabels
from tests.methods import oracles_rules
from tests.methods.rule_cases import (
    KINDS,
    B,
    GivenLogits,
    U,
    compile_loss,
    compute_output,
    create_batch,
    create_hparams,
    create_logits,
    create_state,
    init_state,
    to_case,
)

VARIANTS = [
    {},
    {"tau": 0.3},
    {"lambda_cutmix": 0.0},
    {"lambda_cutmix": 0.7, "tau": 0.3, "statistics_decay": 0.2},
]


def create_pair(kind):
    """Logits of two networks, which share only some opinions."""
    logits = np.stack([create_logits(kind, network) for network in range(2)])
    logits[1, B : B + U // 2] = logits[0, B : B + U // 2]
    return logits


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-9), (False, 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(changes) or "default")
def test_losses_and_state_equal_a_numpy_reading(changes, kind, x64, tolerance):
    logits, batch = create_pair(kind), create_batch(2)
    state = create_state("cls_plus", kind, **changes)
    output = compute_output("cls_plus", logits, state, batch, x64=x64, **changes)
    cases = [to_case(network, batch) for network in logits]
    states = [{leaf: value[b] for leaf, value in state.items()} for b in range(2)]
    hparams = create_hparams("cls_plus", **changes)
    losses, labels, new_states = oracles_rules.cls_plus(cases, states, hparams)
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(output.losses, losses, **close)
    np.testing.assert_array_equal(output.pseudo_labels, labels)
    assert set(output.method_state) == set(new_states[0])
    for b, new_state in enumerate(new_states):
        for leaf, value in new_state.items():
            np.testing.assert_allclose(output.method_state[leaf][b], value, **close, err_msg=leaf)


def test_a_weight_that_just_reaches_the_threshold_is_sent():
    weight = np.float32([[0.25, 0.5, 0.75], [0.5, 0.25, 0.5]])
    labels = PseudoLabels(np.int32(weight > 0.5), np.int32(weight < 0.5), weight, weight)
    context = types.SimpleNamespace(ensemble=GivenLogits(model=None), hparams={"tau": 0.5})
    _, received, monitors = exchange_labels(context, labels, labels.weight)
    np.testing.assert_array_equal(received, [[0.5, 0, 0.5], [0, 0.5, 0.75]])
    np.testing.assert_allclose(monitors["monitors/exchange_ratio"], [2 / 3, 2 / 3])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_and_come_from_neither_state_nor_weak_views(kind):
    state, batch = create_state("cls_plus", kind), create_batch(2)
    state, batch = jax.tree.map(jnp.asarray, (state, batch))

    def compute(logits):
        output = compile_loss("cls_plus", False, ())(logits, state, batch, jnp.float32(0.3))
        return sum(map(jnp.sum, jax.tree.leaves(output.method_state))), output.losses.sum()

    state_gradient, loss_gradient = jax.jacrev(compute)(jnp.asarray(create_pair(kind), jnp.float32))
    np.testing.assert_array_equal(state_gradient, 0)
    np.testing.assert_array_equal(loss_gradient[:, B : B + U], 0)
    assert np.all(np.isfinite(loss_gradient))


def test_alignment_starts_at_the_class_frequencies_of_the_labels():
    state = init_state("cls_plus", [0.5, 0.2, 0.1, 0.15, 0.05])
    np.testing.assert_array_equal(state["target"], state["predicted"])
