"""Which proposals are sure, and which labels doubtful."""

import numpy as np
import pytest

from cls_jax.features.graph import build_graph
from cls_jax.labeling.propagation import Propagation
from cls_jax.labeling.proposals import find_confident, find_doubtful
from tests.labeling.sessions import create_features

KINDS = np.arange(90) % 3


@pytest.fixture(scope="module")
def graph():
    return build_graph(create_features(KINDS))


def test_confident_proposals_are_open_and_the_surest_come_first():
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.99, 0.01], [0.7, 0.3]])
    is_open = np.array([True, True, True, False, True])
    assert list(find_confident(probabilities, is_open, 0, 2)) == [0, 4]


def test_wrong_labels_are_the_first_to_be_doubted(graph):
    labels = np.full(len(KINDS), -1)
    labels[:30] = KINDS[:30]
    labels[[4, 9]] = (KINDS[[4, 9]] + 1) % 3
    propagation = Propagation(graph)
    propagation.add_classes(3)
    propagation.update({i: int(labels[i]) for i in range(30)})
    labeled, probabilities = propagation.leave_one_out()
    is_open = np.ones(30, bool)
    doubtful = find_doubtful(probabilities, labels[labeled], is_open, 2)
    assert set(labeled[doubtful]) == {4, 9}
    is_open[4] = False
    assert 4 not in find_doubtful(probabilities, labels[labeled], is_open, 5)
