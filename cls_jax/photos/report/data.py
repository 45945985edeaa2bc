"""The contents of a report, read from the run's folder or computed from its checkpoint."""

import collections
import concurrent.futures
import csv
import dataclasses
import functools
import os
import pathlib
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import numpy as np

from cls_jax.data.label_split import read_labeled_indices
from cls_jax.data.types import Dataset
from cls_jax.io import describe_error
from cls_jax.methods import Method, get_method
from cls_jax.photos.features.decide import decide
from cls_jax.photos.folder.instant_config import get_method_name
from cls_jax.photos.inference.calibration import Calibration, read_calibration
from cls_jax.photos.inference.run import Run, check_photos, open_run
from cls_jax.photos.inference.suspects import (
    Suspect,
    judge_labels,
    take_unlabeled,
)
from cls_jax.photos.start.scores import (
    CLASSES,
    Figures,
    Scoring,
    Target,
    get_target,
)
from cls_jax.runs.folder import (
    LABELED_INDICES,
    PSEUDO_LABELS,
    read_dataset_description,
    read_labeled_rows,
)
from cls_jax.runs.metrics import METRICS, read_metrics
from cls_jax.runs.sessions import read_sessions

NUM_PICTURES = 24  # Of each kind on the page.
_LARGEST = 1e30  # Larger values cannot be drawn.
_FOLDERS = re.compile(r"(?:^|(?<=[\s'\"=(,]))(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s]+[/\\])*(?=[^/\\\s])")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of the newest checkpoint's EMA weights. B images, N networks, K classes."""

    step: int
    probabilities: np.ndarray  # float32 [N, B, K]
    labels: np.ndarray  # int [B], -1 where the true class is unknown. Or tags, int8 [B, T].
    indices: np.ndarray  # int [B], positions among the test or training images.
    is_test: bool  # Otherwise they are training images.
    scoring: Scoring  # Compares them with the labels.

    @property
    def whose(self) -> str:
        """The first of the networks, in a sentence."""
        return "network 1" if self.step else "the instant classifier"

    @functools.cached_property
    def figures(self) -> Figures:
        """Figures of network 1 on test images, by class or tag."""
        return self.scoring.compute_figures(self.probabilities[0], self.labels)

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """The most probable class by network, int64 [N, B]."""
        return decide(self.probabilities).best

    @functools.cached_property
    def confidence(self) -> np.ndarray:
        """The probability of that class, float32 [N, B]."""
        return decide(self.probabilities).confidence

    @functools.cached_property
    def mistakes(self) -> np.ndarray:
        """Positions of the test images that network 1 misclassifies, most confident first."""
        wrong = np.flatnonzero((self.labels >= 0) & (self.predicted[0] != self.labels))
        return wrong[np.argsort(-self.confidence[0][wrong], kind="stable")]

    @functools.cached_property
    def uncertain(self) -> np.ndarray:
        """Positions of images that two networks classify differently, both confident ones first.

        Of a single network, all positions by its confidence, lowest first.
        """
        if len(self.probabilities) == 1:
            return np.argsort(self.confidence[0], kind="stable")
        differ = np.flatnonzero(self.predicted[0] != self.predicted[1])
        return differ[np.argsort(-self.confidence.min(axis=0)[differ], kind="stable")]


