"""The page of a report, from the values of its sections to one HTML file.

A function `view_…` returns the values of the template of a section, None to omit the section.
"""

import base64
import contextlib
import datetime
import functools
import hashlib
import io
import os
import pathlib
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import numpy as np
from PIL import Image, ImageOps
from sklearn.metrics import confusion_matrix, log_loss

from cls_jax.config import create_defaults, flatten, show_value
from cls_jax.errors import UserError, explain_writing
from cls_jax.io import make_printable, write_atomically
from cls_jax.photos.features.accuracy import wilson_interval
from cls_jax.photos.features.decide import find_partners
from cls_jax.photos.folder.instant_config import INSTANT_OPTIONS
from cls_jax.photos.folder.options import get_folder_options
from cls_jax.photos.inference.calibration import MIN_IMAGES, apply_calibration
from cls_jax.photos.inference.predictor import expect_accuracy
from cls_jax.photos.inference.run import Run
from cls_jax.photos.inference.suspects import write_suspects
from cls_jax.photos.report.charts import create_panels, draw_panel, draw_reliability, find_last
from cls_jax.photos.report.data import NUM_PICTURES, RunData, collect_run
from cls_jax.photos.report.outcome import describe_labelers, describe_outcome
from cls_jax.photos.start.fit_instant import INSTANT
from cls_jax.photos.start.scores import (
    CLASSES,
    TAGS,
    compute_reliability,
    find_confused_pairs,
    format_percent,
    write_class_table,
)

REPORT = "report.html"
# Up to this number of classes, the confusion matrix shows every count.
MAX_WRITTEN_CLASSES = 20
# Larger images are scaled down: a page holds hundreds.
MAX_SIDE = 96
# From this side on, WebP takes a fraction of PNG's bytes. Smaller images stay lossless.
_LOSSY_SIDE = 64
_RIGHT_COLOR, _WRONG_COLOR = (26, 127, 55), (207, 70, 20)  # As in style.css.
# Of heat maps, from 0 over 0.5 to 1, as in Matplotlib's "inferno": the lightness rises evenly, so
# that a map can be read in gray and with any color vision.
_COLD, _WARM, _HOT = (0, 0, 4), (188, 55, 84), (252, 255, 164)
_HEAT_SHARE = 0.6  # Of a heat map in the image that it is painted over.
_NUM_PAIRS = 20
_FEW_LABELS, _NUM_FEW = 5, 5  # Classes with fewer labels are named, up to a number.
_NUM_TAGS, _NUM_OF_TAG = 30, 6  # Tags with pictures, and pictures of each kind.
_NUM_LABELED = 120
_MAX_LABELED_PER_CLASS = 6
# Characters that no HTML document may contain, but file names can: control characters and halves
# of surrogate pairs.
_FORBIDDEN = {
    **dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, " "),
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}"),
}


def view_header(run: RunData) -> dict[str, Any]:
    """The steps, accuracies and duration of the run."""
    result = run.result or {}
    last_step = run.rows[-1]["step"] if run.rows else 0
    names = ("accuracy", "accuracy_ensemble", "accuracy_instant", "accuracy_probe")
    precision = result.get("test_mean_average_precision")
    return {
        "step": result.get("step", "?") if result else last_step,
        **{name: _measure(run, name) for name in names},
        "mean_average_precision": precision if isinstance(precision, int | float) else None,
        "sentences": describe_outcome(result),
        "expected": expect_accuracy(result),
        "num_networks": run.method.num_networks if run.method else 1,
        "keeps_instant": result.get("predictor") == INSTANT,
        "duration": _format_duration(result.get("train_seconds")),
    }


def _measure(run: RunData, name: str) -> dict[str, Any] | None:
    """A test accuracy with its interval, as shares. None if it was not measured."""
    value = run.result.get(f"test_{name}") if run.result else find_last(run.rows, f"test/{name}")
    if not isinstance(value, int | float) or not 0 <= value <= 100:
        return None
    count = len(run.dataset.test.labels) if run.dataset else 0
    interval = wilson_interval(round(value / 100 * count), count) if count else None
    return {"share": value / 100, "interval": interval}


