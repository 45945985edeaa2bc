"""FixMatch's variants: a weak view labels a strong one, by targets of their own.

    L = L_sup + λ_u · mean(weight · CE(strong, label)) [+ an extra term]

The mean runs over all unlabeled images, including those of weight 0. The shared parts come first,
then each variant with its targets and its state.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch, DatasetSpec
from cls_jax.methods import alignment
from cls_jax.methods.base import (
    Context,
    Hyperparameters,
    LossOutput,
    Method,
    add_up,
    hyperparameter,
)
from cls_jax.methods.cutmix import cutmix_loss
from cls_jax.methods.losses import NO_LABEL, positive_cross_entropy
from cls_jax.options import Option
from cls_jax.parallel import collectives

Tree = dict[str, jax.Array]
# Of N networks: labels int32 [N, U] for U strong views, weights float32 [N, U], 0 for images that
# are not trained on, the method's state after the step, and monitors float32 [N].
Targets = tuple[jax.Array, jax.Array, Tree, Tree]
# (context, batch, logits of labeled images [N, B, K], of weak views [N, U, K]) → targets.
MakeTargets = Callable[[Context, Batch, jax.Array, jax.Array], Targets]
Terms = dict[str, tuple[jax.Array, jax.Array]]  # Weight and loss [N], by name.
# (context, batch, targets, logits of all groups) → further terms of the loss.
ExtraTerms = Callable[[Context, Batch, Targets, list[jax.Array]], Terms]


def compute_loss(
    make_targets: MakeTargets,
    extra_terms: ExtraTerms,
    logits: list[jax.Array],
    batch: Batch,
    context: Context,
) -> LossOutput:
    """The loss above. Signature after the first two: see `Method.loss`.

    Of several strong views it takes the mean. Targets carry no gradient.
    """
    logits_x, logits_weak, *logits_strong = logits[: 1 + len(batch.u)]
    constant_x, constant_weak = jax.lax.stop_gradient((logits_x, logits_weak))
    targets = make_targets(context, batch, constant_x, constant_weak)
    labels, weights, state, monitors = targets
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    losses_strong = [positive_cross_entropy(z, labels) for z in logits_strong]
    loss_self = jnp.mean(weights * jnp.stack(losses_strong), axis=(0, -1))
    terms = {"self": (context.hparams["lambda_u"], loss_self)}
    terms |= extra_terms(context, batch, targets, logits)
    monitors = {"monitors/mask_ratio": jnp.mean(weights > 0, axis=-1), **monitors}
    return add_up(loss_supervised, terms, monitors, labels, state)


def create_method(
    make_targets: MakeTargets,
    create_state: Callable[[Hyperparameters, DatasetSpec], dict[str, jax.Array]],
    hyperparameters: Mapping[str, Option],
    extra_terms: ExtraTerms = lambda *_: {},
    **settings: Any,
) -> Method:
    """A method that differs from FixMatch by its targets, their state, and perhaps extra terms.

    It has `hyperparameters` beside `lambda_u`, and other `settings` of `Method`.
    """
    return Method(
        functools.partial(compute_loss, make_targets, extra_terms),
        hyperparameters={
            "lambda_u": hyperparameter(1.0, 0.0, 1e3, "FixMatch, λ_u; TorchSSL, USB"),
            **hyperparameters,
        },
        target_view=0,
        create_state=create_state,
        **settings,
    )


# FlexMatch (Zhang et al., 2021): a lower threshold for classes that are learned slowly.


def _init_flexmatch(_: Hyperparameters, spec: DatasetSpec) -> dict[str, jax.Array]:
    """The last confident label of every training image, int32 [images]: none at first.

    `outside` counts the images that the unlabeled stream never shows. They never get a label and
    must not count as images still to be learned.
    """
    return {
        "label": jnp.full(spec.num_images, NO_LABEL, jnp.int32),
        "outside": jnp.asarray(spec.num_images - spec.num_unlabeled, jnp.int32),
    }


def flexmatch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p where max p ≥ τ · β / (2 - β), β of the class (Eq. 5-11).

    β(k) = (images whose last confident label is k) / max(the same for the largest class and, with
    warmup, images without one), counted before this step's labels enter the table. While the table
    is empty, the threshold is 0 and every image gets a label. Labels enter at max p ≥ τ, not at the
    lower threshold of their class (confirmed by the authors).
    """
    hparams = context.hparams
    table = context.method_state["label"]
    p = jax.nn.softmax(logits_weak)
    confidence = jnp.max(p, axis=-1)
    labels = jnp.argmax(p, axis=-1).astype(jnp.int32)
    # Recounted at every step: increments would be wrong if an image occurs twice.
    all_counts = jax.vmap(lambda row: jnp.bincount(row + 1, length=p.shape[-1] + 1))(table)
    num_without = all_counts[:, 0] - context.method_state["outside"]
    counts = all_counts[:, 1:]
    largest = jnp.max(counts, axis=-1)
    if hparams["warmup"] == "on":
        largest = jnp.maximum(largest, num_without)
    beta = counts / jnp.maximum(largest, 1)[:, None]
    thresholds = hparams["tau"] * beta / (2 - beta)
    mask = confidence >= jnp.take_along_axis(thresholds, labels, axis=-1)
    confident = jnp.where(confidence >= hparams["tau"], labels, NO_LABEL)
    # Every device holds the whole table, so each needs the labels of all devices.
    confident, index = collectives.gather_over_data((confident, batch.u_index))
    # A batch that spans the end of an epoch may hold an image twice. The maximum makes the result
    # independent of the order in which XLA writes the rows.
    new = jnp.full_like(table, NO_LABEL).at[:, index].max(confident)
    state = {**context.method_state, "label": jnp.where(new == NO_LABEL, table, new)}
    largest_beta = jnp.maximum(jnp.max(beta, axis=-1), 1e-6)
    monitors = {
        "monitors/threshold": jnp.mean(thresholds, axis=-1),
        "monitors/class_balance": jnp.min(beta, axis=-1) / largest_beta,
    }
    return labels, mask.astype(p.dtype), state, monitors


