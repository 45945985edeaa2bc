"""The instant classifier of a folder of images, and a folder of its own to keep it in.

It is a frozen network with heads for the classes. Nothing is trained. Its folder has the files of a
run's folder, as far as there is something to write, and the classifier itself.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import describe_differences, to_json, with_values
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError, explain_writing
from cls_jax.parallel.distributed import check_same, from_main_process, is_main_process
from cls_jax.parallel.preemption import leave_when_asked
from cls_jax.photos.features.backbones import Backbones
from cls_jax.photos.features.instant import INSTANT_FILE, write_instant
from cls_jax.photos.folder.instant_config import create_instant_config, read_run_config
from cls_jax.photos.start.fit_labels import (
    Fitted,
    fit_labels,
    fit_tags,
    name_figures,
    write_copies,
)
from cls_jax.photos.start.frozen import PHOTO_WEIGHT_READERS, compute_run_features, read_networks
from cls_jax.runs.folder import (
    CONFIG,
    check_unused,
    create_run_folder,
    describe_finished,
    describe_weights,
    read_result,
    write_result,
)
from cls_jax.runs.sessions import record_session
from cls_jax.training.prepare import (
    check_packages,
    choose_images,
    hold_folder,
    read_weights,
    resolve_model,
)
from cls_jax.training.progress import list_warnings
from cls_jax.training.setup import describe_model

INSTANT = "instant"  # The folder of a run for the instant classifier that it began with.


def fit_instant(
    config: ConfigDict, workdir: pathlib.Path, load: Callable[[ConfigDict], Dataset]
) -> dict[str, Any]:
    """Fits the instant classifier of a dataset, and writes it to `workdir`, which need not exist.

    Of the configuration, only the keys of an instant classifier are used. The head is fitted to
    inferred labels or, with `model.init_head=probe`, to given ones. `load` loads the dataset, but
    not for a folder that is finished. Returns the contents of `result.json`. Raises a UserError if
    folder, data or weights do not fit the configuration.
    """
    config = create_instant_config(resolve_model(config))
    check_instant_folder(workdir, config)
    check_same(to_json(config), workdir)
    if (result := read_result(workdir)) is not None:
        if is_main_process():
            print(describe_finished(workdir, 0, 0))
        return result
    check_packages(config)
    with leave_when_asked():
        dataset, labeled, unlabeled = choose_images(config, workdir, load)
        networks = read_networks(
            config,
            read_weights(config.model.init, PHOTO_WEIGHT_READERS),
            config.data.image_size,
            channels=dataset.image_shape[-1],
        )
        with hold_folder(
            workdir,
            check=lambda: check_instant_folder(workdir, config),
            create=lambda: create_run_folder(workdir, config, labeled, dataset),
            others=(INSTANT_FILE,),
        ):
            if is_main_process():
                record_session(workdir, 0)
                _announce(config, dataset, len(labeled), workdir)
            features = compute_run_features(config, dataset, labeled, unlabeled, networks)
            fitted = (
                fit_tags(dataset, labeled, features, config.model.tag_precision)
                if config.data.tags
                else fit_labels(dataset, labeled, features)
            )
            if is_main_process():
                result = write_instant_folder(workdir, config, dataset, labeled, fitted)
    return dict(from_main_process(result))


def check_instant_folder(workdir: pathlib.Path, config: ConfigDict) -> None:
    """Checks that a folder is new, empty, or has the same instant classifier, or a UserError."""
    if not (workdir / CONFIG).exists():
        check_unused(workdir)
        return
    stored = read_run_config(workdir)
    if "method" in stored:
        raise UserError(
            f"{workdir} already has a trained run: choose another --workdir for the instant "
            "classifier."
        )
    if differences := describe_differences(config, stored):
        raise UserError(
            f"{workdir} already has an instant classifier with other settings "
            f"({'; '.join(differences)}): choose another --workdir."
        )


def write_instant_folder(
    folder: pathlib.Path,
    config: ConfigDict,
    dataset: Dataset,
    labeled: np.ndarray,
    fitted: Fitted,
) -> dict[str, Any]:
    """Writes the folder of an instant classifier, which need not exist, its result last.

    Returns this result. Raises a UserError if the system refuses.
    """
    kind = "probe" if config.model.init_head == "probe" else "instant"
    size = fitted.classifier.frozen.image_size
    config = with_values(create_instant_config(config), {"data.image_size": size})
    with explain_writing(folder, "free disk space and rerun the command"):
        folder.mkdir(exist_ok=True)
        if not (folder / CONFIG).exists():
            create_run_folder(folder, config, labeled, dataset)
        write_instant(folder / INSTANT_FILE, fitted.classifiers[kind])
        fitted.write_labels(folder, dataset)
        write_copies(folder, dataset, fitted.rows, fitted.copies)
        accuracies, figures = fitted.accuracies[kind], fitted.figures
        result = {
            "step": 0,
            "dataset": config.data.name,
            "num_labels": len(labeled),
            "method": INSTANT,
            "seed": config.seed,
            "test_accuracy": accuracies.get("test/accuracy"),
            "test_accuracy_without_copies": accuracies.get("test/accuracy_without_copies"),
            "test_balanced_accuracy": accuracies.get("test/balanced_accuracy"),
            "validation_accuracy": accuracies.get("validation/accuracy"),
            **name_figures(figures),
            **describe_weights(config),
        }
        write_result(folder, result)
    return result


def _announce(
    config: ConfigDict, dataset: Dataset, num_labeled: int, workdir: pathlib.Path
) -> None:
    """Prints what is fitted, and warnings."""
    for warning in list_warnings(dataset, num_labeled):
        print(f"Warning: {warning}")
    others = Backbones.of(config.model).describe_others()
    print(
        f"Instant classifier on {dataset.name}: {num_labeled:,} labels, {len(dataset.train):,} "
        f"training and {len(dataset.test):,} test images\n"
        f"{describe_model(config)} with frozen weights, at {config.data.image_size} pixels, in "
        f"{workdir}{f'; {others}' if others else ''}"
    )
