"""A pass of their own for weak images: what it saves, and where it changes nothing else.

Its loss, gradients and statistics are in `test_oracles.py`, meshes in `test_compiled_step.py`.
"""

import functools

import jax
import numpy as np
import pytest

from cls_jax.batch import Batch
from cls_jax.methods import METHODS, Context
from cls_jax.models import VisionTransformer, WideResNet
from cls_jax.models.ensemble import Ensemble, init_networks
from tests.outcomes import assert_close

B, U, SIZE, K = 4, 8, 8, 10
WRN = WideResNet(num_classes=K, depth=10, width=1)
FROZEN = WRN.clone(bn_frozen=True)
VIT = VisionTransformer(num_classes=K, width=16, depth=1, num_heads=2, patch=4)


@functools.cache
def init(model, num_networks):
    return init_networks(model, jax.random.key(1), num_networks, (SIZE, SIZE, 1))


def lower(name, model, weak_pass):
    """The program → (gradients, losses and statistics) of a method, and its arguments."""
    rng, method = np.random.default_rng(0), METHODS[name]
    batch = Batch(
        x=np.float32(rng.normal(size=(B, SIZE, SIZE, 1))),
        y=rng.integers(0, K, B),
        u=np.float32(rng.normal(size=(2, U, SIZE, SIZE, 1))),
        u_index=np.arange(U),
    )
    hparams = {key: hp.default for key, hp in method.hyperparameters.items()}
    # Every image is trained on, and every label exchanged.
    hparams |= {"weak_pass": weak_pass, "tau": 0.0, "threshold": 0.0}
    context = Context(Ensemble(model), hparams, None, (), jax.random.key(0), np.float32(0))

    def compute_loss(params, batch_stats):
        output, batch_stats = method.compute_loss(params, batch_stats, batch, context)
        return output.losses.sum(), (output.losses, batch_stats)

    networks = init(model, method.num_networks)
    return jax.jit(jax.grad(compute_loss, has_aux=True)).lower(*networks), networks


@functools.cache
def count_flops(name, model, weak_pass):
    return lower(name, model, weak_pass)[0].cost_analysis()["flops"]


@pytest.mark.parametrize(("name", "model"), [("cls", FROZEN), ("uda", VIT)], ids=["cls", "uda"])
def test_without_batch_statistics_both_settings_are_one_program(name, model):
    assert count_flops(name, model, "joint") == count_flops(name, model, "fast")


def test_without_batch_statistics_both_forms_are_the_same(monkeypatch):
    program, networks = lower("cls", FROZEN, "fast")
    fast = program.compile()(*networks)
    monkeypatch.setattr(Ensemble, "has_batch_statistics", lambda self, batch_stats: True)
    joint = lower("cls", FROZEN, "joint")[0].compile()(*networks)
    assert_close(fast, joint, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, fast[1][1], joint[1][1])  # Frozen is frozen.


@pytest.mark.parametrize("name", ["cls", "fixmatch"])
def test_weak_images_cost_only_a_forward_pass(name):
    """A gradient costs two more, and B + U instead of B + 2 U images have one."""
    expected = (3 * (B + U) + U) / (3 * (B + 2 * U))
    ratio = count_flops(name, WRN, "fast") / count_flops(name, WRN, "joint")
    assert ratio == pytest.approx(expected, rel=0.03)
