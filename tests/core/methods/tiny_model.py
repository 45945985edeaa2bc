"""A network that compiles in a second, for tests of the compiled step and of whole runs."""

import contextlib
from typing import ClassVar

import flax.linen as nn
import pytest

from cls_jax.models.layers import Architecture
from cls_jax.parallel.mesh import DATA_AXIS
from cls_jax.training import setup as setup_lib


class TinyNet(Architecture):
    """One hidden layer with BatchNorm, and a last layer large enough for confident predictions."""

    stem_names: ClassVar[tuple[str, ...]] = ()

    @nn.compact
    def __call__(self, x, *, train=False, head="head", dropout=False):
        x = nn.Dense(16)(x.reshape(len(x), -1))
        x = nn.BatchNorm(
            use_running_average=not train,
            momentum=0.0,  # As in `BatchNorm` of the layers.
            axis_name=DATA_AXIS if train else None,
        )(x)
        # Without a kink: an activation within rounding of one has either gradient.
        x = nn.Dropout(self.dropout_rate, deterministic=not dropout)(nn.softplus(x))
        return self.apply_heads(x, head, [], init=nn.initializers.normal(0.6))


@contextlib.contextmanager
def use_tiny_model():
    """Runs have a `TinyNet`."""

    def create_model(config, method, num_classes):
        return TinyNet(
            num_classes=num_classes,
            extra_heads=method.extra_heads,
            dropout_rate=config.method.get("dropout", 0.0),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup_lib, "create_model", create_model)
        yield
