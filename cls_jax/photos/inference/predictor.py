"""Which of its two classifiers a run predicts with: its trained networks or the instant one.

The trained networks have learned all labels that the run was given, and their own labels for the
other images, of which they are sure also where they are wrong: on scans of brains their mean
confidence was 96% while training lost 3 points (experiments/results/any_folder.md). So neither
these labels nor confidences compare the two. Validation images do, which neither has learned from.
Both predict the same images, so that only those on which one is right and the other is wrong count,
as in McNemar's test.

Training is worth several points on some folders and loses as many on others. The instant classifier
is kept unless training gained more than one standard error on 20 validation images or more: if both
are equally good, the trained networks are used in one of six cases.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cls_jax.config import with_values
from cls_jax.photos.folder.instant_config import is_instant, read_instant_config
from cls_jax.photos.inference.classifier import find_predictor
from cls_jax.photos.inference.run import Run
from cls_jax.photos.start.fit_instant import INSTANT

MIN_IMAGES = 20
TRAINED = "trained"
_VALIDATION = "validation"


def compare_classifiers(is_right_trained: np.ndarray, is_right_instant: np.ndarray) -> dict:
    """Compares both on the same validation images.

    Args:
        is_right_trained: Whether the trained networks name each image right, bool [B].
        is_right_instant: The same of the instant classifier.

    Returns:
        Additions to the result: `predictor` ("trained" or "instant") and, with any image,
        `predictor_gain` by training and its standard error `predictor_gain_error`, in points, the
        number of images `predictor_gain_images`, and `predictor_images` ("validation").
    """
    num_images = len(is_right_trained)
    if not num_images:
        return {"predictor": INSTANT}
    gains = is_right_trained.astype(float) - is_right_instant
    gain, error = float(gains.mean()), float(gains.std() / math.sqrt(num_images))
    is_better = num_images >= MIN_IMAGES and gain > error
    return {
        "predictor": TRAINED if is_better else INSTANT,
        "predictor_gain": 100 * gain,
        "predictor_gain_error": 100 * error,
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


def choose_predictor(run: Run) -> dict[str, Any]:
    """What `compare_classifiers` says of a finished run. Empty if there is nothing to choose.

    That is so if the run did not begin with inferred labels, or is an instant classifier itself.
    All processes must call this: they predict together.
    """
    folder = run.workdir / INSTANT
    if "method" not in run.config or run.config.model.init_head != "inferred":
        return {}
    if not is_instant(folder):
        return {}
    if not len(run.dataset.held_out.get(_VALIDATION, ())):
        return compare_classifiers(np.zeros(0, bool), np.zeros(0, bool))
    return compare_classifiers(_find_right(run), _find_right(_open_instant(run, folder)))


def _find_right(run: Run) -> np.ndarray:
    """Which validation images a run's classifier names right, bool [B]."""
    p_NBK, labels = run.held_out[_VALIDATION]
    return np.asarray(p_NBK.mean(axis=0).argmax(axis=1) == labels)


def describe_choice(result: Mapping[str, Any]) -> str | None:
    """A sentence about the classifier that is used. None if nothing was chosen."""
    chosen, gain = result.get("predictor"), result.get("predictor_gain")
    if chosen not in (TRAINED, INSTANT):
        return None
    if chosen == TRAINED:
        if gain is None:  # Earlier versions did so without validation images.
            return "The trained networks are used."
        points = max(round(gain), 1)
        noun = "point" if points == 1 else "points"
        return f"Better by about {points} {noun}: the trained networks are used."
    if gain is None:
        return "No photos to compare them on: the instant classifier is kept."
    found = "No better" if gain <= 0 else "Not clearly better"
    return f"{found}: the instant classifier is kept."
