"""The instant classifier of a labeling session, and what it says about photographs from elsewhere.

It is what `cls-jax train FOLDER --instant` fits to the same labels. It is fitted in a thread of its
own, so that no answer waits for it.

Shape suffixes: B photographs of the folder, C features, K classes.
"""

import functools
import threading
from typing import Any, BinaryIO

import numpy as np

from cls_jax.data.images.decode import decode_image
from cls_jax.features.extract import FrozenFeatures, FrozenNetwork, compute_features, open_network
from cls_jax.features.instant import INSTANT_C, Head, fit_head, spread_labels
from cls_jax.features.neighbors import normalize_rows
from cls_jax.io import describe_error
from cls_jax.labeling.answers import RefusedError
from cls_jax.labeling.session import Session

_NUM_NEAREST = 3
# A photograph may belong to no class if it is less similar to the folder than all but this share
# of the folder's own photographs are.
_FAR = 0.01
_MAX_COMPARED = 2000
_get_network = functools.cache(open_network)


class Recognizer:
    """The classifier of the labels of this moment. All methods may be called from any thread."""

    def __init__(self, session: Session):
        self._session = session
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._wanted = -1  # The version of the labels that it is fitted to, or will be.
        self._thread: threading.Thread | None = None
        self._message = ""
        # The head, its classes, labels int [B], descriptors float32 [B, C], and the similarity below
        # which a photograph is far from all of them.
        self._fitted: tuple[Head, list[str], np.ndarray, np.ndarray, float] | None = None

    def describe(self) -> dict[str, Any]:
        """How far it is. Fits it again if labels have changed."""
        version = self._session.labels_version
        with self._lock:
            is_busy = self._thread is not None and self._thread.is_alive()
            if version != self._wanted and not is_busy:
                self._wanted, is_busy = version, True
                self._thread = threading.Thread(target=self._fit, daemon=True)
                self._thread.start()
            labels = self._fitted[2] if self._fitted else np.zeros(0, int)
            return {
                "is_fitting": is_busy,
                "labels": int((labels >= 0).sum()),
                "classes": len(set(labels[labels >= 0].tolist())),
                "message": self._message,
            }

    def _fit(self) -> None:
        fitted, message = None, ""
        version, features, graph, labels, names = self._session.take_labels()
        try:
            if features is None or graph is None or len(set(labels[labels >= 0].tolist())) < 2:
                message = "A classifier needs labels of two classes."
            else:
                spread = spread_labels(features.pooled, graph, labels, len(names))
                weights = spread.sample_weights
                head = fit_head(features.pooled, spread.labels, len(names), INSTANT_C, weights)
                bound = _find_bound(features.descriptors)
                fitted = (head, names, labels, features.descriptors, bound)
        except Exception as error:  # The page shows it, and labeling goes on.
            message = f"The classifier could not be fitted: {describe_error(error)}"
        with self._lock:
            self._wanted, self._fitted, self._message = version, fitted, message

    def classify(self, file: BinaryIO) -> dict[str, Any]:
        """What a photograph shows: class, confidence, and the most similar labeled photographs.

        Nothing of it is kept.

        Raises:
            RefusedError: If there is no classifier yet.
            ImageError: If the file is no image.
            UserError: If the pretrained weights cannot be read.
        """
        with self._turn:  # One at a time, which bounds the memory.
            self.describe()
            if self._thread is not None:
                self._thread.join()
            with self._lock:
                if self._fitted is None:
                    raise RefusedError(self._message)
                head, names, labels, descriptors_BC, bound = self._fitted
            found = read_photograph(file)
        similarities = descriptors_BC @ normalize_rows(found.descriptors)[0]
        labeled = np.flatnonzero(labels >= 0)
        nearest = labeled[np.argsort(-similarities[labeled], kind="stable")[:_NUM_NEAREST]]
        # A class without a label is never an answer.
        has_label = np.bincount(labels[labeled], minlength=len(names)) > 0
        probabilities = head.compute_probabilities(found.pooled)[0] * has_label
        probabilities /= probabilities.sum()
        best = int(probabilities.argmax())
        return {
            "label": names[best],
            "probability": round(float(probabilities[best]), 4),
            "is_far": bool(similarities.max() < bound),
            "nearest": [self._session.describe_image(int(image)) for image in nearest],
        }


def read_photograph(file: BinaryIO) -> FrozenFeatures:
    """Features of one photograph, which are not kept.

    Raises an ImageError if it is no image, and a UserError if the weights cannot be read.
    """
    network: FrozenNetwork = _get_network()
    shape = (network.image_size, network.image_size, network.channels)
    return compute_features(decode_image(file, shape, network.decoding)[None], network)


def _find_bound(descriptors_BC: np.ndarray) -> float:
    """The similarity to its nearest neighbor that all but `_FAR` of the photographs reach."""
    rows = np.linspace(0, len(descriptors_BC) - 1, min(len(descriptors_BC), _MAX_COMPARED))
    rows = np.unique(rows.astype(int))
    nearest = []
    for part in np.array_split(rows, max(1, len(rows) // 200)):
        similarities = descriptors_BC[part] @ descriptors_BC.T
        similarities[np.arange(len(part)), part] = -1
        nearest.append(similarities.max(axis=1))
    return float(np.quantile(np.concatenate(nearest), _FAR))
