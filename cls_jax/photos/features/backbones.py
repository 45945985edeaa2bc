"""What users write and read about the table of pretrained networks."""

from collections.abc import Iterable, Sequence

from cls_jax.errors import UserError
from cls_jax.extras import is_installed, write_install
from cls_jax.models import MODELS
from cls_jax.models.weights.backbones import BACKBONES, BUILTIN, Backbone, Package, split_inits
from cls_jax.models.weights.sources import has_weights

DEFAULT_BACKBONE = next(iter(BACKBONES))


def read_names(text: str) -> tuple[str, str]:
    """Turns comma-separated names of backbones into `model.init` and `model.inferred_by`.

    The first network is trained, and all infer labels. Raises a UserError if there is no such name.
    """
    first, *others = read_inits(text)
    return first, ",".join(others)


def read_inits(text: str) -> list[str]:
    """The `model.init` of each of comma-separated names, or that of the default for "".

    Raises a UserError if there is no such name, or one is repeated.
    """
    if not text:
        return [DEFAULT_BACKBONE]
    inits = [_complete(name.strip()) for name in text.split(",")]
    _check_different(inits)
    return inits


def _complete(name: str) -> str:
    """The `model.init` of a name, which may lack "builtin:"."""
    init = name if name in BACKBONES else f"{BUILTIN}{name}"
    get_backbone(init)
    return init


def _shorten(inits: Iterable[str]) -> list[str]:
    return [init.removeprefix(BUILTIN) for init in inits]


def format_backbones() -> str:
    """An aligned table for the terminal. Downloads nothing."""
    header = ("backbone", "network", "pixels", "ImageNet", "published by", "size", "license", "")
    rows: list[tuple[str, ...]] = [header]
    for init, row in BACKBONES.items():
        spec = MODELS[row.name]
        numbers = f"{spec.image_size}", f"{row.top_1}%", row.source, f"{row.megabytes} MB"
        rows.append((*_shorten([init]), spec.title, *numbers, row.license, _describe_state(init)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "The accuracies on ImageNet are the published ones."])


def _describe_state(init: str) -> str:
    """Whether weights can be used, and otherwise what they need."""
    is_package = isinstance(BACKBONES[init].origin, Package)
    if has_weights(init):
        return "installed" if is_package else "downloaded"
    if not is_installed("pretrained"):
        return write_install("pretrained")
    return "not downloaded"


def get_backbone(init: str) -> Backbone:
    """The row of a `model.init`. Raises a UserError if there is none."""
    if init not in BACKBONES:
        is_short = init.startswith(BUILTIN)  # As `read_inits` completes it.
        known = ", ".join(_shorten(BACKBONES) if is_short else BACKBONES)
        raise UserError(
            f"There is no backbone {init.removeprefix(BUILTIN)[:100]!r}: choose from {known}, or "
            "set --config.model.init to other weights."
        )
    return BACKBONES[init]


def describe_others(inferred_by: str) -> str:
    """A sentence about the networks of a `model.inferred_by`, or "" without any."""
    titles = [MODELS[get_backbone(init).name].title for init in split_inits(inferred_by)]
    return f"labels are inferred with {' and '.join(titles)}, too" if titles else ""


def describe_networks(inits: Sequence[str]) -> str:
    """A sentence about what the networks of some `model.init` do for the instant classifier."""
    first, *others = inits
    sentence = f"The classifier sees photos with {MODELS[get_backbone(first).name].title}"
    return "; ".join(filter(None, [sentence, describe_others(",".join(others))])) + "."


def describe_chooser(inits: Sequence[str]) -> str:
    """A sentence about which of several networks chooses images to label, or "" for one."""
    first, *others = (MODELS[get_backbone(init).name].title for init in inits)
    infer = "infers" if len(others) == 1 else "infer"
    only = f"{' and '.join(others)} {infer} labels only"
    return f"{first} alone compares the images. {only}." if others else ""


def check_backbones(init: str, inferred_by: str) -> None:
    """Raises a UserError unless all weights of a `model.inferred_by` are in the table.

    Or if one is repeated, or is the `model.init`, whose graphs and probes would count twice.
    """
    others = split_inits(inferred_by)
    for other in others:
        get_backbone(other)
    _check_different([init, *others])


def _check_different(inits: Sequence[str]) -> None:
    repeated = [init for i, init in enumerate(inits) if init in inits[:i]]
    if repeated:
        raise UserError(f"{repeated[0].removeprefix(BUILTIN)} is named twice: name it once.")
