"""Instant classifiers, of classes or of tags: a frozen network with heads, in one file.

Shape suffixes: B images, M known images, C features, S features of stages, R components, K classes,
T tags. With tags, C counts the features of the last layer and of all stages.
"""

import dataclasses
import functools
import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.data.resize import DecodeOptions
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, parse_json, read_bytes, write_atomically
from cls_jax.models.layers import (
    NEIGHBOR_HEAD,
    STAGE_HEAD,
    WITH_FEATURES,
    Architecture,
    dense_init,
    pool_stages,
)
from cls_jax.models.neighbor_head import compare_in_numpy, multiply_heads
from cls_jax.models.weights.layout import Weights
from cls_jax.photos.features.graph import join_features
from cls_jax.photos.features.heads import (
    INSTANT_C,
    Head,
    choose_fitted,
    fit_head,
    normalize_logits,
)
from cls_jax.photos.features.infer import Inferred
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork, open_network
from cls_jax.photos.features.relations import SMALLEST_NORM, Relations
from cls_jax.photos.features.tags import TagHead

INSTANT_FILE = "instant.npz"
_MAX_BYTES = 2**32  # Limit of a file.
_WEIGHTS = "weights/"
_ROWS_AT_ONCE = 1024  # New images, to bound memory.
_SCALE = "scale"  # The parameters that standardize features.


class KnownImages(NamedTuple):
    """The folder's own images, among which a new one is placed: the parameters of a NeighborHead.

    Features are those of the last layer and of all stages, side by side.
    """

    kernel: np.ndarray  # float32 [C + S, R], see `fit_whitening`.
    bias: np.ndarray  # float32 [R].
    known: np.ndarray  # Components of unit length, float16 [M, R].
    probabilities: np.ndarray  # Of their inferred labels, float16 [M, K].

    @property
    def shape(self) -> tuple[int, int]:
        """(M, R)."""
        return len(self.known), len(self.bias)

    def compute_log_probabilities(self, features_BC: np.ndarray) -> np.ndarray:
        """Log probabilities float32 [B, K] of images with features float32 [B, C + S]."""
        starts = range(0, max(len(features_BC), 1), _ROWS_AT_ONCE)
        parts = [features_BC[start : start + _ROWS_AT_ONCE] for start in starts]
        return np.concatenate([compare_in_numpy(part, **self._asdict()) for part in parts])


class InstantClassifier(NamedTuple):
    """A frozen network, and heads for its classes."""

    network: FrozenNetwork | None  # None if the features are pixels.
    head: Head  # Of the last layer.
    # The kernel of the head of all stages, float32 [S, K], which is added. None without one.
    stage_kernel: np.ndarray | None = None
    neighbors: KnownImages | None = None  # Without them, the heads alone classify.

    @staticmethod
    def activate(logits: jax.Array) -> jax.Array:
        """Probabilities of classes from logits, of the same shape."""
        return jax.nn.softmax(logits)

    @property
    def frozen(self) -> FrozenNetwork:
        """The network, where the features are not pixels."""
        assert self.network is not None, "pixels are no network's features"
        return self.network

    def predict_with_features(self, features: FrozenFeatures) -> tuple[np.ndarray, np.ndarray]:
        """What `Networks.predict_with_features` returns for B images, given their features.

        Probabilities float32 [1, B, K], and features float32 [B, C] of unit length.
        """
        pooled_BC = features.pooled.astype(np.float32)
        logits_BK = pooled_BC @ self.head.kernel + self.head.bias
        if self.stage_kernel is not None:
            logits_BK += features.stages.astype(np.float32) @ self.stage_kernel
        if self.neighbors is not None:
            inputs = np.concatenate([pooled_BC, features.stages], axis=1, dtype=np.float32)
            log_p_BK = self.neighbors.compute_log_probabilities(inputs)
            logits_BK = multiply_heads(logits_BK, log_p_BK)
        return normalize_logits(logits_BK)[None], join_features(pooled_BC[None])

    def create_model(self) -> tuple[Architecture, Any]:
        """The network with its heads, and its variables. Raises a ValueError if they do not fit."""
        heads = {"head": self.head._asdict()}
        if self.stage_kernel is not None:
            heads[STAGE_HEAD] = {"kernel": self.stage_kernel}
        if self.neighbors is not None:
            heads[NEIGHBOR_HEAD] = self.neighbors._asdict()
        opened, neighbors = open_network(self.frozen), self.neighbors
        num_classes = len(self.head.bias)
        num_known, num_components = neighbors.shape if neighbors else (0, 0)
        expected = {
            "head": {"kernel": (opened.num_pooled, num_classes), "bias": (num_classes,)},
            STAGE_HEAD: {"kernel": (opened.num_stages, num_classes)},
            NEIGHBOR_HEAD: {
                "kernel": (opened.num_pooled + opened.num_stages, num_components),
                "bias": (num_components,),
                "known": (num_known, num_components),
                "probabilities": (num_known, num_classes),
            },
        }
        if jax.tree.map(np.shape, heads) != {name: expected[name] for name in heads}:
            raise ValueError("its heads do not fit its network")
        model = opened.model.clone(
            num_classes=num_classes,
            has_stage_head=STAGE_HEAD in heads,
            neighbors=neighbors and neighbors.shape,
        )
        return model, opened.variables | {"params": opened.variables["params"] | heads}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the heads, by name."""
        arrays: dict[str, np.ndarray] = self.head._asdict()
        if self.stage_kernel is not None:
            arrays["stage_kernel"] = self.stage_kernel
        if self.neighbors is not None:
            arrays |= {f"neighbors/{name}": a for name, a in self.neighbors._asdict().items()}
        return arrays


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

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the head, by name."""
        more = {"tags": np.array(self.names), "thresholds": self.thresholds}
        return self.head._asdict() | more


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
    names = {field.name for field in dataclasses.fields(model) if field.init} - {"parent", "name"}
    values = {name: getattr(model, name) for name in names}
    form: Any = type(model)  # Hashable, whatever mypy says.
    tagged: Architecture = _get_tagged(form)(
        **values | {"num_classes": num_tags, "has_stage_head": True}
    )
    return tagged