@dataclasses.dataclass
class RunData:
    """The data of a report. Missing parts are None or empty."""

    workdir: pathlib.Path
    config: Any
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # See `clean_rows`.
    result: dict[str, Any] | None = None  # Of a finished run.
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    labels: tuple[str, ...] = ()  # As the dataset numbers them. With tags, each names several.
    class_names: tuple[str, ...] = ()  # Or tags.
    dataset: Dataset | None = None
    num_images: int = 0  # Training images.
    labeled: np.ndarray | None = None  # int32, the training images that counted as labeled.
    # Labels of each class or with each tag, int [K]. None if it is not known.
    label_counts: np.ndarray | None = None
    predictions: Predictions | None = None
    calibration: Calibration | None = None  # Of the checkpoint that predicts.
    suspects: list[Suspect] = dataclasses.field(default_factory=list)
    # Of labels: class by what all others suggest, int [K, K]. None without labels.
    confusions: np.ndarray | None = None
    # Images without a label that are named as each class, int [K]. None if it is not known.
    named: np.ndarray | None = None
    num_named: int = 0  # All of them.
    # Position among the predictions → network 1's heat map, float32 [h, w] from 0 to 1.
    heat_maps: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)  # What is missing and why.

    @property
    def tested(self) -> Predictions | None:
        """The predictions, if they are of test images."""
        return self.predictions if self.predictions and self.predictions.is_test else None

    @property
    def target(self) -> Target:
        """What is predicted."""
        return get_target(self.config.data)

    @property
    def has(self) -> np.ndarray:
        """Which of the K classes or tags each of S labels names, bool [S, K]."""
        return np.asarray(self.target.read(self.labels or self.class_names).values == 1)

    @property
    def method(self) -> Method | None:
        """What trained it. None if nothing was trained: this is an instant classifier."""
        return get_method(self.config.method.name) if "method" in self.config else None

    @property
    def kind(self) -> str:
        """The name of the method, or that this is an instant classifier."""
        return get_method_name(self.config)

    @property
    def data_name(self) -> str:
        """The name of the dataset, or of the folder of images."""
        name = self.config.data.name
        folder = pathlib.Path(self.config.data.data_dir).expanduser()
        return folder.resolve().name or name if name == "folder" else name

    @property
    def num_labels(self) -> int | None:
        """The number of labeled training images. None if it is all and not stored."""
        return len(self.labeled) if self.labeled is not None else self.config.num_labels or None

    def name_image(self, index: int, is_test: bool) -> tuple[str, str | None]:
        """The name of a test or training image, and a link to its file if it has one."""
        files = self.dataset.test.files if is_test else self.dataset.train.files
        if not files:
            return f"{'Test' if is_test else 'Training'} image {index}", None
        if self.link_root is None:
            return files[index], None
        return files[index], urllib.parse.quote(os.fsencode(f"{self.link_root}/{files[index]}"))

    def leave_out_folders(self, text: str) -> str:
        """A text without the folders around the run and its images, so that it may be shared."""
        return leave_out_folders(text, self.workdir, self.config.data.data_dir)

    @property
    def is_folder(self) -> bool:
        """Whether the images are those of a person's folder."""
        return bool(self.config.data.name == "folder")

    @property
    def truth(self) -> str:
        """What the known class of an image is: that of a person's photo may be wrong."""
        return "labeled by you" if self.is_folder else "true"

    @functools.cached_property
    def link_root(self) -> str | None:
        """The folder of images, relative to the report, which may be shared.

        None if the path contains the parents of the user's home, whose names are private.
        """
        root = pathlib.Path(self.config.data.data_dir).expanduser().resolve()
        try:
            relative = os.path.relpath(root, self.workdir.resolve())
            common = os.path.commonpath([root, self.workdir.resolve()])
        except ValueError:  # On different drives of Windows.
            return None
        private = *_find_home().parents, pathlib.Path(root.anchor)
        is_private = pathlib.Path(common) in private
        return None if is_private else f"./{pathlib.Path(relative).as_posix()}"

    def take_picture(self, index: int, is_test: bool) -> dict[str, Any]:
        """A test or training image by its position: pixels uint8 [H, W, 1 or 3], name and link."""
        images = self.dataset.test.images if is_test else self.dataset.train.images
        image = images[np.array([index])][0]
        name, link = self.name_image(index, is_test)
        return {"pixels": image, "name": name, "link": link}

    def take_predicted(self, position: int) -> dict[str, Any]:
        """The picture of an image by its position among the predictions."""
        return self.take_picture(int(self.predictions.indices[position]), self.predictions.is_test)


def collect_run(
    workdir: pathlib.Path, data_dir: str | None = None, opened: Run | None = None
) -> RunData:
    """Reads a run and its dataset, and predicts. Takes and raises the same as `write_report`."""
    source = opened or open_run(workdir, data_dir)
    run = RunData(workdir, source.config, sessions=read_sessions(workdir))

    def attempt(failure: str, make: Callable[[], Any], otherwise: Any = None) -> Any:
        """The result of `make`. If it fails, `otherwise`, and the page gets a note at the top."""
        try:
            return make()
        except Exception as error:
            run.notes.append(f"{failure}: {run.leave_out_folders(describe_error(error))}")
            return otherwise

    run.rows = attempt(f"{METRICS} cannot be read", lambda: clean_rows(read_metrics(workdir)), [])
    run.result = attempt("The result cannot be read", lambda: source.result or None)
    description = attempt("The classes are unknown", lambda: read_dataset_description(workdir))
    if not description:
        return run
    run.labels, shape = description
    run.num_images = shape.num_images
    run.class_names = run.target.read(run.labels).names

    def load_same_dataset() -> Dataset:
        check_photos(source, "name their new place with --photos DIR")
        found = source.dataset
        names, images = run.target.read(found.class_names).names, found.train.images
        theirs = names, found.image_shape, len(images)
        if theirs != (run.class_names, shape.image_shape, shape.num_images):
            raise ValueError("the dataset is not the one that the run was trained on")
        run.labels = found.class_names  # Test images may have other sets of tags now.
        return found

    run.dataset = attempt("No images", load_same_dataset)

    def find_labeled() -> tuple[np.ndarray, np.ndarray]:
        if run.dataset is None:  # Only their numbers will be shown.
            return read_labeled_indices(workdir / LABELED_INDICES, run.labels)
        rows = read_labeled_rows(workdir, run.dataset)
        return rows, run.dataset.train.labels[rows]

    if found := attempt("The labeled images are unknown", find_labeled):
        run.labeled, numbers = found
        run.label_counts = np.bincount(numbers, minlength=len(run.labels)) @ run.has
    if run.dataset is not None:
        source = attempt("No predictions", lambda: source.predictor, source)
        run.predictions = attempt("No predictions", lambda: predict(source, run.labeled))
    if (predicted := run.predictions) is not None and run.target is CLASSES:
        read = functools.partial(read_calibration, source.workdir, predicted.step)
        run.calibration = attempt("No calibration", read)

        # Judging takes one core, while the program of the heat maps is compiled.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            judging = pool.submit(judge_labels, source.extract, source.dataset, run.labeled)
            run.heat_maps = attempt("No heat maps", lambda: draw_heat_maps(source, predicted), {})
        run.suspects, run.confusions = attempt("No suspect labels", judging.result) or ([], None)
    named = attempt("The other images cannot be counted", lambda: count_named(run, source))
    run.named, run.num_named = named or (None, 0)
    return run


