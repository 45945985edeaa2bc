"""EfficientNet-Lite0 with the names of the package `efficientnet-lite-pytorch`."""

import re

from cls_jax.models.efficientnet import STAGES
from cls_jax.models.weights.layout import Layout

_MODULES = {
    "stem": "_conv_stem",
    "stem_norm": "_bn0",
    "top": "_conv_head",
    "top_norm": "_bn1",
    "head": "_fc",
    "expand": "_expand_conv",
    "expand_norm": "_bn0",
    "depthwise": "_depthwise_conv",
    "depthwise_norm": "_bn1",
    "project": "_project_conv",
    "project_norm": "_bn2",
}


def to_torch_module(name: str) -> str:
    """`stage2_block1` → `_blocks.1`, blocks counted through; `expand` → `_expand_conv`."""
    if not (match := re.fullmatch(r"stage(\d+)_block(\d+)", name)):
        return _MODULES.get(name, name)
    stage, block = map(int, match.groups())
    earlier = sum(stage.blocks for stage in STAGES[: stage - 1])
    return f"_blocks.{earlier + block - 1}"


LAYOUT = Layout(to_torch_module, normalization=((127 / 255,) * 3, (128 / 255,) * 3))
