"""What holds for every method: its hyperparameters, its rounds, its documentation."""

import re

import jax
import numpy as np
import pytest

from cls_jax.batch import DatasetSpec
from cls_jax.config import create_config, validate_config
from cls_jax.errors import UserError
from cls_jax.methods import METHODS, choose_decay, get_round_length
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import ROOT, create_raw_batch, create_tiny_config


@pytest.mark.parametrize("name", METHODS)
def test_every_hyperparameter_has_a_source_and_a_range_that_is_named(name):
    for key, hyperparameter in METHODS[name].hyperparameters.items():
        assert hyperparameter.source, key
        config = create_config(f"40,{name}")
        if isinstance(hyperparameter.default, bool):
            continue  # A ConfigDict refuses all but its two values.
        if hyperparameter.choices:
            config.method[key] = "sometimes"
        else:
            assert np.isfinite(hyperparameter.high), key
            config.method[key] = type(hyperparameter.default)(hyperparameter.low - 1)
        with pytest.raises(UserError, match=f"method.{key}=.* choose"):
            validate_config(config)


@pytest.mark.parametrize(
    ("num_steps", "rounds", "length"), [(6, 1, 6), (6, 2, 3), (7, 2, 4), (10, 4, 3)]
)
def test_rounds_are_equally_long_but_for_the_last(num_steps, rounds, length):
    config = create_tiny_config("20,ups", num_steps=num_steps, method__rounds=rounds)
    assert get_round_length(config) == length
    # A method without rounds has one.
    assert get_round_length(create_tiny_config(num_steps=7)) == 7


def test_running_means_follow_the_length_of_a_round_and_forget_their_start():
    for num_steps in (1, 25, 250, 300, 1_000, 5_000, 300_000):
        assert 0 <= choose_decay(num_steps) <= 0.999
        assert choose_decay(num_steps) ** num_steps < 0.05
    assert [choose_decay(n) for n in (500, 2_000, 10_000, 307_200)] == [0.99, 0.99, 0.998, 0.999]


def test_every_method_is_documented_and_the_example_of_a_new_one_trains(monkeypatch):
    page = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"| `{name}` |" in page for name in METHODS)
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    namespace = {}
    exec(compile(example, "docs/methods.md", "exec"), namespace)
    monkeypatch.setitem(METHODS, "entropy", namespace["METHODS"]["entropy"])
    config = create_config("40,entropy")
    config.batch_size, config.data.image_size, config.model.depth = 4, 8, 10
    config.data.mean = config.data.std = (0.5,)
    config.model.width = config.mesh.data = 1
    validate_config(config)
    setup = create_train_setup(config, DatasetSpec((8, 8, 1), 10, 100))
    state = setup.init_state()
    batch = create_raw_batch(config, num_views=1)
    batch = jax.device_put(batch, to_shardings(setup.mesh, BATCH_SPECS))
    _, monitors = create_train_step(setup)(state, batch)
    assert 0 < float(monitors["monitors/entropy"]) <= np.log(10)
