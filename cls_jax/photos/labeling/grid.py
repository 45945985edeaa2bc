"""The photos of a session as a grid: all of them, and those most like one of them.

Each function may be called from any thread.
"""

from typing import Any

import numpy as np

from cls_jax.photos.features.accuracy import Estimate, choose_to_check
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.known import (
    Known,
    count,
    get_path,
    show_name,
    write_missing,
)
from cls_jax.photos.labeling.session import Session

_NUM_SIMILAR = 24


def describe_photos(session: Session) -> dict[str, Any]:
    """All photos in the folder, as one list for each column, since there may be many.

    "label" is the place of the label among "labels", or -1: the answer, or what is suggested with
    "confidence". "copies" is the group of near-copies, or -1 for a photo without any.
    """
    known = session.follow_classifier()
    num_images = len(known.files)
    suggested, confidences = [""] * num_images, np.zeros(num_images)
    copies = np.full(num_images, -1)
    if known.has_suggestions():
        suggested, confidences, _ = known.rules.say(known.probabilities, known.class_names)
    if known.relations is not None:
        groups = known.relations.copies
        copies = np.where(np.bincount(groups)[groups] > 1, groups, -1)
    images = [image for image in range(num_images) if image not in known.gone]
    states = [known.get_state(image) for image in images]
    labels = [
        state.label if state.decision else suggested[image]
        for image, state in zip(images, states, strict=True)
    ]
    places = {label: k for k, label in enumerate(dict.fromkeys(filter(None, labels)))}
    return {
        "version": known.version,
        "labels": list(places),
        "image": images,
        "name": [show_name(known.files[image]) for image in images],
        "decision": [state.decision for state in states],
        "label": [places.get(label, -1) for label in labels],
        "confidence": confidences[images].round(4).tolist(),
        "revision": [state.revision for state in states],
        "copies": copies[images].tolist(),
    }


def find_similar(known: Known, image: int) -> dict[str, Any]:
    """The photos whose features are most like those of a photo, the most similar first.

    Raises a RefusedError if there is no such photo.
    """
    get_path(known, image)
    if known.relations is None:
        raise RefusedError("This photo has not been read yet: try again soon.")
    unit = normalize_rows(known.relations.features.descriptors)
    similarities = unit @ unit[image]
    similarities[[image, *known.gone]] = -np.inf
    order = np.argsort(-similarities, kind="stable")[:_NUM_SIMILAR]
    return {"images": [int(i) for i in order if np.isfinite(similarities[i])]}


def describe_check(
    session: Session, percent: int, estimate: Estimate | None = None
) -> dict[str, Any]:
    """The fewest photos to look at so that `percent` of the sorted ones are right.

    `estimate` is of what names the photos, see `SessionClassifier.estimate`.
    "images" are those, the least certain first. While it is too early to say, there are only the
    reasons in "message".
    """
    known = session.follow_classifier()
    if known.classified is None or not known.has_suggestions():
        return {"message": f"Label photos of two {known.rules.plural} first."}
    if known.classified.is_early:
        return {"message": f"Too early to say: many {known.rules.plural} have only one answer."}
    if estimate is None or estimate.accuracy is None:
        return {"message": f"Not known yet: check {write_missing(count(known).checks)} first."}
    images = np.flatnonzero(known.find_open())
    confidences = known.rules.say(known.probabilities[images], known.class_names).confidences
    num_right = sum(bool(state.label) for _, state in known.list_answered())
    chosen = choose_to_check(confidences, num_right, percent / 100, estimate)
    return {"message": "", "images": images[chosen].tolist()}


def parse_percent(text: str) -> float:
    """A number from 0 to 100. Raises a ValueError if it is anything else."""
    percent = float(text)
    if not 0 <= percent <= 100:  # As it is for NaN.
        raise ValueError("The percentage must be from 0 to 100.")
    return percent
