"""Which of its two classifiers a run predicts with: its trained networks or the instant one.

Training is worth several points on some folders and loses as many on others. Validation images,
which neither has learned from, compare both on the same images, so that only those on which one is
right and the other is wrong count, as in McNemar's test. They are few or none, so that what earlier
runs gained counts as well: a prior for the gain.

Nothing else compares the two. The trained networks have learned all labels that the run was given,
and their own labels for the other images, of which they are sure also where they are wrong: on
scans of brains their mean confidence was 96% while training lost 3 points
(experiments/results/any_folder.md).
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cls_jax.config import with_values
from cls_jax.photos.features.groups import join_groups
from cls_jax.photos.folder.instant_config import is_instant, read_instant_config
from cls_jax.photos.inference.classifier import find_predictor
from cls_jax.photos.inference.run import Run
from cls_jax.photos.start.fit_instant import INSTANT

TRAINED = "trained"
_VALIDATION = "validation"
# Gain by training in points, where held-out labels gave graphs of similar images a fifth of the
# weight or more, and elsewhere: means of 16 runs on four folders and of 4 on one. Training spreads
# labels to similar images, as graphs do. The deviation is that between such runs
# (experiments/results/any_folder.md).
_GAIN_WITH_GRAPHS, _GAIN_WITHOUT = 3.4, -1.7
_DEVIATION = 4.0
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
    sources_B: np.ndarray | None = None,
) -> dict[str, Any]:
    """Compares both on the same validation images.

    The trained networks predict if the mean of the gain's posterior distribution is positive: the
    sum of the measured and the expected gain, each divided by its variance. For the variance of the
    measured one, an image is added on which one is right and the other is wrong, since of a few
    images there may be none.

    Args:
        is_right_trained: Whether the trained networks name each image right, bool [B]. B may be 0.
        is_right_instant: The same of the instant classifier.
        expected_gain: By `expect_gain`.
        sources_B: What the images come from, int [B], -1 where unknown, or None. Images of one
            source gain or lose together, so the variances are those of sums over sources.

    Returns:
        Additions to the result: `predictor` ("trained" or "instant") and, with any image,
        `predictor_gain` by training and its standard error `predictor_gain_error`, in points, the
        number of images `predictor_gain_images`, and `predictor_images` ("validation").
    """
    num_images, evidence = len(is_right_trained), expected_gain / _DEVIATION**2
    if not num_images:
        return {"predictor": TRAINED if evidence > 0 else INSTANT}
    gains = 100 * (is_right_trained.astype(float) - is_right_instant)
    groups = np.arange(num_images) if sources_B is None else join_groups(sources_B)
    gain = gains.mean()
    # As the variance of images, where each is its own source.
    error = math.sqrt((np.bincount(groups, gains - gain) ** 2).sum()) / num_images
    squared = (np.bincount(groups, gains) ** 2).sum()
    evidence += gain / ((squared + 100**2) / num_images**2)
    return {
        "predictor": TRAINED if evidence > 0 else INSTANT,
        "predictor_gain": float(gain),
        "predictor_gain_error": float(error),
        "predictor_gain_images": num_images,
        "predictor_images": _VALIDATION,
    }


def open_predictor(run: Run) -> Run:
    """The run itself, or its instant classifier as a run if that predicts for it.

    On the same images. Raises the same as `find_predictor`.
    """
    folder = find_predictor(run.workdir)
    if folder == run.workdir:
        return run
    return _open_instant(run, folder)


def _open_instant(run: Run, folder: pathlib.Path) -> Run:
    config = read_instant_config(folder)
    instant = Run(with_values(config, {"data.data_dir": run.config.data.data_dir}), folder)
    if config.data.image_size == run.config.data.image_size:  # Otherwise other pixels.
        instant.dataset = run.dataset
    return instant


def choose_predictor(run: Run, result: Mapping[str, Any]) -> dict[str, Any]:
    """What `compare_classifiers` says of a finished run. Empty if there is nothing to choose.

    That is so if the run did not begin with inferred labels, or is an instant classifier itself.
    All processes must call this: they predict together.
    """
    folder = run.workdir / INSTANT
    if "method" not in run.config or run.config.model.init_head != "inferred":
        return {}
    if not is_instant(folder):
        return {}
    expected = expect_gain(result.get("labels_weight_graph"), run.config.num_steps)
    if not len(run.dataset.held_out.get(_VALIDATION, ())):
        return compare_classifiers(np.zeros(0, bool), np.zeros(0, bool), expected)
    return compare_classifiers(
        _find_right(run),
        _find_right(_open_instant(run, folder)),
        expected,
        run.dataset.validation.sources,
    )


def _find_right(run: Run) -> np.ndarray:
    """Which validation images a run's classifier names right, bool [B]."""
    p_NBK, labels = run.held_out[_VALIDATION]
    return np.asarray(p_NBK.mean(axis=0).argmax(axis=1) == labels)


def describe_choice(result: Mapping[str, Any]) -> str | None:
    """A sentence about the classifier that is used. None if nothing was chosen."""
    chosen, gain = result.get("predictor"), result.get("predictor_gain")
    if chosen not in (TRAINED, INSTANT):
        return None
    is_trained = chosen == TRAINED
    end = "the trained networks are used." if is_trained else "the instant classifier is kept."
    if gain is None:
        return f"No photos to compare them on: {end}"
    if is_trained and gain > 0:
        points = max(round(gain), 1)
        return f"Better by about {points} {'point' if points == 1 else 'points'}: {end}"
    if is_trained:
        return f"Not clearly worse: {end}"
    return f"{'No better' if gain <= 0 else 'Not clearly better'}: {end}"
