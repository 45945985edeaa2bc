"""Options that a run may add to most methods: a fast weak pass, inferred labels, a balanced head.

`add_options` gives a method their keys, and `apply_options` adds what a run has enabled. They are
not for methods that drive the networks themselves, which may show them only mixtures.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch, DatasetSpec
from cls_jax.data.sampling import stream_key
from cls_jax.methods import balanced_head
from cls_jax.methods.base import Context, Hyperparameter, Hyperparameters, LossOutput, Method
from cls_jax.methods.losses import PseudoLabels, compute_labeling_loss
from cls_jax.parallel import collectives

STATES = ("shares", "graph")  # Entries of a method's state, added by the options.
# How a method's target view passes through the networks, see `Method.target_view`.
_WEAK_PASS = Hyperparameter("joint", source="authors' code", choices=("joint", "fast"))
# Weight of the labels inferred from frozen features (by graphs and linear probes).
_GRAPH = Hyperparameter(0.0, 0.0, 1e3, "0: not in the papers")
# Whether a second classifier predicts, which learns from equally many labels of each class.
_BALANCED_HEAD = Hyperparameter(False, 0, 1, "False: not in the methods' papers")


def add_options(method: Method) -> Method:
    """The method with the hyperparameters of the options that its views allow."""
    added = {}
    if method.target_view is not None and method.passes == "joint":
        added["weak_pass"] = _WEAK_PASS
    if method.loss is not None and "strong" in method.unlabeled_views:
        added["graph"] = _GRAPH
        if "weak" in method.unlabeled_views:
            added["balanced_head"] = _BALANCED_HEAD
    return dataclasses.replace(method, hyperparameters={**method.hyperparameters, **added})


def apply_options(method: Method, hparams: Hyperparameters, num_classes: int) -> Method:
    """The method with inferred labels and a balanced head, if the hyperparameters ask for them.

    With `graph` > 0, labels inferred from frozen features (by graphs and linear probes) are another
    target of the strong views: graph · (1 - progress) · mean(w · (L_P + L_N)), CLS's losses with
    fixed labels, is added to the loss. The state gets "graph", `PseudoLabels` of arrays [images],
    zeros until training replaces them.

    With `balanced_head`, this loss acts on the outputs of a second head, and the networks' own head
    learns by ABC's loss, in which a weak view labels a strong one. The state gets "shares",
    float32 [K], of the classes that this head sees.
    """
    graph_weight, is_balanced = hparams.get("graph", 0.0), hparams.get("balanced_head", False)
    own_loss = method.loss
    if own_loss is None or not (graph_weight or is_balanced):
        return method

    def get_view(groups: list[jax.Array], view: str) -> jax.Array:
        return groups[1 + method.unlabeled_views.index(view)]

    def loss(logits: list[jax.Array], batch: Batch, context: Context) -> LossOutput:
        """The method's own loss, and the terms of the options."""
        state, terms = dict(context.method_state), {}
        added = {name: state.pop(name) for name in STATES if name in state}
        if is_balanced:
            halves = [jnp.split(group, 2, axis=-1) for group in logits]
            balanced, logits = [half[0] for half in halves], [half[1] for half in halves]
            draws = [
                collectives.draw_uniform(stream_key(context.key, "balanced_head", i), size)
                for i, size in enumerate((batch.y.size, batch.u_index.size))
            ]
            groups = balanced[0], get_view(balanced, "weak"), get_view(balanced, "strong")
            terms["balanced"] = (
                1.0,
                balanced_head.compute_loss(
                    groups, batch.y, added["shares"], draws, context.progress
                ),
            )
        output = own_loss(logits, batch, context._replace(method_state=state))
        if graph_weight:
            labels = jax.tree.map(lambda leaf: leaf[:, batch.u_index], added["graph"])
            strong = get_view(logits, "strong")
            terms["graph"] = (
                context.hparams["graph"] * (1 - context.progress),
                compute_labeling_loss(strong, labels, labels.weight, negative=True),
            )
        losses, monitors = output.losses, dict(output.monitors)
        for name, (weight, value) in terms.items():
            losses += weight * value
            monitors[f"train/loss_{name}"] = value
        state = {**dict(output.method_state), **added}
        return output._replace(losses=losses, monitors=monitors, method_state=state)

    def create_state(hparams: Hyperparameters, spec: DatasetSpec) -> dict[str, Any]:
        state = dict(method.create_state(hparams, spec))
        if is_balanced:
            state["shares"] = balanced_head.compute_shares(spec.class_frequencies)
        if graph_weight:
            classes, weights = (jnp.zeros(spec.num_images, t) for t in (jnp.int32, jnp.float32))
            state["graph"] = PseudoLabels(classes, classes, weights, weights)
        return state

    heads = ((balanced_head.METHOD_HEAD, num_classes),) if is_balanced else method.extra_heads
    return dataclasses.replace(method, loss=loss, create_state=create_state, extra_heads=heads)
