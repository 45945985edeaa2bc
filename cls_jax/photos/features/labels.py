"""Labels of all images, inferred from frozen features and a few given labels.

`label_images` is the only place that derives them, from several labelers. Each labeler, a graph or
a linear probe, predicts the labels held out from it, each together with those of its near-copies
(`near_copies`) if these would give it away. Its weight, an exponent in a product of probabilities
(a logarithmic opinion pool: Heskes, "Selecting Weighting Factors in Logarithmic Opinion Pools",
NIPS 1997), maximizes the likelihood of these labels. This is stacking (Wolpert, 1992) with a prior,
because a few labels carry little information: the accuracy on 20 labels moves in steps of 5 points.
Weights below 1 also temper overconfident labelers.

Shape suffixes: B images, C features, K classes, L labeled images, M labelers.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from scipy import sparse

from cls_jax.data.sampling import take_rows
from cls_jax.photos.features.accuracy import Estimate, estimate_accuracy
from cls_jax.photos.features.graph import (
    NUM_NEIGHBORS,
    build_graph,
    compute_weight,
    connect_neighbors,
    propagate_labels,
)
from cls_jax.photos.features.groups import join_groups
from cls_jax.photos.features.heads import PROBE_C, Head, fit_head
from cls_jax.photos.features.near_copies import (
    find_firsts,
    find_judged,
    group_near_copies,
    is_copied,
)
from cls_jax.photos.features.neighbors import find_neighbors, whiten
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.new_sources import NewSources, count_single, estimate_new_sources
from cls_jax.photos.features.propagation import Propagation

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
# Images times classes. Above this, only the last layer is used, to bound memory.
_MAX_NUMBERS = 2**25

# The share of the columns of all stages that belongs to early ones: four of the seven stages of
# EfficientNet-Lite0 (but for seven deviations), two of the four of a ResNet.
_EARLY_SHARE = 0.2


class _Labelers(NamedTuple):
    """Those of one or several networks, one network after the other."""

    graphs: list[sparse.csr_matrix]  # [B, B].
    probes: list[tuple[np.ndarray, float]]  # Inputs, floating [B, C], and inverse penalties.
    copies: np.ndarray  # The near-copies, int [B], as far as they are labeled.
    num_networks: int


class HeldOutLabels(NamedTuple):
    """What is known of each labeled image without the labels of its near-copies and its source."""

    probabilities: np.ndarray  # float32 [B, K], uniform for images whose label was not held out.
    is_judged: np.ndarray  # bool [B], whether any of these labels are of the image's class.


class InferredLabels(NamedTuple):
    """Labels of all images, from graphs and linear probes."""

    probabilities: np.ndarray  # float32 [B, K].
    labels: np.ndarray  # int [B], the given class of a labeled image, else the most probable one.
    weights: np.ndarray  # float32 [B] in [0, 1], w = 1 - H(p) / log K, and 1 for labeled images.
    sample_weights: np.ndarray  # float32 [B], for a head: the same, but larger for labeled images.
    probe: Head  # On the last layer.
    # In percent: the share of the weights for the graphs, for the stages before the last layer, and
    # for further networks ("weight_graph", "weight_stages", "weight_others"). The known fields of
    # the `estimate`, and with sources those of `NewSources`. Numbers: labeled images beyond the
    # first of each group of near-copies ("near_copies"), and such groups ("near_copy_groups").
    figures: dict[str, float]
    # The weights of the graphs of the last layer and of all stages, relative to those of the
    # probes, float [2].
    graph_ratios: np.ndarray
    copies: np.ndarray  # The near-copies, int [B], as far as they are labeled.
    estimate: Estimate | None  # The expected accuracy, see `estimate_accuracy`.
    # Without their own labels, or those of their sources, if these are known: up to 1,000 images.
    held_out: HeldOutLabels


def label_images(
    features: FrozenFeatures,
    labels_B: np.ndarray,
    num_classes: int,
    sources_B: np.ndarray | None = None,
) -> InferredLabels:
    """Infers the labels of all images by graphs and linear probes, weighted by held-out labels.

    A graph uses which images are similar, a probe which features separate the classes. Both use
    the last layer and, if available, all stages. The result is the normalized product of their
    probabilities, with exponents from `weigh_labelers`.

    Args:
        features: Of B training images.
        labels_B: int [B], -1 for images without a label.
        num_classes: K.
        sources_B: What the images come from, int, -1 where unknown. None where nothing is known.
            They say how the classifier will do on new sources, and change no inferred label:
            weights that are chosen by labels held out with their sources are no better on new
            sources, and up to 19 points worse on the other images of known ones
            (experiments/results/sources.md).
    """
    labeled = np.flatnonzero(labels_B >= 0)
    labelers = _list_labelers(features, labels_B, num_classes)
    graphs, probes, copies_B, num_networks = labelers
    groups_B = copies_B if is_copied(copies_B, labels_B) else np.arange(len(labels_B))
    given, copies, groups = labels_B[labeled], copies_B[labeled], groups_B[labeled]
    hidden = _list_folds(given, groups)[0]
    held_out = _hold_out(labelers, groups_B, labeled, given, num_classes, hidden=hidden)
    judged = (find_judged(given, groups) & find_firsts(groups))[hidden]
    weights_M = _weigh(held_out[:, judged], given[hidden[judged]], num_networks)
    heads = [fit_head(x_BC[labeled], labels_B[labeled], num_classes, c) for x_BC, c in probes]
    log_p_MBK = [take_log(propagate_labels(graph, labels_B, num_classes)) for graph in graphs]
    for head, (inputs_BC, _) in zip(heads, probes, strict=True):
        log_p_MBK.append(take_log(head.compute_probabilities(inputs_BC)))
    logits_BK = sum(w * log_p for w, log_p in zip(weights_M, log_p_MBK, strict=True))
    probabilities = scipy.special.softmax(logits_BK, axis=1).astype(np.float32)
    probabilities[labeled] = np.eye(num_classes, dtype=np.float32)[labels_B[labeled]]
    graph_weights, probe_weights = (
        part.reshape(num_networks, -1) for part in np.split(weights_M, [len(graphs)])
    )
    # 0 for the graph of all stages if there is none.
    ratios = np.append(graph_weights.sum(axis=0), 0)[:2] / max(probe_weights.sum(), 1e-12)
    figures = _share_weights(graph_weights, probe_weights)
    estimate = estimate_accuracy(probabilities, labels_B, copies_B)
    known = estimate._asdict() if estimate else {}
    combined = _combine(held_out, weights_M, labeled, given, groups, hidden, len(labels_B))
    if sources_B is not None:
        combined = _hold_out_sources(labelers, labels_B, sources_B, num_classes, weights_M)
        known |= _judge_sources(combined, labels_B, sources_B)._asdict()
    figures |= {name: float(value) for name, value in known.items() if value is not None}
    sizes = np.unique(copies, return_counts=True)[1]
    figures["near_copies"] = float((sizes - 1).sum())
    figures["near_copy_groups"] = float((sizes > 1).sum())
    weights = compute_weight(probabilities)
    labels = probabilities.argmax(axis=1)
    sample_weights = np.where(labels_B >= 0, np.float32(_LABELED_WEIGHT), weights)
    return InferredLabels(
        probabilities=probabilities,
        labels=labels,
        weights=weights,
        sample_weights=sample_weights,
        probe=heads[0],
        figures=figures,
        graph_ratios=ratios,
        copies=copies_B,
        estimate=estimate,
        held_out=combined,
    )


def _share_weights(graphs_NW: np.ndarray, probes_NW: np.ndarray) -> dict[str, float]:
    """Shares of the weights in percent: of graphs, of all stages, and of further networks.

    A row has the weights of one network: the last layer's, and that of all stages, if there is one.
    """
    total = max(np.concatenate([graphs_NW.ravel(), probes_NW.ravel()]).sum(), 1e-12)
    shares = {
        "weight_graph": 100 * float(graphs_NW.sum() / total),
        "weight_stages": 100 * float((graphs_NW[:, 1:].sum() + probes_NW[:, 1:].sum()) / total),
    }
    if len(graphs_NW) > 1:
        of_others = graphs_NW[1:].sum() + probes_NW[1:].sum()
        shares["weight_others"] = 100 * float(of_others / total)
    return shares


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
            q_BK[hidden] = scipy.special.softmax(np.tensordot(weights_M, log_p_MLK, 1), axis=1)
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
    is_right = held_out.probabilities[images].argmax(axis=1) == labels_B[images]
    labeled = labels_B >= 0
    of_labels = sources_B[labeled]
    return estimate_new_sources(is_right, sources_B[images])._replace(
        sources=len(np.unique(of_labels[of_labels >= 0])),
        classes_with_one_source=count_single(labels_B[labeled], of_labels),
    )


def hold_out_labels(
    features: FrozenFeatures,
    labels_B: np.ndarray,
    num_classes: int,
    sources_B: np.ndarray | None = None,
) -> HeldOutLabels:
    """Predicts each labeled image from the labels of others, as `label_images` does.

    Of over 1,000 labels, fifths are held out in turn, and probes are fitted to 3,000 of the others.
    The arguments are those of `label_images`.
    """
    labeled = np.flatnonzero(labels_B >= 0)
    labelers = _list_labelers(features, labels_B, num_classes)
    copies_B = labelers.copies
    groups_B = _group(copies_B, sources_B, labels_B)
    given, copies, groups = labels_B[labeled], copies_B[labeled], groups_B[labeled]
    folds = _list_folds(given, groups)
    parts = [
        _hold_out(labelers, groups_B, labeled, given, num_classes, hidden=hidden, most=_MAX_PROBED)
        for hidden in folds
    ]
    held_out = np.concatenate(parts, axis=1)
    hidden = np.concatenate(folds)
    judged = (find_judged(given, groups) & find_firsts(copies))[hidden]
    weights_M = _weigh(held_out[:, judged], given[hidden[judged]], labelers.num_networks)
    return _combine(held_out, weights_M, labeled, given, groups, hidden, len(labels_B))


def _group(copies_B: np.ndarray, sources_B: np.ndarray | None, labels_B: np.ndarray) -> np.ndarray:
    """The images that are held out together, int [B]: near-copies, and those of one source.

    Near-copies alone if no class has labels of two sources: nothing could be predicted.
    """
    if sources_B is None:
        return copies_B
    groups_B, labeled = join_groups(copies_B, sources_B), labels_B >= 0
    return groups_B if find_judged(labels_B[labeled], groups_B[labeled]).any() else copies_B


def _combine(
    held_out_MLK: np.ndarray,
    weights_M: np.ndarray,
    labeled: np.ndarray,
    labels_L: np.ndarray,
    groups_L: np.ndarray,
    hidden: np.ndarray,
    num_images: int,
) -> HeldOutLabels:
    """The held-out labels at the positions `hidden` of those `labeled`, by all labelers."""
    num_classes = held_out_MLK.shape[-1]
    q_BK = np.full((num_images, num_classes), 1 / num_classes, np.float32)
    q_BK[labeled[hidden]] = scipy.special.softmax(np.tensordot(weights_M, held_out_MLK, 1), axis=1)
    is_judged = np.zeros(num_images, bool)
    is_judged[labeled[hidden]] = find_judged(labels_L, groups_L)[hidden]
    return HeldOutLabels(q_BK, is_judged)


def _list_folds(labels_L: np.ndarray, groups_L: np.ndarray) -> list[np.ndarray]:
    """Positions of the labels to hold out together, int: all of up to 1,000 labels, or fifths."""
    order = np.argsort(labels_L, kind="stable")  # By class, so that every fold has labels of each.
    return [order] if len(order) <= _MAX_HELD_OUT else _deal(order, groups_L)


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
    p_MLK = [_hold_out_of_graph(graph, groups_B, labels_B, num_classes, hidden) for graph in graphs]
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


def _list_labelers(features: FrozenFeatures, labels_B: np.ndarray, num_classes: int) -> _Labelers:
    """Graphs and probes of each network in the order of `_PRIOR`.

    Only those of the last layer if a network has no stages, or images and classes are many. The
    first network finds the near-copies.
    """
    networks = features, *features.others
    is_deep = all(each.stages.shape[1] for each in networks)
    is_deep &= len(features.stages) * num_classes <= _MAX_NUMBERS
    graphs, probes, groups = [], [], None
    for each in networks:
        graphs.append(build_graph(each.descriptors))
        probes.append((each.pooled, PROBE_C))
        if not is_deep:
            continue
        stages = each.stages.astype(np.float32)
        inputs = np.concatenate([each.pooled.astype(np.float32), stages], axis=1)
        early = stages[:, : max(round(_EARLY_SHARE * stages.shape[1]), 1)]
        similar = find_neighbors(whiten(stages), min(NUM_NEIGHBORS, len(stages) - 1))
        graphs += [connect_neighbors(similar), build_graph(whiten(early))]
        probes.append((inputs, _DEPTH_PROBE_C))
        if groups is None:
            groups = group_near_copies(each, similar, labels_B)
    if groups is None:  # Only labeled images are compared.
        groups, labeled = np.arange(len(features.pooled)), np.flatnonzero(labels_B >= 0)
        found = group_near_copies(
            features.convert(lambda rows: rows[labeled]), labels_B=labels_B[labeled]
        )
        groups[labeled] = labeled[np.unique(found, return_index=True)[1]][found]
    return _Labelers(graphs, probes, groups, len(networks))


def _hold_out_of_graph(
    graph: sparse.csr_matrix,
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
    propagation.add_classes(num_classes)
    propagation.update(dict(zip(labeled.tolist(), labels_B[labeled].tolist(), strict=True)))
    return propagation.leave_one_out()[1][hidden]


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

    found = scipy.optimize.minimize(
        compute_loss, prior_M, jac=True, bounds=[(0, None)] * len(prior_M), method="L-BFGS-B"
    )
    return np.asarray(found.x)
