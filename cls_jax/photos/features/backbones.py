"""The pretrained networks of a command, and what users write and read about the table of them."""

import dataclasses
import re
from collections.abc import Iterable

from ml_collections import ConfigDict

from cls_jax.errors import UserError
from cls_jax.extras import is_installed, write_install
from cls_jax.models import MODELS
from cls_jax.models.weights.backbones import BACKBONES, BUILTIN, HUB, Backbone, Package, split_inits
from cls_jax.models.weights.hub import WEIGHTS_FILE, find_cached
from cls_jax.models.weights.sources import PACKAGES, Origin

DEFAULT_BACKBONE = next(iter(BACKBONES))
# In the names of licenses, such as CC-BY-NC-4.0 and fair-noncommercial-research-license.
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial|research", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Backbones:
    """The networks that see photos, each as a `model.init`.

    The first one compares images and is trained, and all infer labels.
    """

    first: str = DEFAULT_BACKBONE
    others: tuple[str, ...] = ()
    is_chosen: bool = False  # By the user. Otherwise more networks may be added by default.

    @staticmethod
    def read(text: str) -> "Backbones":
        """Those of comma-separated names as users write them, or the default one for "".

        Raises a UserError if there is no such network, or one is repeated.
        """
        if not text:
            return Backbones()
        first, *others = (_complete(name.strip()) for name in text.split(","))
        chosen = Backbones(first, tuple(others), is_chosen=True)
        chosen.check()
        return chosen

    @staticmethod
    def of(model: ConfigDict) -> "Backbones":
        """Those of the section `model` of a configuration, whose `init` may be any weights."""
        return Backbones(model.init, tuple(split_inits(model.inferred_by)), is_chosen=True)

    @property
    def inits(self) -> tuple[str, ...]:
        """The `model.init` of each."""
        return self.first, *self.others

    def to_settings(self) -> dict[str, str]:
        """The keys of a configuration, which `of` reads."""
        return {"model.init": self.first, "model.inferred_by": ",".join(self.others)}

    def to_arguments(self) -> list[str]:
        """The option of a command, as typed. Empty unless the user has chosen the networks."""
        return ["--backbone", ",".join(_shorten(self.inits))] if self.is_chosen else []

    def check(self) -> None:
        """Raises a UserError unless all others are in the table, and none is named twice.

        The graphs and probes of a network that is repeated would count twice.
        """
        for other in self.others:
            get_backbone(other)
        repeated = [init for i, init in enumerate(self.inits) if init in self.inits[:i]]
        if repeated:
            raise UserError(f"{repeated[0].removeprefix(BUILTIN)} is named twice: name it once.")

    def describe(self) -> str:
        """A sentence about what the networks do for the instant classifier."""
        sentence = f"The classifier sees photos with {_title(self.first)}"
        return "; ".join(filter(None, [sentence, self.describe_others()])) + "."

    def describe_others(self) -> str:
        """What the networks after the first one do, or "" without any."""
        titles = [_title(init) for init in self.others]
        return f"labels are inferred with {' and '.join(titles)}, too" if titles else ""

    def describe_chooser(self) -> str:
        """A sentence about which network chooses images to label, or "" for a single one."""
        first, *others = (_title(init) for init in self.inits)
        infer = "infers" if len(others) == 1 else "infer"
        only = f"{' and '.join(others)} {infer} labels only"
        return f"{first} alone compares the images. {only}." if others else ""


DEFAULT_BACKBONES = Backbones()


def _complete(name: str) -> str:
    """The `model.init` of a name, which may lack "builtin:"."""
    init = name if name in BACKBONES else f"{BUILTIN}{name}"
    get_backbone(init)
    return init


def _shorten(inits: Iterable[str]) -> list[str]:
    return [init.removeprefix(BUILTIN) for init in inits]


def _title(init: str) -> str:
    return MODELS[get_backbone(init).name].title


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
        is_short = init.startswith(BUILTIN)  # As `Backbones.read` completes it.
        known = ", ".join(_shorten(BACKBONES) if is_short else BACKBONES)
        raise UserError(
            f"There is no backbone {init.removeprefix(BUILTIN)[:100]!r}: choose from {known}, or "
            "set --config.model.init to other weights."
        )
    return BACKBONES[init]


def has_weights(init: str) -> bool:
    """Whether these are weights of an installed package, or downloaded. Downloads nothing."""
    if not is_installed("pretrained"):
        return False
    if init.startswith(HUB):
        return find_cached(init.removeprefix(HUB), WEIGHTS_FILE) is not None
    return init.removeprefix(BUILTIN) in PACKAGES


def describe_license(origin: Origin) -> str:
    """A license in a few words, with a warning if it forbids commercial use."""
    if not origin.license:
        is_on_hub = origin.init.startswith(HUB)
        page = f": see https://huggingface.co/{origin.init.removeprefix(HUB)}" if is_on_hub else ""
        return f"license unknown{page}"
    warning = ", which forbids commercial use" if _NON_COMMERCIAL.search(origin.license) else ""
    return f"license {origin.license}{warning}"


def is_permissive(origin: Origin) -> bool:
    """Whether a license is known and not one that forbids commercial use."""
    return bool(origin.license) and not _NON_COMMERCIAL.search(origin.license)
