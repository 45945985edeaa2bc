"""The networks with pretrained weights that come with the project: one row each."""

from typing import NamedTuple

from cls_jax.models.weights.sources import BUILTIN


class Backbone(NamedTuple):
    """What the plan of a run has to know about a pretrained network."""

    bytes_per_pixel: float  # That a step keeps for each pixel of an image.
    frozen_stages: int  # That fine-tuning leaves as they are.


# By `model.init`. The first one is the default.
BACKBONES = {
    # Outputs of its convolutions (6.7 million numbers at 224 pixels), twice. Four of its seven
    # stages, without which half of the work is left.
    f"{BUILTIN}efficientnet_lite0": Backbone(6.7e6 * 4 * 2 / 224**2, frozen_stages=4),
}
DEFAULT_BACKBONE = next(iter(BACKBONES))
