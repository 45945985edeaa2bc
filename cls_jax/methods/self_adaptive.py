"""FreeMatch's threshold, also used by InfoMatch: the network's own confidence, class by class.

The running mean τ of the confidence is the threshold of the most frequent class; classes that are
predicted rarely get a lower one (Wang et al., 2023, Eq. 5-8).
"""

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.alignment import (
    STATISTICS_DECAY,
    compute_class_balance,
    init_uniform,
    scale_by_class,
    update_mean,
)
from cls_jax.methods.base import Context, InitContext
from cls_jax.methods.trunk import Teaching

HYPERPARAMETERS = {"statistics_decay": STATISTICS_DECAY}


def init_state(init: InitContext) -> dict[str, jax.Array]:
    """Running means: of confidence (`threshold` [N]), predictions and label histogram [N, K]."""
    uniform = init_uniform(init)
    return {"threshold": uniform[:, 0], "predicted": uniform, "histogram": uniform}


def choose(context: Context, batch: Batch, logits_x: jax.Array, logits_weak: jax.Array) -> Teaching:
    """Teaches argmax p where max p ≥ τ · p̃(label) / max p̃; a rule as in `trunk.Rule`.

    All running means move before they are used (both released codes).
    """
    old, decay = context.method_state, context.hparams["statistics_decay"]
    p = jax.nn.softmax(logits_weak)
    confidence, labels = jnp.max(p, axis=-1), jnp.argmax(p, axis=-1)
    one_hot = jax.nn.one_hot(labels, p.shape[-1], dtype=p.dtype)
    state = {
        "threshold": update_mean(context, old["threshold"], confidence, decay),
        "predicted": update_mean(context, old["predicted"], p, decay),
        "histogram": update_mean(context, old["histogram"], one_hot, decay),
    }
    mask = confidence >= scale_by_class(state["threshold"], state["predicted"], labels)
    monitors = {
        "monitors/threshold": state["threshold"],
        "monitors/class_balance": compute_class_balance(state["predicted"]),
    }
    return Teaching(labels, mask.astype(p.dtype), state, monitors)
