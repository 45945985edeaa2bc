"""Images that stand for most of what the networks are unsure of, no two alike."""

import numpy as np
import pytest

from cls_jax.inference.suggest import choose_diverse, compute_scores

CERTAIN = [0.98, 0.01, 0.01]
FLAT = [0.34, 0.33, 0.33]
AB = [0.495, 0.495, 0.01]
BC = [0.01, 0.495, 0.495]


def both(*distributions):
    """The same from both networks: float32 [2, B, 3]."""
    return np.asarray([distributions, distributions], np.float32)


def test_score_grows_with_uncertainty():
    scores = compute_scores(both(CERTAIN, AB, FLAT))
    assert scores[0] < scores[1] < scores[2]
    assert scores[2] == pytest.approx(1, abs=1e-3)


def test_score_grows_with_disagreement():
    """Two networks each certain of another class count more than two that know nothing."""
    p_NBK = np.asarray([[[1, 0, 0], FLAT], [[0, 1, 0], FLAT]], np.float32)
    disagreed, unknown = compute_scores(p_NBK)
    assert disagreed == pytest.approx(1 + np.log(2) / np.log(3), abs=1e-5)
    assert disagreed > unknown


def test_score_of_one_network_is_its_uncertainty():
    scores = compute_scores(np.asarray([[[1, 0, 0], [1 / 3] * 3]], np.float32))
    np.testing.assert_allclose(scores, [0, 1], atol=1e-6)


def test_an_image_that_stands_for_many_is_chosen_before_an_odd_one():
    rng = np.random.default_rng(0)
    many = rng.dirichlet(100 * np.asarray(AB), 20)
    assert compute_scores(both(FLAT, *many)).argmax() == 0
    assert choose_diverse(both(FLAT, *many), 1)[0] > 0


def test_every_choice_covers_the_most_uncertainty_that_is_left():
    p_NBK = np.random.default_rng(0).dirichlet([0.3] * 4, (2, 60))
    scores = compute_scores(p_NBK)
    differences = np.sqrt(p_NBK)[:, :, None] - np.sqrt(p_NBK)[:, None]
    similarity = 1 - np.sqrt(np.square(differences).sum(axis=-1).mean(axis=0) / 2)
    covered = np.zeros(60)
    for chosen in choose_diverse(p_NBK.astype(np.float32), 8):
        gains = np.maximum(similarity - covered, 0) @ scores
        assert gains[chosen] == pytest.approx(gains.max(), rel=1e-4)
        covered = np.maximum(covered, similarity[chosen])


def test_a_duplicate_is_not_chosen_before_something_else():
    chosen = choose_diverse(both(FLAT, FLAT, FLAT, AB, BC, CERTAIN), 3)
    assert chosen[0] == 0
    assert set(chosen[1:]) == {3, 4}


def test_near_duplicates_come_last_among_the_uncertain():
    rng = np.random.default_rng(0)
    copies = np.asarray(AB) + rng.uniform(0, 1e-4, (10, 3))
    copies /= copies.sum(axis=1, keepdims=True)
    chosen = choose_diverse(both(*copies, BC, [0.495, 0.01, 0.495]), 3)
    assert {10, 11} < set(chosen.tolist())


def test_all_are_chosen_once_where_there_are_too_few():
    chosen = choose_diverse(both(FLAT, FLAT, CERTAIN), 10)
    assert sorted(chosen) == [0, 1, 2]
    assert len(choose_diverse(both(FLAT)[:, :0], 10)) == 0


def test_the_choice_is_the_same_in_any_order():
    p_NBK = np.random.default_rng(0).dirichlet([0.3] * 4, (2, 50)).astype(np.float32)
    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(
        choose_diverse(p_NBK, 10), order[choose_diverse(p_NBK[:, order], 10)]
    )