@functools.cache  # One class for each architecture, so that programs are compiled once.
def _get_tagged(architecture: type[Architecture]) -> Any:
    return type(f"Tagged{architecture.__name__}", (_Tagged, architecture), {})


def write_instant(path: pathlib.Path, instant: InstantClassifier | TaggedClassifier) -> None:
    """Writes all into one file. Raises an OSError if the system refuses."""
    buffer, network = io.BytesIO(), instant.frozen
    fields = {field.name: getattr(network, field.name) for field in dataclasses.fields(network)}
    settings = fields | {"weights": network.weights.normalization}
    weights = {f"{_WEIGHTS}{name}": array for name, array in network.weights.arrays.items()}
    arrays: dict[str, Any] = {**weights, **instant.arrays}
    np.savez(buffer, settings=np.array(json.dumps(settings)), **arrays)
    write_atomically(path, buffer.getvalue())


def read_instant(path: pathlib.Path) -> InstantClassifier | TaggedClassifier:
    """Reads what `write_instant` wrote. Raises a UserError if it is missing or damaged."""
    try:
        network, arrays = _read_arrays(path)
        instant = (_restore_tagged if "tags" in arrays else _restore)(network, arrays)
        instant.create_model()
        return instant
    except (UserError, *PARSE_ERRORS) as error:  # type: ignore[misc] # A tuple of classes.
        raise UserError(
            f"{path} is not an instant classifier ({describe_error(error).rstrip('.')}): delete "
            "its run and train it again."
        ) from error


def _read_arrays(path: pathlib.Path) -> tuple[FrozenNetwork, dict[str, np.ndarray]]:
    """The network and the arrays in the file of an instant classifier.

    Raises a UserError if the file cannot be read, or one of `PARSE_ERRORS` if it is damaged.
    """

    def to_tuple(value: Any) -> Any:
        return tuple(map(to_tuple, value)) if isinstance(value, list) else value

    with np.load(io.BytesIO(read_bytes(path, _MAX_BYTES)), allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    settings = {k: to_tuple(v) for k, v in parse_json(str(stored.pop("settings"))).items()}
    names = [name for name in stored if name.startswith(_WEIGHTS)]
    arrays = {name.removeprefix(_WEIGHTS): stored.pop(name) for name in names}
    settings["weights"] = Weights(arrays, settings["weights"])
    resize, bit_depth = settings["decoding"]
    settings["decoding"] = DecodeOptions(resize, bit_depth)
    return FrozenNetwork(**settings), stored


def _restore(network: FrozenNetwork, arrays: Mapping[str, np.ndarray]) -> InstantClassifier:
    neighbors = None
    if "neighbors/known" in arrays:  # Earlier versions had none.
        neighbors = KnownImages(
            **{name: arrays[f"neighbors/{name}"] for name in KnownImages._fields}
        )
    head = Head(arrays["kernel"], arrays["bias"])
    return InstantClassifier(network, head, arrays.get("stage_kernel"), neighbors)


def _restore_tagged(network: FrozenNetwork, arrays: Mapping[str, np.ndarray]) -> TaggedClassifier:
    head = TagHead(**{name: arrays[name] for name in TagHead._fields})
    return TaggedClassifier(network, head, tuple(arrays["tags"].tolist()), arrays["thresholds"])


def fit_classifier(
    network: FrozenNetwork | None, relations: Relations, inferred: Inferred
) -> InstantClassifier:
    """The heads of the last layer and of all stages, fitted together to inferred labels.

    The relations are those of the images of `inferred`, among which new ones are placed. Images
    whose features are pixels have only the head.
    """
    features = relations.features
    rows = choose_fitted(inferred.labels, inferred.sample_weights)
    inputs = np.concatenate([features.pooled[rows], features.stages[rows]], axis=1)
    kernel, bias = fit_head(
        inputs,
        inferred.labels[rows],
        num_classes=inferred.probabilities.shape[1],
        inverse_penalty=INSTANT_C,
        weights_B=inferred.sample_weights[rows],
    )
    num_pooled = features.pooled.shape[1]
    head = Head(kernel[:num_pooled], bias)
    if not features.stages.shape[1]:
        return InstantClassifier(network, head)
    neighbors = find_known(relations, inferred.probabilities)
    return InstantClassifier(network, head, kernel[num_pooled:], neighbors)


def find_known(relations: Relations, p_BK: np.ndarray) -> KnownImages:
    """The images of these relations with inferred probabilities, at most 10,000, evenly spaced."""
    rows, (mean, kernel), components = relations.places
    return KnownImages(kernel, -mean @ kernel, components, p_BK[rows].astype(np.float16))
