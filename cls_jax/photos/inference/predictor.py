"""Which of its two classifiers a run predicts with: its trained networks or the instant one.

Training is worth several points on some folders and loses as many on others. Validation images,
which neither has learned from, compare both on the same images, so that only those on which one is
right and the other is wrong count, as in McNemar's test. The trained networks must gain more than
twice the error of that: the instant classifier is known to work, and its accuracy has been told.
Without such images, what earlier runs gained decides.

Where photos were labeled with `cls-jax label`, only random ones that were checked are such images,
or those of a folder for validation. The others were asked because they are hard, which the instant
classifier of their time did not know: it looked 10 points worse on 20 of them, and was 1 point
better on the folder. Without them the instant classifier stays: by what earlier runs gained,
training should have helped in all of 24 sessions, and it helped in five, two of them among the 20
with small images (experiments/results/labeling.md).

Nothing else compares the two. The trained networks have learned all labels that the run was given,
and their own labels for the other images, of which they are sure also where they are wrong: on
scans of brains their mean confidence was 96% while training lost 3 points
(experiments/results/any_folder.md).
"""

import contextlib
import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.photos.features.accuracy import read_estimate, wilson_interval
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.grouping import join_groups
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.log import CHECK, LABEL
from cls_jax.photos.folder.options import get_folder_options
from cls_jax.photos.images.files import list_images
from cls_jax.photos.inference.run import Run
from cls_jax.photos.start.fit_instant import INSTANT

TRAINED = "trained"
VALIDATION, RANDOM = "validation", "random"
_MIN_ERRORS = 2.0  # Standard errors of the gain from which on the trained networks predict.
# Gain by training in points, where held-out labels gave graphs of similar images a fifth of the
# weight or more, and elsewhere: means of 16 runs on four folders and of 4 on one. Training spreads
# labels to similar images, as graphs do (experiments/results/any_folder.md).
_GAIN_WITH_GRAPHS, _GAIN_WITHOUT = 3.4, -1.7
_MIN_WEIGHT = 20.0
_MIN_STEPS = 80  # 20 steps lost 7 to 12 points in five runs of five. Nothing between was measured.


def expect_gain(weight_graph: float | None, num_steps: int) -> float:
    """The gain by training that earlier runs let expect, in points.

    Args:
        weight_graph: The weight of graphs in the inferred labels, in percent, if it is known.
        num_steps: The length of the training.
    """
    is_promising = weight_graph is not None and weight_graph >= _MIN_WEIGHT
    return _GAIN_WITH_GRAPHS if is_promising and num_steps >= _MIN_STEPS else _GAIN_WITHOUT


def compare_classifiers(
    is_right_trained: np.ndarray,
    is_right_instant: np.ndarray,
    expected_gain: float,
    images: str = VALIDATION,
    sources_B: np.ndarray | None = None,
) -> dict[str, Any]:
    """Compares both on the same validation images.

    The trained networks predict if their gain exceeds twice its standard error, which counts one
    more image on which one is right and the other is wrong: of a few images there may be none.

    Args:
        is_right_trained: Whether the trained networks name each image right, bool [B]. B may be 0.
        is_right_instant: The same of the instant classifier.
        expected_gain: By `expect_gain`. It counts without images only.
        images: What the images are: `RANDOM` ones of the folder, or others, `VALIDATION`.
        sources_B: What the images come from, int [B], -1 where unknown, or None. Images of one
            source gain or lose together, so the variances are those of sums over sources.

    Returns:
        Additions to the result: `predictor` ("trained" or "instant") and, with any image,
        `predictor_gain` by training and its standard error `predictor_gain_error`, in points, the
        number of images `predictor_gain_images`, of which each names right
        `predictor_right_trained` and `predictor_right_instant`, and `predictor_images`.
    """
    num_images = len(is_right_trained)
    if not num_images:
        return {"predictor": TRAINED if expected_gain > 0 else INSTANT}
    right = int(is_right_trained.sum()), int(is_right_instant.sum())
    gains_B = is_right_trained.astype(int) - is_right_instant
    groups_B = np.arange(num_images) if sources_B is None else join_groups(sources_B)
    squared = (np.bincount(groups_B, gains_B) ** 2).sum()
    gain = 100 * (right[0] - right[1]) / num_images
    error = 100 * math.sqrt(squared + 1) / num_images
    return {
        "predictor": TRAINED if gain > _MIN_ERRORS * error else INSTANT,
        "predictor_gain": gain,
        "predictor_gain_error": error,
        "predictor_gain_images": num_images,
        "predictor_right_trained": right[0],
        "predictor_right_instant": right[1],
        "predictor_images": images,
    }


