"""What the sentences about a plan need to know, looked up and tried before one is written."""

import functools
import itertools
import pathlib
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.label_split import choose_validation_indices
from cls_jax.data.resize import ImageError
from cls_jax.data.sampling import take_evenly
from cls_jax.extras import is_installed
from cls_jax.models.weights.backbones import DINOV2
from cls_jax.models.weights.sources import Origin
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE, has_weights
from cls_jax.photos.features.copies import look_alike
from cls_jax.photos.folder.dataset import FolderSummary
from cls_jax.photos.folder.sources import (
    NUM_NAMES,
    propose_copies,
    propose_origins,
)
from cls_jax.photos.images.decode import read_origin, read_upright
from cls_jax.photos.plan.estimate import Measurement
from cls_jax.photos.plan.measure import measure_run
from cls_jax.photos.plan.rules import Plan
from cls_jax.photos.start.fit_instant import PHOTO_WEIGHT_READERS
from cls_jax.photos.start.frozen import read_networks
from cls_jax.photos.start.hold_out import (
    NearCopies,
    choose_validation_sources,
    count_near_copies,
)
from cls_jax.runs.folder import CONFIG, describe_weights
from cls_jax.training.prepare import read_weights, resolve_model

_NUM_SAMPLED = 200  # Images whose camera or patient a dry run looks for.
_SIDE = 128  # Pixels of images that may be copies of each other.
_MAX_COMPARED = 1_000  # Labeled images that a dry run compares. More take minutes on a CPU.


class Facts(NamedTuple):
    """What is known of a plan besides its configuration. Nothing is opened for it."""

    origins: tuple[Origin, ...] = ()  # Of its pretrained weights.
    is_begun: bool = False  # Whether its folder has this run already.
    proposed: str = ""  # A backbone that may be better. "" if the user has chosen.
    is_downloaded: bool = False  # Whether that one is on this machine.


class Trial(NamedTuple):
    """What a dry run finds out."""

    origins: str = ""  # A sentence that proposes sources by what is in the images, or "".
    near_copies: NearCopies | None = None  # Among the labels. None if they were not compared.
    measured: Measurement | None = None  # None if nothing is trained.
    held_out: tuple[int, ...] = ()  # Labels of each class for validation, but for near-copies.


def gather_facts(plan: Plan) -> Facts:
    """Looks up what is known of a plan. Downloads nothing.

    Nothing tells textures from other photos before they have labels, so another network is proposed
    for every folder, where the default one was chosen.
    """
    is_open = "model.init" not in plan.set_by_user and plan.config.model.init == DEFAULT_BACKBONE
    proposed = DINOV2 if is_open and is_installed("pretrained") else ""
    weights = describe_weights(plan.config).get("weights", [])
    return Facts(
        origins=tuple(Origin(**entry) for entry in weights),
        is_begun=(plan.workdir / CONFIG).exists(),
        proposed=proposed,
        is_downloaded=bool(proposed) and has_weights(proposed),
    )


def try_plan(plan: Plan) -> Trial:
    """Compares the labeled images and times a few steps. Writes no file of the run.

    Raises a UserError if weights cannot be read, or as `measure_run` does.
    """
    config = resolve_model(plan.config)
    if plan.method is None:  # Measuring would read the weights.
        weights = read_weights(config.model.init, PHOTO_WEIGHT_READERS)
        read_networks(config, weights, config.data.image_size, config.data.channels)
        measured = None
    else:
        measured = _measure(plan, config)
    return Trial(
        propose_sources(plan.summary), _find_near_copies(plan), measured, _count_held_out(plan)
    )


def _count_held_out(plan: Plan) -> tuple[int, ...]:
    """The labels of each class that `data.validation` holds out, or nothing without it.

    Raises a UserError if it holds out none.
    """
    config, layout = plan.config, plan.summary.layout
    if not config.data.validation:
        return ()
    labels, num_classes = layout.train.labels, len(layout.class_names)
    share, seed = config.data.validation, config.seed
    if layout.sources is None:
        rows = choose_validation_indices(labels, num_classes, share, seed)
    else:
        numbers = layout.sources.numbers
        rows = choose_validation_sources(labels, num_classes, share, seed, numbers)
    known = labels[rows][labels[rows] >= 0]
    return tuple(np.bincount(known, minlength=num_classes).tolist())


def _measure(plan: Plan, config: ConfigDict) -> Measurement | None:
    """The time and the memory of a step of the plan. None if only another one was measured."""
    if plan.budget is None:
        return measure_run(config, plan.summary)
    size, batch_size = config.data.image_size, config.batch_size
    is_known = plan.budget.is_compiled(size, batch_size, config.num_steps)
    return plan.budget.measured if is_known and plan.needed_minutes is None else None


def propose_sources(summary: FolderSummary) -> str:
    """A sentence about copies, cameras or patients that some training images show, or ""."""
    layout, root = summary.layout, summary.root
    if layout.sources is not None or layout.proposal:
        return ""
    names = [file.name for file, _ in itertools.islice(layout.train, NUM_NAMES)]
    if sentence := propose_copies(names, functools.partial(_are_alike, root)):
        return sentence
    sampled = take_evenly(layout.train, _NUM_SAMPLED)
    return propose_origins([read_origin(root / file.name) for file, _ in sampled]) or ""


def _are_alike(root: pathlib.Path, name: str, copy: str) -> bool:
    """Whether the second of two images seems to be a copy of the first one. Not if unreadable."""
    try:
        return look_alike(read_upright(root / copy, _SIDE), read_upright(root / name, _SIDE))
    except ImageError:
        return False


def _find_near_copies(plan: Plan) -> NearCopies | None:
    """Those among at most 1,000 labels, whose features the run needs anyway."""
    train, root = plan.summary.layout.train, plan.summary.root
    labeled = np.flatnonzero(train.labels >= 0)
    files = [root / train[i][0].name for i in labeled.tolist()]
    if not plan.config.model.init or len(files) > _MAX_COMPARED:
        return None
    return count_near_copies(plan.config, files, train.labels[labeled])
