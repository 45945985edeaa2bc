"""SimPro (Du et al., 2024): estimates the class frequencies of the unlabeled images.

Predictions are adjusted by the logarithms of class frequencies (logit adjustment, Menon et al.,
2021), so the logits themselves are those of equally frequent classes. Labeled and unlabeled images
may have different frequencies.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch, DatasetSpec
from cls_jax.methods.alignment import compute_class_balance, init_uniform
from cls_jax.methods.base import (
    Context,
    Hyperparameters,
    LossOutput,
    Method,
    add_up,
    hyperparameter,
)
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.parallel import collectives


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = CE(x + τ log π, y) + λ_u · mean(1[max p ≥ threshold] · CE(strong + τ log π, p)).

    p = softmax(weak + τ log π_u), with π_u the frequencies of unlabeled images and π of all.
    The authors divide the supervised term by the ratio of unlabeled to labeled images in the data
    set, with which few labels teach almost nothing. Here its weight is 1. They train on two
    labeled and two strong views, here on one of each. Signature: see `Method.loss`.
    """
    hparams = context.hparams
    state = start_epoch(context)
    logits_x, logits_weak, logits_strong = logits
    adjustment = log_frequencies(state["all"], hparams["tau"])
    p = jax.nn.softmax(logits_weak + log_frequencies(state["unlabeled"], hparams["tau"]))
    mask = (jnp.max(p, axis=-1) >= hparams["threshold"]).astype(p.dtype)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x + adjustment, batch.y), axis=-1)
    loss_self = jnp.mean(mask * soft_cross_entropy(logits_strong + adjustment, p), axis=-1)
    labels = jnp.broadcast_to(jax.nn.one_hot(batch.y, p.shape[-1]), logits_x.shape)
    counts = {"count_labeled": labels, "count_unlabeled": mask[..., None] * p}
    for name, rows in counts.items():
        state[name] += collectives.sum_over_data(jnp.sum(rows, axis=1))
    terms = {"self": (hparams["lambda_u"], loss_self)}
    monitors = {
        "monitors/mask_ratio": jnp.mean(mask, axis=-1),
        "monitors/class_balance": compute_class_balance(state["unlabeled"]),
    }
    return add_up(loss_supervised, terms, monitors, jnp.argmax(p, axis=-1), state)


def log_frequencies(frequencies_K: jax.Array, tau: float) -> jax.Array:
    """τ log π for frequencies [N, K], to be added to logits [N, B, K]. Finite where π is 0."""
    return jnp.log(frequencies_K**tau + 1e-12)[:, None, :]


def start_epoch(context: Context) -> dict[str, jax.Array]:
    """The state with which a step begins. After an epoch, frequencies are updated.

    They move toward the epoch's labels and the predictions that passed the threshold, whose counts
    restart at 0.
    """
    hparams = context.hparams
    state = context.method_state
    epoch = jnp.floor(context.progress / hparams["epoch"] + 1e-4).astype(jnp.int32)
    is_over = epoch != state["epoch"]  # In a run that is given more steps, the number falls.
    unlabeled = state["count_unlabeled"]
    labeled = state["count_labeled"]
    # An epoch in which nothing passed the threshold scales π_u, which adds the same number to all
    # logits and changes no probability (authors' code).
    total_u = jnp.sum(unlabeled, axis=-1, keepdims=True) + 1
    total = jnp.maximum(jnp.sum(unlabeled + labeled, axis=-1, keepdims=True), 1)
    decay = hparams["epoch_decay"]
    moved = {
        "unlabeled": decay * state["unlabeled"] + (1 - decay) * (unlabeled / total_u),
        "all": decay * state["all"] + (1 - decay) * ((unlabeled + labeled) / total),
        "count_unlabeled": jnp.zeros_like(unlabeled),
        "count_labeled": jnp.zeros_like(labeled),
        "epoch": jnp.broadcast_to(epoch, is_over.shape),
    }

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(is_over if new.ndim == 1 else is_over[:, None], new, old)

    chosen: dict[str, jax.Array] = jax.tree.map(choose, moved, state)
    return chosen


def _init_frequencies(_: Hyperparameters, spec: DatasetSpec) -> dict[str, jax.Array]:
    """Frequencies and counts [K], and the number of finished epochs, an int32 scalar."""
    uniform = init_uniform(spec)
    return {
        "unlabeled": uniform,
        "all": jnp.asarray(spec.class_frequencies, uniform.dtype),
        "count_unlabeled": jnp.zeros_like(uniform),
        "count_labeled": jnp.zeros_like(uniform),
        "epoch": jnp.zeros((), jnp.int32),
    }


METHODS = {
    "simpro": Method(
        compute_loss,
        hyperparameters={
            "lambda_u": hyperparameter(1.0, 0.0, 1e3, "SimPro"),
            # With 2, frequencies count double in every prediction that they are estimated from. On
            # digits with 40 labels of unequal classes, all were wrong after 200 steps.
            "tau": hyperparameter(1.0, 0.0, 100.0, "SimPro, CIFAR-100; 2 on CIFAR-10"),
            "threshold": hyperparameter(0.95, 0.0, 1.0, "SimPro, CIFAR-10; 0.2 on CIFAR-100"),
            "epoch": hyperparameter(
                500 / 43_000, 1e-6, 1.0, "SimPro: 500 of 43,000 steps, share of the run"
            ),
            "epoch_decay": hyperparameter(0.9, 0.0, 0.99999, "SimPro, --ema-u"),
        },
        mu=8,
        target_view=0,
        create_state=_init_frequencies,
    )
}
