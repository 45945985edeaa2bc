"""A network that compiles in a second, for tests of the compiled step and of whole runs."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import pytest

from cls_jax.models.layers import ALL_HEADS, FEATURES
from cls_jax.parallel.mesh import DATA_AXIS
from cls_jax.training import setup as setup_lib


class TinyNet(nn.Module):
    """One hidden layer with BatchNorm, and a last layer large enough for confident predictions."""

    stem_names: ClassVar[tuple[str, ...]] = ()  # As every architecture, for rates per layer.

    num_classes: int
    extra_heads: tuple[tuple[str, int], ...] = ()
    dropout_rate: float = 0.0
    bn_momentum: float = 0.9
    bn_frozen: bool = False

    @property
    def head_names(self):
        return ("head", *(name for name, _ in self.extra_heads))

    @nn.compact
    def __call__(self, x, *, train=False, head="head", dropout=False):
        x = nn.Dense(16)(x.reshape(len(x), -1))
        x = nn.BatchNorm(
            use_running_average=not train,
            momentum=self.bn_momentum,
            axis_name=DATA_AXIS if train else None,
        )(x)
        # Without a kink: an activation within rounding of one has either gradient.
        x = nn.Dropout(self.dropout_rate, deterministic=not dropout)(nn.softplus(x))
        sizes = {"head": self.num_classes, **dict(self.extra_heads)}
        init = nn.initializers.normal(0.6)
        logits = {name: nn.Dense(k, kernel_init=init, name=name)(x) for name, k in sizes.items()}
        outputs = {**logits, ALL_HEADS: jnp.concatenate([*logits.values()], -1), FEATURES: x}
        return outputs[head]


@pytest.fixture(scope="module")
def tiny_model():
    """Runs have a `TinyNet`."""

    def create_model(config, method, num_classes):
        heads = method.get_extra_heads(config.method, num_classes)
        return TinyNet(num_classes, heads, method.dropout_rate(config.method))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup_lib, "create_model", create_model)
        yield
