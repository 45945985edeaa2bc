"""Image classifiers as Flax modules, by name, and weights to start them from."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from cls_jax.models.convnext import ConvNeXt
from cls_jax.models.efficientnet import LITE1, LITE2, EfficientNetLite
from cls_jax.models.layers import FEATURES, STEMS, Architecture, count_parameters, resolve_stem
from cls_jax.models.mobilenetv4 import MobileNetV4
from cls_jax.models.resnet import ResNet18, ResNet50
from cls_jax.models.vit import VisionTransformer
from cls_jax.models.weights.layout import (
    CONVNEXT,
    DINOV2,
    EFFICIENTNET_LITE0,
    EFFICIENTNET_LITE1,
    EFFICIENTNET_LITE2,
    MOBILENETV4,
    OWN,
    RESNET,
    VIT,
    WeightsLayout,
)
from cls_jax.models.wide_resnet import WideResNet

__all__ = [
    "FEATURES",
    "MODELS",
    "STEMS",
    "Architecture",
    "ModelSpec",
    "count_parameters",
    "resolve_stem",
]


class ModelSpec(NamedTuple):
    """An architecture."""

    create: Callable[..., Architecture]  # From the common arguments, and `keys`.
    title: str  # Its usual name. Words in braces are keys of `config.model`.
    layout: WeightsLayout = OWN  # The names in files with its weights.
    keys: tuple[str, ...] = ()  # The keys of `config.model` that only some architectures have.
    has_batch_norm: bool = True
    patch: int = 1  # The image size is a multiple of this.
    image_size: int = 224  # Height and width of the images that its pretrained weights expect.


_lite1 = functools.partial(EfficientNetLite, table=LITE1)
_lite2 = functools.partial(EfficientNetLite, table=LITE2)
_tiny = functools.partial(VisionTransformer, width=192, num_heads=3)
_small = functools.partial(VisionTransformer, width=384, num_heads=6)
_base = functools.partial(VisionTransformer, width=768, num_heads=12)
_dinov2 = functools.partial(_small, patch=14, layer_scale=1e-5)
_dinov2_reg4 = functools.partial(_dinov2, num_registers=4)
_transformer = functools.partial(ModelSpec, has_batch_norm=False)

MODELS = {
    "wide_resnet": ModelSpec(
        WideResNet, "WRN-{depth}-{width}", keys=("stem", "depth", "width"), image_size=32
    ),
    "resnet18": ModelSpec(ResNet18, "ResNet-18", RESNET, ("stem",)),
    "resnet50": ModelSpec(ResNet50, "ResNet-50", RESNET, ("stem",)),
    "efficientnet_lite0": ModelSpec(EfficientNetLite, "EfficientNet-Lite0", EFFICIENTNET_LITE0),
    "efficientnet_lite1": ModelSpec(
        _lite1, "EfficientNet-Lite1", EFFICIENTNET_LITE1, image_size=240
    ),
    "efficientnet_lite2": ModelSpec(
        _lite2, "EfficientNet-Lite2", EFFICIENTNET_LITE2, image_size=260
    ),
    "mobilenetv4_conv_medium": ModelSpec(
        MobileNetV4, "MobileNetV4-Conv-M", MOBILENETV4, image_size=384
    ),
    "convnext_nano": ModelSpec(ConvNeXt, "ConvNeXt-N", CONVNEXT, has_batch_norm=False),
    "vit_tiny": _transformer(_tiny, "ViT-Ti/16", VIT, patch=16),
    "vit_small": _transformer(_small, "ViT-S/16", VIT, patch=16),
    "vit_base": _transformer(_base, "ViT-B/16", VIT, patch=16),
    "dinov2_small": _transformer(_dinov2, "DINOv2 ViT-S/14", DINOV2, patch=14),
    "dinov2_small_reg4": _transformer(
        _dinov2_reg4, "DINOv2 ViT-S/14 with registers", DINOV2, patch=14
    ),
}