# AdaMatch (Berthelot et al., 2022): threshold and alignment relative to the labeled images.
#
# In the form of USB, from which its published CIFAR figures come. Google's code, for domain
# adaptation, has further parts (random logit interpolation, a second labeled view, its own
# optimizer) that are not here.


def adamatch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p̂ where max p̂ ≥ c · (mean confidence of the labeled batch).

    p̂ is aligned. With `ramp`, the weight rises along a cosine over that share of the run.
    """
    hparams = context.hparams
    means = alignment.update_class_means(context, context.method_state, logits_weak, logits_x)
    # USB: the mean of predictions starts at the first batch's.
    first = collectives.average_over_data(jnp.mean(jax.nn.softmax(logits_weak), axis=1))
    is_first = (context.progress == 0) & (context.part == 0)
    means["predicted"] = jnp.where(is_first, first, means["predicted"])
    p = jax.nn.softmax(alignment.align(logits_weak, means["predicted"], means["target"]))
    labeled_confidence = jnp.mean(jnp.max(jax.nn.softmax(logits_x), axis=-1), axis=-1)
    threshold = hparams["confidence"] * collectives.average_over_data(labeled_confidence)
    weights = (jnp.max(p, axis=-1) >= threshold[:, None]).astype(p.dtype)
    if hparams["ramp"] > 0:
        weights *= 0.5 - 0.5 * jnp.cos(jnp.pi * jnp.minimum(context.progress / hparams["ramp"], 1))
    monitors = {
        "monitors/threshold": threshold,
        "monitors/class_balance": alignment.compute_class_balance(means["predicted"]),
    }
    return jnp.argmax(p, axis=-1), weights, means, monitors


# FreeMatch (Wang et al., 2023): a threshold that follows the network's own confidence.
#
# The running mean τ of the confidence is the threshold of the most frequent class. Classes that are
# predicted rarely get a lower one (Eq. 5-8).


def _init_freematch(_: Hyperparameters, spec: DatasetSpec) -> dict[str, jax.Array]:
    """Running means: of confidence (`threshold`), predictions and label histogram [K]."""
    uniform = alignment.init_uniform(spec)
    return {"threshold": uniform[0], "predicted": uniform, "histogram": uniform}


def freematch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p where max p ≥ τ · p̃(label) / max p̃.

    All running means move before they are used (both released codes).
    """
    old = context.method_state
    p = jax.nn.softmax(logits_weak)
    confidence = jnp.max(p, axis=-1)
    labels = jnp.argmax(p, axis=-1)
    one_hot = jax.nn.one_hot(labels, p.shape[-1], dtype=p.dtype)
    values = {"threshold": confidence, "predicted": p, "histogram": one_hot}
    state = {
        name: alignment.update_mean(context, old[name], value) for name, value in values.items()
    }
    relative = state["predicted"] / jnp.max(state["predicted"], axis=-1, keepdims=True)
    thresholds = state["threshold"][:, None] * jnp.take_along_axis(relative, labels, axis=-1)
    mask = confidence >= thresholds
    monitors = {
        "monitors/threshold": state["threshold"],
        "monitors/class_balance": alignment.compute_class_balance(state["predicted"]),
    }
    return labels, mask.astype(p.dtype), state, monitors


