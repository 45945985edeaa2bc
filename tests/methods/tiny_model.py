"""A network that compiles in a second, for tests of the compiled step and of whole runs."""

from typing import ClassVar

import flax.linen as nn
import jax
import pytest

from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training import setup as program_lib
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch


class TinyNet(nn.Module):
    """One hidden layer with BatchNorm, and a last layer large enough for confident predictions."""

    stem_names: ClassVar[tuple[str, ...]] = ()  # As every architecture, for rates per layer.
    head_names: ClassVar[tuple[str, ...]] = ("head",)

    num_classes: int
    data_axis: str
    bn_momentum: float = 0.9
    bn_frozen: bool = False

    @nn.compact
    def __call__(self, x, *, train=False, head="head", dropout=False):
        x = nn.Dense(16)(x.reshape(len(x), -1))
        x = nn.BatchNorm(
            use_running_average=not train,
            momentum=self.bn_momentum,
            axis_name=self.data_axis if train else None,
        )(x)
        init = nn.initializers.normal(0.6)
        return nn.Dense(self.num_classes, kernel_init=init, name=head)(nn.relu(x))


@pytest.fixture
def tiny_model(monkeypatch):
    """Programs have a `TinyNet`."""
    monkeypatch.setattr(
        program_lib,
        "create_model",
        lambda config, method, num_classes: TinyNet(num_classes, program_lib.DATA_AXIS),
    )


def run_steps(config, num_steps=3):
    """The state after a few compiled steps, and what each monitored."""
    setup = create_train_setup(config, DATASET_SPEC)
    num_views = len(setup.method.unlabeled_views)
    state, step, history = setup.init_state(), create_train_step(setup), []
    for i in range(num_steps):
        batch = create_raw_batch(config, num_views, seed=i)
        batch = jax.device_put(batch, to_shardings(setup.mesh, BATCH_SPECS))
        state, monitors = step(state, batch)
        history.append(jax.device_get(monitors))
    return jax.device_get(state), history
