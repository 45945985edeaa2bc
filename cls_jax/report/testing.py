"""The sections on the test images: which classes are taken for which, and how sure of it."""

import base64
import io

import numpy as np
from PIL import Image

from cls_jax.report.charts import draw_reliability
from cls_jax.report.data import Predictions, RunData
from cls_jax.report.markup import Html, join, tag
from cls_jax.report.overview import format_percent, scrollable
from cls_jax.report.scores import compute_calibration, confusion_matrix, find_confused_pairs

# Classes up to which every count of the confusion matrix is written out.
MAX_WRITTEN_CLASSES = 20
_NUM_PAIRS = 20
# From here on names stand upright above the confusion matrix.
_LONG_NAME = 4
_RIGHT, _WRONG = (26, 127, 55), (207, 70, 20)
# At most this opaque, so that text on it stays readable by day and by night.
_MAX_OPACITY = 0.55


def draw_classes(run: RunData) -> Html | None:
    """Confusion matrix and accuracy by class of network 1."""
    if not (known := _select_known(run)):
        return None
    predictions, labels, first, _ = known
    confusions = confusion_matrix(labels, first.argmax(axis=-1), len(run.class_names))
    num_right, num_images = int(np.trace(confusions)), int(confusions.sum())
    if len(run.class_names) <= MAX_WRITTEN_CLASSES:
        matrix = _draw_matrix(confusions, run.class_names)
    else:
        matrix = _draw_heat_map(confusions, run.class_names)
    share = format_percent(100 * num_right / num_images)
    return tag(
        "section",
        tag("h2", "Classes"),
        tag(
            "p",
            f"The averaged network 1 of the checkpoint of step {predictions.step:,} takes "
            f"{num_right:,} of {num_images:,} test images for what they are: ",
            tag("strong", share, id="recomputed"),
            ".",
        ),
        tag(
            "div",
            tag("div", tag("h3", "Confusion matrix"), matrix),
            tag(
                "div",
                tag("h3", "Accuracy by class"),
                _draw_class_table(confusions, run.class_names),
            ),
            class_="grid tables",
        ),
        id="classes",
    )


def draw_calibration(run: RunData) -> Html | None:
    """Reliability diagrams of network 1 and, if there are several, of all together."""
    if not (known := _select_known(run)):
        return None
    predictions, labels, first, ensemble = known
    charts = [draw_reliability("Network 1, averaged", compute_calibration(first, labels))]
    if len(predictions.probabilities) > 1:
        title = "Both networks, averaged, together"
        charts.append(draw_reliability(title, compute_calibration(ensemble, labels)))
    return tag(
        "section",
        tag("h2", "Calibration"),
        tag("p", "Is it right as often as it is sure? On the test images."),
        tag("div", *charts, class_="grid"),
        id="calibration",
    )


def draw_heat(confusions: np.ndarray) -> np.ndarray:
    """The confusion matrix as a picture: right is green, wrong orange, none transparent.

    Args:
        confusions: int [K, K], true classes by row.

    Returns:
        uint8 [K, K, 4], RGBA; opacity is the square root of the share of the true class.
    """
    shares = confusions / np.maximum(confusions.sum(axis=1, keepdims=True), 1)
    is_right = np.eye(len(confusions), dtype=bool)[..., None]
    colours = np.where(is_right, np.array(_RIGHT), np.array(_WRONG))
    opacity = np.rint(255 * np.sqrt(shares))[..., None]
    return np.concatenate([colours, opacity], axis=-1).astype(np.uint8)


def _select_known(
    run: RunData,
) -> tuple[Predictions, np.ndarray, np.ndarray, np.ndarray] | None:
    """Predictions, and labels [m], network 1 and ensemble [m, K] of images of known class."""
    predictions = run.predictions
    if predictions is None or not predictions.is_test:
        return None
    is_known = predictions.labels >= 0
    if not is_known.any():
        return None
    labels = predictions.labels[is_known]
    return predictions, labels, predictions.first[is_known], predictions.ensemble[is_known]


