"""CLS and the rows of Table 2 against a NumPy reading of the paper, image by image."""

import functools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from cls_jax.batch import Batch
from cls_jax.methods import METHODS, Context
from cls_jax.models.ensemble import Ensemble

K, B, U = 5, 6, 40
# Row of Table 2 → (two networks, complementary labels, weights).
TABLE_2 = {
    "fixmatch": (False, False, False),
    "fixmatch_nl": (False, True, False),
    "fixmatch_rw": (False, False, True),
    "fixmatch_nl_rw": (False, True, True),
    "cls_no_nl": (True, False, True),
    "cls_no_rw": (True, True, False),
    "cls": (True, True, True),
}


class GivenLogits(Ensemble):
    """Networks whose parameters are the logits: what remains is the loss."""

    def forward(self, params, batch_stats, images, **kwargs):
        return params, batch_stats


def create_context(name, **hparams):
    method = METHODS[name]
    defaults = {key: hp.default for key, hp in method.hyperparameters.items()}
    return Context(
        ensemble=GivenLogits(model=None),
        hparams=ml_collections.ConfigDict({"name": name, **defaults, **hparams}),
        ema_params=None,
        method_state=(),
        key=jax.random.key(0),
        progress=jnp.zeros(()),
    )


def create_inputs(name, seed=0, scale=3.0):
    """Logits [N, B + 2U, K], some confident, and the batch they belong to."""
    rng = np.random.default_rng(seed)
    num_networks = METHODS[name].num_networks
    logits = rng.normal(0, scale, (num_networks, B + 2 * U, K)).astype(np.float32)
    batch = Batch(
        x=jnp.zeros((B, 2, 2, 1)),
        y=jnp.asarray(rng.integers(0, K, B)),
        u=jnp.zeros((2, U, 2, 2, 1)),
        u_index=jnp.arange(U),
    )
    return logits, batch


def compute_output(name, logits, batch, **hparams):
    context = create_context(name, **hparams)
    return METHODS[name].compute_loss(jnp.asarray(logits), {}, batch, context)


def read_paper(logits, y, exchange, negative, reweight, hparams):
    """The losses of all networks, by loops in double precision; w ≥ τ as in the authors' code."""
    logits = logits.astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    x, weak, strong = p[:, :B], p[:, B : B + U], p[:, B + U :]
    entropy = -(weak * np.log(weak)).sum(-1)
    w = 1 - entropy / np.log(K)

    def label_loss(f, q):  # L_P + L_N for one image: f on its strong view, labels from q.
        loss = -np.log(f[q.argmax()])
        if negative:
            loss += -np.log(max(1 - f[q.argmin()], 1e-7))
        return loss

    losses = []
    for a in range(len(logits)):
        loss = -np.mean([np.log(x[a, i, y[i]]) for i in range(B)])
        for i in range(U):
            own = w[a, i] if reweight else float(weak[a, i].max() >= hparams["threshold"])
            loss += hparams["lambda_self"] * own * label_loss(strong[a, i], weak[a, i]) / U
            if exchange:
                b = 1 - a
                sent = float(w[b, i] >= hparams["tau"]) * (w[b, i] if reweight else 1.0)
                loss += hparams["lambda_co"] * sent * label_loss(strong[a, i], weak[b, i]) / U
        losses.append(loss)
    return losses


@pytest.mark.parametrize("name", TABLE_2)
def test_loss_equals_a_numpy_reading_of_the_paper(name):
    logits, batch = create_inputs(name)
    context = create_context(name)
    expected = read_paper(logits, np.asarray(batch.y), *TABLE_2[name], context.hparams)
    output = compute_output(name, logits, batch)
    np.testing.assert_allclose(output.losses, expected, rtol=1e-4)


@pytest.mark.parametrize("name", TABLE_2)
def test_row_has_the_networks_and_hyperparameters_of_table_2(name):
    exchange, _, reweight = TABLE_2[name]
    method = METHODS[name]
    assert method.num_networks == (2 if exchange else 1)
    assert ("tau" in method.hyperparameters) == exchange
    assert ("threshold" in method.hyperparameters) == (not reweight)


def test_gradient_of_one_networks_loss_in_the_other_is_exactly_zero():
    logits, batch = create_inputs("cls")

    def loss_of(i, logits):
        return compute_output("cls", logits, batch).losses[i]

    for i in range(2):
        gradient = jax.grad(functools.partial(loss_of, i))(jnp.asarray(logits))
        assert np.any(gradient[i] != 0)
        np.testing.assert_array_equal(gradient[1 - i], 0)


def test_no_gradient_flows_through_the_weak_views():
    logits, batch = create_inputs("cls")
    gradient = jax.grad(lambda z: compute_output("cls", z, batch).losses.sum())(jnp.asarray(logits))
    np.testing.assert_array_equal(gradient[:, B : B + U], 0)
    assert np.any(gradient[:, B + U :] != 0)


def test_networks_learn_from_each_others_labels_not_their_own():
    logits, batch = create_inputs("cls")
    labels = np.asarray(compute_output("cls", logits, batch).pseudo_labels)
    assert np.any(labels[0] != labels[1])
    other = logits.copy()
    other[1, B : B + U] = logits[1, B : B + U, ::-1]  # Network 2 changes its mind.
    before = compute_output("cls", logits, batch).losses
    after = compute_output("cls", other, batch).losses
    assert before[0] != after[0]
    alone = compute_output("cls", logits, batch, lambda_co=0.0).losses
    alone_after = compute_output("cls", other, batch, lambda_co=0.0).losses
    assert alone[0] == alone_after[0]


@pytest.mark.parametrize(("tau", "ratio"), [(0.0, 1.0), (1.0, 0.0)])
def test_tau_decides_how_much_is_exchanged(tau, ratio):
    logits, batch = create_inputs("cls")
    output = compute_output("cls", logits, batch, tau=tau)
    np.testing.assert_array_equal(output.monitors["monitors/exchange_ratio"], ratio)
    assert np.all((np.asarray(output.monitors["train/loss_co"]) > 0) == (ratio > 0))


def test_overlap_monitors_are_shares_of_equal_labels():
    logits, batch = create_inputs("cls")
    weak = logits[:, B : B + U]
    monitors = compute_output("cls", logits, batch).monitors
    pseudo = np.mean(weak[0].argmax(-1) == weak[1].argmax(-1))
    complementary = np.mean(weak[0].argmin(-1) == weak[1].argmin(-1))
    np.testing.assert_allclose(monitors["monitors/pseudo_label_overlap"], pseudo)
    np.testing.assert_allclose(monitors["monitors/complementary_label_overlap"], complementary)


@pytest.mark.parametrize("name", TABLE_2)
def test_loss_and_gradient_stay_finite_for_saturated_networks(name):
    logits, batch = create_inputs(name, scale=300.0)
    loss, gradient = jax.value_and_grad(lambda z: compute_output(name, z, batch).losses.sum())(
        jnp.asarray(logits)
    )
    assert np.isfinite(loss)
    assert np.all(np.isfinite(gradient))
