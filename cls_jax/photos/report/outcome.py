"""The outcome of a run in words, for the terminal and the report."""

from collections.abc import Mapping
from typing import Any

from cls_jax.photos.features.accuracy import (
    describe_estimate,
    describe_new_sources,
    read_estimate,
    read_new_sources,
)
from cls_jax.photos.inference.predictor import (
    RANDOM,
    TRAINED,
    describe_choice,
    expect_accuracy,
)
from cls_jax.photos.start.fit_instant import INSTANT
from cls_jax.photos.start.fit_labels import NEAR_COPIES


def describe_accuracies(
    accuracies: Mapping[str, Any], is_trained: bool = True, is_fair: bool = True
) -> str:
    """Aligned lines of accuracies, keyed as in `result.json` or as evaluation returns them.

    The figure to report is that of the classifier that predicts. Unless `is_trained`, they are
    those of an instant classifier. Unless `is_fair`, none of them is to be reported, since some of
    the images were trained on.
    """
    by_name = {name.replace("/", "_"): value for name, value in accuracies.items()}
    names = {
        "test_accuracy": "network 1 (EMA weights), the figure to report",
        "test_accuracy_network_2": "network 2 (EMA weights)",
        "test_accuracy_ensemble": "ensemble (EMA weights)",
        "test_accuracy_live_network_1": "network 1 (raw weights)",
        "test_accuracy_live_network_2": "network 2 (raw weights)",
        "test_accuracy_at_best_validation": "network 1 at the step of best validation accuracy",
        "validation_accuracy": "network 1 on the validation images",
        "validation_accuracy_best": "network 1 on the validation images, at its best step",
        "test_accuracy_instant": "instant classifier, before training",
        "test_accuracy_probe": "linear probe on the labeled images",
    }
    if "test_mean_average_precision" in by_name:
        names = {
            "test_accuracy": "images with all tags right, the figure to report",
            "test_mean_average_precision": "mean average precision over the tags",
            "validation_accuracy": "validation images with all tags right",
        }
    elif not is_trained:
        names = {
            "test_accuracy": "instant classifier, the figure to report",
            "validation_accuracy": "instant classifier on the validation images",
            "test_accuracy_probe": "linear probe on the labeled images",
        }
    elif accuracies.get("predictor") == INSTANT:
        del names["test_accuracy_instant"]
        names["test_accuracy"] = "network 1 (EMA weights)"
        used = "instant classifier, which is used: the figure to report"
        names = {"test_accuracy_instant": used, **names}
    without = _find_without_copies(by_name)
    if not is_fair or without is not None:
        names = {
            key: name.replace("the figure to report", "with near-copies")
            for key, name in names.items()
        }
    names = {"without_copies": "without near-copies of training images, to report", **names}
    return _format_percentages(by_name | {"without_copies": without}, names)


def _find_without_copies(result: Mapping[str, Any]) -> float | None:
    """The accuracy of the classifier that predicts, without near-copies of training images."""
    used = "_instant" if result.get("predictor") == INSTANT else ""
    return result.get(f"test_accuracy{used}_without_copies")


def count_copies(copies: int, count: int, images: str = "images") -> str:
    """How many of some images are near-copies of training images, the beginning of a sentence."""
    are = "is a near-copy" if copies == 1 else "are near-copies"
    return f"{copies:,} of {count:,} {images} {are} of training images"


def describe_copies(result: Mapping[str, Any]) -> str | None:
    """Sentences about held-out images that are near-copies of training images. None without any."""
    sentences = []
    for part in ("test", "validation"):
        names = f"{part}_near_copies", f"{part}_images"
        copies, images = (int(result.get(name) or 0) for name in names)
        if not copies or not images:
            continue
        said = count_copies(copies, images, f"{part} images")
        without = _find_without_copies(result) if part == "test" else None
        end = f"so the {part} accuracy is not to be reported"
        if without is not None:
            end = f"without them, the {part} accuracy is {without:.1f}%"
        sentences.append(f"{said} (see {NEAR_COPIES}): {end}.")
    return " ".join(sentences) or None


