"""Assessment of a run: after its training, again by `cls-jax evaluate`, or on another folder."""

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import with_values
from cls_jax.data.sampling import take_rows
from cls_jax.errors import UserError
from cls_jax.io import PARTIAL
from cls_jax.parallel.distributed import barrier, from_main_process, is_main_process
from cls_jax.photos.features.accuracy import correct_estimate, read_estimate
from cls_jax.photos.features.copies import find_copies, measure_without_copies
from cls_jax.photos.features.extract import extract_features
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.catalog import read_checked
from cls_jax.photos.folder.dataset import list_layout
from cls_jax.photos.folder.log import compare_checks
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.options import (
    AUTOMATIC,
    FolderOptions,
    find_folder,
    get_folder_options,
)
from cls_jax.photos.folder.reading import NO_CLASS_NAME
from cls_jax.photos.folder.remedies import refuse_unreadable
from cls_jax.photos.images.files import find_digests, read_ahead
from cls_jax.photos.images.store import Store, get_cache_folder
from cls_jax.photos.inference.calibration import (
    CALIBRATION,
    MIN_IMAGES,
    Calibration,
    fit_calibration,
    read_calibration,
    write_fitted,
)
from cls_jax.photos.inference.predictor import RANDOM, choose_predictor
from cls_jax.photos.inference.run import InstantRun, Run, check_photos, open_run
from cls_jax.photos.inference.suspects import take_unlabeled
from cls_jax.photos.inference.unknown import (
    FOLDER_IMAGES,
    UNKNOWN,
    FolderImages,
    UnknownScore,
    collect_images,
    fit_unknown,
    read_unknown,
)
from cls_jax.photos.shell import write_command
from cls_jax.photos.start.fit_instant import INSTANT
from cls_jax.photos.start.fit_labels import read_copies
from cls_jax.photos.start.scores import CLASSES, TAGS, Figures, Scoring, write_figures
from cls_jax.runs.folder import LABELED_INDICES, read_labeled_rows, read_result, write_result
from cls_jax.training.evaluate import Accuracies

_MAX_NAMED = 10  # Classes in a message.
# Labeled images for the score of unknown images: more would take minutes on a CPU.
_MAX_LABELED = 500
# Training images that evaluated ones are compared with. More would take minutes.
_MAX_COMPARED = 10_000


def train_and_assess(run: Run) -> dict[str, Any]:
    """Trains or resumes a run, or fits an instant classifier, then assesses it.

    A run that began with an instant classifier then chooses between the two, once. All processes
    compute, and process 0 writes. Returns the contents of `result.json`, and raises the same as
    `Run.train`.
    """
    workdir = run.workdir
    run.train()
    if from_main_process("predictor" not in run.result and run.has_classifier):
        chosen = from_main_process(choose_predictor(run))
        if chosen.get("predictor") == INSTANT and chosen.get("predictor_images") == RANDOM:
            chosen |= _give_back_labels(run)
        run.result = run.result | chosen
        if chosen and is_main_process():
            write_result(workdir, run.result)
    step = run.result["step"]
    is_assessed = "per_class" in run.result
    is_assessed |= any(read(workdir, step) for read in (read_calibration, read_unknown))
    if from_main_process(is_assessed or not run.has_classifier):
        return run.result
    if is_main_process():
        with contextlib.suppress(UserError):  # The table was damaged since.
            write_result(workdir, run.result | measure_with_checks(run.config, run.result))
    barrier("checked")
    assess_run(run)
    if run.predictor is not run:
        assess_run(run.predictor)
    run.result = read_result(workdir) or run.result
    return run.result


def _give_back_labels(run: Run) -> dict[str, Any]:
    """Fits the instant classifier of a run again, with the labels that were held out, too.

    They have done what they were held out for: training was in vain. Returns the number of labels
    and the figures about them, for the result.
    """
    begun = run.begun_with
    if begun is None or not run.config.data.validation:
        return {}
    partial = begun.workdir.with_name(f"{INSTANT}{PARTIAL}")
    again = InstantRun(with_values(begun.config, {"data.validation": 0.0}), partial, run.layout)
    again.train()
    if is_main_process():
        shutil.rmtree(begun.workdir)
        partial.rename(begun.workdir)
    barrier("given back")
    del run.begun_with
    names = [key for key in again.result if key.startswith("labels_")]
    return {name: again.result[name] for name in ("num_labels", *names)}


