"""Predictions for image files, as a table."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from cls_jax.data.images.files import ImageBatch
from cls_jax.inference.classifier import Classifier
from cls_jax.inference.prediction import Prediction, describe_top
from cls_jax.inference.tables import PREDICTION_COLUMNS, create_table


class Outcome(NamedTuple):
    """Counts and times of a prediction.

    Attributes:
        num_files: rows written.
        num_errors: files among them that could not be read.
        seconds: from the first file to the last row.
        network_share: share of this time spent in the networks.
    """

    num_files: int
    num_errors: int
    seconds: float
    network_share: float


def predict_files(classifier: Classifier, files: Sequence[str], output: pathlib.Path) -> Outcome:
    """Predicts files and writes one row each; unreadable files get a reason.

    Args:
        classifier: a trained run.
        files: in the order of the rows; see `find_images`.
        output: a .csv or .parquet file to write.

    Raises:
        UserError: if the output cannot be written.
    """
    num_errors, network_seconds, started = 0, 0.0, time.perf_counter()
    with contextlib.ExitStack() as stack:
        table = stack.enter_context(create_table(output, PREDICTION_COLUMNS))
        bar = stack.enter_context(tqdm(total=len(files), unit="image", dynamic_ncols=True))
        for batch in stack.enter_context(contextlib.closing(classifier.read_files(files))):
            before = time.perf_counter()
            prediction = classifier.predict(batch.images)
            network_seconds += time.perf_counter() - before
            rows = list(iterate_rows(batch, prediction))
            table.write(rows)
            num_errors += len(rows) - len(batch.images)
            bar.update(len(rows))
    seconds = time.perf_counter() - started
    return Outcome(len(files), num_errors, seconds, network_seconds / seconds)


def iterate_rows(batch: ImageBatch, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """A row of `PREDICTION_COLUMNS` for each file of a batch."""
    empty = dict.fromkeys(PREDICTION_COLUMNS)
    has_two = len(prediction.network_labels) > 1
    calibrated, abstain = prediction.calibrated_confidence, prediction.abstain
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
            "calibrated_confidence": None if calibrated is None else float(calibrated[i]),
            "abstain": None if abstain is None else bool(abstain[i]),
        }
        i += 1
