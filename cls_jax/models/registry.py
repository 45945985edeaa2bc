"""The architectures by name: their modules, the keys that they read, and how weights are stored."""

from collections.abc import Callable
from typing import NamedTuple

from cls_jax.models.efficientnet import EfficientNetLite0
from cls_jax.models.layers import Architecture
from cls_jax.models.resnet import ResNet18
from cls_jax.models.weights import efficientnet
from cls_jax.models.weights.layout import Layout
from cls_jax.models.wide_resnet import WideResNet


class Entry(NamedTuple):
    """An architecture.

    Attributes:
        create: a subclass of `Architecture`, or a function that makes one of its arguments.
        title: its usual name; words in braces are keys of `config.model`.
        keys: the keys of `config.model` that only some architectures have.
        layout: of files with pretrained weights; None if there are none.
    """

    create: Callable[..., Architecture]
    title: str
    keys: tuple[str, ...] = ()
    layout: Layout | None = None


MODELS = {
    "wide_resnet": Entry(
        WideResNet, "WRN-{depth}-{width}", ("stem", "bn_epsilon", "depth", "width", "leaky_slope")
    ),
    "resnet18": Entry(ResNet18, "ResNet-18", ("stem", "bn_epsilon")),
    "efficientnet_lite0": Entry(
        EfficientNetLite0, "EfficientNet-Lite0", layout=efficientnet.LAYOUT
    ),
}
