"""Networks simple enough to follow by hand, for tests of losses."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cls_jax.batch import Batch
from cls_jax.methods import Context, InitContext, get_method
from cls_jax.models.ensemble import Ensemble

K, B, U, SIZE = 5, 6, 12, 4
PIXELS = SIZE * SIZE


class LinearEnsemble(Ensemble):
    """Logits are linear in the pixels; the statistics count the passes that update them."""

    def forward(self, params, batch_stats, images, *, train, head="head", dropout_key=None):
        pixels = images.reshape(len(images), -1)
        return jnp.einsum("bp,npk->nbk", pixels, params[head]), batch_stats + 1

    def average_over_data(self, value):
        return value


def create_params(num_networks=1, seed=0, scale=0.7):
    rng = np.random.default_rng(seed)
    return {
        "head": jnp.asarray(rng.normal(0, scale, (num_networks, PIXELS, K)), jnp.float32),
        "rotation": jnp.asarray(rng.normal(0, scale, (num_networks, PIXELS, 4)), jnp.float32),
    }


def create_batch(num_views, seed=0):
    rng = np.random.default_rng(seed)
    return Batch(
        x=jnp.asarray(rng.normal(size=(B, SIZE, SIZE, 1)), jnp.float32),
        y=jnp.asarray(rng.integers(0, K, B)),
        u=jnp.asarray(rng.normal(size=(num_views, U, SIZE, SIZE, 1)), jnp.float32),
        u_index=jnp.asarray(rng.permutation(U)),
    )


def create_context(name, progress=1.0, ema_params=None, **hparams):
    method = get_method(name)
    defaults = {key: hp.default for key, hp in method.hyperparameters.items()}
    hparams = ml_collections.ConfigDict({"name": name, **defaults, **hparams})
    return Context(
        ensemble=LinearEnsemble(model=None),
        hparams=hparams,
        ema_params=ema_params,
        method_state=method.init_state(
            InitContext(hparams, method.num_networks, K, U, U, [1 / K] * K)
        ),
        key=jax.random.key(0),
        progress=jnp.float32(progress),
    )


def compute_output(name, params, batch, context=None):
    """The method's output; its statistics began at 0."""
    context = context or create_context(name)
    return get_method(name).compute_loss(params, jnp.zeros(()), batch, context)


def predict(params, images, head="head"):
    """Probabilities float64 [B, K] of network 1."""
    logits = np.asarray(images, np.float64).reshape(len(images), -1) @ np.asarray(params[head][0])
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(p, labels):
    return -np.log(p[np.arange(len(p)), labels])