def choose_predictor(run: Run) -> dict[str, Any]:
    """What `compare_classifiers` says of a finished run. Empty if there is nothing to choose.

    That is so if the run did not begin with inferred labels, or is an instant classifier itself.
    All processes must call this: they predict together.
    """
    if run.begun_with is None or run.config.model.init_head != "inferred":
        return {}
    expected = expect_gain(run.result.get("labels_weight_graph"), run.config.num_steps)
    num_images = len(run.dataset.held_out.get(VALIDATION, ()))
    checked, was_asked, is_own = set[str](), False, not run.config.data.validation
    with contextlib.suppress(UserError):  # The table was damaged since.
        checked, was_asked = _read_answers(run.config)
    files = run.dataset.validation.files
    images = RANDOM if files and checked.issuperset(files) else VALIDATION
    if was_asked and not (num_images and (is_own or images == RANDOM)):
        return {"predictor": INSTANT, "predictor_images": RANDOM}  # None of them.
    if not num_images:
        return compare_classifiers(np.zeros(0, bool), np.zeros(0, bool), expected)
    sources = run.dataset.validation.sources
    is_right, is_right_instant = (
        decide(p_NBK.mean(axis=0)).is_right(labels)
        for p_NBK, labels in (one.held_out[VALIDATION] for one in (run, run.begun_with))
    )
    return compare_classifiers(is_right, is_right_instant, expected, images, sources)


def _read_answers(config: ConfigDict) -> tuple[set[str], bool]:
    """The random photos that were checked, and whether most labels are from `cls-jax label`.

    Both of a run's folder. Raises a UserError as `read_catalog` does.
    """
    if config.data.name != "folder":
        return set(), False
    root = pathlib.Path(config.data.data_dir).expanduser()
    catalog = read_catalog(root, list_images(root), get_folder_options(config.data))
    here = {row.file for row in catalog.table.rows if row.decision in (LABEL, CHECK)}
    was_asked = len(here) > len(catalog.base.list_labels().keys() - here)
    return set(catalog.marks.list_checked()), was_asked


class Expected(NamedTuple):
    """The accuracy to expect of the classifier that predicts, on photos without a label."""

    accuracy: float  # In percent.
    low: float  # The ends of the 95% interval.
    high: float
    images: str | None  # What it was measured on: `RANDOM` or `VALIDATION`. None for confidences.
    is_before: bool  # Whether it is that of the instant classifier, before training.


def expect_accuracy(result: Mapping[str, Any]) -> Expected | None:
    """The accuracy to expect of a run without test images. None if it is not known.

    Of trained networks, it is the share of the images that have chosen them. Of an instant
    classifier, it is that of its labels (`read_estimate`), or of its validation images.
    """
    chosen = result.get("predictor")
    num_images, num_right = map(result.get, ("predictor_gain_images", "predictor_right_trained"))
    if chosen == TRAINED and num_images and num_right is not None:
        low, high = wilson_interval(num_right, num_images)
        share = num_right / num_images
        return Expected(100 * share, 100 * low, 100 * high, result.get("predictor_images"), False)
    estimate = read_estimate(result)
    if estimate is None or estimate.accuracy is None:
        return None
    return Expected(
        estimate.accuracy,
        low=estimate.accuracy_low or 0.0,
        high=estimate.accuracy_high or 100.0,
        images=RANDOM if estimate.checks else None,
        is_before=INSTANT not in (chosen, result.get("method")),
    )


def describe_choice(result: Mapping[str, Any]) -> str | None:
    """Whether training has helped, why, and what is used. None if nothing was chosen."""
    chosen = result.get("predictor")
    if chosen not in (TRAINED, INSTANT):
        return None
    used = "trained networks are used" if chosen == TRAINED else "instant classifier is kept"
    of_trained, of_instant = (result.get(f"predictor_right_{name}") for name in (TRAINED, INSTANT))
    count = result.get("predictor_gain_images")
    if not count or of_trained is None or of_instant is None:
        if result.get("predictor_images") == RANDOM:
            return "Too few checked photos to tell which is better: the instant classifier stays."
        return f"No photos to compare them on: the {used}."
    gain, error = (result.get(f"predictor_{name}") for name in ("gain", "gain_error"))
    is_worse = gain is not None and error is not None and gain < -_MIN_ERRORS * error
    verdict = "Better" if chosen == TRAINED else "Worse" if is_worse else "Not clear"
    return (
        f"{verdict}: of {count:,} {result.get('predictor_images')} photos that neither has learned "
        f"from, the trained networks name {of_trained:,} right and the instant classifier "
        f"{of_instant:,}. The {used}."
    )
