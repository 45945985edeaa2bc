"""Selection of confident labels from several predictions of the same images (UPS).

Uncertainty-aware pseudo-label selection (Rizve et al., 2021, section 3.2), with the details of the
authors' code.
"""

import jax
import numpy as np
from ml_collections import ConfigDict

NO_LABEL = -1
_MIN_PER_CLASS = 25  # Authors: balancing never cuts a class below this many.


def select_labels(
    logits: np.ndarray, hparams: ConfigDict, round_index: int
) -> dict[str, np.ndarray]:
    """Chooses the labels of a round from several passes with dropout.

    Args:
        logits: float32 [passes, images, K] of one network for the candidates. Labeled images must
            not be among them: the network has memorized them, so balancing, which keeps the most
            certain images of a class, would keep them and drop others.
        hparams: thresholds by name.
        round_index: of the round that starts, from 1.

    Returns:
        The candidates' rows of one network's table: "label" int32 [images] and "negative" bool
        [images, K].
    """
    probabilities = np.asarray(jax.nn.softmax(logits))
    mean, std = probabilities.mean(axis=0), probabilities.std(axis=0, ddof=1)
    label = mean.argmax(axis=-1)
    top = np.arange(len(label)), label
    is_kept = (mean[top] >= hparams["threshold_positive"]) & (std[top] < hparams["std_positive"])
    # The authors' code balances where `itr < args.class_blnc`: rounds 1 to 6 of their 20.
    if round_index < hparams["balanced_share"] * hparams["rounds"]:
        is_kept = balance(is_kept, label, std[top], mean.shape[-1])

    softened = np.asarray(jax.nn.softmax(logits / hparams["temperature_negative"]))
    negative = softened.mean(axis=0) < hparams["threshold_negative"]
    negative &= softened.std(axis=0, ddof=1) < hparams["std_negative"]
    negative[top] = False
    negative[is_kept] = False  # A positive label implies all negative ones.
    return {"label": np.where(is_kept, label, NO_LABEL).astype(np.int32), "negative": negative}


def balance(
    is_candidate: np.ndarray, label: np.ndarray, std: np.ndarray, num_classes: int
) -> np.ndarray:
    """Keeps as many images of each class as the smallest has, but at least 25 where available.

    Args:
        is_candidate: bool [images].
        label: int [images].
        std: float [images]; each class keeps the images where it is lowest.
        num_classes: K.

    Returns:
        bool [images], a subset of `is_candidate`.
    """
    counts = np.bincount(label[is_candidate], minlength=num_classes)
    limit = max(_MIN_PER_CLASS, counts.min())
    kept = np.zeros_like(is_candidate)
    for k in range(num_classes):
        members = np.flatnonzero(is_candidate & (label == k))
        kept[members[np.argsort(std[members], kind="stable")[:limit]]] = True
    return kept
