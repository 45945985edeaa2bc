"""CLS: Cross Labeling Supervision for semi-supervised image classification, in JAX."""

__version__ = "0.1.0"
