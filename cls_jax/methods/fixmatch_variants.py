"""What FixMatch's variants share: a weak view labels a strong one, by targets of their own.

    L = L_sup + λ_u · mean(weight · CE(strong, label)) [+ an extra term]

The mean runs over all unlabeled images, those of weight 0 too. Targets follow from the logits of
labeled and weak views without their gradients, so neither labels nor state carry one.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, InitContext, LossOutput, Method
from cls_jax.methods.losses import positive_cross_entropy

LAMBDA_U = Hyperparameter(1.0, 0.0, 1e3, "FixMatch, λ_u; TorchSSL, USB")


class Targets(NamedTuple):
    """Labels for the strong views. N networks, U unlabeled images.

    Attributes:
        labels: int32 [N, U].
        weights: float32 [N, U], 0 for images that are not trained on.
        state: the state that the method carries to the next step.
        monitors: name → float32 [N].
    """

    labels: jax.Array
    weights: jax.Array
    state: Any
    monitors: dict[str, jax.Array]


# (context, batch, logits of labeled images [N, B, K], of weak views [N, U, K]) → Targets.
MakeTargets = Callable[[Context, Batch, jax.Array, jax.Array], Targets]


def compute_targets(
    make_targets: MakeTargets,
    context: Context,
    batch: Batch,
    logits_x: jax.Array,
    logits_weak: jax.Array,
) -> Targets:
    """The targets of a method, monitored. No gradient flows back."""
    targets = make_targets(context, batch, *jax.lax.stop_gradient((logits_x, logits_weak)))
    mask_ratio = jnp.mean(targets.weights > 0, axis=-1)
    return targets._replace(monitors={"monitors/mask_ratio": mask_ratio, **targets.monitors})


def compute_loss(
    make_targets: MakeTargets,
    extra_term: Callable[..., tuple[jax.Array, dict[str, jax.Array]]] | None,
    logits: list[jax.Array],
    batch: Batch,
    context: Context,
) -> LossOutput:
    """The loss above. Signature after the first two: see `Method.loss`."""
    logits_x, logits_weak, logits_strong = logits
    targets = compute_targets(make_targets, context, batch, logits_x, logits_weak)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    loss_u = positive_cross_entropy(logits_strong, targets.labels)
    loss_self = jnp.mean(targets.weights * loss_u, axis=-1)
    losses = loss_supervised + context.hparams["lambda_u"] * loss_self
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        **targets.monitors,
    }
    if extra_term is not None:
        extra, extra_monitors = extra_term(context, targets, logits_strong)
        losses += extra
        monitors |= extra_monitors
    return LossOutput(losses, monitors, targets.labels, targets.state)


def create_method(
    make_targets: MakeTargets,
    init_state: Callable[[InitContext], Any],
    hyperparameters: Mapping[str, Hyperparameter],
    extra_term: Callable[..., tuple[jax.Array, dict[str, jax.Array]]] | None = None,
) -> Method:
    """Builds a method that differs from FixMatch by its targets.

    Args:
        make_targets: which labels to train on, and how much.
        init_state: of the targets' state.
        hyperparameters: in addition to `lambda_u`.
        extra_term: (context, targets, strong logits [N, U, K]) → a weighted loss [N] to add, and
            monitors.
    """
    return Method(
        functools.partial(compute_loss, make_targets, extra_term),
        hyperparameters={"lambda_u": LAMBDA_U, **hyperparameters},
        target_view=0,
        init_state=init_state,
    )
