"""Which images belong together.

Labels of images that belong together are held out together where a label must not be predicted by
what came with it: near-copies, and images of one source. A source is what several images come from,
such as a patient, a camera, a site or a video.

Shape suffixes: B images, K classes, L labeled images.
"""

import numpy as np
from scipy import sparse

from cls_jax.photos.features.relations import Relations


def groups(
    relations: Relations,
    labels_B: np.ndarray,
    num_classes: int,
    sources_B: np.ndarray | None = None,
) -> np.ndarray:
    """The images that belong together, int [B]: near-copies with the same label, and sources.

    Labels are int [B], and `sources_B` are what the images come from, int [B], both -1 where
    unknown. Sources do not count if no class has labels of two of them, since nothing could be
    predicted then.
    """
    labeled = np.flatnonzero(labels_B >= 0)
    if relations.is_deep(num_classes):
        copies_B = relations.group(labels_B)
    else:  # Only labeled images are compared.
        found = Relations(relations.features.convert(lambda rows: rows[labeled]))
        groups_L = found.group(labels_B[labeled])
        copies_B = np.arange(len(labels_B))
        copies_B[labeled] = labeled[np.unique(groups_L, return_index=True)[1]][groups_L]
    if sources_B is None:
        return copies_B
    groups_B = join_groups(copies_B, sources_B)
    is_judged = find_judged(labels_B[labeled], groups_B[labeled])
    return groups_B if is_judged.any() else copies_B


def join_groups(*groupings: np.ndarray) -> np.ndarray:
    """The smallest groups that contain those of all groupings, int [B] from 0.

    A grouping is int [B]. An image with a number below 0 is alone in it.
    """
    num_images = len(groupings[0])
    rows, columns, start = [], [], num_images
    for groups_B in groupings:  # Images and groups are the nodes of a graph.
        is_known = groups_B >= 0
        rows.append(np.flatnonzero(is_known))
        columns.append(start + groups_B[is_known])
        start += int(groups_B.max(initial=-1)) + 1
    edges = np.concatenate(rows), np.concatenate(columns)
    graph = sparse.coo_matrix((np.ones(len(edges[0])), edges), shape=(start, start))
    joined = sparse.csgraph.connected_components(graph, directed=False)[1][:num_images]
    return np.unique(joined, return_inverse=True)[1].reshape(-1)


def is_copied(groups_B: np.ndarray, labels_B: np.ndarray) -> bool:
    """Whether labels have near-copies among them more often than other images have.

    Such labels predict each other better than other images, as those of a burst that somebody
    labeled at once do. If as many of the other images have a labeled near-copy, it helps them as
    much. Groups are int [B]. Labels are int [B], -1 where unknown.
    """
    is_labeled = labels_B >= 0
    counts_B = np.bincount(groups_B[is_labeled], minlength=int(groups_B.max(initial=0)) + 1)[
        groups_B
    ]
    among_labels, among_others = counts_B[is_labeled] > 1, counts_B[~is_labeled] > 0
    if not among_labels.any():
        return False
    return not len(among_others) or bool(among_labels.mean() > among_others.mean())


def find_judged(labels_L: np.ndarray, groups_L: np.ndarray) -> np.ndarray:
    """Which labels other labels can predict, bool [L]: the class has a label in another group.

    Labels are classes, int [L], and their groups int [L].
    """
    pairs = np.unique(np.stack([labels_L, groups_L]), axis=1)
    return np.bincount(pairs[0], minlength=1)[labels_L] > 1


def find_firsts(groups_L: np.ndarray) -> np.ndarray:
    """Which images are the first of their groups, bool [L]. Only these count in an accuracy."""
    is_first = np.zeros(len(groups_L), bool)
    is_first[np.unique(groups_L, return_index=True)[1]] = True
    return is_first
