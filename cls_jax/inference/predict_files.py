"""Predictions for image files, and suggestions which of them to label next."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from cls_jax.data.images.files import ImageBatch, read_ahead
from cls_jax.inference.classifier import Classifier
from cls_jax.inference.prediction import Prediction, create_prediction, describe_top
from cls_jax.inference.suggest import choose_diverse, compute_scores
from cls_jax.inference.tables import PREDICTION_COLUMNS, create_table

SUGGESTION_COLUMNS = {
    "rank": int,
    "score": float,
    **{name: kind for name, kind in PREDICTION_COLUMNS.items() if name != "error"},
}
# Suggestions are chosen from this many highest-scoring images per suggestion, so that memory does
# not grow with the number of files.
_CANDIDATES_PER_SUGGESTION = 50
_MIN_CANDIDATES = 5000


class Outcome(NamedTuple):
    """Counts and times of a prediction.

    Attributes:
        num_files: rows written.
        num_errors: files among them that could not be read.
        num_suggested: images suggested for labeling.
        seconds: from the first file to the last row.
        network_share: share of this time spent in the networks.
    """

    num_files: int
    num_errors: int
    num_suggested: int
    seconds: float
    network_share: float


class Candidates:
    """The images with the highest scores so far, from which suggestions are chosen."""

    def __init__(self, limit: int):
        """Starts empty; keeps at most `limit` images."""
        self._limit = limit
        self.rows: list[dict[str, Any]] = []
        self.probabilities: np.ndarray | None = None  # float32 [N, len(rows), K].

    def add(self, rows: Sequence[dict[str, Any]], probabilities: np.ndarray) -> None:
        """Adds a batch and drops all but the best.

        Args:
            rows: one per image.
            probabilities: float32 [N, len(rows), K].
        """
        rows, joined = [*self.rows, *rows], probabilities
        if self.probabilities is not None:
            joined = np.concatenate([self.probabilities, probabilities], axis=1)
        kept = np.sort(np.argsort(-compute_scores(joined), kind="stable")[: self._limit])
        self.rows, self.probabilities = [rows[i] for i in kept], joined[:, kept]

    def choose(self, num_images: int) -> list[dict[str, Any]]:
        """The rows of the images to label with rank and score, most helpful first."""
        if self.probabilities is None:
            return []
        scores = compute_scores(self.probabilities)
        chosen = choose_diverse(self.probabilities, num_images)
        rows = [
            {"rank": rank, "score": float(scores[i]), **self.rows[i]}
            for rank, i in enumerate(chosen, 1)
        ]
        return [{name: row[name] for name in SUGGESTION_COLUMNS} for row in rows]


def predict_files(
    classifier: Classifier, files: Sequence[str], output: pathlib.Path, num_suggestions: int = 0
) -> Outcome:
    """Predicts files and writes one row each; unreadable files get a reason.

    Args:
        classifier: a trained run.
        files: in the order of the rows; see `find_images`.
        output: a .csv or .parquet file to write.
        num_suggestions: how many images to suggest for labeling, in `get_suggestions_path`.

    Raises:
        UserError: if the output cannot be written.
    """
    candidates = Candidates(max(_MIN_CANDIDATES, _CANDIDATES_PER_SUGGESTION * num_suggestions))
    num_errors, network_seconds, started = 0, 0.0, time.perf_counter()
    with contextlib.ExitStack() as stack:
        table = stack.enter_context(create_table(output, PREDICTION_COLUMNS))
        if num_suggestions:
            suggestions = stack.enter_context(
                create_table(get_suggestions_path(output), SUGGESTION_COLUMNS)
            )
        bar = stack.enter_context(tqdm(total=len(files), unit="image", dynamic_ncols=True))
        batches = read_ahead(files, classifier.image_shape, classifier.batch_size)
        for batch in stack.enter_context(contextlib.closing(batches)):
            before = time.perf_counter()
            probabilities = classifier.predict_probabilities(batch.images)
            network_seconds += time.perf_counter() - before
            prediction = create_prediction(probabilities, classifier.class_names)
            rows = list(iterate_rows(batch, prediction))
            table.write(rows)
            if num_suggestions:
                readable = [row for row in rows if row["error"] is None]
                candidates.add(readable, probabilities)
            num_errors += len(rows) - len(batch.images)
            bar.update(len(rows))
        chosen = candidates.choose(num_suggestions)
        if num_suggestions:
            suggestions.write(chosen)
    seconds = time.perf_counter() - started
    return Outcome(len(files), num_errors, len(chosen), seconds, network_seconds / seconds)


def get_suggestions_path(output: pathlib.Path) -> pathlib.Path:
    """predictions.csv → predictions-suggestions.csv."""
    return output.with_name(f"{output.stem}-suggestions{output.suffix}")


def iterate_rows(batch: ImageBatch, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """A row of `PREDICTION_COLUMNS` for each file of a batch."""
    empty = dict.fromkeys(PREDICTION_COLUMNS)
    has_two = len(prediction.network_labels) > 1
    i = 0
    for file, error in zip(batch.files, batch.errors, strict=True):
        if error is not None:
            yield {**empty, "file": file, "error": error}
            continue
        yield {
            "file": file,
            "label": str(prediction.label[i]),
            "confidence": float(prediction.confidence[i]),
            "weight": float(prediction.weight[i]),
            "network_1": str(prediction.network_labels[0, i]),
            "network_2": str(prediction.network_labels[1, i]) if has_two else None,
            "agree": bool(prediction.agree[i]) if has_two else None,
            "complementary_label": str(prediction.complementary_label[i]),
            "top5": describe_top(prediction.probabilities[i], prediction.class_names),
            "error": None,
        }
        i += 1
