"""CLS, FixMatch and the rows between them: one loss with three flags (the paper's Table 2).

Each network b labels the weak views. Its labels are targets for its own predictions of the strong
views (self-labeling) and, with two networks, for the other network's (co-labeling):

    L^b = L_sup + λ_self · mean(w_self · (L_P + [L_N])) + λ_co · mean(w_co · (L_P' + [L_N']))

with L_P, L_N the cross-entropies to b's own pseudo and complementary labels (Eq. 7, 8), and L_P',
L_N' those to the other's. Means run over all unlabeled images, masked ones too (Eq. 13-15). Options
such as `method.inferred` wrap `compute_loss` and add their terms, see `cls_jax.methods.options`.
"""

import functools

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, LossOutput, Method, add_up, hyperparameter
from cls_jax.methods.losses import (
    PseudoLabels,
    compute_labeling_loss,
    make_pseudo_labels,
    positive_cross_entropy,
)
from cls_jax.parallel import collectives


def compute_loss(
    logits: list[jax.Array],
    batch: Batch,
    context: Context,
    *,
    exchange: bool,
    negative: bool,
    reweight: bool,
) -> LossOutput:
    """The loss above, of a row of Table 2. Positional arguments and result: see `Method.loss`.

    `exchange`: two networks also learn from each other's labels. `negative`: complementary labels
    teach, too ("NL"). `reweight`: labels are weighted by w ("RW"), otherwise by masks:
    1[max p ≥ threshold] for own labels, 1[w ≥ τ] for exchanged ones. The paper does not define its
    rows without RW.
    """
    # Labeled images, weak views and strong views, [N, images, K]: one joint pass of each network.
    logits_x, logits_weak, logits_strong = logits
    hparams = context.hparams
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)

    labels = make_pseudo_labels(logits_weak)
    self_weight = labels.weight
    if not reweight:
        self_weight = (labels.confidence >= hparams["threshold"]).astype(jnp.float32)
    loss_self = compute_labeling_loss(logits_strong, labels, self_weight, negative)
    terms = {"self": (hparams["lambda_self"], loss_self)}

    if exchange:
        peer_labels, peer_weight, monitors = exchange_labels(
            context, labels, labels.weight if reweight else 1.0
        )
        loss_co = compute_labeling_loss(logits_strong, peer_labels, peer_weight, negative)
        terms["co"] = (hparams["lambda_co"], loss_co)
    else:
        monitors = {"monitors/mask_ratio": jnp.mean(self_weight > 0, axis=-1)}
    monitors["monitors/confidence_weight"] = jnp.mean(labels.weight, axis=-1)
    return add_up(loss_supervised, terms, monitors, labels.pseudo)


def exchange_labels(
    context: Context, labels: PseudoLabels, weight: jax.Array | float
) -> tuple[PseudoLabels, jax.Array, dict[str, jax.Array]]:
    """Sends the labels with w ≥ τ, and these weights [N, U], to the other network.

    Returns the other network's labels, their weights (0 where none was sent), and monitors.
    """
    is_sent = labels.weight >= context.hparams["tau"]  # As the authors' code. The paper writes >.
    peer_labels, peer_weight = collectives.exchange((labels, is_sent * weight))
    monitors = {
        "monitors/exchange_ratio": jnp.mean(is_sent, axis=-1),
        "monitors/pseudo_label_overlap": jnp.mean(labels.pseudo == peer_labels.pseudo, axis=-1),
        "monitors/complementary_label_overlap": jnp.mean(
            labels.complementary == peer_labels.complementary, axis=-1
        ),
    }
    return peer_labels, peer_weight, monitors


# Hyperparameters of the methods in which two networks exchange labels.
EXCHANGE_HYPERPARAMETERS = {
    "lambda_self": hyperparameter(2.0, 0.0, 1e3, "paper, λ1; authors' --lambda-u1"),
    "lambda_co": hyperparameter(1.0, 0.0, 1e3, "paper, λ2; authors' --lambda-u2"),
    "tau": hyperparameter(0.85, 0.0, 1.0, "paper, τ; authors' --threshold"),
}


def create_method(exchange: bool, negative: bool, reweight: bool) -> Method:
    """Builds a row of Table 2 with the hyperparameters that it uses."""
    hyperparameters = {"lambda_self": hyperparameter(1.0, 0.0, 1e3, "FixMatch, λ_u")}
    if exchange:
        hyperparameters = dict(EXCHANGE_HYPERPARAMETERS)
    if not reweight:
        hyperparameters["threshold"] = hyperparameter(0.95, 0.0, 1.0, "FixMatch, τ")
    return Method(
        functools.partial(compute_loss, exchange=exchange, negative=negative, reweight=reweight),
        hyperparameters=hyperparameters,
        num_networks=2 if exchange else 1,
        mu=8 if exchange else 7,  # The paper's μ for CLS, FixMatch's own.
        target_view=0,
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
