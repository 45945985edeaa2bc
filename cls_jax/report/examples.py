"""The sections of pictures: mistakes, disagreements, views and labelled images."""

import numpy as np

from cls_jax.methods import get_method
from cls_jax.report.data import Predictions, RunData
from cls_jax.report.markup import Html, tag
from cls_jax.report.overview import format_percent, scrollable
from cls_jax.report.pictures import augment_strongly, augment_weakly, draw_gallery, draw_image
from cls_jax.report.scores import find_confident_mistakes, find_disagreements

_NUM_SHOWN = 24
_NUM_AUGMENTED = 6
_NUM_DRAWS = 2
_NUM_LABELED = 120
_MAX_LABELED_PER_CLASS = 6


def draw_mistakes(run: RunData) -> Html | None:
    """The test images that network 1 is surest of, and wrong."""
    predictions = run.predictions
    if predictions is None or not predictions.is_test:
        return None
    labels, first = predictions.labels, predictions.first
    known = np.flatnonzero(labels >= 0)
    num_wrong = int(np.sum(first[known].argmax(axis=-1) != labels[known]))
    shown = known[find_confident_mistakes(first[known], labels[known], _NUM_SHOWN)]
    pictures = []
    for i in shown:
        true, taken = run.class_names[labels[i]], run.class_names[first[i].argmax()]
        description = f"Test image {predictions.indices[i]}: {true}, taken for {taken}"
        caption = tag(
            "span",
            tag("b", true),
            " → ",
            tag("b", taken, class_="wrong"),
            f" {_percent(first[i])}",
        )
        pictures.append((draw_image(predictions.read_image(i), description), caption))
    which = f"{len(shown)} of {num_wrong:,}" if len(shown) < num_wrong else f"{num_wrong:,}"
    text = (
        f"{which} test images whose class network 1 missed, the surest first: true class → "
        "what it says, and how sure it is."
        if num_wrong
        else "Network 1 makes none on the test images."
    )
    return _draw_section("mistakes", "Most confident mistakes", text, draw_gallery(pictures))


def draw_disagreements(run: RunData) -> Html | None:
    """Images that the two networks take for different classes."""
    predictions = run.predictions
    if predictions is None or len(predictions.probabilities) != 2:
        return None
    places = find_disagreements(predictions.probabilities)
    pictures = [_draw_disagreement(run, predictions, i) for i in places[:_NUM_SHOWN]]
    kind = "test" if predictions.is_test else "unlabelled training"
    num_images = len(predictions.labels)
    share = format_percent(100 - 100 * len(places) / num_images) if num_images else "–"
    text = (
        f"The networks agree on {share} of {num_images:,} {kind} images and differ on "
        f"{len(places):,}{_count_right(predictions, places)}. Shown first: where both are sure."
    )
    return _draw_section(
        "disagreements", "Where the networks disagree", text, draw_gallery(pictures)
    )


def draw_views(run: RunData) -> Html | None:
    """A few training images as they are, and as the networks see them."""
    if run.dataset is None or run.labeled is None or len(run.dataset.train_images) == 0:
        return None
    chosen = _choose_of_different_classes(run, _NUM_AUGMENTED)
    images, data = run.dataset.train_images[chosen], run.config.data
    columns = [("original", images)]
    for seed in range(_NUM_DRAWS):
        columns.append(("weak", augment_weakly(images, data, seed)))
    for seed in range(_NUM_DRAWS):
        columns.append(("strong", augment_strongly(images, data, _NUM_DRAWS + seed)))
    head = (tag("th", name, scope="col") for name, _ in columns)
    rows = (
        tag(
            "tr",
            *(
                tag("td", draw_image(views[i], f"Training image {chosen[i]}, {name}"))
                for name, views in columns
            ),
        )
        for i in range(len(chosen))
    )
    method = get_method(run.config.method.name)
    unlabeled = " and ".join(method.unlabeled_views)
    text = f"{run.config.method.name} sees labelled images under the {method.labeled_view} view" + (
        f", unlabelled ones under: {unlabeled}." if unlabeled else " and no others."
    )
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="views")
    return _draw_section("views", "Augmented views", text, scrollable("Augmented views", table))


def draw_labeled(run: RunData) -> Html | None:
    """Some of the labelled images of each class."""
    if run.dataset is None or run.labeled is None:
        return None
    labels = np.asarray(run.dataset.train_labels)[run.labeled]
    num_classes = min(len(run.class_names), _NUM_LABELED)
    per_class = min(max(_NUM_LABELED // num_classes, 1), _MAX_LABELED_PER_CLASS)
    blocks = []
    for k in range(num_classes):
        indices = run.labeled[labels == k]
        shown = indices[:per_class]
        if len(shown) == 0:
            continue
        name = run.class_names[k]
        pictures = (
            draw_image(image, f"{name}: training image {index}")
            for index, image in zip(shown, run.dataset.train_images[shown], strict=True)
        )
        title = tag("h3", name, " ", tag("small", f"{len(shown)} of {len(indices)}"))
        blocks.append(tag("div", title, tag("div", *pictures, class_="strip"), class_="class"))
    text = f"{len(run.labeled):,} training images count as labelled."
    if num_classes < len(run.class_names):
        text += f" Shown: the first {num_classes} of {len(run.class_names):,} classes."
    blocks = tag("div", *blocks, class_="labeled")
    return _draw_section("labelled", "Labelled images", text, blocks)


def _draw_section(id_: str, title: str, text: str, content: Html) -> Html:
    return tag("section", tag("h2", title), tag("p", text), content, id=id_)


def _draw_disagreement(run: RunData, predictions: Predictions, i: int) -> tuple[Html, Html]:
    label = predictions.labels[i]
    true = run.class_names[label] if label >= 0 else None
    lines, said = [], []
    for number, probabilities in enumerate(predictions.probabilities[:, i], 1):
        k = int(probabilities.argmax())
        said.append(run.class_names[k])
        mark = None if label < 0 else "right" if k == label else "wrong"
        name = tag("b", run.class_names[k], class_=mark)
        lines.append(tag("span", f"{number}: ", name, f" {_percent(probabilities)}"))
    truth = tag("span", "true: ", tag("b", true)) if true is not None else None
    description = f"Image {predictions.indices[i]}: network 1 says {said[0]}, 2 says {said[1]}"
    return draw_image(predictions.read_image(i), description), tag("span", *lines, truth)


def _count_right(predictions: Predictions, places: np.ndarray) -> str:
    labels = predictions.labels[places]
    if len(places) == 0 or (labels < 0).any():
        return ""
    first, second = predictions.probabilities[:, places].argmax(axis=-1) == labels
    neither = int(np.sum(~first & ~second))
    return f": network 1 is right on {first.sum()}, network 2 on {second.sum()}, none on {neither}"


def _choose_of_different_classes(run: RunData, limit: int) -> np.ndarray:
    """Labelled images, int32 [≤ limit], one of each class before any class comes again."""
    labels = np.asarray(run.dataset.train_labels)[run.labeled]
    rank = np.array([np.sum(labels[:i] == label) for i, label in enumerate(labels)], int)
    return run.labeled[np.argsort(rank, kind="stable")[:limit]]


def _percent(probabilities: np.ndarray) -> str:
    return f"{100 * probabilities.max():.1f} %"
