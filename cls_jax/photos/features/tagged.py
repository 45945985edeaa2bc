"""The instant classifier of images with several tags: a frozen network with a `TagHead`.

Shape suffixes: B images, C features of the last layer and of all stages, T tags.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.models.layers import STAGE_HEAD, WITH_FEATURES, Architecture, dense_init, pool_stages
from cls_jax.photos.features.graph import join_features
from cls_jax.photos.features.instant_file import write_arrays
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork, open_network
from cls_jax.photos.features.smoothing import SMALLEST_NORM
from cls_jax.photos.features.tags import TagHead

_SCALE = "scale"  # The parameters that standardize features.


class TaggedClassifier(NamedTuple):
    """A frozen network, and the head of its tags."""

    network: FrozenNetwork
    head: TagHead
    names: tuple[str, ...]  # T.
    thresholds: np.ndarray  # An image has a tag from this probability on, float32 [T].

    @staticmethod
    def activate(logits: jax.Array) -> jax.Array:
        """Probabilities of tags from logits, of the same shape."""
        return jax.nn.sigmoid(logits)

    @property
    def frozen(self) -> FrozenNetwork:
        """The network."""
        return self.network

    def predict_with_features(self, features: FrozenFeatures) -> tuple[np.ndarray, np.ndarray]:
        """What `Networks.predict_with_features` returns for B images, given their features.

        Probabilities float32 [1, B, T], and features of the last layer at unit length, by which
        images of another kind are found: 98% of the mosaics of three other folders by those of 300
        mosaics, the mean over four folders. By all features, divided by their deviations, 47% are.
        """
        return self.head.predict(features)[None], join_features(
            features.pooled.astype(np.float32)[None]
        )

    def create_model(self) -> tuple[Architecture, Any]:
        """The network with its head, and its variables. Raises a ValueError if they do not fit."""
        opened = open_network(self.network)
        num_features, num_tags = opened.num_pooled + opened.num_stages, len(self.names)
        expected = (num_features,), (num_features,), (num_features, num_tags), (num_tags,)
        if (*map(np.shape, self.head),) != expected or self.thresholds.shape != (num_tags,):
            raise ValueError("its head does not fit its network")
        mean, deviation, kernel, bias = self.head
        heads = {
            "head": {"kernel": kernel[: opened.num_pooled], "bias": bias},
            STAGE_HEAD: {"kernel": kernel[opened.num_pooled :]},
            _SCALE: {"mean": mean, "deviation": deviation},
        }
        model = _add_tags(opened.model, num_tags)
        return model, opened.variables | {"params": opened.variables["params"] | heads}

    def write(self, path: pathlib.Path) -> None:
        """Writes all into one file. Raises an OSError if the system refuses."""
        more = {"tags": np.array(self.names), "thresholds": self.thresholds}
        write_arrays(path, self.network, self.head._asdict() | more)


class _Standardize(nn.Module):
    """Features minus their means, over their deviations, at unit length."""

    @nn.compact
    def __call__(self, x_BC: jax.Array) -> jax.Array:
        shape = x_BC.shape[-1:]
        mean = self.param("mean", nn.initializers.zeros, shape)
        scaled = (x_BC - mean) / self.param("deviation", nn.initializers.ones, shape)
        norms = jnp.linalg.norm(scaled, axis=-1, keepdims=True)
        return scaled / jnp.maximum(norms, SMALLEST_NORM)


class _Tagged(Architecture):
    """The heads of an architecture for tags, together a `TagHead`."""

    @property
    def head_names(self) -> tuple[str, ...]:
        """Also the parameters that standardize features."""
        return (*super().head_names, _SCALE)

    def apply_heads(
        self,
        x_BC: jax.Array,
        wanted: str,
        stages: Sequence[jax.Array],
        unpooled_BHWC: jax.Array | None = None,
        init: nn.initializers.Initializer = dense_init,
    ) -> jax.Array:
        """As `Architecture.apply_heads`: logits of tags, float32 [B, T] or [B, T + C]."""
        inputs_BC = jnp.concatenate([x_BC, pool_stages(stages)], axis=-1)
        scaled_BC = _Standardize(name=_SCALE)(inputs_BC)
        last, of_stages = jnp.split(scaled_BC, [x_BC.shape[-1]], axis=-1)
        dense = functools.partial(nn.Dense, self.num_classes, kernel_init=init)
        logits_BT = dense(name="head")(last) + dense(use_bias=False, name=STAGE_HEAD)(of_stages)
        return jnp.concatenate([logits_BT, x_BC], -1) if wanted == WITH_FEATURES else logits_BT


def _add_tags(model: Architecture, num_tags: int) -> Architecture:
    """The same network with logits of tags."""
    fields = [field.name for field in dataclasses.fields(model) if field.init]
    values = {name: getattr(model, name) for name in fields if name not in ("parent", "name")}
    form: Any = type(model)  # Hashable, whatever mypy says.
    changed = {"num_classes": num_tags, "has_stage_head": True}
    tagged: Architecture = _get_tagged(form)(**values | changed)
    return tagged


@functools.cache  # One class for each architecture, so that programs are compiled once.
def _get_tagged(architecture: type[Architecture]) -> Any:
    return type(f"Tagged{architecture.__name__}", (_Tagged, architecture), {})
