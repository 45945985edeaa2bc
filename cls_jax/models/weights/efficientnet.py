"""EfficientNet-Lite0 with the names of the package `efficientnet-lite-pytorch`."""

import re

from cls_jax.models.efficientnet import STAGES
from cls_jax.models.weights.layout import Layout, Path

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


def to_torch_name(path: Path) -> str:
    """("stage2_block1", "expand") → "_blocks.1._expand_conv"; blocks are counted through."""
    return ".".join(map(_to_torch_module, path))


def _to_torch_module(name: str) -> str:
    if not (match := re.fullmatch(r"stage(\d+)_block(\d+)", name)):
        return _MODULES.get(name, name)
    stage, block = map(int, match.groups())
    earlier = sum(stage.blocks for stage in STAGES[: stage - 1])
    return f"_blocks.{earlier + block - 1}"


LAYOUT = Layout(to_torch_name, normalization=((127 / 255,) * 3, (128 / 255,) * 3))
