"""CLS, FixMatch and the rows between them: one loss with flags (the paper's Table 2).

Each network b labels the weak views; its labels teach strong views, its own (self-labelling) and,
with two networks, the other network's (co-labelling):

    L^b = L_sup + λ_self · mean(w_self · (L_P + [L_N])) + λ_co · mean(w_co · (L_P' + [L_N']))

with L_P, L_N the cross-entropies to b's own pseudo and complementary labels (Eq. 7, 8), and L_P',
L_N' those to the other's. Means run over all unlabelled images, masked ones too (Eq. 13-15).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, LossOutput, Method, PyTree
from cls_jax.methods.losses import negative_cross_entropy, positive_cross_entropy
from cls_jax.methods.pseudo_labels import PseudoLabels, make_pseudo_labels


@dataclasses.dataclass(frozen=True)
class AblationFlags:
    """In what a row of Table 2 differs from its neighbours.

    Attributes:
        exchange: train two networks that also learn from each other's labels.
        negative: learn from complementary labels as well ("NL").
        reweight: weigh labels with w ("RW"), else with masks: 1[max p ≥ threshold] for own
            labels, 1[w ≥ τ] for sent ones. The paper does not define its rows without RW.
    """

    exchange: bool
    negative: bool
    reweight: bool


def compute_loss(
    flags: AblationFlags, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> LossOutput:
    """The loss above. Signature after the flags: see `Method.compute_loss`."""
    ensemble, hparams = context.ensemble, context.hparams
    # One joint forward: BatchNorm statistics are those of labelled, weak and strong together.
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


def compute_labeling_loss(
    flags: AblationFlags, logits: jax.Array, labels: PseudoLabels, weight: jax.Array
) -> jax.Array:
    """The mean over images of weight · (L_P + L_N), float32 [N] (Eq. 7-9).

    Logits are float32 [N, U, K], weights [N, U]; the labels may be another network's.
    """
    loss = positive_cross_entropy(logits, labels.pseudo)
    if flags.negative:
        loss += negative_cross_entropy(logits, labels.complementary)
    return jnp.mean(weight * loss, axis=-1)


def create_method(exchange: bool, negative: bool, reweight: bool) -> Method:
    """Builds a row of Table 2 with only the hyper-parameters that it uses."""
    if exchange:
        hyperparameters = {
            "lambda_self": Hyperparameter(2.0, 0.0, 1e3, "paper, λ1; authors' --lambda-u1"),
            "lambda_co": Hyperparameter(1.0, 0.0, 1e3, "paper, λ2; authors' --lambda-u2"),
            "tau": Hyperparameter(0.85, 0.0, 1.0, "paper, τ; authors' --threshold"),
        }
    else:
        hyperparameters = {"lambda_self": Hyperparameter(1.0, 0.0, 1e3, "FixMatch, λ_u")}
    if not reweight:
        hyperparameters["threshold"] = Hyperparameter(0.95, 0.0, 1.0, "FixMatch, τ")
    return Method(
        functools.partial(compute_loss, AblationFlags(exchange, negative, reweight)),
        hyperparameters=hyperparameters,
        num_networks=2 if exchange else 1,
        mu=8 if exchange else 7,  # Paper's and authors' μ for CLS; FixMatch's own.
    )


METHODS = {
    "cls": create_method(exchange=True, negative=True, reweight=True),
    "cls_no_nl": create_method(exchange=True, negative=False, reweight=True),
    "cls_no_rw": create_method(exchange=True, negative=True, reweight=False),
    "fixmatch": create_method(exchange=False, negative=False, reweight=False),
    "fixmatch_nl": create_method(exchange=False, negative=True, reweight=False),
    "fixmatch_rw": create_method(exchange=False, negative=False, reweight=True),
    "fixmatch_nl_rw": create_method(exchange=False, negative=True, reweight=True),
}
