"""UPS (Rizve et al., 2021): rounds of training, each on labels that the last one was sure of.

After a round, several passes with dropout over all images say how sure the network is of each
class. Sure positives and sure negatives become the next round's labels and the network begins
anew. The authors use 20 rounds of 1,024 epochs; here the run's steps are split evenly over
`rounds`, a deviation that keeps the methods' costs alike.
"""

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.losses import log_one_minus_softmax, positive_cross_entropy
from cls_jax.methods.base import Hyperparameter, LossOutput, Method

NO_LABEL = -1
_MIN_PER_CLASS = 25  # Authors: a class gives at least these, if it has as many.


def compute_loss(params, batch_stats, batch, context):
    """L = mean CE of labelled and selected images + mean negative CE of images with negatives.

    An image's negative cross-entropy is the mean over its negative classes (authors' code).
    Signature: see `Method.compute_loss`.
    """
    networks, table = context.networks, context.method_state
    (logits_x, logits_u), batch_stats = networks.forward_joint(
        params, batch_stats, (batch.x, batch.u[0]), dropout_key=context.key
    )
    labels, negatives = table["label"][:, batch.u_index], table["negative"][:, batch.u_index]
    is_selected = labels != NO_LABEL
    loss_x = positive_cross_entropy(logits_x, batch.y)
    loss_u = positive_cross_entropy(logits_u, jnp.maximum(labels, 0))
    num_positive = loss_x.shape[-1] + networks.average_over_data(jnp.sum(is_selected, axis=-1))
    sum_positive = jnp.sum(loss_x, axis=-1) + jnp.sum(is_selected * loss_u, axis=-1)
    loss_positive = sum_positive / num_positive

    num_negatives = jnp.sum(negatives, axis=-1)
    loss_u = -jnp.sum(negatives * log_one_minus_softmax(logits_u), axis=-1)
    loss_u = loss_u / jnp.maximum(num_negatives, 1)
    share = networks.average_over_data(jnp.mean(num_negatives > 0, axis=-1))
    loss_negative = jnp.mean(loss_u, axis=-1) / jnp.maximum(share, 1e-6)
    monitors = {
        "train/loss_supervised": jnp.mean(loss_x, axis=-1),
        "train/loss_positive": loss_positive,
        "train/loss_negative": loss_negative,
        "monitors/mask_ratio": jnp.mean(is_selected, axis=-1),
    }
    losses = loss_positive + loss_negative
    predicted = jnp.argmax(jax.lax.stop_gradient(logits_u), axis=-1)
    return LossOutput(losses, batch_stats, monitors, predicted, table)


def init_state(num_networks: int, num_classes: int, num_images: int) -> dict[str, jax.Array]:
    """The table of labels of all training images: none before the first selection.

    "label" is int32 [N, images], "negative" bool [N, images, K].
    """
    return {
        "label": jnp.full((num_networks, num_images), NO_LABEL, jnp.int32),
        "negative": jnp.zeros((num_networks, num_images, num_classes), bool),
    }


def select_labels(logits: np.ndarray, hparams, round_index: int) -> dict[str, np.ndarray]:
    """Chooses the labels of a round from several passes with dropout.

    Args:
        logits: float32 [passes, images, K] of one network.
        hparams: thresholds by name.
        round_index: of the round that begins, from 1.

    Returns:
        One network's row of the table: "label" int32 [images], "negative" bool [images, K].
    """
    probabilities = np.asarray(jax.nn.softmax(logits))
    mean, std = probabilities.mean(axis=0), probabilities.std(axis=0, ddof=1)
    label = mean.argmax(axis=-1)
    top = np.arange(len(label)), label
    is_sure = (mean[top] >= hparams["threshold_positive"]) & (std[top] < hparams["std_positive"])
    if round_index <= hparams["balanced_share"] * hparams["rounds"]:
        is_sure = balance(is_sure, label, std[top], mean.shape[-1])

    flat = np.asarray(jax.nn.softmax(logits / hparams["temperature_negative"]))
    negative = flat.mean(axis=0) < hparams["threshold_negative"]
    negative &= flat.std(axis=0, ddof=1) < hparams["std_negative"]
    negative[top] = False
    negative[is_sure] = False  # A positive label says all that negative ones would.
    return {"label": np.where(is_sure, label, NO_LABEL).astype(np.int32), "negative": negative}


def balance(
    is_sure: np.ndarray, label: np.ndarray, std: np.ndarray, num_classes: int
) -> np.ndarray:
    """Keeps as many of each class as the smallest has (but up to 25), the surest first.

    Args:
        is_sure: bool [images], candidates.
        label: int [images].
        std: float [images], how unsure.
        num_classes: K.

    Returns:
        bool [images], a subset of `is_sure`.
    """
    counts = np.bincount(label[is_sure], minlength=num_classes)
    limit = max(_MIN_PER_CLASS, counts.min())
    kept = np.zeros_like(is_sure)
    for k in range(num_classes):
        members = np.flatnonzero(is_sure & (label == k))
        kept[members[np.argsort(std[members], kind="stable")[:limit]]] = True
    return kept


METHODS = {
    "ups": Method(
        compute_loss,
        hyperparameters={
            "rounds": Hyperparameter(10, 1, 1000, "authors: 20, each a whole training"),
            "threshold_positive": Hyperparameter(0.70, 0.0, 1.0, "UPS, τ_p"),
            "std_positive": Hyperparameter(0.05, 0.0, 1.0, "UPS, κ_p"),
            "threshold_negative": Hyperparameter(0.05, 0.0, 1.0, "UPS, τ_n"),
            "std_negative": Hyperparameter(0.005, 0.0, 1.0, "UPS, κ_n"),
            "temperature_negative": Hyperparameter(2.0, 1e-2, 100.0, "UPS, --temp-nl"),
            "balanced_share": Hyperparameter(7 / 20, 0.0, 1.0, "UPS, --class-blnc 7 of 20 rounds"),
            "passes": Hyperparameter(10, 2, 1000, "UPS, forward passes with dropout"),
            "dropout": Hyperparameter(0.3, 0.0, 0.9, "UPS"),
        },
        mu=1,  # Authors' batch of 128.
        labeled_view="strong",
        unlabeled_views=("strong",),
        init_state=init_state,
        select_labels=select_labels,
    )
}
