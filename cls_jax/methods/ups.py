"""UPS (Rizve et al., 2021): training in rounds, each on confident labels from the one before.

After a round, several passes with dropout over the unlabeled images estimate each class's
probability and its uncertainty (section 3.2). Confident positive and negative labels train the next
round, which starts from a new network.

Deviations: The authors use 20 rounds of 1,024 epochs, without an EMA. Here the run's steps are
split evenly over `rounds`, so that all methods cost the same, and the EMA network makes the dropout
predictions. Selected images stay in the unlabeled stream instead of moving to the labeled set.
"""

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.batch import Batch, DatasetSpec, PyTree
from cls_jax.methods.base import Context, Hyperparameters, LossOutput, Method, hyperparameter
from cls_jax.methods.losses import NO_LABEL, log_one_minus_softmax, positive_cross_entropy
from cls_jax.parallel import collectives

_MIN_PER_CLASS = 25  # Authors: balancing never cuts a class below this many.


def compute_loss(
    params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> tuple[LossOutput, PyTree]:
    """L = mean CE of labeled and selected images + mean negative CE of images with negatives.

    An image's negative cross-entropy is the mean over its negative classes (authors' code).
    Signature: see `Method.drive`.
    """
    table = context.method_state
    (logits_x, logits_u), batch_stats = context.ensemble.forward_concatenated(
        params, batch_stats, (batch.x, batch.u[0]), dropout_key=context.key
    )
    labels = table["label"][:, batch.u_index]
    negatives = table["negative"][:, batch.u_index]
    # Both terms are sums over this device's images, divided by the mean count over devices. The
    # step averages over devices, which gives the mean over all images that count.
    is_selected = labels != NO_LABEL
    loss_x = positive_cross_entropy(logits_x, batch.y)
    loss_u = positive_cross_entropy(logits_u, jnp.maximum(labels, 0))
    num_positive = loss_x.shape[-1] + collectives.average_over_data(jnp.sum(is_selected, axis=-1))
    sum_positive = jnp.sum(loss_x, axis=-1) + jnp.sum(is_selected * loss_u, axis=-1)
    loss_positive = sum_positive / num_positive

    num_negatives = jnp.sum(negatives, axis=-1)
    loss_u = -jnp.sum(negatives * log_one_minus_softmax(logits_u), axis=-1)
    loss_u = loss_u / jnp.maximum(num_negatives, 1)
    num_images = collectives.average_over_data(jnp.sum(num_negatives > 0, axis=-1))
    loss_negative = jnp.sum(loss_u, axis=-1) / jnp.maximum(num_images, 1e-6)
    monitors = {
        "train/loss_supervised": jnp.mean(loss_x, axis=-1),
        "train/loss_positive": loss_positive,
        "train/loss_negative": loss_negative,
        "monitors/mask_ratio": jnp.mean(is_selected, axis=-1),
    }
    losses = loss_positive + loss_negative
    predicted = jnp.argmax(jax.lax.stop_gradient(logits_u), axis=-1)
    return LossOutput(losses, monitors, predicted, table), batch_stats


def _init_table(_: Hyperparameters, spec: DatasetSpec) -> dict[str, jax.Array]:
    """The labels of all training images, int32 [images] and bool [images, K]: none at first."""
    return {
        "label": jnp.full(spec.num_images, NO_LABEL, jnp.int32),
        "negative": jnp.zeros((spec.num_images, spec.num_classes), bool),
    }


def select_labels(
    logits: np.ndarray, hparams: Hyperparameters, round_index: int
) -> dict[str, np.ndarray]:
    """Chooses the labels of the round that starts, from 1, by several passes with dropout.

    The logits float32 [passes, images, K] of one network belong to the candidates. Labeled images
    must not be among them: the network has memorized them, so balancing, which keeps the most
    certain images of a class, would keep them and drop others. Returns the candidates' rows of one
    network's table: "label" int32 [images] and "negative" bool [images, K].
    """
    probabilities = np.asarray(jax.nn.softmax(logits))
    mean, std = probabilities.mean(axis=0), probabilities.std(axis=0, ddof=1)
    label = mean.argmax(axis=-1)
    top = np.arange(len(label)), label
    is_kept = (mean[top] >= hparams["threshold_positive"]) & (std[top] < hparams["std_positive"])
    # The authors' code balances where `itr < args.class_blnc`: rounds 1 to 6 of their 20.
    if round_index < hparams["balanced_share"] * hparams["rounds"]:
        is_kept = balance(is_kept, label, std[top], mean.shape[-1])

    softened = np.asarray(jax.nn.softmax(logits / hparams["temperature_negative"]))
    negative = softened.mean(axis=0) < hparams["threshold_negative"]
    negative &= softened.std(axis=0, ddof=1) < hparams["std_negative"]
    negative[top] = False
    negative[is_kept] = False  # A positive label implies all negative ones.
    return {"label": np.where(is_kept, label, NO_LABEL).astype(np.int32), "negative": negative}


def balance(
    is_candidate: np.ndarray, label: np.ndarray, std: np.ndarray, num_classes: int
) -> np.ndarray:
    """Keeps as many images of each class as the smallest has, but at least 25 where available.

    Each class keeps the candidates, bool [images], with the lowest deviations `std`, float
    [images]. Labels are int [images]. Returns bool [images].
    """
    counts = np.bincount(label[is_candidate], minlength=num_classes)
    limit = max(_MIN_PER_CLASS, counts.min())
    kept = np.zeros_like(is_candidate)
    for k in range(num_classes):
        members = np.flatnonzero(is_candidate & (label == k))
        kept[members[np.argsort(std[members], kind="stable")[:limit]]] = True
    return kept


METHODS = {
    "ups": Method(
        drive=compute_loss,
        hyperparameters={
            "rounds": hyperparameter(10, 1, 1000, "authors: 20, each a whole training"),
            "threshold_positive": hyperparameter(0.70, 0.0, 1.0, "UPS, τ_p"),
            "std_positive": hyperparameter(0.05, 0.0, 1.0, "UPS, κ_p"),
            "threshold_negative": hyperparameter(0.05, 0.0, 1.0, "UPS, τ_n"),
            "std_negative": hyperparameter(0.005, 0.0, 1.0, "UPS, κ_n"),
            "temperature_negative": hyperparameter(2.0, 1e-2, 100.0, "UPS, --temp-nl"),
            "balanced_share": hyperparameter(7 / 20, 0.0, 1.0, "UPS, --class-blnc 7 of 20 rounds"),
            "passes": hyperparameter(10, 2, 1000, "UPS, forward passes with dropout"),
            "dropout": hyperparameter(0.3, 0.0, 0.9, "UPS"),
        },
        mu=1,  # Authors' batch of 128.
        labeled_view="strong",
        unlabeled_views=("strong",),
        create_state=_init_table,
        select_labels=select_labels,
    )
}
