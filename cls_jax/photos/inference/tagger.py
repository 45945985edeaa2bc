"""A run as a function from images to their tags, of which an image may have several.

Shape suffixes: N networks, B images, T tags.
"""

import hashlib
from typing import Any

import numpy as np

from cls_jax.photos.inference.classifier import Classifier, TaggedPrediction
from cls_jax.photos.inference.tag_scores import Scoring, TagScoring


class Tagger(Classifier):
    """The frozen network of an instant classifier of tags. The classes are the T tags.

    Attributes:
        thresholds: An image has a tag from this probability on, float32 [T].
    """

    exclusive = False

    def __init__(self, *args: Any, thresholds: np.ndarray, **kwargs: Any):
        """Wraps what a run has read, see `Classifier`."""
        super().__init__(*args, **kwargs)
        self.thresholds = thresholds

    @property
    def scoring(self) -> Scoring:
        """How its predictions are compared with labels."""
        return TagScoring(self.class_names, self.thresholds)

    def _describe(self, p_NBK: np.ndarray, unknown: np.ndarray | None) -> TaggedPrediction:
        p_BT, names = p_NBK.mean(axis=0), np.asarray(self.class_names, dtype=str)
        has_BT = p_BT >= self.thresholds
        tags = tuple(frozenset(names[has_T].tolist()) for has_T in has_BT)
        return TaggedPrediction(tags, p_BT, names, self.thresholds, unknown)

    def compute_fingerprint(self) -> str:
        """A hash of everything that decides a prediction, the thresholds, too."""
        decisive = super().compute_fingerprint(), self.thresholds.tolist()
        return hashlib.sha256(repr(decisive).encode()).hexdigest()
