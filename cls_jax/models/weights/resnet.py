"""ResNets with torchvision's names, which are timm's as well."""

import re

from cls_jax.models.weights.layout import Layout, Path

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


def to_torch_name(path: Path) -> str:
    """("stage2_block1", "projection") → "layer2.0.downsample.0"."""
    return ".".join(map(_to_torch_module, path))


def _to_torch_module(name: str) -> str:
    if match := re.fullmatch(r"stage(\d+)_block(\d+)", name):
        return f"layer{match[1]}.{int(match[2]) - 1}"
    return _MODULES.get(name, name)


LAYOUT = Layout(to_torch_name)
