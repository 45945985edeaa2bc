"""Image classifiers as Flax modules, and weights to start them from."""

from cls_jax.models.efficientnet import EfficientNetLite0
from cls_jax.models.layers import FEATURES, STEMS, count_parameters, resolve_stem
from cls_jax.models.registry import MODELS
from cls_jax.models.resnet import ResNet18, ResNet50
from cls_jax.models.vit import VisionTransformer
from cls_jax.models.wide_resnet import WideResNet

__all__ = [
    "FEATURES",
    "MODELS",
    "STEMS",
    "EfficientNetLite0",
    "ResNet18",
    "ResNet50",
    "VisionTransformer",
    "WideResNet",
    "count_parameters",
    "resolve_stem",
]
