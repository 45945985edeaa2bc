"""What to do about weights that do not fit: the first layer of a file tells most mistakes apart."""

from typing import Any

from cls_jax.models.layers import STEMS
from cls_jax.models.weights.layout import Arrays, Layout

_FIRST_LAYERS = ("stem", "patch_embed")


def explain_mismatch(arrays: Arrays, layout: Layout, params: Any) -> str:
    """What to change, as the end of a sentence.

    Args:
        arrays: the weights that do not fit, by PyTorch's names.
        layout: of the architecture.
        params: stacked parameters of the architecture, each leaf [N, ...].
    """
    for name in _FIRST_LAYERS:
        theirs = arrays.get(layout.to_torch_name((name,)) + ".weight")
        if name not in params or theirs is None or theirs.ndim != 4:
            continue
        _, *kernel, channels, _ = params[name]["kernel"].shape
        if theirs.shape[1] != channels:
            return (
                f"these weights are for {theirs.shape[1]} color channels and the images have "
                f"{channels}, so choose other weights, or none with model.init="
            )
        stems = [stem for stem, layer in STEMS.items() if layer.kernel == theirs.shape[2]]
        if name == "stem" and theirs.shape[2] != kernel[0] and stems:
            return f"set model.stem={' or '.join(stems)}, which these weights have"
    return "set model.name, and model.stem, to the architecture of these weights"