def measure_with_checks(config: ConfigDict, result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures `labels_*` of a result that the checks in the folder's label table change.

    Empty without an estimate or without enough checks, or if only some labels are used. Raises a
    UserError if the table cannot be read.
    """
    estimate = read_estimate(result)
    if estimate is None or config.data.name != "folder" or config.num_labels:
        return {}
    root = pathlib.Path(config.data.data_dir).expanduser()
    checked = compare_checks(read_checked(root, get_folder_options(config.data)))
    corrected = correct_estimate(estimate, checked.is_right, checked.confidences)
    if corrected == estimate:
        return {}
    return {f"labels_{name}": value for name, value in corrected._asdict().items()}


def assess_run(run: Run, writes: bool = True) -> Figures | None:
    """Computes the `ASSESSMENTS` of a run's classifier, and writes them unless it is read-only.

    All processes must call this: they predict together, and process 0 writes. Returns the figures
    of network 1, or None without test images. Raises a UserError if the result is damaged.
    """
    of_classes = () if run.target is CLASSES else (score_unknown, calibrate)
    found = [(assess(run), write) for assess, write in ASSESSMENTS if assess not in of_classes]
    if writes and is_main_process():
        with contextlib.suppress(OSError):
            for value, write in found:
                if value is not None:
                    write(run, value)
    barrier("assessed")
    return next((value for value, _ in found if isinstance(value, Figures)), None)


def measure_classes(run: Run) -> Figures | None:
    """The figures of network 1 on the test images, or None if there are none."""
    if "test" not in run.held_out:
        return None
    p_NBK, known = run.held_out["test"]
    return run.classifier.scoring.compute_figures(p_NBK[0], known)


def calibrate(run: Run) -> Calibration | None:
    """A calibration fitted on the validation images, if there are at least 100."""
    p_NBK, labels = run.held_out.get("validation", (np.zeros(0), np.zeros(0)))
    if len(labels) < MIN_IMAGES:
        return None
    temperature, uniform_share = fit_calibration(p_NBK.mean(axis=0), labels)
    return Calibration(
        run.classifier.step,
        temperature=temperature,
        uniform_share=uniform_share,
        num_images=len(labels),
        fitted_on="validation",
    )


def score_unknown(run: Run) -> UnknownScore | None:
    """A score of unknown images, fitted to at most 500 labeled and 1,000 unlabeled images of a run.

    None for a folder without a list of labeled images, or without unlabeled images. Raises a
    UserError if the list is damaged.
    """
    classifier = run.classifier
    if (found := _choose_rows(run)) is None:
        return None
    labeled, rows = found
    labels = np.where(np.isin(rows, labeled), run.dataset.train.labels[rows], -1)
    if (labels >= 0).all():
        return None
    _, features = run.predict_with_features("train", rows)
    return fit_unknown(features, labels, len(classifier.class_names), classifier.step)


def find_folder_images(run: Run) -> FolderImages | None:
    """The images of an instant classifier's folder that new ones are compared with.

    None for trained networks: their features of images that they have learned from are not those
    of new images. Raises the same as `score_unknown`.
    """
    if run.classifier.step or (found := _choose_rows(run)) is None:
        return None
    _, rows = found
    _, features = run.predict_with_features("train", rows)
    sources = run.dataset.train.sources
    return collect_images(features, None if sources is None else sources[rows])


def _choose_rows(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """All labeled images, and at most 500 of them with at most 1,000 others: rows, int64 [n]."""
    if not (run.workdir / LABELED_INDICES).exists():
        return None
    labeled = np.sort(read_labeled_rows(run.workdir, run.dataset))
    unlabeled = take_unlabeled(len(run.dataset.train.images), labeled)
    return labeled, np.concatenate([take_rows(labeled, _MAX_LABELED), unlabeled])


def _measure_without(run: Run, is_copy: np.ndarray) -> Accuracies:
    """The test accuracy without near-copies, bool [n], if there are any."""
    p_NBK, known = run.held_out["test"]
    return measure_without_copies(run.classifier.scoring.find_right(p_NBK[0], known), is_copy)


def _write_figures(run: Run, figures: Figures) -> None:
    """Writes those of the test images, and the accuracy without near-copies."""
    without = _measure_without(run, find_copied(run))
    write_figures(run.workdir, run.classifier.step, figures, without)


# What follows training and `cls-jax evaluate`, each optional: run → result or None, and a function
# that writes the result into the run's folder.
ASSESSMENTS: tuple[tuple[Callable[[Run], Any], Callable[[Run, Any], None]], ...] = (
    (score_unknown, lambda run, score: write_fitted(run.workdir / UNKNOWN, score)),
    (find_folder_images, lambda run, images: images.write(run.workdir / FOLDER_IMAGES)),
    (calibrate, lambda run, found: write_fitted(run.workdir / CALIBRATION, found)),
    (measure_classes, _write_figures),
)


def find_copied(run: Run) -> np.ndarray:
    """Which test images are near-copies of training images, bool [n], as the run has found."""
    return read_copies((run.begun_with or run).workdir, run.dataset)["test"]


def compare_with_training(run: Run, paths: Sequence[str]) -> np.ndarray | None:
    """Which image files are near-copies of a run's training images, bool [n].

    Without the frozen network that the run began with, which have the same bytes. None without the
    run's images.
    """
    try:
        train = run.dataset.train
        labeled = read_labeled_rows(run.workdir, run.dataset)
    except UserError:  # They were moved.
        return None
    if run.frozen is None:
        root, store = pathlib.Path(run.config.data.data_dir).expanduser(), Store(get_cache_folder())
        own = find_digests(store, [str(root / name) for name in train.files], reads=True)
        return np.isin(find_digests(store, paths, reads=True), own)
    most = run.config.model.inferred_images or _MAX_COMPARED
    others = np.setdiff1d(np.arange(len(train)), labeled)
    rows = np.union1d(labeled, take_rows(others, most))
    relations = Relations(run.extract("train", rows))
    features = extract_features(paths, run.frozen)

    def read(places: np.ndarray) -> np.ndarray:
        (batch,) = read_ahead([paths[i] for i in places], run.dataset.image_shape, len(places))
        return batch.images

    return find_copies(relations, train.take(rows).images, features, read) >= 0


class Evaluation(NamedTuple):
    """What was measured on labeled images."""

    accuracies: Accuracies  # In percent.
    figures: Figures | None  # Of network 1.
    num_images: int
    step: int  # Of the checkpoint, 0 of an instant classifier.
    calibration: Calibration | None = None
    num_unreadable: int = 0  # Images that could not be read.
    # Images that are near-copies of training images, or the same. None if nobody has looked.
    num_copies: int | None = 0


def evaluate_run(
    workdir: pathlib.Path,
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    step: str | None = None,
) -> Evaluation:
    """Evaluates what predicts for a run on its test images, as training does, and assesses it.

    Takes the same as `open_run`. With a `step`, nothing is written. Accuracies have the names of
    `create_evaluate`. Raises a UserError if `workdir` is not a run's folder or has no checkpoint
    yet, or the dataset has no test images or other classes.
    """
    opened = open_run(workdir, data_dir, eval_batch_size, step)
    run = opened.predictor
    again = write_command(["evaluate", str(workdir)])
    check_photos(run, f"add their new place, as in {again} --photos DIR")
    classifier = run.classifier
    dataset = run.dataset
    scoring = classifier.scoring
    if (names := scoring.target.read(dataset.class_names).names) != scoring.names:
        raise UserError(
            f"The {scoring.target.plural} of {dataset.name} ({', '.join(names)}) differ from "
            f"those of the run in {run.workdir} ({', '.join(scoring.names)}): restore the original "
            "folder."
        )
    if not len(dataset.test.images):
        remedy = "add them as test/<class>/ beside the training images"
        if not dataset.train.files:
            remedy = "add test_images and test_labels to the .npz"
        raise UserError(f"{dataset.name} has no test images: {remedy}.")
    accuracies = run.measure_test()
    figures = assess_run(run, writes=step is None)
    is_copy, files, known = find_copied(run), dataset.test.files, opened.result
    # An earlier version did not look for them, or test images were added.
    if files and known and known.get("test_images") != len(files):
        root = pathlib.Path(run.config.data.data_dir).expanduser()
        found = compare_with_training(run, [str(root / name) for name in files])
        is_copy = is_copy if found is None else found
    return Evaluation(
        accuracies | _measure_without(run, is_copy),
        figures,
        len(dataset.test),
        classifier.step,
        calibration=read_calibration(run.workdir, classifier.step),
        num_copies=int(is_copy.sum()),
    )


def evaluate_folder(
    workdir: pathlib.Path,
    folder: str,
    options: FolderOptions = AUTOMATIC,
    step: str | None = None,
) -> Evaluation:
    """Evaluates a run, or its checkpoint of a `step`, on another folder of labeled images.

    The folder has a layout of docs/own_images.md, and its images tags if those of the run have. Its
    test images are used, or all labeled images if it has no test images. Nothing is written. Raises
    a UserError if the folder has another class or tag, or no image that can be read.
    """
    root = find_folder(folder, "a folder of labeled images")
    run = open_run(workdir, step=step)
    layout = list_layout(root, options._replace(tags=run.target is TAGS))
    rows = layout.test or [row for row in layout.train if row[1] != NO_CLASS_NAME]
    classifier = run.predictor.classifier
    scoring = classifier.scoring
    known = _read_known([label for _, label in rows], scoring, workdir, root)
    paths = [str(root / file.name) for file, _ in rows]
    parts: list[np.ndarray] = []
    errors: list[str | None] = []
    for batch in classifier.read_files(paths):
        parts.append(classifier.networks.predict_with_features(batch.images)[0])
        errors += batch.errors
    readable = [i for i, error in enumerate(errors) if error is None]
    if not readable:
        failures = [(path, str(error)) for path, error in zip(paths, errors, strict=True)]
        raise refuse_unreadable(f"None of the labeled images in {root}", failures)
    p_NBK, known = np.concatenate(parts, axis=1), known[readable]
    wanted = ["test/accuracy", "test/mean_average_precision"]
    if len(p_NBK) > 1:
        wanted += ["test/accuracy_network_2", "test/accuracy_ensemble"]
    measured = scoring.measure(p_NBK, known)
    accuracies = {name: measured[name] for name in wanted if name in measured}
    is_copy = compare_with_training(run, [paths[i] for i in readable])
    if is_copy is not None:
        accuracies |= measure_without_copies(scoring.find_right(p_NBK[0], known), is_copy)
    return Evaluation(
        accuracies,
        scoring.compute_figures(p_NBK[0], known),
        len(known),
        classifier.step,
        num_unreadable=len(rows) - len(known),
        num_copies=None if is_copy is None else int(is_copy.sum()),
    )


def _read_known(
    labels: Sequence[str], scoring: Scoring, workdir: pathlib.Path, root: pathlib.Path
) -> np.ndarray:
    """What labels of n images say, of n rows, to a run. Raises a UserError if it has no such."""
    texts, labels_B = np.unique(labels, return_inverse=True)
    target, own = scoring.target, {fold_class(name) for name in scoring.names}
    found = target.read(texts.tolist()).names
    if foreign := [name for name in found if fold_class(name) not in own]:
        names = ", ".join(map(repr, foreign[:_MAX_NAMED]))
        noun, them = (target.noun, "it") if len(foreign) == 1 else (target.plural, "them")
        raise UserError(
            f"The run in {workdir} does not have the {noun} {names}: rename or remove {them} in "
            f"{root}."
        )
    return scoring.number(labels_B, texts.tolist())
