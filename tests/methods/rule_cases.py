"""Inputs for the newer methods: logits that are given, so that what remains is the loss."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cls_jax.batch import Batch
from cls_jax.methods import METHODS, Context
from cls_jax.methods.base import InitContext
from cls_jax.methods.cutmix import cutmix
from cls_jax.models.ensemble import Ensemble

K, B, U, SIZE, NUM_IMAGES = 5, 6, 12, 8, 30
RULES = ("freematch", "softmatch", "adamatch", "flexmatch", "infomatch")
KINDS = ("random", "empty_mask", "all_equal", "certain_class", "all_confident")
KEY = 7


class Case(NamedTuple):
    """One network's logits, and the batch they belong to."""

    x: np.ndarray
    y: np.ndarray
    weak: np.ndarray
    strong: tuple[np.ndarray, ...]
    mix: np.ndarray
    index: np.ndarray
    share: np.ndarray
    partner: np.ndarray


class GivenLogits(Ensemble):
    """Networks whose parameters are the logits, on one device."""

    def forward(self, params, batch_stats, images, **kwargs):
        return params[:, : len(images)], batch_stats

    def has_batch_statistics(self, batch_stats):
        return True

    def average_over_data(self, value):
        return value

    def gather_over_data(self, tree):
        return tree


def create_logits(kind, network=0, num_images=B + 4 * U):
    rng = np.random.default_rng([KINDS.index(kind), network])
    if kind == "random":
        return rng.normal(0, 3, (num_images, K))
    if kind == "all_equal":
        return np.zeros((num_images, K))
    if kind == "certain_class":
        return np.tile(60.0 * (np.arange(K) == 2), (num_images, 1))
    if kind == "all_confident":
        return 60.0 * np.eye(K)[rng.integers(0, K, num_images)]
    logits = rng.normal(0, 0.05, (num_images, K))  # Confident only about labeled images.
    logits[:B] += 20 * np.eye(K)[rng.integers(0, K, B)]
    return logits


def create_batch(num_views):
    rng = np.random.default_rng(0)
    return Batch(
        x=np.zeros((B, SIZE, SIZE, 1)),
        y=rng.integers(0, K, B),
        u=rng.normal(size=(num_views, U, SIZE, SIZE, 1)),
        u_index=rng.permutation(NUM_IMAGES)[:U].astype(np.int32),
    )


def to_case(logits, batch):
    """One network's rows by their meaning; boxes are the product's, drawn as in the loss."""
    num_views = len(batch.u)
    views = [logits[B + i * U : B + (i + 1) * U] for i in range(num_views + 1)]
    mix = cutmix(jax.random.key(KEY), jnp.asarray(batch.u[0]), jnp.asarray(batch.u_index))
    return Case(
        x=logits[:B],
        y=batch.y,
        weak=views[0],
        strong=tuple(views[1:num_views]),
        mix=views[num_views],
        index=batch.u_index,
        share=np.asarray(mix.share, np.float64),
        partner=mix.partner,
    )


def create_hparams(name, **changes):
    defaults = {key: hp.default for key, hp in METHODS[name].hyperparameters.items()}
    return ml_collections.ConfigDict({"name": name, **defaults, **changes})


def init_state(name, frequencies=None, **changes):
    """The method's initial state."""
    method = METHODS[name]
    return method.init_state(
        InitContext(
            hparams=create_hparams(name, **changes),
            num_networks=method.num_networks,
            num_classes=K,
            num_images=NUM_IMAGES,
            num_unlabeled=NUM_IMAGES - 3,
            class_frequencies=frequencies or [1 / K] * K,
        )
    )


def create_state(name, kind, **changes):
    """A state as after many steps: the leaves of the initial one with other values."""
    rng = np.random.default_rng(3)
    is_empty = kind == "empty_mask"
    num_networks = METHODS[name].num_networks
    values = {
        "threshold": np.full(num_networks, 0.95 if is_empty else 0.6),
        "mean": np.full(num_networks, 0.9 if is_empty else 0.6),
        "variance": np.full(num_networks, 0.002 if is_empty else 0.05),
        "confidence": np.full(num_networks, 0.99 if is_empty else 0.3),
        "label": rng.integers(-1, K, (num_networks, NUM_IMAGES), dtype=np.int32),
        "outside": np.full(num_networks, 3, np.int32),
    }
    for leaf in ("predicted", "target", "histogram"):
        values[leaf] = rng.dirichlet(np.full(K, 5.0), num_networks)
    if is_empty:  # Every class has the same bar, the highest.
        values["predicted"] = np.full((num_networks, K), 1 / K)
        values["label"] = np.arange(num_networks * NUM_IMAGES, dtype=np.int32) % K
        values["label"] = values["label"].reshape(num_networks, NUM_IMAGES)
    initial = init_state(name, **changes)
    return {leaf: values[leaf] for leaf in initial} if initial else ()


@functools.cache
def compile_loss(name, x64, changes):
    """(logits, state, batch, progress) → the method's output."""
    hparams = create_hparams(name, **dict(changes))

    def compute(logits, state, batch, progress):
        context = Context(
            ensemble=GivenLogits(model=None),
            hparams=hparams,
            ema_params=None,
            method_state=state,
            key=jax.random.key(KEY),
            progress=progress,
        )
        return METHODS[name].compute_loss(logits, {}, batch, context)[0]

    return jax.jit(compute)


def compute_output(name, logits, state, batch, progress=0.3, x64=False, **changes):
    """The output for logits [N, images, K], in double precision or single, as NumPy arrays."""
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32

        def cast(leaf):
            leaf = np.asarray(leaf)
            return leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf.astype(np.int32)

        arguments = jax.tree.map(cast, (logits, state, batch, progress))
        compute = compile_loss(name, x64, tuple(sorted(changes.items())))
        return jax.device_get(compute(*arguments))
