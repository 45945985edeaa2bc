"""FixMatch's trunk: a weak view labels a strong one; a rule decides for which images and how much.

    L = L_sup + λ_u · mean(weight · CE(strong, label)) [+ an extra term]

The mean runs over all unlabeled images, those of weight 0 too. A rule sees the logits of labeled
and weak views without their gradients, so neither its labels nor its state carry one.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, InitContext, LossOutput, Method, PyTree
from cls_jax.methods.losses import positive_cross_entropy

LAMBDA_U = Hyperparameter(1.0, 0.0, 1e3, "FixMatch, λ_u; TorchSSL, USB")


class Teaching(NamedTuple):
    """Labels for the strong views, chosen by a rule. N networks, U unlabeled images.

    Attributes:
        labels: int32 [N, U].
        weights: float32 [N, U], 0 for images that teach nothing.
        state: the state that the rule carries to the next step.
        monitors: name → float32 [N].
    """

    labels: jax.Array
    weights: jax.Array
    state: Any
    monitors: dict[str, jax.Array]


# (context, batch, logits of labeled images [N, B, K], of weak views [N, U, K]) → Teaching.
Rule = Callable[[Context, Batch, jax.Array, jax.Array], Teaching]


def apply_rule(
    rule: Rule, context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Teaching:
    """The rule's labels; no gradient flows back."""
    teaching = rule(context, batch, *jax.lax.stop_gradient((logits_x, logits_weak)))
    taught = jnp.mean(teaching.weights > 0, axis=-1)
    return teaching._replace(monitors={"monitors/mask_ratio": taught, **teaching.monitors})


def compute_loss(
    rule: Rule,
    extra_term: Callable[..., tuple[jax.Array, dict[str, jax.Array]]] | None,
    params: PyTree,
    batch_stats: PyTree,
    batch: Batch,
    context: Context,
) -> LossOutput:
    """The loss above. Signature after the first two: see `Method.compute_loss`."""
    (logits_x, logits_weak, logits_strong), batch_stats = context.ensemble.forward_concatenated(
        params, batch_stats, (batch.x, *batch.u)
    )
    teaching = apply_rule(rule, context, batch, logits_x, logits_weak)
    loss_supervised = jnp.mean(positive_cross_entropy(logits_x, batch.y), axis=-1)
    loss_u = positive_cross_entropy(logits_strong, teaching.labels)
    loss_self = jnp.mean(teaching.weights * loss_u, axis=-1)
    losses = loss_supervised + context.hparams["lambda_u"] * loss_self
    monitors = {
        "train/loss_supervised": loss_supervised,
        "train/loss_self": loss_self,
        **teaching.monitors,
    }
    if extra_term is not None:
        extra, extra_monitors = extra_term(context, teaching, logits_strong)
        losses += extra
        monitors |= extra_monitors
    return LossOutput(losses, batch_stats, monitors, teaching.labels, teaching.state)


def create_method(
    rule: Rule,
    init_state: Callable[[InitContext], Any],
    hyperparameters: Mapping[str, Hyperparameter],
    extra_term: Callable[..., tuple[jax.Array, dict[str, jax.Array]]] | None = None,
) -> Method:
    """Builds a method that differs from FixMatch by its rule.

    Args:
        rule: which labels to teach, and how much.
        init_state: of the rule.
        hyperparameters: of the rule; `lambda_u` comes with the trunk.
        extra_term: (context, teaching, strong logits [N, U, K]) → a weighted loss [N] to add, and
            monitors.
    """
    return Method(
        functools.partial(compute_loss, rule, extra_term),
        hyperparameters={"lambda_u": LAMBDA_U, **hyperparameters},
        init_state=init_state,
    )
