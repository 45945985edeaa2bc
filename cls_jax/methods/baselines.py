"""Baselines that are a loss on logits: supervised, Pseudo-Label, Π-Model, Mean Teacher, UDA.

From top to bottom, each introduces another feature of methods: views of the unlabeled images,
separate passes, the EMA networks, a target view.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, LossOutput, Method, add_up, hyperparameter
from cls_jax.methods.losses import make_pseudo_labels, positive_cross_entropy, soft_cross_entropy
from cls_jax.parallel import collectives


def compute_supervised_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = mean cross-entropy of the labeled images. Signature, here and below: see `Method.loss`.

    With strong views "Supervised w/ RA" of the paper's Table 1: without unlabeled images.
    """
    (logits_x,) = logits
    losses = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    return LossOutput(losses, {"train/loss_supervised": losses})


def compute_pseudo_label_loss(
    logits: list[jax.Array], batch: Batch, context: Context
) -> LossOutput:
    """L = L_sup + λ · ramp · mean(1[max p ≥ threshold] · CE(p, argmax p)).

    Pseudo-Label (Lee, 2013): the same weak view yields the label and is trained on it.
    """
    hparams = context.hparams
    logits_x, logits_u = logits
    labels = make_pseudo_labels(logits_u)
    mask = labels.confidence >= hparams["threshold"]
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    loss_self = jnp.mean(mask * positive_cross_entropy(logits_u, labels.pseudo), axis=-1)
    terms = {"self": (hparams["lambda_u"] * context.ramp_up(hparams["ramp"]), loss_self)}
    monitors = {"monitors/mask_ratio": jnp.mean(mask, axis=-1)}
    return add_up(loss_supervised, terms, monitors, labels.pseudo)


def compute_consistency_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ · ramp · mean over images and classes of (softmax student - softmax target)².

    Two weak views of an image should get the same probabilities. In the Π-Model (Laine & Aila,
    2017) the network itself predicts the second view, the target. In Mean Teacher (Tarvainen &
    Valpola, 2017) its exponential moving average does.
    """
    hparams = context.hparams
    logits_x, student, target = logits
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    difference = jax.nn.softmax(student) - jax.nn.softmax(target)
    loss_consistency = jnp.mean(jnp.square(difference), axis=(-2, -1))
    weight = hparams["lambda_u"] * context.ramp_up(hparams["ramp"])
    terms = {"consistency": (weight, loss_consistency)}
    return add_up(loss_supervised, terms, {}, jnp.argmax(target, axis=-1))


def create_consistency_method(passes: str, lambda_u: float) -> Method:
    """Π-Model or Mean Teacher, with λ's default."""
    return Method(
        compute_consistency_loss,
        hyperparameters={
            "lambda_u": hyperparameter(lambda_u, 0.0, 1e4, "Google FixMatch's baselines, TorchSSL"),
            "ramp": hyperparameter(0.4, 1e-6, 1.0, "TorchSSL: share of the run"),
        },
        mu=1,
        unlabeled_views=("weak", "weak"),
        target_view=1,
        passes=passes,
    )


def compute_uda_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = L_sup + λ · mean(1[max p ≥ threshold] · CE(softmax(weak / T), strong)).

    UDA (Xie et al., 2020): strong views should match sharpened predictions of weak ones. The
    threshold applies to the probabilities before sharpening. With training-signal annealing, L_sup
    leaves out labeled images whose true class already has a probability above a rising threshold.
    """
    hparams = context.hparams
    logits_x, logits_weak, logits_strong = logits
    target = jax.nn.softmax(logits_weak / hparams["temperature"])
    mask = jnp.max(jax.nn.softmax(logits_weak), axis=-1) >= hparams["threshold"]
    loss_x = positive_cross_entropy(logits_x, batch.y)
    loss_supervised = jnp.mean(loss_x, axis=-1)
    if hparams["annealing"] != "off":
        num_classes = logits_x.shape[-1]
        threshold = tsa_threshold(hparams["annealing"], context.progress, num_classes)
        is_kept = jax.lax.stop_gradient(jnp.exp(-loss_x)) <= threshold
        loss_supervised = collectives.masked_mean(loss_x, is_kept)
    loss_consistency = jnp.mean(mask * soft_cross_entropy(logits_strong, target), axis=-1)
    terms = {"consistency": (hparams["lambda_u"], loss_consistency)}
    monitors = {"monitors/mask_ratio": jnp.mean(mask, axis=-1)}
    return add_up(loss_supervised, terms, monitors, jnp.argmax(target, axis=-1))


def tsa_threshold(kind: str, progress: jax.Array, num_classes: int) -> jax.Array:
    """Training-signal annealing's threshold: from 1/K to 1 (Xie et al., 2020, section 2.3).

    α · (1 - 1/K) + 1/K with α linear, or rising early ("log") or late ("exp"), with scale 5.
    """
    alpha = {
        "linear": progress,
        "log": 1 - jnp.exp(-5 * progress),
        "exp": jnp.exp(5 * (progress - 1)),
    }[kind]
    return alpha * (1 - 1 / num_classes) + 1 / num_classes


METHODS = {
    "supervised": Method(compute_supervised_loss, labeled_view="strong", unlabeled_views=()),
    "pseudo_label": Method(
        compute_pseudo_label_loss,
        hyperparameters={
            "lambda_u": hyperparameter(1.0, 0.0, 1e3, "Google FixMatch, TorchSSL"),
            "ramp": hyperparameter(0.4, 1e-6, 1.0, "TorchSSL: share of the run"),
            "threshold": hyperparameter(0.95, 0.0, 1.0, "TorchSSL"),
        },
        mu=1,
        unlabeled_views=("weak",),
        passes="separate",
    ),
    "pi_model": create_consistency_method("separate", lambda_u=10.0),
    "mean_teacher": create_consistency_method("teacher", lambda_u=50.0),
    "uda": Method(
        compute_uda_loss,
        hyperparameters={
            "lambda_u": hyperparameter(1.0, 0.0, 1e3, "UDA, CIFAR-10"),
            "temperature": hyperparameter(0.4, 1e-2, 10.0, "UDA, CIFAR-10; TorchSSL"),
            "threshold": hyperparameter(0.8, 0.0, 1.0, "UDA, CIFAR-10; TorchSSL"),
            "annealing": hyperparameter(
                "off", source="TorchSSL", choices=("off", "linear", "log", "exp")
            ),
        },
        target_view=0,
    ),
}
