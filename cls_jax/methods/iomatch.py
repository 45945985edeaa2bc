"""IOMatch (Li et al., ICCV 2023): unlabeled images of unknown classes are one more class.

The network's own head knows the K classes ("closed set"). Two more heads read a projection of the
features. The multi-binary head has a classifier per class, which says "in" or "out". The open-set
head has K + 1 classes, the last for images of none of the others, and only shapes the features: as
in the paper, the closed-set head predicts. Follows `iomatch.py` and `utils.py` of the authors'
code (nukezil/IOMatch).

Shape suffixes: N networks, B images, K classes, P = 2 (out, in), L = K + 1.
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.alignment import align, compute_class_balance
from cls_jax.methods.base import Context, Hyperparameter, InitContext, LossOutput, Method, add_up
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.models.layers import Head


def compute_loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
    """L = CE(x, y) + λ_binary · L_binary + λ_u · L_self + λ_open · L_open (`iomatch.py:105-155`).

    L_self = mean(1[max p ≥ threshold] · 1[s < ½] · CE(strong, p)) and
    L_open = mean(1[max q ≥ open_threshold] · CE(open-set head of strong, q)), which is left out
    before `open_start`. p are the closed-set head's predictions for the weak view, aligned to equal
    class frequencies. All targets are soft and constant. Signature: see `Method.loss`, with the
    logits of all heads.
    """
    hparams = context.hparams
    (logits_x, binary_x, _), (logits_weak, binary_weak, _), (logits_strong, _, open_strong) = map(
        split_heads, logits
    )
    p_weak = jax.nn.softmax(logits_weak)
    batch_mean = context.ensemble.average_over_data(jnp.mean(p_weak, axis=1))
    queue = jnp.concatenate([context.method_state["queue"][:, 1:], batch_mean[:, None]], axis=1)
    # The queue is full of zeros at first. They scale the mean, which alignment normalizes.
    mean = jnp.mean(queue, axis=1)
    p = jax.nn.softmax(align(logits_weak, mean, jnp.full_like(mean, 1 / mean.shape[-1])))
    q, is_inlier = make_open_targets(p, binary_weak)
    mask = (jnp.max(p, axis=-1) >= hparams["threshold"]) & is_inlier
    open_mask = jnp.max(q, axis=-1) >= hparams["open_threshold"]
    open_weight = jnp.where(context.progress < hparams["open_start"], 0, hparams["lambda_open"])
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    loss_self = jnp.mean(mask * soft_cross_entropy(logits_strong, p), axis=-1)
    loss_open = jnp.mean(open_mask * soft_cross_entropy(open_strong, q), axis=-1)
    terms = {
        "binary": (hparams["lambda_binary"], compute_binary_loss(binary_x, batch.y)),
        "self": (hparams["lambda_u"], loss_self),
        "open": (open_weight, loss_open),
    }
    monitors = {
        "monitors/mask_ratio": jnp.mean(mask, axis=-1),
        "monitors/inlier_ratio": jnp.mean(is_inlier, axis=-1),
        "monitors/class_balance": compute_class_balance(mean),
    }
    return add_up(loss_supervised, terms, monitors, jnp.argmax(p, axis=-1), {"queue": queue})


def split_heads(logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Splits logits [N, B, 4 K + 1] of all heads into [N, B, K], [N, B, P, K] and [N, B, L].

    The multi-binary head gives a logit of "out" for each class, then one of "in" for each.
    """
    num_classes = logits.shape[-1] // 4
    closed, binary, opened = jnp.split(logits, (num_classes, 3 * num_classes), axis=-1)
    return closed, binary.reshape(*binary.shape[:-1], 2, num_classes), opened


def compute_binary_loss(logits_NBPK: jax.Array, y_B: jax.Array) -> jax.Array:
    """L_mb = mean(-log r¹_y + max over k ≠ y of -log r⁰_k), float32 [N] (`utils.py:7-19`).

    r = softmax over "out" and "in" of each class. Of the other classes, only the one whose
    classifier is most wrong counts. The authors add 1e-8 to r before the logarithm. Here it is
    finite without.
    """
    cost_out, cost_in = jnp.moveaxis(-jax.nn.log_softmax(logits_NBPK, axis=-2), -2, 0)
    is_label = jax.nn.one_hot(y_B, logits_NBPK.shape[-1], dtype=bool)
    own = jnp.sum(jnp.where(is_label, cost_in, 0), axis=-1)
    hardest = jnp.max(jnp.where(is_label, 0, cost_out), axis=-1)
    return jnp.mean(own + hardest, axis=-1)


def make_open_targets(p_NBK: jax.Array, logits_NBPK: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The targets q, float32 [N, B, L], and whether s < ½, bool [N, B] (`iomatch.py:123-139`).

    s = Σ p_k · r⁰_k says how unlike all classes an image is, and
    q = (p_1 · r¹_1, …, p_K · r¹_K, s) sums to 1. The logits come from the multi-binary head.
    """
    out, inside = jnp.moveaxis(jax.nn.softmax(logits_NBPK, axis=-2), -2, 0)
    s = jnp.sum(p_NBK * out, axis=-1)
    return jnp.concatenate([p_NBK * inside, s[..., None]], axis=-1), s < 0.5


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """The mean predictions of the last batches, the newest last, float32 [N, queue_length, K]."""
    shape = (init.num_networks, init.hparams["queue_length"], init.num_classes)
    return {"queue": jnp.zeros(shape)}


METHODS = {
    "iomatch": Method(
        compute_loss,
        hyperparameters={
            "lambda_u": Hyperparameter(1.0, 0.0, 1e3, "IOMatch, ulb_loss_ratio"),
            "lambda_binary": Hyperparameter(1.0, 0.0, 1e3, "IOMatch, mb_loss_ratio"),
            "lambda_open": Hyperparameter(1.0, 0.0, 1e3, "IOMatch, op_loss_ratio"),
            "threshold": Hyperparameter(0.95, 0.0, 1.0, "IOMatch, p_cutoff"),
            "open_threshold": Hyperparameter(0.5, 0.0, 1.0, "IOMatch, q_cutoff"),
            "open_start": Hyperparameter(
                1 / 256, 0.0, 1.0, "IOMatch: after 1 of 256 epochs, share of the run"
            ),
            "queue_length": Hyperparameter(128, 1, 100_000, "IOMatch, da_len, steps"),
        },
        target_view=0,
        init_state=init_state,
        # The uniform target of alignment is the authors', and wrong for unequal classes.
        extra_heads=lambda num_classes: (
            Head("multi_binary", 2 * num_classes, is_projected=True, use_bias=False),
            Head("open_set", num_classes + 1, is_projected=True),
        ),
    )
}
