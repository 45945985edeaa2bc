"""A state comes back as it was."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.checkpoint import Checkpointer
from cls_jax.errors import UserError
from cls_jax.program import create_program
from tests.conftest import DATA_SHAPE, create_tiny_config


@pytest.fixture(scope="module")
def initial_state():
    return create_program(create_tiny_config(), DATA_SHAPE)[1]


@pytest.fixture
def state(initial_state):
    return jax.tree.map(jnp.copy, initial_state)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def test_state_and_notes_come_back_bit_for_bit(tmp_path, state):
    saved = state.replace(step=state.step + 7)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(7, saved, {"train_seconds": 1.5})
    checkpointer.close()
    restored, notes = Checkpointer(tmp_path).restore(7, state)
    assert_equal(restored, saved)
    assert notes["train_seconds"] == 1.5
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)


def test_saving_does_not_see_a_donation_that_follows(tmp_path, state):
    """The step donates the state that is still being written."""
    expected = jax.device_get(state)
    expected = jax.tree.map(np.array, expected)
    overwrite = jax.jit(lambda s: jax.tree.map(lambda leaf: leaf * 0 - 1, s), donate_argnums=0)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, state, {})
    overwritten = overwrite(state)
    checkpointer.close()
    restored, _ = Checkpointer(tmp_path).restore(1, overwritten)
    assert_equal(restored, expected)


def test_only_the_newest_are_kept(tmp_path, state):
    checkpointer = Checkpointer(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpointer.save(step, state, {})
    checkpointer.close()
    assert Checkpointer(tmp_path).latest_step() == 3
    steps = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert steps == {"2", "3"}


def test_state_of_one_device_restores_onto_four(tmp_path, state):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, state, {})
    checkpointer.close()
    config = create_tiny_config(mesh__network=2, mesh__data=2)
    _, spread = create_program(config, DATA_SHAPE)
    restored, _ = Checkpointer(tmp_path).restore(1, spread)
    assert_equal(restored, state)
    assert len(restored.params["stem"]["kernel"].sharding.device_set) == 4


def test_checkpoint_of_another_format_version_is_refused(tmp_path, state):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, state, {})
    checkpointer.close()
    (notes,) = (tmp_path / "checkpoints" / "1" / "notes").glob("metadata")
    notes.write_text(json.dumps(json.loads(notes.read_text()) | {"format_version": 99}))
    with pytest.raises(UserError, match="format version 99"):
        Checkpointer(tmp_path).restore(1, state)
