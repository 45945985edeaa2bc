"""Options that a run may add to most methods: a fast weak pass, inferred labels, a balanced head.

`add_options` gives a method their keys, and `apply_options` adds what a run has enabled. They are
not for methods that drive the networks themselves, which may show them only mixtures.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch, DatasetSpec, PyTree
from cls_jax.data.sampling import stream_key
from cls_jax.methods import balanced_head
from cls_jax.methods.base import Context, Hyperparameters, LossOutput, Method, hyperparameter
from cls_jax.methods.losses import PseudoLabels, compute_labeling_loss
from cls_jax.parallel import collectives

# Entries of a method's state, added by the options. Inferred labels were once called labels of a
# graph, and are still stored by this name, so that runs of that time can be read.
INFERRED_LABELS = "graph"
_STATES = ("shares", INFERRED_LABELS)
# How a method's target view passes through the networks, see `Method.target_view`.
_WEAK_PASS = hyperparameter("joint", source="authors' code", choices=("joint", "fast"))
# Weight of the labels inferred from frozen features (by graphs and linear probes).
_INFERRED = hyperparameter(0.0, 0.0, 1e3, "0: not in the papers")
# Whether a second classifier predicts, which learns from equally many labels of each class.
_BALANCED_HEAD = hyperparameter(False, 0, 1, "False: not in the methods' papers")


def add_options(method: Method) -> Method:
    """The method with the hyperparameters of the options that its views allow."""
    added = {}
    if method.target_view is not None and method.passes == "joint":
        added["weak_pass"] = _WEAK_PASS
    if method.loss is not None and "strong" in method.unlabeled_views:
        added["inferred"] = _INFERRED
        if "weak" in method.unlabeled_views:
            added["balanced_head"] = _BALANCED_HEAD
    return dataclasses.replace(method, hyperparameters={**method.hyperparameters, **added})


def apply_options(method: Method, hparams: Hyperparameters, num_classes: int) -> Method:
    """The method with inferred labels and a balanced head, if the hyperparameters ask for them.

    With `inferred` > 0, labels inferred from frozen features (by graphs and linear probes) are
    another target of the strong views: inferred · (1 - progress) · mean(w · (L_P + L_N)), CLS's
    losses with fixed labels, is added to the loss. The state gets
    `INFERRED_LABELS`, `PseudoLabels` of arrays [images], zeros until training replaces them.

    With `balanced_head`, this loss acts on the outputs of a second head, and the networks' own head
    learns by ABC's loss, in which a weak view labels a strong one. The state gets "shares",
    float32 [K], of the classes that this head sees.
    """
    has_inferred = hparams.get("inferred", 0.0) > 0
    is_balanced = hparams.get("balanced_head", False)
    base_loss = method.loss
    if base_loss is None or not (has_inferred or is_balanced):
        return method

    def get_view(groups: list[jax.Array], view: str) -> jax.Array:
        return groups[1 + method.unlabeled_views.index(view)]

    def loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
        """The method's own loss, and the terms of the options."""
        state = dict(context.method_state)
        added = {name: state.pop(name) for name in _STATES if name in state}
        terms: dict[str, tuple[float | jax.Array, jax.Array]] = {}
        if is_balanced:
            halves = [jnp.split(group, 2, axis=-1) for group in logits]
            balanced = [half[0] for half in halves]
            logits = [half[1] for half in halves]
            groups = balanced[0], get_view(balanced, "weak"), get_view(balanced, "strong")
            terms["balanced"] = _weigh_balanced(groups, batch, context, added["shares"])
        output = base_loss(logits, batch, context._replace(method_state=state))
        if has_inferred:
            strong = get_view(logits, "strong")
            terms["inferred"] = _weigh_inferred(strong, batch, context, added[INFERRED_LABELS])
        losses = output.losses
        monitors = dict(output.monitors)
        for name, (weight, value) in terms.items():
            losses += weight * value
            monitors[f"train/loss_{name}"] = value
        state = {**dict(output.method_state), **added}
        return output._replace(losses=losses, monitors=monitors, method_state=state)

    def create_state(hparams: Hyperparameters, spec: DatasetSpec) -> dict[str, PyTree]:
        state = dict(method.create_state(hparams, spec))
        if is_balanced:
            state["shares"] = balanced_head.compute_shares(spec.class_frequencies)
        if has_inferred:
            classes, weights = (jnp.zeros(spec.num_images, t) for t in (jnp.int32, jnp.float32))
            state[INFERRED_LABELS] = PseudoLabels(
                pseudo=classes, complementary=classes, weight=weights, confidence=weights
            )
        return state

    heads = ((balanced_head.METHOD_HEAD, num_classes),) if is_balanced else method.extra_heads
    return dataclasses.replace(method, loss=loss, create_state=create_state, extra_heads=heads)


def _weigh_balanced(
    groups: Sequence[jax.Array], batch: Batch, context: Context, shares: jax.Array
) -> tuple[float, jax.Array]:
    """Weight and loss [N] of the balanced head. The groups are those of its `compute_loss`."""
    draws = [
        collectives.draw_uniform(stream_key(context.key, "balanced_head", i), size)
        for i, size in enumerate((batch.y.size, batch.u_index.size))
    ]
    return 1.0, balanced_head.compute_loss(
        groups, batch.y, shares_NK=shares, draws=draws, progress=context.progress
    )


def _weigh_inferred(
    strong: jax.Array, batch: Batch, context: Context, inferred: PseudoLabels
) -> tuple[jax.Array, jax.Array]:
    """Weight and loss [N] of the strong views, by the inferred labels of all training images."""
    labels = jax.tree.map(lambda leaf: leaf[:, batch.u_index], inferred)
    weight = context.hparams["inferred"] * (1 - context.progress)
    return weight, compute_labeling_loss(strong, labels, labels.weight, negative=True)
