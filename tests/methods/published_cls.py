"""The loss of CLS as published, before it had switches: a frozen copy, to compare bits with.

`test_cls_switches.py` compares today's loss with it bit by bit, and with NumPy readings of the
paper. Do not change this copy along with today's loss: the values that it computes must stay.
"""

import jax
import jax.numpy as jnp

from cls_jax.methods.base import LossOutput
from cls_jax.methods.losses import negative_cross_entropy, positive_cross_entropy
from cls_jax.methods.pseudo_labels import make_pseudo_labels


def compute_loss(flags, params, batch_stats, batch, context):
    """The loss above. Signature after the flags: see `Method.compute_loss`."""
    ensemble, hparams = context.ensemble, context.hparams
    # One joint forward: BatchNorm statistics are those of labeled, weak and strong together.
    (logits_x, logits_weak, logits_strong), batch_stats = ensemble.forward_concatenated(
        params, batch_stats, (batch.x, *batch.u)
    )
    labels = make_pseudo_labels(logits_weak)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    if flags.reweight:
        self_weight = labels.weight
    else:
        self_weight = (labels.confidence >= hparams["threshold"]).astype(jnp.float32)
    loss_self = compute_labeling_loss(flags, logits_strong, labels, self_weight)
    losses = loss_supervised + hparams["lambda_self"] * loss_self
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        "monitors/confidence_weight": jnp.mean(labels.weight, axis=-1),
    }
    if not flags.exchange:
        monitors["monitors/mask_ratio"] = jnp.mean(self_weight > 0, axis=-1)
        return LossOutput(losses, batch_stats, monitors, labels.pseudo)
    # The paper writes w > τ, the authors' code w ≥ τ.
    is_sent = labels.weight >= hparams["tau"]
    co_weight = is_sent * (labels.weight if flags.reweight else 1.0)
    peer_labels, peer_weight = ensemble.exchange((labels, co_weight))
    loss_co = compute_labeling_loss(flags, logits_strong, peer_labels, peer_weight)
    monitors |= {
        "train/loss_co": loss_co,
        "monitors/exchange_ratio": jnp.mean(is_sent, axis=-1),
        "monitors/pseudo_label_overlap": jnp.mean(labels.pseudo == peer_labels.pseudo, axis=-1),
        "monitors/complementary_label_overlap": jnp.mean(
            labels.complementary == peer_labels.complementary, axis=-1
        ),
    }
    losses += hparams["lambda_co"] * loss_co
    return LossOutput(losses, batch_stats, monitors, labels.pseudo)


def compute_labeling_loss(flags, logits, labels, weight) -> jax.Array:
    """The mean over images of weight · (L_P + L_N), float32 [N] (Eq. 7-9).

    Logits are float32 [N, U, K], weights [N, U]; the labels may be another network's.
    """
    loss = positive_cross_entropy(logits, labels.pseudo)
    if flags.negative:
        loss += negative_cross_entropy(logits, labels.complementary)
    return jnp.mean(weight * loss, axis=-1)