def _format_duration(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def view_next(run: RunData) -> dict[str, Any] | None:
    """What the person who labeled can do next, with the commands where their paths may be shown."""
    if not run.is_folder or not run.class_names or not (run.result or run.method is None):
        return None
    label, predict = None, None
    if places := _find_places(run):
        photos, own = places
        options = get_folder_options(run.config.data).to_arguments(pathlib.Path(photos))
        label = shlex.join(["cls-jax", "label", photos, *options])
        predict = shlex.join(["cls-jax", "predict", own, photos])
    counts = [] if run.label_counts is None else run.label_counts.tolist()
    few = [name for name, n in zip(run.class_names, counts, strict=False) if n < _FEW_LABELS]
    expected = expect_accuracy(run.result or {})
    return {
        "places": places,
        "few": ", ".join(few[:_NUM_FEW]) + (" and others" if len(few) > _NUM_FEW else ""),
        "is_measured": expected is not None and expected.images is not None,
        "label": label,
        "predict": predict,
    }


def _find_places(run: RunData) -> tuple[str, str] | None:
    """The photos and the run, relative to the folder that has both. None if that is private."""
    if run.link_root is None:
        return None
    parts = run.link_root.split("/")
    above = run.workdir.resolve().parts[::-1][: parts.count(os.pardir)]
    photos = "/".join(part for part in parts if part not in (os.curdir, os.pardir))
    return photos or os.curdir, "/".join(above[::-1]) or os.curdir


def view_answers(run: RunData) -> dict[str, Any] | None:
    """Which classes are mixed up, by labels that were held out. None with test images."""
    confusions = run.confusions
    if confusions is None or not confusions.sum() or run.tested:
        return None
    return {
        "confusions": confusions.tolist(),
        "num_right": int(np.trace(confusions)),
        "num_labels": int(confusions.sum()),
        "is_written": len(confusions) <= MAX_WRITTEN_CLASSES,
        "pairs": find_confused_pairs(confusions, _NUM_PAIRS),
    }


def view_training(run: RunData) -> dict[str, Any] | None:
    """Charts of all metrics of the training."""
    panels = create_panels(run.rows)
    if not panels:
        return None
    name = "monitors/pseudo_label_accuracy"
    is_measured = any(name in row for row in run.rows)
    return {
        "charts": [(panel, draw_panel(panel)) for panel in panels],
        "is_truth_unknown": is_measured and find_last(run.rows, name) is None,
    }


def view_classes(run: RunData) -> dict[str, Any] | None:
    """Figures of network 1 by class or tag, and the confusion matrix of classes."""
    if (tested := run.tested) is None:
        return None
    known = tested.labels
    num_right = int(tested.scoring.find_right(tested.probabilities[0], known).sum())
    view = {"figures": tested.figures, "num_right": num_right, "num_images": len(known)}
    num_classes = len(run.class_names)
    if run.target is TAGS:
        return view | {"order": range(num_classes), "is_written": True, "confusions": None}
    confusions = confusion_matrix(known, tested.predicted[0], labels=range(num_classes))
    is_written = num_classes <= MAX_WRITTEN_CLASSES
    f1 = [row.f1 for row in tested.figures.classes]  # NaN, for classes without images, comes last.
    return view | {
        "confusions": confusions.tolist(),
        "is_written": is_written,
        "worst": find_partners(confusions).tolist(),
        "order": range(num_classes) if is_written else np.argsort(f1, kind="stable").tolist(),
        "heat_map": None if is_written else color_confusions(confusions),
        "pairs": find_confused_pairs(confusions, _NUM_PAIRS),
    }


def view_tags(run: RunData) -> dict[str, Any] | None:
    """For each tag, the most confident predictions, the most confident mistakes, and the doubts.

    Each image comes with its picture, the probability of the tag, whether the prediction is right
    (None if unknown), and the tags that it is known to have.
    """
    if (predictions := run.predictions) is None:
        return None
    thresholds = predictions.scoring.thresholds
    names, p_BT, known = run.class_names, predictions.probabilities[0], predictions.labels
    says, is_known = p_BT >= thresholds, known >= 0
    is_right = says == (known == 1)

    def show(rows: np.ndarray, k: int) -> list[tuple[Any, ...]]:
        return [
            (
                run.take_predicted(i),
                float(p_BT[i, k]),
                bool(is_right[i, k]) if is_known[i, k] else None,
                ", ".join(name for name, has in zip(names, known[i], strict=True) if has == 1),
            )
            for i in rows[:_NUM_OF_TAG].tolist()
        ]

    tags = []
    for k, name in enumerate(names[:_NUM_TAGS]):
        is_sure = says[:, k] & (is_right[:, k] | ~is_known[:, k])
        is_wrong = is_known[:, k] & ~is_right[:, k]
        by_confidence = np.argsort(-p_BT[:, k], kind="stable")
        distances = np.abs(p_BT[:, k] - thresholds[k])
        closest = np.argsort(distances, kind="stable")
        shown = {
            "Most confident": by_confidence[is_sure[by_confidence]],
            "Mistakes": closest[::-1][is_wrong[closest[::-1]]],
            "Least certain": closest,
        }
        pictures = {title: show(rows, k) for title, rows in shown.items() if len(rows)}
        tags.append((name, float(thresholds[k]), pictures))
    return {"tags": tags}


def color_confusions(confusions: np.ndarray) -> np.ndarray:
    """The confusion matrix int [K, K] as a picture: right green, wrong orange, 0 transparent.

    Returns uint8 [K, K, 4], RGBA. Opacity is the square root of the share of the true class.
    """
    shares = confusions / np.maximum(confusions.sum(axis=1, keepdims=True), 1)
    is_right = np.eye(len(confusions), dtype=bool)[..., None]
    colors = np.where(is_right, _RIGHT_COLOR, _WRONG_COLOR)
    opacity = np.rint(255 * np.sqrt(shares))[..., None]
    return np.concatenate([colors, opacity], axis=-1).astype(np.uint8)


def view_calibration(run: RunData) -> dict[str, Any] | None:
    """Reliability diagrams of what predicts, the ensemble, and the ensemble after calibration.

    None with fewer images than calibration needs: their diagram would be a bar or two.
    """
    if (tested := run.tested) is None or len(tested.labels) < MIN_IMAGES:
        return None
    probabilities, labels = tested.probabilities, tested.labels
    mean = probabilities.mean(axis=0)
    whose = tested.whose.removeprefix("the ").capitalize()
    name = "Ensemble" if len(probabilities) > 1 else whose
    predicted = {whose: probabilities[0], name: mean}
    if (fitted := run.calibration) is not None:
        calibrated = apply_calibration(mean, fitted.temperature, fitted.uniform_share)
        predicted[f"{name}, calibrated"] = calibrated
    diagrams = []
    for name, p in predicted.items():
        reliability = compute_reliability(p, labels)
        likelihood = float(log_loss(labels, p, labels=range(p.shape[1])))
        diagrams.append((name, reliability, likelihood, draw_reliability(reliability)))
    return {"diagrams": diagrams}


def view_uncertain(run: RunData) -> dict[str, Any] | None:
    """Images that two networks classify differently, or that one is least confident about."""
    predictions = run.predictions
    if predictions is None or not len(predictions.labels):
        return None
    uncertain = predictions.uncertain
    has_two = len(predictions.probabilities) == 2
    labels = predictions.labels[uncertain]
    right = predictions.predicted[:, uncertain] == labels
    num_right = [*right.sum(axis=1).tolist(), int(np.sum(~right.any(axis=0)))]
    return {
        "has_two": has_two,
        "num_differ": len(uncertain) if has_two else 0,
        "is_known": len(uncertain) > 0 and bool((labels >= 0).all()),
        "num_right": num_right,
        "shown": uncertain[:NUM_PICTURES].tolist(),
    }


def view_labeled(run: RunData) -> dict[str, Any] | None:
    """Some of the labeled images of each class: its name, how many it has, and pictures.

    Each with its label.
    """
    if run.dataset is None or run.labeled is None:
        return None
    numbers = run.dataset.train.labels[run.labeled]
    labels = [", ".join(run.target.split(label)) for label in run.labels or run.class_names]
    has_SK = run.has
    num_classes = min(len(run.class_names), _NUM_LABELED)
    per_class = min(_NUM_LABELED // num_classes, _MAX_LABELED_PER_CLASS)
    classes = []
    for k, name in enumerate(run.class_names[:num_classes]):
        if len(places := np.flatnonzero(has_SK[numbers, k])):
            shown = [
                (run.take_picture(int(run.labeled[i]), is_test=False), labels[numbers[i]])
                for i in places[:per_class]
            ]
            classes.append((name, len(places), shown))
    return {"classes": classes, "num_classes": num_classes}


def view_config(run: RunData) -> dict[str, Any]:
    """The whole configuration, and the method's default for each key that differs from it."""
    if run.method is None:
        default = {key: row.default for key, row in INSTANT_OPTIONS.items()}
    else:
        method, dataset = run.config.method.name, run.config.data.name
        default = flatten(create_defaults(0, method, dataset=dataset).to_dict())
    default["num_labels"] = run.config.num_labels
    usual = {key: _format_value(value) for key, value in default.items()}
    ours = {key: _format_value(value) for key, value in flatten(run.config.to_dict()).items()}
    rows = [(k, v, None if usual.get(k) == v else usual.get(k, "–")) for k, v in ours.items()]
    return {"rows": rows}


def _format_value(value: Any) -> str:
    separator = ", " if isinstance(value, list | tuple) else ","
    if isinstance(value, str) and os.path.isabs(os.path.expanduser(value)):
        value = pathlib.Path(value).name  # The page may be shared, so it names no folders.
    return show_value(value).replace(",", separator) or "(empty)"


def overlay_heat_map(pixels: np.ndarray, heat_map: np.ndarray) -> np.ndarray:
    """Paints a heat map, float32 [h, w] from 0 to 1, over the gray version of uint8 [H, W, 1 or 3].

    Returns uint8 of the image's size or, so that the map stays smooth, a multiple up to 96 pixels.
    """
    height, width = pixels.shape[:2]
    scale = max(1, MAX_SIDE // max(height, width))
    size = (width * scale, height * scale)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    gray = image.convert("L").resize(size, Image.Resampling.NEAREST)
    heat = Image.fromarray(np.rint(255 * heat_map).astype(np.uint8))
    heat = heat.resize(size, Image.Resampling.BICUBIC)
    colored = ImageOps.colorize(heat, black=_COLD, mid=_WARM, white=_HOT)
    return np.asarray(Image.blend(gray.convert("RGB"), colored, _HEAT_SHARE))


def encode_image(image: np.ndarray, is_exact: bool = False) -> str:
    """A data URI of uint8 [H, W, 1, 3 or 4], reduced to `MAX_SIDE` pixels unless `is_exact`."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    if not is_exact:
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
    kind = "png" if is_exact or max(picture.size) < _LOSSY_SIDE else "webp"
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"optimize": True} if kind == "png" else {"quality": 85}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


_View = Callable[[RunData], Any]
# Section ID, also the template's name → title in the navigation, where {} is what is predicted, and
# the function that returns what the template shows, or None to omit the section.
_SECTIONS: dict[str, tuple[str, _View]] = {
    "next": ("What to do next", view_next),
    "photos": ("Photos by {}", lambda run: run.label_counts if run.is_folder else None),
    "classes": ("Figures by {}", view_classes),
    "tags": ("Photos of each tag", view_tags),
    "answers": ("Mixed up", view_answers),
    "mistakes": ("Mistakes", lambda run: None if run.tested is None else run.tested.mistakes),
    "suspects": (
        "Suspect labels",
        lambda run: run.suspects if run.dataset and run.suspects else None,
    ),
    "uncertain": ("Uncertain images", view_uncertain),
    "labeled": ("Labeled images", view_labeled),
}
# The same for what is folded on the page of a folder of photos.
_DETAILS: dict[str, tuple[str, _View]] = {
    "training": ("Training", view_training),
    "calibration": ("Calibration", view_calibration),
    "labelers": ("Labels of the other images", lambda run: describe_labelers(run.result or {})),
    "configuration": ("Configuration", view_config),
    "sessions": ("Sessions", lambda run: run.sessions),
}
# Sections that show images, and those that say nothing where images have one class, or tags.
_OF_IMAGES = {"mistakes", "uncertain", "suspects", "tags", "labeled"}
_OTHERS = {
    CLASSES: {"tags"},
    TAGS: {"answers", "mistakes", "suspects", "uncertain", "calibration", "labelers"},
}


def write_report(
    workdir: pathlib.Path,
    data_dir: str | None = None,
    opened: Run | None = None,
    has_images: bool = True,
) -> pathlib.Path:
    """Writes `report.html`, `per_class.csv` and `suspects.csv` of a run. Returns the page's path.

    `data_dir` is the dataset's place if it is no longer the training's `config.data.data_dir`.
    `opened` is the same run, if its dataset and checkpoint may have been read already. Without
    images, the page has no image sections and no file names. A page is replaced only by one that
    lacks nothing more. Raises a UserError if it is not, or the folder is not the folder of a run or
    cannot be written to.
    """
    run = collect_run(workdir, data_dir, opened)
    path = workdir / REPORT
    _check_richer(path, run)
    text = render_page(run, has_images)  # Some of Jinja's errors are OSErrors, but not of writing.
    with explain_writing(path, "free disk space or allow writing there"):
        if run.tested is not None:
            write_class_table(workdir, run.tested.figures)
        are_judged = "suspects" not in _OTHERS[run.target]
        if run.predictions is not None and run.labeled is not None and are_judged:
            names = [run.name_image(row.position, row.is_test)[0] for row in run.suspects]
            write_suspects(workdir, run.suspects, run.class_names, names)
        write_atomically(path, text)
    return path


def _check_richer(path: pathlib.Path, run: RunData) -> None:
    """Raises a UserError if a page at the path has something that a new one would lack."""
    earlier = ""
    with contextlib.suppress(OSError):
        earlier = path.read_text(encoding="utf-8", errors="replace")
    lost = [note for note in run.notes if f"<li>{note.partition(':')[0]}:" not in earlier]
    if earlier and lost:
        raise UserError(
            f"{path} stays as it is, since a new page would have less. "
            f"{make_printable(lost[0]).rstrip('.')}. To write it anyway, delete {path.name} first."
        )


def render_page(run: RunData, has_images: bool = True) -> str:
    """The report as one HTML document without any external resource."""

    def view_all(all_sections: Mapping[str, tuple[str, _View]]) -> list[tuple[str, str, Any]]:
        shown = all_sections.keys() - (set() if has_images else _OF_IMAGES) - _OTHERS[run.target]
        views = [
            (id_, title.format(run.target.noun), view(run))
            for id_, (title, view) in all_sections.items()
            if id_ in shown
        ]
        return [entry for entry in views if entry[-1] is not None]

    page = create_environment().get_template("page.html.j2")
    text = page.render(
        run=run,
        config=run.config,
        header=view_header(run),
        sections=view_all(_SECTIONS),
        details=view_all(_DETAILS),
        now=datetime.datetime.now(datetime.UTC),
    )
    return text.translate(_FORBIDDEN)


@functools.cache
def create_environment() -> jinja2.Environment:
    """A Jinja environment that escapes every value and refuses undefined names."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cls_jax.photos.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["num_pictures"] = NUM_PICTURES
    environment.filters |= {
        "percent": format_percent,
        # Anything else than an integer in a result stays as it is.
        "thousands": lambda value: f"{value:,}" if isinstance(value, int) else str(value),
        "sha256": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        "data_uri": encode_image,
        "overlay": overlay_heat_map,
    }
    return environment
