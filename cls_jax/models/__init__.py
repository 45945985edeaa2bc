"""Image classifiers as Flax modules."""

from cls_jax.models.layers import STEMS, count_parameters, resolve_stem
from cls_jax.models.resnet import ResNet18
from cls_jax.models.wide_resnet import WideResNet

__all__ = ["STEMS", "ResNet18", "WideResNet", "count_parameters", "resolve_stem"]
