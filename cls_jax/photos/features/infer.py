"""Labels of all images, inferred from frozen features and a few given labels.

`infer` derives them from several labelers. (Between two fits, the page spreads new labels with
`graph.Propagation`, and `start.stages` adds what trained networks say.) Each labeler, a graph or a
linear probe, predicts the labels held out from it, each together with those of its near-copies
(`grouping.groups`) if these would give it away. Its weight, an exponent in a product of
probabilities (a logarithmic opinion pool: Heskes, "Selecting Weighting Factors in Logarithmic
Opinion Pools", NIPS 1997), maximizes the likelihood of these labels. This is stacking (Wolpert,
1992) with a prior, because a few labels carry little information: the accuracy on 20 labels moves
in steps of 5 points. Weights below 1 also temper overconfident labelers.

Shape suffixes: B images, C features, K classes, L labeled images, M labelers, N networks.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy.special
from scipy import sparse

from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.accuracy import (
    Estimate,
    NewSources,
    count_single,
    estimate_accuracy,
    estimate_new_sources,
)
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.graph import Propagation, Response, compute_weight, propagate_labels
from cls_jax.photos.features.grouping import find_firsts, find_judged, groups, is_copied
from cls_jax.photos.features.heads import PROBE_C, Head, fit_head
from cls_jax.photos.features.relations import EARLY, LAST, STAGES, Relations

# Weight of a labeled image, where others have at most 1. With it and the probe, photos of
# clothing gain 1 to 3 points with 5 to 50 labels per class, and nothing with one
# (experiments/results/photos.md).
_LABELED_WEIGHT = 20
# Prior weights of the graphs of the last layer, all stages and early stages, then of the probes of
# the last layer and all stages. Chosen on clothing, trash, scans, textures, and CIFAR-10, where
# half and twice these are within 0.3 points on average (experiments/results/any_folder.md). Several
# networks share them.
_PRIOR = (0.5, 0.2, 0.1), (0.7, 0.3)
# Without a class with two labels, nothing can be held out.
_PRIOR_WITHOUT_PAIRS = (1.0, 0.2, 0.0), (1.0, 0.0)
# How strongly the prior holds: a deviation of 1 costs as much as 5 nats. From 3 to 20, accuracies
# on the development folders are within 0.3 points on average.
_PRIOR_STRENGTH = 10.0
_FLOOR = 1e-6  # Smaller probabilities are raised to this. One from a graph can be exactly 0.
_DEPTH_PROBE_C = 0.1  # For the probe of all stages, which needs a weaker penalty.
_NUM_FOLDS = 5
# Sources are left out in at most so many parts, and shares of labels that remain are multiples of
# one tenth, so that the time does not grow with the number of sources.
_NUM_PARTS, _SHARES = 8, 10
# Up to this many labels, each is held out: of graphs alone, of probes with a fifth of all labels.
# Of more, fifths are held out together.
_MAX_HELD_OUT = 1_000
_MAX_PROBED = 3_000  # Labels to which a probe is fitted that judges other labels.


class _Labelers(NamedTuple):
    """Those of one or several networks, one network after the other."""

    graphs: list[sparse.csr_matrix]  # [B, B].
    recalled: list[dict[int, Response]]  # Of each graph, see `Relations.recall`.
    names: np.ndarray  # Of the images, int [B].
    probes: list[tuple[np.ndarray, float]]  # Inputs, floating [B, C], and inverse penalties.
    num_networks: int


class LabelerWeights(NamedTuple):
    """The weights of the labelers: for each network those of the last layer, then of stages."""

    graphs: np.ndarray  # float64 [N, 1 or 3].
    probes: np.ndarray  # float64 [N, 1 or 2].

    @property
    def graph_ratios(self) -> np.ndarray:
        """Of the graphs of the last layer and of all stages, relative to the probes, float [2]."""
        ratios_2 = np.append(self.graphs.sum(axis=0), 0)[:2]  # 0 without a graph of all stages.
        return np.asarray(ratios_2 / max(self.probes.sum(), 1e-12))

    @property
    def shares(self) -> dict[str, float]:
        """Shares in percent: of graphs, of all stages, and of further networks if there are any."""
        total = max(self.graphs.sum() + self.probes.sum(), 1e-12)
        of_stages = self.graphs[:, 1:].sum() + self.probes[:, 1:].sum()
        of_others = self.graphs[1:].sum() + self.probes[1:].sum()
        shares = {
            "weight_graph": 100 * float(self.graphs.sum() / total),
            "weight_stages": 100 * float(of_stages / total),
        }
        if len(self.graphs) > 1:
            shares["weight_others"] = 100 * float(of_others / total)
        return shares


class HeldOutLabels(NamedTuple):
    """What is known of each labeled image without the labels of its near-copies and its source."""

    probabilities: np.ndarray  # float32 [B, K], uniform for images whose label was not held out.
    is_judged: np.ndarray  # bool [B], whether any of these labels are of the image's class.


@dataclasses.dataclass(frozen=True)
class Inferred:
    """Labels of all images, from graphs and linear probes."""

    given: np.ndarray  # The given labels, int [B], -1 for the other images.
    probabilities: np.ndarray  # float32 [B, K].
    labeler_weights: LabelerWeights
    probe: Head  # On the last layer.
    groups: np.ndarray  # The near-copies, int [B], see `grouping.groups`.
    estimate: Estimate | None  # The expected accuracy, see `estimate_accuracy`.
    new_sources: NewSources | None  # The same on new sources. None where no source is known.
    # Without their own labels, or those of their sources, if these are known: up to 1,000 images.
    held_out: HeldOutLabels

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """The given class of a labeled image, else the most probable one, int [B]."""
        return np.where(self.given >= 0, self.given, decide(self.probabilities).best)

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """How sure labels are, w = 1 - H(p) / log K, and 1 for labeled images, float32 [B]."""
        return compute_weight(self.probabilities)

    @property
    def sample_weights(self) -> np.ndarray:
        """The same for a head, where labeled images weigh more, float32 [B]."""
        return np.where(self.given >= 0, np.float32(_LABELED_WEIGHT), self.weights)

    @property
    def figures(self) -> dict[str, float]:
        """What is known, by name: weights in percent, the `estimate`, `new_sources`, near-copies.

        "near_copies" are labeled images beyond the first of each group, of which "near_copy_groups"
        are larger than one.
        """
        found = [part._asdict() for part in (self.estimate, self.new_sources) if part]
        known = {name: float(v) for part in found for name, v in part.items() if v is not None}
        sizes = np.unique(self.groups[self.given >= 0], return_counts=True)[1]
        known |= {"near_copies": float((sizes - 1).sum())}
        return self.labeler_weights.shares | known | {"near_copy_groups": float((sizes > 1).sum())}


def infer(
    relations: Relations,
    labels_B: np.ndarray,
    num_classes: int,
    sources_B: np.ndarray | None = None,
) -> Inferred:
    """Infers the labels of all images by graphs and linear probes, weighted by held-out labels.

    A graph uses which images are similar, a probe which features separate the classes. Both use
    the last layer and, if available, all stages. The result is the normalized product of their
    probabilities, with exponents from `weigh_labelers`.

    Args:
        relations: Of B images.
        labels_B: Their classes, int, -1 where unknown.
        num_classes: K.
        sources_B: What the images come from, int, -1 where unknown. None where nothing is known.
            They say how the classifier will do on new sources, and change no inferred label:
            weights that are chosen by labels held out with their sources are no better on new
            sources, and up to 19 points worse on the other images of known ones
            (experiments/results/sources.md).
    """
    labeled = np.flatnonzero(labels_B >= 0)
    labelers = _list_labelers(relations, num_classes)
    copies_B = groups(relations, labels_B, num_classes)
    groups_B = copies_B if is_copied(copies_B, labels_B) else np.arange(len(labels_B))
    weights_M, held_out = _judge(labelers, labels_B, groups_B, groups_B, num_classes)
    given = labels_B[labeled]
    heads = [fit_head(x_BC[labeled], given, num_classes, c) for x_BC, c in labelers.probes]
    log_p_MBK = [
        take_log(propagate_labels(graph, labels_B, num_classes)) for graph in labelers.graphs
    ]
    for head, (inputs_BC, _) in zip(heads, labelers.probes, strict=True):
        log_p_MBK.append(take_log(head.compute_probabilities(inputs_BC)))
    probabilities = pool(weights_M, log_p_MBK)
    probabilities[labeled] = np.eye(num_classes, dtype=np.float32)[given]
    new_sources = None
    if sources_B is not None:
        held_out = _hold_out_sources(labelers, labels_B, sources_B, num_classes, weights_M)
        new_sources = _judge_sources(held_out, labels_B, sources_B)
    graph_weights, probe_weights = (
        part.reshape(labelers.num_networks, -1)
        for part in np.split(weights_M, [len(labelers.graphs)])
    )
    return Inferred(
        given=labels_B,
        probabilities=probabilities,
        labeler_weights=LabelerWeights(graph_weights, probe_weights),
        probe=heads[0],
        groups=copies_B,
        estimate=estimate_accuracy(probabilities, labels_B, copies_B),
        new_sources=new_sources,
        held_out=held_out,
    )


def pool(weights_M: np.ndarray, log_p_MBK: Iterable[np.ndarray]) -> np.ndarray:
    """The normalized product of probabilities, float32 [B, K], given logarithms and exponents."""
    logits_BK = sum(w * log_p_BK for w, log_p_BK in zip(weights_M, log_p_MBK, strict=True))
    return np.asarray(scipy.special.softmax(logits_BK, axis=1), np.float32)


def _hold_out_sources(
    labelers: _Labelers,
    labels_B: np.ndarray,
    sources_B: np.ndarray,
    num_classes: int,
    weights_M: np.ndarray,
) -> HeldOutLabels:
    """Predicts each labeled image without the labels of its source, as if the source were new.

    Sources are left out in turn, or at most eight parts of them. Without them, classes have lost
    different shares of their labels, and a class that is judged has lost more than others on
    average. Other classes would then take its images: of 24 signs with five labels each by eight
    people, 22% instead of 30% were right (experiments/results/sources.md). So every class is left
    with the share of the judged one. Images of unknown source are not judged.
    """
    q_BK = np.full((len(labels_B), num_classes), 1 / num_classes, np.float32)
    is_judged = np.zeros(len(labels_B), bool)
    totals_K = np.bincount(labels_B[labels_B >= 0], minlength=num_classes)
    for part in _deal_sources(sources_B[labels_B >= 0]):
        is_left_out = np.isin(sources_B, part)
        others_B = np.where(is_left_out, -1, labels_B)
        shares_K = np.bincount(others_B[others_B >= 0], minlength=num_classes)
        shares_K = np.round(_SHARES * shares_K / np.maximum(totals_K, 1)).astype(int)
        for share in np.unique(shares_K[labels_B[is_left_out & (labels_B >= 0)]]):
            hidden = np.flatnonzero(is_left_out & (labels_B >= 0) & (shares_K[labels_B] == share))
            hidden = hidden[np.isin(labels_B[hidden], others_B)]
            if not len(hidden):
                continue
            most_K = np.maximum(np.round(totals_K * share / _SHARES), 1).astype(int)
            kept = [take_rows(np.flatnonzero(others_B == k), n) for k, n in enumerate(most_K)]
            rows = np.sort(np.concatenate([*kept, hidden]))
            log_p_MLK = _hold_out(
                labelers,
                np.arange(len(labels_B)),
                rows,
                labels_B[rows],
                num_classes,
                hidden=np.searchsorted(rows, hidden),
                most=_MAX_PROBED,
            )
            q_BK[hidden] = pool(weights_M, log_p_MLK)
            is_judged[hidden] = True
    return HeldOutLabels(q_BK, is_judged)


def _deal_sources(sources_L: np.ndarray) -> list[np.ndarray]:
    """At most eight parts of the known sources, int, with about as many labels in each."""
    sources, counts = np.unique(sources_L[sources_L >= 0], return_counts=True)
    ordered = sources[np.argsort(-counts, kind="stable")]
    return [ordered[part::_NUM_PARTS] for part in range(min(_NUM_PARTS, len(ordered)))]


def _judge_sources(
    held_out: HeldOutLabels, labels_B: np.ndarray, sources_B: np.ndarray
) -> NewSources:
    """The accuracy to expect on new sources, from labels that were held out with their sources."""
    images = np.flatnonzero(held_out.is_judged)
    is_right = decide(held_out.probabilities[images]).is_right(labels_B[images])
    labeled = labels_B >= 0
    of_labels = sources_B[labeled]
    return estimate_new_sources(is_right, sources_B[images])._replace(
        sources=len(np.unique(of_labels[of_labels >= 0])),
        classes_with_one_source=count_single(labels_B[labeled], of_labels),
    )


def hold_out_labels(
    relations: Relations,
    labels_B: np.ndarray,
    num_classes: int,
    sources_B: np.ndarray | None = None,
) -> HeldOutLabels:
    """Predicts each labeled image from the labels of others, as `infer` does.

    Of over 1,000 labels, fifths are held out in turn, and probes are fitted to 3,000 of the others.
    The arguments are those of `infer`.
    """
    labelers = _list_labelers(relations, num_classes)
    copies_B, groups_B = (
        groups(relations, labels_B, num_classes, given) for given in (None, sources_B)
    )
    return _judge(labelers, labels_B, groups_B, copies_B, num_classes, _MAX_PROBED)[1]


def _judge(
    labelers: _Labelers,
    labels_B: np.ndarray,
    groups_B: np.ndarray,
    copies_B: np.ndarray,
    num_classes: int,
    most: int | None = None,
) -> tuple[np.ndarray, HeldOutLabels]:
    """The weights of the labelers, float [M], and what all say about labels held out from them.

    Labels are held out with those of their group, and count once for all copies. Of over 1,000
    labels, fifths are held out in turn, with probes that are fitted to at most `most` of the
    others, or only the first fifth if that is None.
    """
    labeled = np.flatnonzero(labels_B >= 0)
    given, groups_L = labels_B[labeled], groups_B[labeled]
    order = np.argsort(given, kind="stable")  # By class, so that every fold has labels of each.
    folds = (
        [order] if len(order) <= _MAX_HELD_OUT else _deal(order, groups_L)[: None if most else 1]
    )
    parts = [
        _hold_out(labelers, groups_B, labeled, given, num_classes, hidden=hidden, most=most)
        for hidden in folds
    ]
    held_out, hidden = np.concatenate(parts, axis=1), np.concatenate(folds)
    is_judged_L = find_judged(given, groups_L)
    judged = (is_judged_L & find_firsts(copies_B[labeled]))[hidden]
    weights_M = _weigh(held_out[:, judged], given[hidden[judged]], labelers.num_networks)
    q_BK = np.full((len(labels_B), num_classes), 1 / num_classes, np.float32)
    q_BK[labeled[hidden]] = pool(weights_M, held_out)
    is_judged_B = np.zeros(len(labels_B), bool)
    is_judged_B[labeled[hidden]] = is_judged_L[hidden]
    return weights_M, HeldOutLabels(q_BK, is_judged_B)


def _deal(positions: np.ndarray, groups_L: np.ndarray) -> list[np.ndarray]:
    """Divides positions into fifths, int, with those of a group in the same one. None is empty."""
    groups = groups_L[positions]
    firsts = groups[np.sort(np.unique(groups, return_index=True)[1])]
    num_folds = min(_NUM_FOLDS, len(firsts))
    parts = (np.isin(groups, firsts[fold::_NUM_FOLDS]) for fold in range(num_folds))
    return [positions[part] for part in parts]


def _hold_out(
    labelers: _Labelers,
    groups_B: np.ndarray,
    labeled: np.ndarray,
    labels_L: np.ndarray,
    num_classes: int,
    hidden: np.ndarray,
    most: int | None = None,
) -> np.ndarray:
    """Log-probabilities of hidden labels, each predicted from the other labels.

    Returns float [M, len(hidden), K]: one row of classes for each labeler and hidden label. A
    probe is fitted to at most `most` other labels.
    """
    graphs, probes = labelers.graphs, labelers.probes
    labels_B = np.full(graphs[0].shape[0], -1)
    labels_B[labeled] = labels_L
    p_MLK = [
        _hold_out_of_graph(graph, known, labelers.names, groups_B, labels_B, num_classes, hidden)
        for graph, known in zip(graphs, labelers.recalled, strict=True)
    ]
    for inputs_BC, inverse_penalty in probes:
        p_LK = _hold_out_of_probe(
            inputs_BC[labeled],
            labels_L,
            num_classes,
            inverse_penalty=inverse_penalty,
            folds=[hidden] if len(hidden) < len(labels_L) else _deal(hidden, groups_B[labeled]),
            most=most or len(labels_L),
        )
        p_MLK.append(p_LK[hidden])
    return take_log(np.stack(p_MLK))


def _weigh(held_out_MLK: np.ndarray, labels_L: np.ndarray, num_networks: int) -> np.ndarray:
    """The weights of the labelers, float [M], from judged labels as `_hold_out` returned them."""
    # Graphs and probes of a network: all, or the last layer's.
    each = None if len(held_out_MLK) > 2 * num_networks else 1
    prior = _PRIOR if len(labels_L) else _PRIOR_WITHOUT_PAIRS
    parts = [np.tile(part[:each], num_networks) / num_networks for part in prior]
    return weigh_labelers(held_out_MLK, labels_L, np.concatenate(parts))


def _list_labelers(relations: Relations, num_classes: int) -> _Labelers:
    """Graphs and probes of each network in the order of `_PRIOR`.

    Only those of the last layer if a network has no stages, or images and classes are many.
    """
    graphs, recalled, probes = [], [], []
    is_deep = relations.is_deep(num_classes)
    for i, network in enumerate(relations.networks):
        depths = (LAST, STAGES, EARLY) if is_deep else (LAST,)
        graphs += [relations.connect(i, depth) for depth in depths]
        recalled += [relations.recall(i, depth) for depth in depths]
        probes.append((network.pooled, PROBE_C))
        if is_deep:
            parts = network.pooled, network.stages
            probes.append((np.concatenate(parts, axis=1, dtype=np.float32), _DEPTH_PROBE_C))
    return _Labelers(graphs, recalled, relations.names, probes, len(relations.networks))


def _hold_out_of_graph(
    graph: sparse.csr_matrix,
    recalled: dict[int, Response],
    names_B: np.ndarray,
    groups_B: np.ndarray,
    labels_B: np.ndarray,
    num_classes: int,
    hidden: np.ndarray,
) -> np.ndarray:
    """Probabilities [L, K] of the `hidden` labeled images, each without those of its group."""
    labeled = np.flatnonzero(labels_B >= 0)
    if len(hidden) < len(labeled):
        others = labels_B.copy()
        others[labeled[hidden]] = -1
        return propagate_labels(graph, others, num_classes)[labeled[hidden]]
    propagation = Propagation(graph, groups_B)
    propagation.update(labels_B, num_classes)
    is_single = np.bincount(groups_B)[groups_B[labeled]] == 1
    single = [(int(image), int(names_B[image])) for image in labeled[is_single]]
    propagation.responses |= {(i,): recalled[name] for i, name in single if name in recalled}
    p_LK = propagation.leave_one_out()[1]
    recalled.update({name: propagation.responses[i,] for i, name in single})
    return p_LK[hidden]


def _hold_out_of_probe(
    features_LC: np.ndarray,
    labels_L: np.ndarray,
    num_classes: int,
    inverse_penalty: float,
    folds: list[np.ndarray],
    most: int,
) -> np.ndarray:
    """Probabilities [L, K] by probes, each fitted without the labels, at L positions, of a fold.

    Positions that are in no fold have uniform probabilities.
    """
    p_LK = np.full((len(labels_L), num_classes), 1 / num_classes, np.float32)
    for part in folds:
        rest = np.setdiff1d(np.arange(len(labels_L)), part)
        if len(rest) > most:  # Evenly from all classes.
            rest = take_rows(rest[np.argsort(labels_L[rest], kind="stable")], most)
        if len(rest):
            head = fit_head(features_LC[rest], labels_L[rest], num_classes, inverse_penalty)
            p_LK[part] = head.compute_probabilities(features_LC[part])
    return p_LK


def take_log(probabilities: np.ndarray) -> np.ndarray:
    """Logarithms, float32, of probabilities of any shape, raised to at least 1e-6."""
    return np.log(np.maximum(probabilities, np.float32(_FLOOR)), dtype=np.float32)


def weigh_labelers(
    held_out_MLK: np.ndarray, labels_L: np.ndarray, prior_M: np.ndarray
) -> np.ndarray:
    """The weights that maximize the likelihood of held-out labels and a Gaussian prior.

    Minimizes -Σ_l log softmax(Σ_m w_m log p_ml)[y_l] + ½ s |w - prior|² over w ≥ 0, a convex
    problem with one minimum.

    Args:
        held_out_MLK: Logarithms of the probabilities that each labeler gives to each labeled image
            without its label, floating [M, L, K], see `take_log`.
        labels_L: The labels, int [L], without the only ones of their classes, because without them
            a labeler does not know the class.
        prior_M: Weights without labels, float [M].

    Returns:
        float64 [M], not negative. The prior itself without labels.
    """
    if not len(labels_L):
        return np.asarray(prior_M, float)
    from scipy.optimize import minimize  # Takes some tenths of a second.

    log_p_MLK = held_out_MLK.astype(float)
    truth = (np.arange(len(labels_L)), labels_L)

    def compute_loss(weights_M: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient."""
        logits_LK = np.tensordot(weights_M, log_p_MLK, 1)
        log_q_LK = scipy.special.log_softmax(logits_LK, axis=1)
        expected_M = np.einsum("mlk,lk->m", log_p_MLK, np.exp(log_q_LK))
        away = weights_M - prior_M
        gradient = expected_M - log_p_MLK[:, *truth].sum(axis=1) + _PRIOR_STRENGTH * away
        return _PRIOR_STRENGTH / 2 * (away @ away) - log_q_LK[truth].sum(), gradient

    found = minimize(
        compute_loss, prior_M, jac=True, bounds=[(0, None)] * len(prior_M), method="L-BFGS-B"
    )
    return np.asarray(found.x)
