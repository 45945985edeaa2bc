"""Image classifiers as Flax modules."""

from cls_jax.models.wide_resnet import WideResNet, count_parameters

__all__ = ["WideResNet", "count_parameters"]
