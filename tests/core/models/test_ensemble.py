"""Stacked networks: lowerings, label exchange and rematerialization."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from cls_jax.errors import UserError
from cls_jax.methods import get_method
from cls_jax.models import VisionTransformer, WideResNet
from cls_jax.models.ensemble import Ensemble, init_networks, take_network
from cls_jax.parallel import collectives
from cls_jax.parallel.mesh import NETWORK_AXIS, create_mesh
from cls_jax.training.setup import create_model
from tests.conftest import create_tiny_config
from tests.outcomes import assert_close

MODEL = WideResNet(num_classes=10, depth=10, width=1)


@pytest.fixture(scope="module")
def stacked():
    return init_networks(MODEL, jax.random.key(0), 2, (8, 8, 1))


def test_all_lowerings_agree(stacked):
    params, batch_stats = stacked
    images = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))
    mesh = create_mesh(2, [6], network=2, data=1)
    spread = jax.shard_map(
        lambda p, s, x: Ensemble(MODEL).forward(p, s, x, train=True),
        mesh=mesh,
        in_specs=(P(NETWORK_AXIS), P(NETWORK_AXIS), P()),
        out_specs=P(NETWORK_AXIS),
    )
    apply = jax.jit(functools.partial(MODEL.apply, train=True, mutable=["batch_stats"]))
    alone = [
        apply(
            {"params": take_network(params, i), "batch_stats": take_network(batch_stats, i)}, images
        )
        for i in range(2)
    ]
    expected = np.stack([logits for logits, _ in alone])
    outputs = {
        name: jax.jit(functools.partial(ensemble.forward, train=True))(params, batch_stats, images)
        for name, ensemble in (
            ("unrolled", Ensemble(MODEL)),
            ("rematerialized", Ensemble(MODEL.clone(remat=True))),
        )
    }
    outputs["mesh"] = jax.jit(spread)(params, batch_stats, images)
    for name, (logits, stats) in outputs.items():
        np.testing.assert_allclose(logits, expected, atol=1e-4, err_msg=name)
        for i in range(2):
            assert_close(take_network(stats, i), alone[i][1]["batch_stats"], atol=1e-5)


@pytest.mark.parametrize(("num_networks", "shards"), [(2, 1), (2, 2), (4, 2), (3, 3)])
def test_exchange_hands_each_network_its_predecessors_labels(num_networks, shards):
    values = jnp.arange(num_networks * 5.0).reshape(num_networks, 5)
    spread = jax.shard_map(
        collectives.exchange,
        mesh=create_mesh(num_networks, [1], network=shards, data=1),
        in_specs=P(NETWORK_AXIS),
        out_specs=P(NETWORK_AXIS),
    )
    np.testing.assert_array_equal(jax.jit(spread)(values), np.roll(values, 1, axis=0))


@pytest.mark.parametrize(("precision", "remat"), [("default", False), ("high", True)])
def test_forward_and_gradient_have_the_precision_asked_for(stacked, precision, remat):
    ensemble = Ensemble(MODEL.clone(remat=remat), matmul_precision=precision)

    def compute_loss(params):
        images = jnp.zeros((2, 8, 8, 1))
        return ensemble.forward(params, stacked[1], images, train=True)[0].sum()

    text = jax.jit(jax.grad(compute_loss)).lower(stacked[0]).as_text()
    operations = re.findall(r"stablehlo\.(?:convolution|dot_general)[( ][^\n]*", text)
    assert len(operations) > 5
    for line in operations:
        assert set(re.findall(r"DEFAULT|HIGHEST|HIGH", line)) == {precision.upper()}


@pytest.mark.parametrize(
    ("model", "share"),
    [(MODEL, 0.7), (VisionTransformer(10, width=64, depth=6, num_heads=2, patch=4), 0.5)],
)
def test_rematerialization_keeps_less_for_the_gradient(model, share):
    images = jax.ShapeDtypeStruct((32, 8, 8, 1), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)

    def measure(remat):
        apply = functools.partial(model.clone(remat=remat).apply, train=True, mutable="batch_stats")
        # `vjp` returns a tree of what it kept.
        keep = lambda variables, images: jax.vjp(lambda v: apply(v, images)[0], variables)[1]  # noqa: E731
        kept = jax.tree.leaves(jax.eval_shape(keep, variables, images))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in kept)

    assert measure(True) < share * measure(False)


def test_images_that_patches_do_not_divide_are_refused():
    config = create_tiny_config(model__name="vit_tiny", data__image_size=40)
    with pytest.raises(UserError, match="choose a multiple of 16"):
        create_model(config, get_method("cls"), 10)
