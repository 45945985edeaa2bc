"""FlexMatch (Zhang et al., 2021): a lower threshold for classes that are learned slowly."""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.base import Context, Hyperparameter, InitContext
from cls_jax.methods.fixmatch_variants import Targets, create_method

NO_LABEL = -1


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """The last confident label of every training image, int32 [N, images]: none at first.

    `outside` [N] is the number of images that the unlabeled stream never shows: their rows never
    get a label, and must not count as images still to be learned.
    """
    shape = (init.num_networks, init.num_images)
    outside = init.num_images - init.num_unlabeled
    return {
        "label": jnp.full(shape, NO_LABEL, jnp.int32),
        "outside": jnp.full(shape[:1], outside, jnp.int32),
    }


def flexmatch_targets(
    context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array
) -> Targets:
    """Pseudo-labels with argmax p where max p ≥ τ · β / (2 - β), β of the class (Eq. 5-11).

    β(k) = (images whose last confident label is k) / max(those of the largest class, images
    without one), counted before this step's labels enter the table. While the table is empty, the
    threshold is 0 and every image gets a label. Labels enter at max p ≥ τ, not at the lower
    threshold of their class (confirmed by the authors). Signature: see
    `fixmatch_variants.MakeTargets`.
    """
    table, hparams = context.method_state["label"], context.hparams
    num_classes = logits_weak.shape[-1]
    p = jax.nn.softmax(logits_weak)
    confidence, labels = jnp.max(p, axis=-1), jnp.argmax(p, axis=-1).astype(jnp.int32)
    beta = compute_learning_effect(
        table, context.method_state["outside"], num_classes, hparams["warmup"] == "on"
    )
    thresholds = hparams["tau"] * beta / (2 - beta)
    mask = confidence >= jnp.take_along_axis(thresholds, labels, axis=-1)
    confident = jnp.where(confidence >= hparams["tau"], labels, NO_LABEL)
    # Every device holds the whole table, so each needs the labels of all devices.
    confident, index = context.ensemble.gather_over_data((confident, batch.u_index))
    # A batch that spans the end of an epoch may hold an image twice. The maximum makes the result
    # independent of the order in which XLA writes the rows.
    new = jnp.full_like(table, NO_LABEL).at[:, index].max(confident)
    state = {**context.method_state, "label": jnp.where(new == NO_LABEL, table, new)}
    monitors = {
        "monitors/threshold": jnp.mean(thresholds, axis=-1),
        "monitors/class_balance": jnp.min(beta, axis=-1)
        / jnp.maximum(jnp.max(beta, axis=-1), 1e-6),
    }
    return Targets(labels, mask.astype(p.dtype), state, monitors)


def compute_learning_effect(
    table: jax.Array, outside: jax.Array, num_classes: int, warmup: bool
) -> jax.Array:
    """β of every class, float [N, K] in [0, 1], of a table [N, images]. Eq. 6 without warmup."""
    # Counted again at every step: increments would be wrong where an image occurs twice.
    counts = jax.vmap(lambda row: jnp.bincount(row + 1, length=num_classes + 1))(table)
    num_without, counts = counts[:, 0] - outside, counts[:, 1:]
    largest = jnp.max(counts, axis=-1)
    if warmup:
        largest = jnp.maximum(largest, num_without)
    return counts / jnp.maximum(largest, 1)[:, None]


METHODS = {
    "flexmatch": create_method(
        flexmatch_targets,
        init_state,
        {
            "tau": Hyperparameter(0.95, 0.0, 1.0, "FlexMatch, τ"),
            "warmup": Hyperparameter(
                "on", source="FlexMatch, Eq. 11; TorchSSL, all configs", choices=("on", "off")
            ),
        },
    )
}
