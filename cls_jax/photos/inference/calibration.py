"""Calibrated probabilities, by two parameters per run that are fitted on held-out labels.

q = (1 - ε) softmax(log p / T) + ε / K

Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, 2017) divides the
logarithms of the networks' mean probabilities p by a temperature T > 0. Networks trained on few
labels also mistake whole groups of images for another class, with full confidence. A temperature
that explains these mistakes makes all other predictions underconfident: alone it raised the
calibration error on digits (docs/predict.md). The share ε of uninformative predictions explains
them instead. T and ε maximize the likelihood of the labels of at least 100 validation
images. They change no predicted class, and two parameters cannot overfit a hundred labels. Test
images only report. Labeled training images are unsuitable, since trained networks have memorized
them: on digits with 40 labels, all 40 are predicted correctly from the features
of the others, while 93% of the test images are.

Shape suffixes: B images, K classes.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from cls_jax.errors import UserError
from cls_jax.io import describe_error, is_number, read_json, write_atomically
from cls_jax.photos.features.heads import normalize_logits

CALIBRATION = "calibration.json"
MIN_IMAGES = 100

_SMALLEST = 1e-12  # A probability that underflowed to 0 has no logarithm.
_LOWEST_TEMPERATURE = 0.05
_HIGHEST_TEMPERATURE = 20.0
# The search starts from the best of these. From a single point, it ended far from the maximum in 26
# of 144 cases: where networks are underconfident, ε seems useless near T = 1, and once it is
# almost 0 it stays there.
_TEMPERATURES = (0.1, 0.3, 1.0, 3.0)
_UNIFORM_SHARES = (0.01, 0.1, 0.3)


class Calibration(NamedTuple):
    """How to calibrate the predictions of the checkpoint of a step."""

    step: int
    temperature: float  # T, above 1 where the networks are too confident.
    uniform_share: float  # ε, from 0 to 1.
    num_images: int  # Images that it was fitted to.
    # Predictions with a lower calibrated confidence are marked. At this one, one in five is wrong.
    abstain_below: float = 0.8
    fitted_on: str = "test"  # Or "validation", as all new ones are.


def fit_calibration(p_BK: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The temperature, from 0.05 to 20, and the share that maximize the labels' likelihood.

    The probabilities are float32 [B, K], and the labels, the true classes, int [B].
    """
    from scipy.optimize import minimize  # Takes some tenths of a second.

    def bound(parameters: np.ndarray) -> tuple[float, float]:
        temperature = np.exp(np.clip(parameters[0], -9, 9))
        temperature = np.clip(temperature, _LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE)
        return float(temperature), float(scipy.special.expit(parameters[1]))

    def negative_log_likelihood(parameters: np.ndarray) -> float:
        temperature, uniform_share = bound(parameters)
        q_BK = apply_calibration(p_BK, temperature, uniform_share)
        return -float(np.log(np.maximum(q_BK[np.arange(len(labels)), labels], _SMALLEST)).mean())

    starts = [
        np.array([np.log(temperature), scipy.special.logit(uniform_share)])
        for temperature in _TEMPERATURES
        for uniform_share in _UNIFORM_SHARES
    ]
    start = min(starts, key=negative_log_likelihood)
    return bound(minimize(negative_log_likelihood, start, method="Nelder-Mead").x)


def apply_calibration(p_BK: np.ndarray, temperature: float, uniform_share: float) -> np.ndarray:
    """Calibrated probabilities q, float64 [B, K]."""
    logits = np.log(np.maximum(p_BK, _SMALLEST), dtype=np.float64) / temperature
    q_BK = normalize_logits(logits)
    return (1 - uniform_share) * q_BK + uniform_share / p_BK.shape[-1]


def write_fitted(path: pathlib.Path, fitted: Any) -> None:
    """Writes a `Calibration` or an `UnknownScore` as a JSON file."""
    write_atomically(path, json.dumps(fitted._asdict()) + "\n")


def read_calibration(workdir: pathlib.Path, step: int) -> Calibration | None:
    """The calibration for the checkpoint of a step, or None. Raises a UserError if damaged."""

    def parse(stored: dict) -> Calibration:
        calibration = Calibration(**stored)
        if not all(map(is_number, calibration[:-1])):
            raise ValueError("a value is not a number")
        if calibration.fitted_on not in ("validation", "test"):
            raise ValueError("fitted_on is neither validation nor test")
        if calibration.temperature <= 0 or not 0 <= calibration.uniform_share <= 1:
            raise ValueError("the temperature or the share is out of range")
        return calibration

    return read_fitted(workdir / CALIBRATION, step, parse, "a calibration")


def read_fitted(path: pathlib.Path, step: int, parse: Callable[[dict], Any], name: str) -> Any:
    """Reads what `write_fitted` wrote for the checkpoint of a step. None if there is nothing.

    `parse` converts the file's content to a `Calibration` or an `UnknownScore`. If it raises a
    ValueError or TypeError, the UserError says that the file is not `name`.
    """
    if not path.exists():
        return None
    try:
        fitted = parse(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} is not {name} ({describe_error(error)}): delete it, and cls-jax evaluate "
            "writes it again."
        ) from error
    return fitted if fitted.step == step else None
