"""Which images belong together: copies, near-copies, and images of one source.

Labels of images that belong together are held out together where a label must not be predicted by
what came with it. A source is what several images come from, such as a patient, a camera, a site or
a video.

Shape suffixes: B images.
"""

import numpy as np
from scipy import sparse


def join_groups(*groupings: np.ndarray) -> np.ndarray:
    """The smallest groups that contain those of all groupings, int [B] from 0.

    A grouping is int [B]. An image with a number below 0 is alone in it. Groups are numbered in the
    order of their first images.
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
    _, firsts, places = np.unique(joined, return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), int)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    return ranks[places.reshape(-1)]
