"""Calibrated probabilities: one temperature per run, fitted on labels that training never saw.

Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, 2017) divides the
logarithms of the networks' mean probabilities by a temperature T > 0, the one under which the test
labels are most likely. It changes no prediction, and a single number cannot overfit a hundred
labels. Labeled training images would not do: the networks have learned them by heart.

Shape suffixes: B images, K classes.
"""

import json
import pathlib
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from cls_jax.errors import UserError
from cls_jax.io import describe_error, is_number, read_json, write_atomically

CALIBRATION = "calibration.json"
MIN_IMAGES = 100
# One in five predictions at this calibrated confidence is wrong.
ABSTAIN_BELOW = 0.8

_SMALLEST = 1e-12  # A probability that underflowed to 0 has no logarithm.
_TEMPERATURES = (0.05, 20.0)


class Calibration(NamedTuple):
    """How to calibrate the predictions of a checkpoint.

    Attributes:
        step: of the checkpoint.
        temperature: above 1 where the networks are too confident.
        num_images: the test images that it was fitted on.
        abstain_below: predictions of a lower calibrated confidence should not be relied on.
    """

    step: int
    temperature: float
    num_images: int
    abstain_below: float = ABSTAIN_BELOW


def fit_temperature(p_BK: np.ndarray, labels: np.ndarray) -> float:
    """The temperature, from 0.05 to 20, under which the labels are most likely.

    Args:
        p_BK: float32 [B, K], probabilities.
        labels: int [B], true classes.
    """

    def negative_log_likelihood(log_temperature: float) -> float:
        log_p_BK = _scale(p_BK, np.exp(log_temperature))
        return -float(log_p_BK[np.arange(len(labels)), labels].mean())

    bounds = tuple(np.log(_TEMPERATURES))
    found = scipy.optimize.minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded")
    return float(np.exp(found.x))


def apply_temperature(p_BK: np.ndarray, temperature: float) -> np.ndarray:
    """Calibrated probabilities softmax(log p / T), float32 [B, K]."""
    return np.exp(_scale(p_BK, temperature)).astype(np.float32)


def _scale(p_BK: np.ndarray, temperature: float) -> np.ndarray:
    """Log softmax(log p / T), float64."""
    logits = np.log(np.maximum(p_BK, _SMALLEST), dtype=np.float64) / temperature
    return scipy.special.log_softmax(logits, axis=-1)


def write_calibration(workdir: pathlib.Path, calibration: Calibration) -> None:
    """Stores a calibration in the run's folder.

    Raises:
        OSError: if the system refuses.
    """
    text = json.dumps(calibration._asdict(), indent=1) + "\n"
    write_atomically(workdir / CALIBRATION, text)


def read_calibration(workdir: pathlib.Path, step: int) -> Calibration | None:
    """The calibration of the checkpoint of a step; None if there is none.

    Raises:
        UserError: if the file is damaged.
    """
    path = workdir / CALIBRATION
    if not path.exists():
        return None
    try:
        calibration = _from_json(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} is not a calibration ({describe_error(error)}): delete it, and evaluation "
            "writes it again."
        ) from error
    return calibration if calibration.step == step else None


def _from_json(stored: dict) -> Calibration:
    """Raises a ValueError or TypeError unless every value has its type and range."""
    calibration = Calibration(**stored)
    if not all(map(is_number, calibration)):
        raise ValueError("a value is not a number")
    if calibration.temperature <= 0:
        raise ValueError("the temperature is not positive")
    return calibration