def _draw_matrix(confusions: np.ndarray, class_names: tuple[str, ...]) -> Html:
    columns = (tag("th", tag("span", name), scope="col", title=name) for name in class_names)
    head = tag("tr", tag("th", "true ↓", tag("br"), "taken for →", scope="col"), *columns)
    rows = []
    for i, (name, counts) in enumerate(zip(class_names, confusions.tolist(), strict=True)):
        total = max(sum(counts), 1)
        cells = (_draw_cell(count, count / total, i == j) for j, count in enumerate(counts))
        rows.append(tag("tr", tag("th", name, scope="row", title=name), *cells))
    is_long = max(map(len, class_names)) > _LONG_NAME
    class_ = "confusion long" if is_long else "confusion"
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_=class_)
    return scrollable("Confusion matrix", table)


def _draw_cell(count: int, share: float, is_right: bool) -> Html:
    red, green, blue = _RIGHT if is_right else _WRONG
    opacity = _MAX_OPACITY * share**0.5
    style = f"background:rgba({red},{green},{blue},{opacity:.2f})" if count else None
    return tag("td", count, style=style, class_=None if count else "none")


def _draw_heat_map(confusions: np.ndarray, class_names: tuple[str, ...]) -> Html:
    buffer = io.BytesIO()
    Image.fromarray(draw_heat(confusions)).save(buffer, "PNG", optimize=True)
    picture = tag(
        "img",
        src=f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}",
        alt=f"Heat map of the confusion matrix of {len(class_names)} classes; the most frequent "
        "mistakes are in the table.",
        class_="heat",
    )
    rows = (
        tag(
            "tr",
            tag("td", class_names[true]),
            tag("td", class_names[predicted]),
            tag("td", count, class_="number"),
            tag("td", format_percent(100 * count / confusions[true].sum()), class_="number"),
        )
        for true, predicted, count in find_confused_pairs(confusions, _NUM_PAIRS)
    )
    table = _draw_table("pairs", ("true class", "taken for", "images", "of its class"), rows)
    caption = tag(
        "figcaption",
        "Rows: true classes, from the top; columns: what they are taken for, in the same order. "
        "Green is right, orange wrong; the fuller, the larger a share of the true class.",
    )
    return join(
        tag("figure", picture, caption, class_="card"),
        tag("h3", "Most frequent mistakes"),
        scrollable("Most frequent mistakes", table),
    )


def _draw_class_table(confusions: np.ndarray, class_names: tuple[str, ...]) -> Html:
    totals, right = confusions.sum(axis=1), np.diag(confusions)
    recall = right / np.where(totals > 0, totals, np.nan)
    order = range(len(class_names))
    note = None
    if len(class_names) > MAX_WRITTEN_CLASSES:
        order = np.argsort(np.nan_to_num(recall, nan=2.0), kind="stable")
        note = tag("p", "The hardest classes first.")
    rows = (_draw_class(class_names, confusions, recall, int(k)) for k in order)
    names = ("class", "right", "of", "accuracy", "", "mistaken for")
    table = _draw_table("per-class", names, rows)
    return join(note, scrollable("Accuracy by class", table, "scroll tall"))


def _draw_class(
    class_names: tuple[str, ...], confusions: np.ndarray, recall: np.ndarray, k: int
) -> Html:
    counts = confusions[k]
    others = np.where(np.arange(len(counts)) == k, 0, counts)
    worst = int(others.argmax())
    mistake = f"{class_names[worst]} ({others[worst]})" if others[worst] else "–"
    share = 0.0 if np.isnan(recall[k]) else 100 * recall[k]
    bar = tag("span", tag("i", style=f"width:{share:.1f}%"), class_="meter", aria_hidden="true")
    return tag(
        "tr",
        tag("th", class_names[k], scope="row", title=class_names[k]),
        tag("td", int(counts[k]), class_="number"),
        tag("td", int(counts.sum()), class_="number"),
        tag("td", format_percent(share) if counts.sum() else "–", class_="number"),
        tag("td", bar),
        tag("td", mistake),
    )


def _draw_table(class_: str, names: tuple[str, ...], rows) -> Html:
    head = (tag("th", n, scope="col") if n else tag("td") for n in names)
    return tag(
        "table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_=f"facts {class_}"
    )