def describe_outcome(result: dict[str, Any]) -> list[str]:
    """Sentences about a run that starts from the instant classifier."""
    describe = describe_copies, describe_expected, describe_predictor
    return [sentence for function in describe if (sentence := function(result))]


def describe_expected(result: dict[str, Any]) -> str | None:
    """The accuracy to expect on the unlabeled photos, and of which classifier, and on new sources.

    None if neither is known.
    """
    chosen = result.get("predictor")
    expected = expect_accuracy(result)
    if chosen == TRAINED and expected is not None and not expected.is_before:
        count = result["predictor_gain_images"]
        return (
            f"About {expected.accuracy:.0f}% of the other photos are named right by the trained "
            f"networks ({expected.low:.0f} to {expected.high:.0f}%), measured on {count:,} "
            f"{expected.images} photos."
        )
    who = "the instant classifier"
    if INSTANT not in (chosen, result.get("method")):
        who += " before training"
    estimate, of_new = read_estimate(result), read_new_sources(result)
    words = {"right": "are tagged without a mistake", "nouns": ("tag", "tags")}
    words = words if result.get("labels_tags") else {}
    sentences = [describe_estimate(estimate, who, **words)] if estimate is not None else []
    if of_new is not None:
        sentences.append(describe_new_sources(of_new))
    return " ".join(sentences) or None


def describe_labelers(result: dict[str, Any]) -> str | None:
    """The weights of graph, probe and earlier layers in the inferred labels. None if unknown."""
    weights: list[Any] = [result.get(f"labels_weight_{name}") for name in ("graph", "stages")]
    if not all(isinstance(weight, int | float) for weight in weights):
        return None
    others = result.get("labels_weight_others")
    of_others = "" if others is None else f", further networks {others:.0f}%"
    return (
        f"Weights chosen by held-out labels: graphs of similar images {weights[0]:.0f}%, "
        f"linear probes {100 - weights[0]:.0f}%. Earlier layers get {weights[1]:.0f}% of the "
        f"weight{of_others}.{_describe_near_copies(result)}"
    )


def _describe_near_copies(result: dict[str, Any]) -> str:
    """A sentence about labeled images that are near-copies of each other, or "" without any."""
    copies, groups = (result.get(f"labels_{name}") for name in ("near_copies", "near_copy_groups"))
    if not copies or not groups:
        return ""
    return (
        f" {copies + groups:,.0f} of the labeled images are near-copies, in {groups:,.0f} groups. "
        "Each group was held out as a whole."
    )


def describe_predictor(result: dict[str, Any]) -> str | None:
    """Sentences about the classifier that is used, and why. None if nothing was chosen."""
    if (choice := describe_choice(result)) is None:
        return None
    hint = ""
    if result.get("predictor_gain") is None:
        hint = " Keep some labels for comparing them: --config.data.validation=0.2."
        if result.get("predictor_images") == RANDOM:
            hint = " Check 20 random photos in the view Result of cls-jax label."
    return f"{choice}{hint} predict, evaluate, export and report use the same one."


def describe_monitors(monitors: dict[str, float]) -> str:
    """Aligned lines of the quality measures of a run without a test set."""
    shares = {
        "pseudo_label_overlap": "of images: both networks predict the same class",
        "exchange_ratio": "of pseudo-labels: confident enough to train the other network",
        "mask_ratio": "of images: pseudo-label confident enough to train on",
        "confidence_weight": "mean weight of a pseudo-label",
    }
    return _format_percentages({name: 100 * share for name, share in monitors.items()}, shares)


def _format_percentages(values: dict[str, Any], meanings: dict[str, str]) -> str:
    """A line for each known value, in the order of the meanings."""
    return "\n".join(
        f"  {values[name]:6.2f}%  {meaning}"
        for name, meaning in meanings.items()
        if values.get(name) is not None
    )