def count_named(run: RunData, source: Run) -> tuple[np.ndarray, int] | None:
    """How many images without a label are named as each class, int [K], and how many there are.

    None if it is not known.

    An instant classifier has a table of all. Of networks without test images, those that were
    predicted for this page are counted.
    """
    found = run.predictions
    table = source.workdir / PSEUDO_LABELS
    if run.method is None and table.is_file():
        with open(table, newline="", encoding="utf-8", errors="surrogateescape") as file:
            named = [run.target.split(row["label"]) for row in csv.DictReader(file)]
        counts = collections.Counter(name for names in named for name in names)
        return np.array([counts[name] for name in run.class_names]), len(named)
    if found is None or found.is_test:
        return None
    predicted = found.predicted[0]
    return np.bincount(predicted, minlength=len(run.class_names)), len(predicted)


def leave_out_folders(text: str, *folders: str | os.PathLike) -> str:
    """A text with absolute paths cut to their last part, so that it may be shared.

    The parents of these `folders` and the user's home may have names with spaces.
    """
    parents = [pathlib.Path(folder).expanduser().resolve().parent for folder in folders]
    for parent in sorted(map(str, (*parents, _find_home())), key=len, reverse=True):
        text = text.replace(f"{parent}{os.sep}", "")
    return _FOLDERS.sub("", text)


def _find_home() -> pathlib.Path:
    """The user's home. In a container, a user may have none."""
    return pathlib.Path(os.path.expanduser("~"))


def draw_heat_maps(source: Run, predictions: Predictions) -> dict[int, np.ndarray]:
    """Heat maps of the mistakes and uncertain images that the page shows."""
    shown = [*predictions.mistakes[:NUM_PICTURES], *predictions.uncertain[:NUM_PICTURES]]
    positions = np.unique(np.array(shown, np.int64))
    if not len(positions):
        return {}
    dataset = source.dataset
    images = dataset.test.images if predictions.is_test else dataset.train.images
    images = images[predictions.indices[positions]]
    maps = source.classifier.networks.compute_heat_maps(images, predictions.predicted[0, positions])
    return dict(zip(positions.tolist(), maps, strict=True))


def clean_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `read_metrics` ordered by step. Numbers that cannot be drawn become None."""
    drawable = (
        {k: v if v is not None and abs(v) < _LARGEST else None for k, v in row.items()}
        for row in rows
    )
    return sorted(drawable, key=lambda row: row["step"])


def predict(run: Run, labeled: np.ndarray | None) -> Predictions:
    """Predicts the test images or, if there are none, some unlabeled training images.

    Raises a UserError if there is no checkpoint yet.
    """
    dataset, step, scoring = run.dataset, run.classifier.step, run.classifier.scoring
    if len(dataset.test.labels):
        p_NBK, known = run.held_out["test"]
        return Predictions(step, p_NBK, known, np.arange(len(known)), True, scoring)
    others = np.array([], np.int64) if labeled is None else labeled
    rows = take_unlabeled(len(dataset.train.images), others)
    p_NBK, _ = run.predict_with_features("train", rows)
    known = scoring.number(dataset.train.labels[rows], dataset.class_names)
    return Predictions(step, p_NBK, known, rows, False, scoring)
