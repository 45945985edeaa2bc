"""CLS: Cross Labeling Supervision for semi-supervised image classification, in JAX.

`train(folder)` trains on a folder of images, `load(run)` opens a trained run as a `Classifier`, and
its `predict(images)` labels images.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cls_jax.data.resize import ImageError
    from cls_jax.errors import UserError
    from cls_jax.photos.api import train
    from cls_jax.photos.inference.classifier import Classifier, Prediction, TaggedPrediction
    from cls_jax.photos.inference.run import Run, load

from cls_jax.photos import keys as _keys  # noqa: F401 # Every configuration has the product's keys.

__version__ = "0.1.0"
__all__ = [
    "Classifier",
    "ImageError",
    "Prediction",
    "Run",
    "TaggedPrediction",
    "UserError",
    "load",
    "train",
]

_MODULES = {
    "Classifier": "cls_jax.photos.inference.classifier",
    "ImageError": "cls_jax.data.resize",
    "Prediction": "cls_jax.photos.inference.classifier",
    "Run": "cls_jax.photos.inference.run",
    "TaggedPrediction": "cls_jax.photos.inference.classifier",
    "UserError": "cls_jax.errors",
    "load": "cls_jax.photos.inference.run",
    "train": "cls_jax.photos.api",
}


def __getattr__(name: str) -> Any:
    """Imports a name at its first use, because programs must set up JAX before it is loaded."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
