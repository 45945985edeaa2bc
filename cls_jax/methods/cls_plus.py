"""CLS with class alignment and CutMix, for very few labels. Not in the paper.

Both networks' predictions are aligned to the class frequencies of the labeled set before they
become labels. A CutMix of the weak views is trained with the pseudo-labels only: two images have
no common least probable class.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods import alignment
from cls_jax.methods.base import Context, LossOutput, Method, add_up, hyperparameter
from cls_jax.methods.cls import EXCHANGE_HYPERPARAMETERS, exchange_labels
from cls_jax.methods.cutmix import cutmix_loss
from cls_jax.methods.losses import compute_labeling_loss, make_pseudo_labels, positive_cross_entropy
from cls_jax.parallel import collectives


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """The loss of CLS with aligned labels + λ_cutmix · CutMix. Signature: see `Method.loss`.

    Predictions are divided by the running class means of both networks together, so that they stay
    comparable. Pseudo-label, complementary label and weight all follow from the result.
    """
    hparams = context.hparams
    means = dict(context.method_state)
    logits_x, logits_weak, logits_strong, *logits_mixed = logits
    p = jax.nn.softmax(logits_weak)
    means["predicted"] = alignment.update_mean(context, means["predicted"], p)
    joint = (means["predicted"] + collectives.exchange(means["predicted"])) / 2
    labels = make_pseudo_labels(alignment.align(logits_weak, joint, means["target"]))
    peer_labels, peer_weight, monitors = exchange_labels(context, labels, labels.weight)

    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    loss_self = compute_labeling_loss(logits_strong, labels, labels.weight, negative=True)
    loss_co = compute_labeling_loss(logits_strong, peer_labels, peer_weight, negative=True)
    terms = {"self": (hparams["lambda_self"], loss_self), "co": (hparams["lambda_co"], loss_co)}
    monitors |= {
        "monitors/confidence_weight": jnp.mean(labels.weight, axis=-1),
        "monitors/class_balance": alignment.compute_class_balance(means["predicted"]),
    }
    for logits_mix in logits_mixed:  # One, or none where λ_cutmix is 0.
        loss_cutmix = cutmix_loss(batch.mix, logits_mix, labels.pseudo, labels.weight)
        loss_cutmix += cutmix_loss(batch.mix, logits_mix, peer_labels.pseudo, peer_weight)
        terms["cutmix"] = (hparams["lambda_cutmix"], loss_cutmix)
    return add_up(loss_supervised, terms, monitors, labels.pseudo, means)


METHODS = {
    "cls_plus": Method(
        compute_loss,
        hyperparameters={
            **EXCHANGE_HYPERPARAMETERS,
            "lambda_cutmix": hyperparameter(1.0, 0.0, 1e3, "our choice"),
            "statistics_decay": alignment.STATISTICS_DECAY,
        },
        num_networks=2,
        mu=8,  # As CLS.
        target_view=0,
        wants_cutmix=lambda hparams: hparams["lambda_cutmix"] > 0,
        create_state=lambda hparams, spec: alignment.init_class_means("labels", spec),
    )
}
