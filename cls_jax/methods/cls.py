"""CLS, FixMatch and the rows between them: one loss with flags (the paper's Table 2).

Each network b labels the weak views. Its labels are targets for its own predictions of the strong
views (self-labeling) and, with two networks, for the other network's (co-labeling):

    L^b = L_sup + λ_self · mean(w_self · (L_P + [L_N])) + λ_co · mean(w_co · (L_P' + [L_N']))

with L_P, L_N the cross-entropies to b's own pseudo and complementary labels (Eq. 7, 8), and L_P',
L_N' those to the other's. Means run over all unlabeled images, masked ones too (Eq. 13-15).
"""

import dataclasses
import functools

import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods import cls_switches as switches
from cls_jax.methods.base import (
    Context,
    Hyperparameter,
    LossOutput,
    Method,
    PyTree,
    no_state,
    with_defaults,
)
from cls_jax.methods.cls_exchange import EXCHANGE_HYPERPARAMETERS, exchange_labels
from cls_jax.methods.cutmix import cutmix_loss
from cls_jax.methods.losses import compute_labeling_loss, positive_cross_entropy


@dataclasses.dataclass(frozen=True)
class AblationFlags:
    """How a row of Table 2 differs from its neighbors.

    Attributes:
        exchange: train two networks that also learn from each other's labels.
        negative: learn from complementary labels too ("NL").
        reweight: weight labels by w ("RW"), otherwise by masks: 1[max p ≥ threshold] for own
            labels, 1[w ≥ τ] for exchanged ones. The paper does not define its rows without RW.
    """

    exchange: bool
    negative: bool
    reweight: bool


def compute_loss(
    flags: AblationFlags, params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> LossOutput:
    """The loss above. Signature after the flags: see `Method.compute_loss`."""
    hparams = switches.read_hyperparameters(context.hparams)
    mixes = switches.mix_views(context, hparams, batch)
    groups = (batch.x, *batch.u, *(mix.images for mix in mixes))
    logits, batch_stats = switches.forward(context, hparams, params, batch_stats, groups)
    logits_x, logits_weak, logits_strong, *logits_mix = logits
    labels, state, state_monitors = switches.make_labels(context, hparams, logits_weak)
    weight = switches.scale_weight(hparams, labels.weight)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    self_weight = weight
    if not flags.reweight:
        self_weight = (labels.confidence >= hparams["threshold"]).astype(jnp.float32)
    loss_self = compute_labeling_loss(logits_strong, labels, self_weight, flags.negative)
    ramp = switches.ramp_unlabeled(hparams, context.progress)
    losses = loss_supervised + hparams["lambda_self"] * ramp * loss_self
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        "monitors/confidence_weight": jnp.mean(labels.weight, axis=-1),
        **state_monitors,
    }
    if not flags.exchange:
        monitors["monitors/mask_ratio"] = jnp.mean(self_weight > 0, axis=-1)
        return LossOutput(losses, batch_stats, monitors, labels.pseudo)
    peer_labels, peer_weight, exchange_monitors = exchange_labels(
        context, hparams, labels, weight if flags.reweight else 1.0, state
    )
    loss_co = compute_labeling_loss(logits_strong, peer_labels, peer_weight, flags.negative)
    losses += hparams["lambda_co"] * ramp * loss_co
    monitors |= {"train/loss_co": loss_co, **exchange_monitors}
    for mix, logits_m in zip(mixes, logits_mix, strict=True):
        loss_cutmix = cutmix_loss(mix, logits_m, labels.pseudo, self_weight)
        loss_cutmix += cutmix_loss(mix, logits_m, peer_labels.pseudo, peer_weight)
        losses += hparams["lambda_cutmix"] * ramp * loss_cutmix
        monitors["train/loss_cutmix"] = loss_cutmix
    return LossOutput(losses, batch_stats, monitors, labels.pseudo, state)


def create_method(exchange: bool, negative: bool, reweight: bool, **preset: float | str) -> Method:
    """Builds a row of Table 2 with the hyperparameters that it uses, some with other defaults."""
    lambda_self = Hyperparameter(1.0, 0.0, 1e3, "FixMatch, λ_u")
    hyperparameters = {"lambda_self": lambda_self, "weak_pass": switches.WEAK_PASS}
    if exchange:
        hyperparameters = EXCHANGE_HYPERPARAMETERS | switches.SWITCHES
    if not reweight:
        hyperparameters.pop("weight_power", None)
        hyperparameters["threshold"] = Hyperparameter(0.95, 0.0, 1.0, "FixMatch, τ")
    return Method(
        functools.partial(compute_loss, AblationFlags(exchange, negative, reweight)),
        hyperparameters=with_defaults(hyperparameters, preset),
        num_networks=2 if exchange else 1,
        mu=8 if exchange else 7,  # Paper's and authors' μ for CLS; FixMatch's own.
        init_state=switches.init_state if exchange else no_state,
    )


METHODS = {
    "cls": create_method(exchange=True, negative=True, reweight=True),
    "cls_plus": create_method(True, True, True, align="joint", lambda_cutmix=1.0),
    "cls_no_nl": create_method(exchange=True, negative=False, reweight=True),
    "cls_no_rw": create_method(exchange=True, negative=True, reweight=False),
    "fixmatch": create_method(exchange=False, negative=False, reweight=False),
    "fixmatch_nl": create_method(exchange=False, negative=True, reweight=False),
    "fixmatch_rw": create_method(exchange=False, negative=False, reweight=True),
    "fixmatch_nl_rw": create_method(exchange=False, negative=True, reweight=True),
}
