"""Which labels a network is sure of, from several predictions of the same images (UPS).

Uncertainty-aware pseudo-label selection (Rizve et al., 2021, section 3.2), with the details of the
authors' code.
"""

import jax
import numpy as np
from ml_collections import ConfigDict

NO_LABEL = -1
_MIN_PER_CLASS = 25  # Authors: a class gives at least these, if it has as many.


def select_labels(
    logits: np.ndarray, hparams: ConfigDict, round_index: int
) -> dict[str, np.ndarray]:
    """Chooses the labels of a round from several passes with dropout.

    Args:
        logits: float32 [passes, images, K] of one network.
        hparams: thresholds by name.
        round_index: of the round that begins, from 1.

    Returns:
        One network's row of the table: "label" int32 [images], "negative" bool [images, K].
    """
    probabilities = np.asarray(jax.nn.softmax(logits))
    mean, std = probabilities.mean(axis=0), probabilities.std(axis=0, ddof=1)
    label = mean.argmax(axis=-1)
    top = np.arange(len(label)), label
    is_sure = (mean[top] >= hparams["threshold_positive"]) & (std[top] < hparams["std_positive"])
    if round_index <= hparams["balanced_share"] * hparams["rounds"]:
        is_sure = balance(is_sure, label, std[top], mean.shape[-1])

    flat = np.asarray(jax.nn.softmax(logits / hparams["temperature_negative"]))
    negative = flat.mean(axis=0) < hparams["threshold_negative"]
    negative &= flat.std(axis=0, ddof=1) < hparams["std_negative"]
    negative[top] = False
    negative[is_sure] = False  # A positive label says all that negative ones would.
    return {"label": np.where(is_sure, label, NO_LABEL).astype(np.int32), "negative": negative}


def balance(
    is_sure: np.ndarray, label: np.ndarray, std: np.ndarray, num_classes: int
) -> np.ndarray:
    """Keeps as many of each class as the smallest has (but up to 25), the surest first.

    Args:
        is_sure: bool [images], candidates.
        label: int [images].
        std: float [images], how unsure.
        num_classes: K.

    Returns:
        bool [images], a subset of `is_sure`.
    """
    counts = np.bincount(label[is_sure], minlength=num_classes)
    limit = max(_MIN_PER_CLASS, counts.min())
    kept = np.zeros_like(is_sure)
    for k in range(num_classes):
        members = np.flatnonzero(is_sure & (label == k))
        kept[members[np.argsort(std[members], kind="stable")[:limit]]] = True
    return kept
