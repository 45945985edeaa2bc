"""Weak images beside the training pass: what it saves, and where it changes nothing else.

Its loss, gradients and statistics are in `test_oracles.py`, meshes in `test_rules_compiled.py`.
"""

import jax
import numpy as np
import pytest

from cls_jax.batch import Batch
from cls_jax.methods import METHODS, Context
from cls_jax.models import VisionTransformer, WideResNet
from cls_jax.models.ensemble import Ensemble, init_networks
from tests.methods.rule_cases import create_hparams

B, U, SIZE, K = 4, 8, 8, 10
WRN = WideResNet(num_classes=K, depth=10, width=1)
FROZEN = WRN.clone(bn_frozen=True)
VIT = VisionTransformer(num_classes=K, width=16, depth=1, num_heads=2, patch=4)


def create_gradient(model, **changes):
    """A jitted function → (gradients, losses and statistics) of CLS, and its arguments."""
    rng = np.random.default_rng(0)
    batch = Batch(
        x=np.float32(rng.normal(size=(B, SIZE, SIZE, 1))),
        y=rng.integers(0, K, B),
        u=np.float32(rng.normal(size=(2, U, SIZE, SIZE, 1))),
        u_index=np.arange(U),
    )
    hparams = create_hparams("cls", tau=0.0, **changes)  # Everything is exchanged.
    context = Context(Ensemble(model), hparams, None, (), jax.random.key(0), np.float32(0))

    def compute_loss(params, batch_stats):
        output, stats = METHODS["cls"].compute_loss(params, batch_stats, batch, context)
        return output.losses.sum(), (output.losses, stats)

    networks = init_networks(model, jax.random.key(1), 2, (SIZE, SIZE, 1))
    return jax.jit(jax.grad(compute_loss, has_aux=True)), networks


def create_both(model):
    """The same for the joint form and for the fast one."""
    return [create_gradient(model, weak_pass=form) for form in ("joint", "fast")]


@pytest.mark.parametrize("model", [FROZEN, VIT], ids=["frozen", "vit"])
def test_without_batch_statistics_both_forms_are_the_same(model):
    joint, fast = (compute(*networks) for compute, networks in create_both(model))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), fast, joint)
    jax.tree.map(np.testing.assert_array_equal, fast[1][1], joint[1][1])  # Frozen is frozen.


def test_weak_images_cost_a_forward_pass_alone():
    """A gradient costs two more: of images that have one there are B + U in place of B + 2 U."""
    joint, fast = (
        compute.lower(*networks).cost_analysis()["flops"] for compute, networks in create_both(WRN)
    )
    expected = (3 * (B + U) + U) / (3 * (B + 2 * U))
    assert fast / joint == pytest.approx(expected, rel=0.03)