def add_fairness(
    context: Context, batch: Batch, targets: Targets, logits: list[jax.Array]
) -> Terms:
    """λ_f · Σ q · log r with q = Norm(predicted / running histogram), r = Norm(mean / histogram).

    Mean and histogram are of strong predictions for the images of all devices that are trained on.
    As published, the term is *added* to the loss. It is largest at r = q, so descent moves the mean
    prediction away from q instead of toward the uniform distribution (questioned in USB's issues
    182 and 231, where the authors confirm it). TorchSSL and USB put 0 instead of 1 / 0, so r is 0
    for a class that no strong prediction favors, which adds the constant q · log 1e-12. With an
    empty histogram the whole term is 0 (both).
    """
    _, _, logits_strong = logits
    _, weights, state, _ = targets
    p = jax.nn.softmax(logits_strong)
    top = jax.nn.one_hot(jnp.argmax(logits_strong, axis=-1), p.shape[-1], dtype=p.dtype)
    weights = weights[..., None]
    # Means over all images instead of those that are trained on: the common factor cancels in r,
    # and unlike masked means these may be averaged over devices before the division.
    mean_K, histogram_K = jax.tree.map(
        lambda value: collectives.average_over_data(jnp.mean(weights * value, axis=1)),
        (p, jax.lax.stop_gradient(top)),
    )
    q_K = _normalize(_divide(state["predicted"], state["histogram"]))
    r_K = _normalize(_divide(mean_K, histogram_K))
    fairness = jnp.sum(q_K * jnp.log(r_K + 1e-12), axis=-1)
    fairness = jnp.where(jnp.sum(histogram_K, axis=-1) > 0, fairness, 0.0)
    return {"fairness": (context.hparams["lambda_fairness"], fairness)}


def _divide(numerator_K: jax.Array, denominator_K: jax.Array) -> jax.Array:
    is_known_K = denominator_K > 0
    return jnp.where(is_known_K, numerator_K / jnp.where(is_known_K, denominator_K, 1.0), 0.0)


def _normalize(values_K: jax.Array) -> jax.Array:
    return _divide(values_K, jnp.sum(values_K, axis=-1, keepdims=True))


# SoftMatch (Chen et al., 2023): no threshold, a Gaussian weight of the aligned confidence.


def _init_softmatch(hparams: Hyperparameters, spec: DatasetSpec) -> dict[str, jax.Array]:
    """Mean 1 / K and variance 1 of the confidence, and the class means, [K]."""
    means = alignment.init_class_means(hparams["align_to"], spec)
    one = jnp.ones(())
    return {"mean": one / spec.num_classes, "variance": one, **means}


