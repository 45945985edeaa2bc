"""ResNets with torchvision's names, which are timm's as well."""

import re

from cls_jax.models.weights.layout import Layout

_MODULES = {
    "stem": "conv1",
    "norm": "bn1",
    "norm1": "bn1",
    "norm2": "bn2",
    "norm3": "bn3",
    "projection": "downsample.0",
    "projection_norm": "downsample.1",
    "head": "fc",
}


def to_torch_module(name: str) -> str:
    """`stage2_block1` → `layer2.0`, `projection` → `downsample.0`."""
    if match := re.fullmatch(r"stage(\d+)_block(\d+)", name):
        return f"layer{match[1]}.{int(match[2]) - 1}"
    return _MODULES.get(name, name)


LAYOUT = Layout(to_torch_module)
