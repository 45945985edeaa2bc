"""Where a parameter is on the way from the images to the classes.

Fine-tuning asks for it: the first layers of a pretrained network know what all photographs share,
and should change less than the last ones, or not at all.
"""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

# "stage2_block1", or "block7" of an architecture without stages.
_BLOCK = re.compile(r"(?:stage(\d+)_)?block(\d+)")


class Layer(NamedTuple):
    """The position of a group of parameters.

    Attributes:
        position: 0 for the stem, then one number per residual or transformer block; the heads have
            the largest.
        stage: 0 for the stem, then the number of the stage, or of the block where there are no
            stages; None for what is in no stage: the heads, and what lies between them and the
            last block.
    """

    position: int
    stage: int | None


def order_layers(
    names: Iterable[str], stem: Collection[str], heads: Collection[str]
) -> dict[str, Layer]:
    """The layers of an architecture, counted as timm does (its `group_matcher`).

    Args:
        names: keys of the parameters, the modules directly below the network.
        stem: those of them that come before the first block.
        heads: those of them that compute the logits.

    Returns:
        Name → layer. What is none of stem, block and head, such as a last normalization, belongs to
        the last block's layer.
    """
    names = list(names)
    places = {name: _find_block(name) for name in names if name not in (*stem, *heads)}
    blocks = sorted({place for place in places.values() if place})
    stages = sorted({stage for stage, _ in blocks})

    def locate(name: str) -> Layer:
        if name in stem:
            return Layer(0, 0)
        if name in heads:
            return Layer(len(blocks) + 1, None)
        if place := places[name]:
            return Layer(blocks.index(place) + 1, stages.index(place[0]) + 1)
        return Layer(len(blocks), None)

    return {name: locate(name) for name in names}


def _find_block(name: str) -> tuple[int, int] | None:
    """Stage and block of a name; without stages each block is one."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    stage, block = match.groups()
    return int(stage or block), int(block)
