"""The networks that a training from the page has trained, where they are the better classifier.

Shape suffixes: B photos of the folder, K classes.
"""

import dataclasses
import functools
import pathlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from cls_jax.io import describe_error, make_printable
from cls_jax.photos.features.accuracy import describe_estimate, measure_accuracy
from cls_jax.photos.features.decide import decide
from cls_jax.photos.inference.classifier import Classifier
from cls_jax.photos.inference.predictor import RANDOM, TRAINED, describe_choice
from cls_jax.photos.inference.run import load
from cls_jax.photos.labeling.fitting import Fitted
from cls_jax.photos.labeling.known import count, list_checked, list_paths
from cls_jax.photos.labeling.proposals import NUM_ANSWERS
from cls_jax.photos.labeling.session import JAX_THREAD, Session
from cls_jax.runs.folder import read_result


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """What the networks say about the photos of the folder."""

    run: pathlib.Path
    choice: str  # A sentence about why they are used.
    classifier: Classifier
    probabilities: np.ndarray  # float32 [B, K], NaN for photos that cannot be read.
    labels_version: int  # Of the labels that they have learned.


@functools.lru_cache(maxsize=1)  # Each request asks for it, and it takes time for many photos.
def _replace(fitted: Fitted, found: Trained, checked: Sequence[tuple[int, str]]) -> Fitted:
    """What networks say in place of the instant classifier. Photos they have not read keep theirs.

    The accuracy to expect is the share of the `checked` random photos, see `list_checked`, that
    they name right, none of which they have learned. Their confidences are no measure: they have
    learned their own labels.
    """
    columns = [found.classifier.class_names.index(name) for name in fitted.class_names]
    q_BK = found.probabilities[: len(fitted.labels), columns]
    is_known, p_BK = ~np.isnan(q_BK[:, 0]), fitted.probabilities.copy()
    p_BK[: len(q_BK)][is_known] = q_BK[is_known]
    namer, accuracy = f"the trained networks of {make_printable(str(found.run))}", found.choice
    if estimate := fitted.estimate:
        rows = {image: label for image, label in checked if image < len(q_BK) and is_known[image]}
        best = decide(q_BK[list(rows)]).best.tolist()
        pairs = zip(best, rows.values(), strict=True)
        estimate = measure_accuracy(estimate, [fitted.class_names[k] == name for k, name in pairs])
        if estimate.accuracy is not None:
            accuracy = describe_estimate(estimate, namer)
    return dataclasses.replace(
        fitted,
        probabilities=p_BK,
        estimate=estimate,
        others="the other photos",
        accuracy=accuracy,
        predict=lambda file, _: found.classifier.predict(file).probabilities[:, columns],
        namer=namer,
        by=" by the trained networks",
    )


class TrainedNetworks:
    """Those of the run that predicts. All methods may be called from any thread.

    They name the photos if that run has compared and chosen them (see `predictor`), until ten more
    answers are known, which they have not learned.
    """

    def __init__(self, session: Session, find_run: Callable[[], pathlib.Path | None]):
        """`find_run` returns the run that predicts for the folder."""
        self._session = session
        self._find_run = find_run
        self._lock = threading.Lock()
        self._seen: pathlib.Path | None = None  # The run that has been looked at.
        self._found: Trained | None = None
        # By the run that has begun: the version of the labels that it learns.
        self._labels_versions: dict[pathlib.Path, int] = {}
        self.on_ready: Callable[[], None] = lambda: None
        self.message = ""  # Why they cannot be used.

    def expect(self, run: pathlib.Path, labels_version: int) -> None:
        """Notes that the training of a run has begun, with labels of this version."""
        self._labels_versions[run] = labels_version

    def follow(self) -> None:
        """Opens the networks in a thread if another run predicts now and has chosen them.

        Not before the photos are known, and not for tags, which networks are not trained for.
        """
        known = self._session.known
        if known.relations is None or known.options.tags:
            return
        with self._lock:
            run = self._find_run()
            if run == self._seen:
                return
            self._seen, self._found, self.message = run, None, ""
            _replace.cache_clear()  # It holds the networks.
        threading.Thread(target=self._open, args=[run], name=JAX_THREAD, daemon=True).start()

    def _open(self, run: pathlib.Path | None) -> None:
        found, message = None, ""
        try:
            result = (read_result(run) if run else None) or {}
            if run and result.get("predictor") == TRAINED and result.get("predictor_gain_images"):
                found = self._read(run, result)
        except Exception as error:  # The page shows it, and keeps its own classifier.
            message = f"The trained networks cannot be used: {describe_error(error)}"
        with self._lock:
            if run != self._seen:
                return
            self._found, self.message = found, message
        self.on_ready()

    def _read(self, run: pathlib.Path, result: Mapping[str, Any]) -> Trained:
        """What the networks of a run with some `result` say."""
        known = self._session.known
        labels_version = self._labels_versions.get(run)
        if labels_version is None:  # It was trained in an earlier session.
            are_of_folder = result.get("predictor_images") == RANDOM
            num_labels = count(known).labels  # Without those that were kept out of the training.
            num_labels -= result["predictor_gain_images"] if are_of_folder else 0
            learned = result.get("num_labels") or num_labels
            labels_version = known.labels_version - abs(num_labels - learned)
        classifier = load(run)
        parts = []
        for batch in classifier.read_files(list_paths(known)):
            part = np.full((len(batch.files), len(classifier.class_names)), np.nan, np.float32)
            is_read = np.array([error is None for error in batch.errors], bool)
            part[is_read] = classifier.predict(batch.images).probabilities
            parts.append(part)
        choice = describe_choice(result) or ""
        return Trained(run, choice, classifier, np.concatenate(parts), labels_version)

    def find(self, class_names: Collection[str]) -> Trained | None:
        """What they say, if they are in use and have exactly these classes, in any order."""
        with self._lock:
            found = self._found
        if found is None or sorted(found.classifier.class_names) != sorted(class_names):
            return None
        num_since = self._session.known.labels_version - found.labels_version
        return found if num_since < NUM_ANSWERS else None

    def improve(self, fitted: Fitted | None) -> Fitted | None:
        """The classifier given, or what they say in its place if they are in use."""
        if fitted is None or (found := self.find(fitted.class_names)) is None:
            return fitted
        return _replace(fitted, found, tuple(list_checked(self._session.known).items()))
