"""Distribution alignment, and how a method learns the class frequencies of the labeled set."""

import jax
import numpy as np
import pytest

from cls_jax.methods import METHODS, alignment
from cls_jax.methods.base import InitContext

K = 5
UNEQUAL = [0.5, 0.2, 0.1, 0.15, 0.05]


def test_alignment_keeps_probabilities_of_zero_finite():
    logits = np.random.default_rng(0).normal(0, 1e5, (1, 20, K)).astype(np.float32)
    means = np.float32([[1.0, 0, 0, 0, 0]])
    aligned = np.asarray(jax.nn.softmax(alignment.align(logits, means, means[:, ::-1])))
    assert np.all(np.isfinite(aligned))
    np.testing.assert_array_equal(aligned.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize(
    ("name", "align_to", "start"),
    [
        ("softmatch", "labels", UNEQUAL),
        ("softmatch", "uniform", [1 / K] * K),
        ("adamatch", "predicted", [1 / K] * K),
        ("cls_plus", None, UNEQUAL),
    ],
)
def test_means_start_at_the_target_so_that_alignment_begins_as_the_identity(name, align_to, start):
    num_networks = METHODS[name].num_networks
    init = InitContext({"align_to": align_to}, num_networks, K, 30, 27, UNEQUAL)
    state = METHODS[name].init_state(init)
    for leaf in ("target", "predicted"):
        np.testing.assert_allclose(state[leaf], [start] * num_networks, rtol=1e-6)
