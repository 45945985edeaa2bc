"""The exchange of labels between the two networks of CLS."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from cls_jax.methods.alignment import scale_by_class
from cls_jax.methods.base import Context, Hyperparameter
from cls_jax.methods.pseudo_labels import PseudoLabels

MAX_TAU = 0.95  # Caps an adaptive τ: networks that are almost always certain would send too little.

# Hyperparameters of the methods in which two networks exchange labels.
EXCHANGE_HYPERPARAMETERS = {
    "lambda_self": Hyperparameter(2.0, 0.0, 1e3, "paper, λ1; authors' --lambda-u1"),
    "lambda_co": Hyperparameter(1.0, 0.0, 1e3, "paper, λ2; authors' --lambda-u2"),
    "tau": Hyperparameter(0.85, 0.0, 1.0, "paper, τ; authors' --threshold"),
}


def exchange_labels(
    context: Context,
    hparams: Mapping[str, Any],
    labels: PseudoLabels,
    weight: jax.Array | float,
    state: Any,
) -> tuple[PseudoLabels, jax.Array, dict[str, jax.Array]]:
    """Sends labels to the other network and receives its labels.

    Args:
        context: of the step.
        hparams: all hyperparameters, switches included.
        labels: of the networks on this device.
        weight: float32 [N, U], the weights of labels that are sent, or 1 for all.
        state: the method's state after this step's labels.

    Returns:
        The other network's labels; their weights, float32 [N, U], 0 for labels that were not sent
        or not accepted; and monitors.
    """
    is_sent = choose_sent(hparams, labels, state)
    peer_labels, peer_weight = context.ensemble.exchange((labels, is_sent * weight))
    monitors = {
        "monitors/exchange_ratio": jnp.mean(is_sent, axis=-1),
        "monitors/pseudo_label_overlap": jnp.mean(labels.pseudo == peer_labels.pseudo, axis=-1),
        "monitors/complementary_label_overlap": jnp.mean(
            labels.complementary == peer_labels.complementary, axis=-1
        ),
    }
    if hparams["adaptive_tau"] == "on":
        monitors["monitors/threshold"] = jnp.minimum(state["confidence"], MAX_TAU)
    if hparams["exchange_rule"] != "all":
        peer_weight *= choose_received(hparams["exchange_rule"], labels, peer_labels)
        monitors["monitors/received_ratio"] = jnp.mean(peer_weight > 0, axis=-1)
    return peer_labels, peer_weight, monitors


def choose_sent(hparams: Mapping[str, Any], labels: PseudoLabels, state: Any) -> jax.Array:
    """Which labels go to the other network, bool [N, U].

    w ≥ τ, as in the authors' code (the paper writes >). An adaptive τ is FreeMatch's threshold on
    CLS's weight: min(mean w, .95) · p̃(label) / max p̃.
    """
    if hparams["adaptive_tau"] == "off":
        return labels.weight >= hparams["tau"]
    tau = jnp.minimum(state["confidence"], MAX_TAU)
    return labels.weight >= scale_by_class(tau, state["predicted"], labels.pseudo)


def choose_received(rule: str, own: PseudoLabels, peer: PseudoLabels) -> jax.Array:
    """Which of the other network's labels to learn, bool [N, U].

    "agree" takes labels that are also one's own, "surer" also those that the other network is more
    certain of: two certain networks that disagree would otherwise swap their mistakes.
    """
    agrees = own.pseudo == peer.pseudo
    return agrees | (peer.weight > own.weight) if rule == "surer" else agrees