def softmatch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p, weighted by exp(-min(ĉ - μ, 0)² · n² / (2 v)).

    ĉ is the confidence after alignment, μ and v the running mean and variance of the confidence
    before it (paper, TorchSSL) or after it (USB). Only the weight sees the alignment, not the
    label. All running means move before they are used.
    """
    old = context.method_state
    hparams = context.hparams
    state = alignment.update_class_means(context, old, logits_weak, logits_x)
    aligned = alignment.align(logits_weak, state["predicted"], state["target"])
    aligned_confidence = jnp.max(jax.nn.softmax(aligned), axis=-1)
    confidence = jnp.max(jax.nn.softmax(logits_weak), axis=-1)
    if hparams["statistics"] == "aligned":
        confidence = aligned_confidence
    # Over all devices' images: since the variance is unbiased, the mean of the devices' variances
    # would differ.
    everywhere = collectives.gather_over_data(confidence)
    batch_mean = jnp.mean(everywhere, axis=-1)
    squares = jnp.sum((everywhere - batch_mean[:, None]) ** 2, axis=-1)
    batch_variance = squares / max(everywhere.shape[-1] - 1, 1)
    state["mean"] = context.move_mean(old["mean"], batch_mean)
    state["variance"] = context.move_mean(old["variance"], batch_variance)
    below = jnp.minimum(aligned_confidence - state["mean"][:, None], 0.0)
    # A floor, because the variance vanishes if all images keep the same confidence.
    spread = 2 * jnp.maximum(state["variance"], 1e-12)[:, None] / hparams["sharpness"] ** 2
    weights = jnp.exp(-(below**2) / spread)
    monitors = {
        "monitors/confidence_weight": jnp.mean(weights, axis=-1),
        "monitors/threshold": state["mean"],
        "monitors/class_balance": alignment.compute_class_balance(state["predicted"]),
    }
    return jnp.argmax(logits_weak, axis=-1), weights, state, monitors


# InfoMatch (Han et al., 2024): FreeMatch's threshold, two strong views and CutMix.
#
# The authors' code writes 2 · (½ L_cutmix + ¼ L_strong + ¼ L_strong' + 0.001 MSE), which is the
# same, and draws both strong views on one crop. Here each has its own.


def add_cutmix_and_consistency(
    context: Context, batch: Batch, targets: Targets, logits: list[jax.Array]
) -> Terms:
    """λ_c · L_cutmix + λ_a · MSE(strong, strong').

    The CutMix of the weak views is trained on their labels, where these pass the threshold. The MSE
    compares the strong views' logits, standardized over classes.
    """
    _, _, *logits_strong, logits_mix = logits
    labels, weights, _, _ = targets
    first, second = map(standardize, logits_strong)
    loss_consistency = jnp.mean((first - second) ** 2, axis=(1, 2))
    return {
        "cutmix": (
            context.hparams["lambda_cutmix"],
            cutmix_loss(batch.mix, logits_mix, labels, weights),
        ),
        "consistency": (context.hparams["lambda_consistency"], loss_consistency),
    }


def standardize(logits: jax.Array) -> jax.Array:
    """Logits [..., K] less their mean over classes, over their unbiased standard deviation."""
    centered = logits - jnp.mean(logits, axis=-1, keepdims=True)
    variance = jnp.sum(centered**2, axis=-1, keepdims=True) / (logits.shape[-1] - 1)
    # The summand keeps the gradient finite where all logits are equal.
    return centered * jax.lax.rsqrt(variance + 1e-6)


METHODS = {
    "flexmatch": create_method(
        flexmatch_targets,
        _init_flexmatch,
        {
            "tau": hyperparameter(0.95, 0.0, 1.0, "FlexMatch, τ"),
            "warmup": hyperparameter(
                "on", source="FlexMatch, Eq. 11; TorchSSL, all configs", choices=("on", "off")
            ),
        },
    ),
    "adamatch": create_method(
        adamatch_targets,
        lambda hparams, spec: alignment.init_class_means(hparams["align_to"], spec),
        {
            "confidence": hyperparameter(0.95, 0.0, 1.0, "USB; Google's code: 0.9"),
            "ramp": hyperparameter(0.0, 0.0, 1.0, "USB; Google's code: 0.5, share of the run"),
            "statistics_decay": alignment.STATISTICS_DECAY,
            "align_to": hyperparameter(
                "predicted", source="AdaMatch, both codes", choices=alignment.TARGETS
            ),
        },
    ),
    "freematch": create_method(
        freematch_targets,
        _init_freematch,
        {
            "statistics_decay": alignment.STATISTICS_DECAY,
            # Paper: 0.05 for most budgets. TorchSSL: 0.01. USB: 0.001.
            "lambda_fairness": hyperparameter(0.01, 0.0, 1e3, "TorchSSL, the authors' configs"),
        },
        extra_terms=add_fairness,
    ),
    "softmatch": create_method(
        softmatch_targets,
        _init_softmatch,
        {
            "statistics_decay": alignment.STATISTICS_DECAY,
            # On balanced labels this is the paper's and USB's "uniform" alignment.
            "align_to": hyperparameter(
                "labels",
                source="SoftMatch; released TorchSSL: predicted",
                choices=alignment.TARGETS,
            ),
            "statistics": hyperparameter(
                "raw", source="SoftMatch, TorchSSL; USB: aligned", choices=("raw", "aligned")
            ),
            "sharpness": hyperparameter(2.0, 0.01, 100.0, "TorchSSL and USB, n"),
        },
    ),
    "infomatch": create_method(
        freematch_targets,
        _init_freematch,
        {
            "lambda_cutmix": hyperparameter(1.0, 0.0, 1e3, "authors' code"),
            "lambda_consistency": hyperparameter(0.002, 0.0, 1e3, "authors' code"),
            "statistics_decay": alignment.STATISTICS_DECAY,
        },
        extra_terms=add_cutmix_and_consistency,
        unlabeled_views=("weak", "strong", "strong"),
        wants_cutmix=lambda hparams: True,
    ),
}
