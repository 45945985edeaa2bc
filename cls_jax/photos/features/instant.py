"""The instant classifier: a frozen network with heads fitted to inferred labels, in one file.

Shape suffixes: B images, M known images, C features, S features of stages, R components, K classes.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error
from cls_jax.models.layers import NEIGHBOR_HEAD, STAGE_HEAD, Architecture
from cls_jax.models.neighbor_head import compare_in_numpy, multiply_heads
from cls_jax.photos.features.graph import join_features
from cls_jax.photos.features.heads import (
    INSTANT_C,
    Head,
    choose_fitted,
    fit_head,
    normalize_logits,
)
from cls_jax.photos.features.infer import Inferred
from cls_jax.photos.features.instant_file import read_arrays, write_arrays
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork, open_network
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.features.tagged import TaggedClassifier
from cls_jax.photos.features.tags import TagHead

_ROWS_AT_ONCE = 1024  # New images, to bound memory.


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

    def write(self, path: pathlib.Path) -> None:
        """Writes all into one file. Raises an OSError if the system refuses."""
        arrays = self.head._asdict()
        if self.stage_kernel is not None:
            arrays["stage_kernel"] = self.stage_kernel
        if self.neighbors is not None:
            arrays |= {f"neighbors/{name}": a for name, a in self.neighbors._asdict().items()}
        write_arrays(path, self.frozen, arrays)


def read_instant(path: pathlib.Path) -> InstantClassifier | TaggedClassifier:
    """Reads what `InstantClassifier.write` or `TaggedClassifier.write` wrote.

    Raises:
        UserError: If it is missing or damaged.
    """
    try:
        network, arrays = read_arrays(path)
        instant = (_restore_tagged if "tags" in arrays else _restore)(network, arrays)
        instant.create_model()
        return instant
    except (UserError, *PARSE_ERRORS) as error:  # type: ignore[misc] # A tuple of classes.
        raise UserError(
            f"{path} is not an instant classifier ({describe_error(error).rstrip('.')}): delete "
            "its run and train it again."
        ) from error


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
