"""The documentation's example of a new method works as printed, and no method is missing."""

import re

import jax
import numpy as np

from cls_jax.batch import DatasetSpec
from cls_jax.config import create_config, validate_config
from cls_jax.methods import METHODS
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import ROOT, create_raw_batch


def test_example_of_a_new_method_trains(monkeypatch):
    page = (ROOT / "docs" / "methods.md").read_text()
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


def test_every_method_is_documented():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"| `{name}` |" in page for name in METHODS)
