"""What the page shows of a labeling session, as data for JSON.

Each function may be called from any thread.
"""

import collections
from typing import Any

import numpy as np

from cls_jax.io import make_printable
from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.features.decide import rank_classes
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.folder.log import DESCRIBE, EXAMPLE, LABEL, NONE, SKIP
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.labeling.answers import RefusedError, get_note
from cls_jax.photos.labeling.known import Known, get_path, show_name
from cls_jax.photos.labeling.session import NUM_RECENT, Session
from cls_jax.photos.shell import write_command

_NUM_PER_CLASS = 8
_NUM_SIMILAR = 24
_NUM_SUSPECTS = 12
_NUM_UNREADABLE = 100


def describe(session: Session, window: str = "", question: int | None = None) -> dict[str, Any]:
    """The state that every view shows. The window shows the photo `question` if there is one."""
    shown = session.share_out(window, question)  # May draw photos.
    known = session.known
    recent = list(known.list_answered())
    answered = [state for _, state in recent]
    if known.pending:
        answered = [known.marks.get(name) for name in known.pending]
    counts = collections.Counter(state.decision for state in answered)
    num_labels = collections.Counter(name for state in answered for name in state.labels)
    num_images = len(known.pending) or len(known.files) - len(known.gone)
    keys = known.find_keys()
    options = [*known.backbones.to_arguments(), *known.options.to_arguments(known.root)]
    options += known.rules.arguments
    return {
        "version": known.version,
        "phase": known.phase,
        "message": known.message,
        "progress": known.progress,
        "folder": show_name(known.root.resolve().name),
        "command": show_name(write_command(["train", str(known.root), *options])),
        "networks": known.backbones.describe(),
        "has_tags": known.options.tags,
        "classes": [
            {
                "name": name,
                "count": num_labels[name],
                "key": keys.get(name, ""),
                **_describe_notes(known, name),
            }
            for name in known.class_names
        ],
        "counts": {
            "images": num_images,
            "labeled": counts[LABEL],
            "none": counts[NONE],
            "skipped": counts[SKIP],
        },
        "sample": sum(not known.get_state(image).decision for image in known.sample),
        "next": [describe_image(known, image) for image in shown],
        "recent": [describe_image(known, image) for image, _ in recent[:NUM_RECENT]],
        "can_undo": bool(session.steps.get(window)),
    }


def describe_earlier(known: Known, place: int) -> dict[str, Any]:
    """The photo in a place among those with an answer, the last answer first, as a list."""
    images = [image for image, _ in known.list_answered()][place : place + 1]
    return {"images": [describe_image(known, image) for image in images]}


def find_image(known: Known, name: str) -> dict[str, Any]:
    """The photo of a name. Raises a RefusedError if there is none."""
    image = known.index.get(name)
    if image is None or image in known.gone:
        raise RefusedError("There is no such photo.")
    return describe_image(known, image)


def describe_check(session: Session) -> dict[str, Any]:
    """The most confident proposals of each label, once two are known."""
    known = session.follow_classifier()
    is_open = known.find_open()
    is_open[list(known.sample)] = False  # They are asked without a guess in sight.
    if not known.has_suggestions():
        return {"version": known.version, "rows": []}
    labels, confidences, _ = known.rules.say(known.probabilities, known.class_names)
    is_open[known.rules.keep_back(confidences, known.rejected)] = False
    found: dict[str, list[int]] = {name: [] for name in known.class_names}
    for i in np.argsort(-confidences, kind="stable").tolist():
        if is_open[i]:
            found.setdefault(labels[i], []).append(i)
    rows = {
        label: [_propose(known, i, label, confidences[i]) for i in images[:_NUM_PER_CLASS]]
        for label, images in found.items()
    }
    described = [{"label": label, "images": images} for label, images in rows.items()]
    return {"version": known.version, "rows": described}


def describe_suspects(known: Known) -> dict[str, Any]:
    """Labels that the others contradict, see `choose_suspects`, or about which people differ."""
    found = dict[int, tuple[str, float | None]]()  # Photo → another label, and its probability.
    for i, label, other, probability in known.classified.suspects if known.classified else ():
        state = known.get_state(i)
        is_known = set(known.split(other)) <= set(known.class_names)
        if is_known and state.label == label and not state.is_confirmed:
            found[i] = other, probability
    names = {fold_class(name): name for name in known.class_names}
    for i, state in known.list_answered():
        rival = names.get(fold_class(state.rival))
        if state.label and rival:
            found.setdefault(i, (rival, None))
    shown = [*found.items()][:_NUM_SUSPECTS]
    images = [_propose(known, i, other, probability) for i, (other, probability) in shown]
    return {"version": known.version, "images": images}


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


def describe_result(session: Session, estimate: Estimate | None = None) -> dict[str, Any]:
    """Counts, how sure the proposals of each class are, and files that cannot be read.

    "mixed" is empty while many classes have only one answer. For each class, it has the number of
    photos named so that are not sure, the class that it is mixed up with most, and the photos that
    may be either. `estimate` is of what names the photos.
    """
    known = session.follow_classifier()
    proposed = np.zeros(len(known.class_names), int)
    mixed: list[dict[str, Any]] = []
    if known.has_suggestions():
        images = np.flatnonzero(known.find_open())
        p_open = known.probabilities[images]
        # A class just added has no column yet.
        proposed[: p_open.shape[1]] = known.rules.say(p_open, known.class_names).has.sum(axis=0)
        if known.classified is not None and not known.classified.is_early:
            doubts = known.rules.doubt(p_open, known.class_names, estimate)
            mixed = [one._asdict() | {"images": images[one.images].tolist()} for one in doubts]
    return {
        "version": known.version,
        "proposed": proposed.tolist(),
        "figures": dict(known.classified.figures) if known.classified else {},
        "mixed": mixed,
        "unreadable": [
            {"name": show_name(name), "reason": make_printable(reason)}
            for name, reason in sorted(known.unreadable.items())[:_NUM_UNREADABLE]
        ],
        "num_unreadable": len(known.unreadable),
    }


def describe_image(known: Known, image: int) -> dict[str, Any]:
    """One photo."""
    state = known.get_state(image)
    is_check = image in known.sample and not state.decision
    return {
        "image": image,
        "name": show_name(known.files[image]),
        "decision": state.decision,
        "label": state.label,
        "revision": state.revision,
        # A guess in sight would sway the answer that is to check it.
        "proposals": [] if is_check else _describe_proposals(known, known.probabilities, image),
        "check": is_check,
    }


def _describe_proposals(known: Known, p_BK: np.ndarray, row: int) -> list[dict[str, Any]]:
    if not known.has_suggestions():
        return []
    names = known.class_names
    best = rank_classes(p_BK[row], known.rules.num_proposals)
    return [{"label": names[k], "probability": round(float(p_BK[row, k]), 4)} for k in best]


def _propose(known: Known, image: int, label: str, probability: float | None) -> dict[str, Any]:
    """A photo with one proposal. None: it is other people's."""
    rounded = None if probability is None else round(float(probability), 4)
    proposals = [{"label": label, "probability": rounded}]
    return describe_image(known, image) | {"proposals": proposals}


def _describe_notes(known: Known, name: str) -> dict[str, Any]:
    """The description of a class and its example, which must still have this class."""
    example = get_note(known.notes, EXAMPLE, name).text
    has_class = known.phase == "ready" and known.marks.get(example).label == name
    return {
        "description": get_note(known.notes, DESCRIBE, name).text,
        "example": known.index.get(example) if has_class else None,
    }
