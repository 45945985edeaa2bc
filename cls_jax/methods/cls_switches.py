"""Switches of CLS that its paper does not have; with all of them off, CLS is as published.

They balance classes (`align`, `adaptive_tau`), let networks that disagree exchange less
(`exchange_rule`), make them trust their labels later or less (`ramp`, `weight_power`), train on
mixed images as well (`lambda_cutmix`) and make a step cheaper (`weak_pass`). All are static: code
for a switch that is off is not compiled, and the state holds only the entries that some switch
needs. A preset is one more entry of `cls.METHODS` with other defaults.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cls_jax.batch import Batch
from cls_jax.methods.alignment import (
    STATISTICS_DECAY,
    align,
    compute_class_balance,
    init_class_means,
    update_mean,
)
from cls_jax.methods.base import Context, Hyperparameter, InitContext, PyTree
from cls_jax.methods.cutmix import Mix, cutmix
from cls_jax.methods.pseudo_labels import PseudoLabels, make_pseudo_labels
from cls_jax.methods.schedules import ramp_up

WEAK_PASS = Hyperparameter("joint", source="authors' code", choices=("joint", "fast"))
SWITCHES = {
    "align": Hyperparameter("off", source="paper: none", choices=("off", "own", "joint")),
    "adaptive_tau": Hyperparameter("off", source="paper: none", choices=("off", "on")),
    "exchange_rule": Hyperparameter("all", source="paper", choices=("all", "surer", "agree")),
    "lambda_cutmix": Hyperparameter(0.0, 0.0, 1e3, "paper: none"),
    "ramp": Hyperparameter(0.0, 0.0, 1.0, "paper: none; share of the run"),
    "weight_power": Hyperparameter(1.0, 0.0, 100.0, "paper, Eq. 6"),
    "weak_pass": WEAK_PASS,
    "statistics_decay": STATISTICS_DECAY,
}


def read_hyperparameters(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """All hyperparameters; switches that the method does not have are off."""
    return {name: switch.default for name, switch in SWITCHES.items()} | dict(hparams)


def mix_views(context: Context, hparams: Mapping[str, Any], batch: Batch) -> list[Mix]:
    """CutMix of the weak views, the same for both networks, where `lambda_cutmix` asks for it.

    It is trained with pseudo labels only: two images have no common least probable class.
    """
    if hparams["lambda_cutmix"] == 0:
        return []
    return [cutmix(context.key, batch.u[0], batch.u_index)]


def forward(
    context: Context,
    hparams: Mapping[str, Any],
    params: PyTree,
    batch_stats: PyTree,
    groups: Sequence[jax.Array],
) -> tuple[list[jax.Array], PyTree]:
    """Logits of [labeled, weak, strong, mixed...], each [N, B_i, K], and BatchNorm statistics.

    `weak_pass=joint` is one pass, normalized by the statistics of all groups together, as in the
    authors' code. Weak images teach nothing, since their logits are constants in the loss, but they
    take part in the statistics and so in the gradient. `fast` leaves them out of both.
    """
    if hparams["weak_pass"] == "joint":
        return context.ensemble.forward_concatenated(params, batch_stats, groups)
    labeled, weak, *others = groups
    logits, logits_weak, batch_stats = context.ensemble.forward_with_frozen_group(
        params, batch_stats, (labeled, *others), weak
    )
    return [logits[0], logits_weak, *logits[1:]], batch_stats


def init_state(init: InitContext) -> Any:
    """Running class means [N, K] and mean weight [N], which starts at τ; () with neither switch."""
    hparams, state = read_hyperparameters(init.hparams), {}
    means = init_class_means(init, "labels")
    if hparams["align"] != "off":
        state = means
    if hparams["adaptive_tau"] == "on":
        state["predicted"] = means["predicted"]
        # From 0, untrained networks would exchange everything.
        state["confidence"] = jnp.full(init.num_networks, float(hparams["tau"]))
    return state or ()


def make_labels(
    context: Context, hparams: Mapping[str, Any], logits_weak: jax.Array
) -> tuple[PseudoLabels, Any, dict[str, jax.Array]]:
    """Labels and weights of aligned predictions, the state after this batch, and monitors.

    `align=own` divides by a network's own running class means, `joint` by those of both; the target
    is the class frequencies of the labeled set. Pseudo label, complementary label and weight all
    follow from the aligned prediction.
    """
    if not context.method_state:
        return make_pseudo_labels(logits_weak), context.method_state, {}
    state, decay = dict(context.method_state), hparams["statistics_decay"]
    logits_weak = jax.lax.stop_gradient(logits_weak)
    p = jax.nn.softmax(logits_weak)
    predicted = state["predicted"] = update_mean(context, state["predicted"], p, decay)
    monitors = {"monitors/class_balance": compute_class_balance(predicted)}
    if hparams["align"] == "joint":
        predicted = (predicted + context.ensemble.exchange(predicted)) / 2
    if hparams["align"] != "off":
        logits_weak = align(logits_weak, predicted, state["target"])
    labels = make_pseudo_labels(logits_weak)
    if hparams["adaptive_tau"] == "on":
        state["confidence"] = update_mean(context, state["confidence"], labels.weight, decay)
    return labels, state, monitors


def scale_weight(hparams: Mapping[str, Any], weight: jax.Array) -> jax.Array:
    """w^γ for losses; thresholds use w itself."""
    return weight if hparams["weight_power"] == 1 else weight ** hparams["weight_power"]


def ramp_unlabeled(hparams: Mapping[str, Any], progress: jax.Array) -> jax.Array | float:
    """The factor of all unlabeled losses: from 0 to 1 over the share `ramp` of the run."""
    return ramp_up(progress, hparams["ramp"]) if hparams["ramp"] > 0 else 1.0
