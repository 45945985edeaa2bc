"""What is suggested, what is sure and what is doubtful."""

import numpy as np
import pytest

from cls_jax.features.graph import build_graph
from cls_jax.labeling.propagation import Propagation
from cls_jax.labeling.proposals import Coverage, find_confident, find_doubtful
from tests.labeling.sessions import create_features

KINDS = np.arange(90) % 3


@pytest.fixture(scope="module")
def graph():
    return build_graph(create_features(KINDS))


def test_the_first_suggestions_are_of_different_groups(graph):
    chosen = Coverage(graph).choose(np.ones(len(KINDS), bool), 3)
    assert sorted(KINDS[chosen]) == [0, 1, 2]


def test_suggestions_go_where_no_answer_is(graph):
    is_open = KINDS != 0
    is_open[[1, 4, 7, 10, 13, 16, 19, 22]] = False  # Many of kind 1.
    chosen = Coverage(graph).choose(is_open, 4)
    assert KINDS[chosen[0]] == 2
    assert is_open[chosen].all()
    assert len(set(chosen)) == 4


def test_the_last_open_images_are_suggested_too(graph):
    is_open = np.zeros(len(KINDS), bool)
    is_open[[3, 5]] = True
    assert sorted(Coverage(graph).choose(is_open, 8)) == [3, 5]
    is_open[:] = False
    assert len(Coverage(graph).choose(is_open, 8)) == 0


def test_an_image_without_neighbors_is_no_trouble():
    features = np.concatenate([create_features(KINDS[:6], 8), np.zeros((1, 8), np.float32)])
    chosen = Coverage(build_graph(features)).choose(np.ones(7, bool), 7)
    assert sorted(chosen) == list(range(7))


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
