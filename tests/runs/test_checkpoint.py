"""A state comes back as it was, or is found to be damaged."""

import gc
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.runs import checkpoint as checkpoint_lib
from cls_jax.runs.checkpoint import Checkpointer, state_checksum
from cls_jax.training.program import create_program
from tests.conftest import DATASET_SPEC, create_tiny_config

# Where one of its reads or writes fails, the others that Orbax has under way end unheard.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore:coroutine .* was never awaited:RuntimeWarning",
)


@pytest.fixture(autouse=True)
def end_unheard_here():
    """Not while another test is running."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def initial_state():
    return create_program(create_tiny_config(), DATASET_SPEC).init_state()


@pytest.fixture
def state(initial_state):
    return jax.tree.map(jnp.copy, initial_state)


def save(workdir, steps, state, keep=3):
    """Saves states that differ in their step alone."""
    checkpointer = Checkpointer(workdir, keep)
    for step in steps:
        checkpointer.save(step, state.replace(step=state.step * 0 + step), {"train_seconds": 1.5})
    checkpointer.close()


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def test_state_and_notes_come_back_bit_for_bit(tmp_path, state):
    save(tmp_path, [7], state)
    restored = Checkpointer(tmp_path).restore_newest(state)
    assert restored.step == int(restored.state.step) == 7
    assert_equal(restored.state.replace(step=state.step), state)
    assert restored.notes["train_seconds"] == 1.5
    leaves = zip(jax.tree.leaves(restored.state), jax.tree.leaves(state), strict=True)
    for ours, theirs in leaves:
        assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)


def test_a_run_without_checkpoints_has_none(tmp_path, state):
    assert Checkpointer(tmp_path).restore_newest(state) is None
    assert Checkpointer(tmp_path, keep=2).restore_newest(state) is None
    assert Checkpointer(tmp_path).latest_step() is None


def test_saving_does_not_see_a_donation_that_follows(tmp_path, state):
    """The step donates the state that is still being written."""
    expected = jax.device_get(state)
    expected = jax.tree.map(np.array, expected)
    overwrite = jax.jit(lambda s: jax.tree.map(lambda leaf: leaf * 0 - 1, s), donate_argnums=0)
    checkpointer = Checkpointer(tmp_path, keep=1)
    checkpointer.save(1, state, {})
    overwritten = overwrite(state)
    checkpointer.close()
    assert_equal(Checkpointer(tmp_path).restore_newest(overwritten).state, expected)


def test_only_the_newest_are_kept(tmp_path, state):
    save(tmp_path, (1, 2, 3), state, keep=2)
    assert Checkpointer(tmp_path).latest_step() == 3
    steps = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert steps == {"2", "3"}


def test_state_of_one_device_restores_onto_four(tmp_path, state):
    save(tmp_path, [0], state)
    config = create_tiny_config(mesh__network=2, mesh__data=2)
    spread = create_program(config, DATASET_SPEC).init_state()
    restored = Checkpointer(tmp_path).restore_newest(spread).state
    assert_equal(restored, state)
    assert len(restored.params["stem"]["kernel"].sharding.device_set) == 4
    assert state_checksum(restored) == state_checksum(state)


def test_checkpoint_of_another_format_version_is_refused(tmp_path, state, monkeypatch):
    monkeypatch.setattr(checkpoint_lib, "FORMAT_VERSION", 99)
    save(tmp_path, [1], state)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format version 99"):
        Checkpointer(tmp_path).restore_newest(state)


def test_fingerprint_sees_every_bit_and_every_swap(state):
    kernel = np.array(state.params["head"]["kernel"])
    before = state_checksum(state)

    def with_kernel(values):
        params = state.params | {"head": state.params["head"] | {"kernel": values}}
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        return jax.device_put(state.replace(params=params), shardings)

    assert state_checksum(with_kernel(kernel)) == before
    for bit in (0, 7, 22, 23, 30, 31):
        words = kernel.copy().view(np.uint32)
        words[1, 2, 3] ^= np.uint32(1 << bit)
        assert state_checksum(with_kernel(words.view(np.float32))) != before
    swapped = kernel.copy()
    swapped[0, 0, :2] = kernel[0, 0, 1::-1]
    assert state_checksum(with_kernel(swapped)) != before


def flip_a_bit(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


PARSE_ERRORS = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": flip_a_bit,
    "removed": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def two_checkpoints(initial_state, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    save(workdir, (2, 4), initial_state)
    return workdir


@pytest.mark.parametrize("damage", PARSE_ERRORS)
def test_every_damaged_file_of_the_newest_is_found_or_harmless(
    two_checkpoints, tmp_path, state, damage
):
    newest = two_checkpoints / "checkpoints" / "4"
    files = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(files) > 5
    num_found = 0
    for i, file in enumerate(files):
        workdir = tmp_path / str(i)
        shutil.copytree(two_checkpoints, workdir)
        path = workdir / "checkpoints" / "4" / file
        if not path.stat().st_size:
            continue
        PARSE_ERRORS[damage](path)
        said = []
        restored = Checkpointer(workdir, keep=3, warn=said.append).restore_newest(state)
        assert restored.step == int(restored.state.step)
        assert_equal(restored.state.replace(step=state.step), state)
        is_found = restored.step == 2
        num_found += is_found
        assert restored.step in (2, 4)
        assert len(said) == is_found
        if is_found:
            assert "the checkpoint of step 4" in said[0]
            assert (workdir / "damaged_checkpoints" / "4").exists()
            assert not (workdir / "checkpoints" / "4").exists()
    assert num_found >= 4  # Others, such as empty signs of success, may go.


def test_a_reader_leaves_a_damaged_checkpoint_where_it_is(two_checkpoints, tmp_path, state, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(two_checkpoints, workdir)
    shutil.rmtree(workdir / "checkpoints" / "4" / "state")
    before = sorted(workdir.rglob("*"))
    assert Checkpointer(workdir).restore_newest(state).step == 2
    assert "step 4" in capsys.readouterr().err
    assert sorted(workdir.rglob("*")) == before


def test_changed_notes_are_found(two_checkpoints, tmp_path, state):
    workdir = tmp_path / "run"
    shutil.copytree(two_checkpoints, workdir)
    path = workdir / "checkpoints" / "4" / "notes" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train_seconds": 2.5}))
    assert Checkpointer(workdir).restore_newest(state).step == 2


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(
    two_checkpoints, tmp_path, state
):
    workdir = tmp_path / "run"
    shutil.copytree(two_checkpoints, workdir)
    for step in ("2", "4"):
        shutil.rmtree(workdir / "checkpoints" / step / "state")
    for _ in range(2):
        with pytest.raises(UserError, match="no checkpoint that is whole"):
            Checkpointer(workdir, keep=3).restore_newest(state)
    assert {path.name for path in (workdir / "damaged_checkpoints").iterdir()} == {"2", "4"}


def test_what_cannot_be_written_is_said_and_costs_nothing_that_was_good(tmp_path, state):
    """The folder cannot take another file: a file lies where the next state would."""
    said = []
    checkpointer = Checkpointer(tmp_path, keep=1, warn=said.append)
    checkpointer.save(1, state, {})
    checkpointer.finish()
    away = (tmp_path / "checkpoints").rename(tmp_path / "away")
    (tmp_path / "checkpoints").write_text("no folder")
    checkpointer.save(2, state, {})
    checkpointer.finish()
    assert "step 2 could not be written" in said[0]
    assert checkpointer.latest_step() is None
    (tmp_path / "checkpoints").unlink()
    away.rename(tmp_path / "checkpoints")
    assert checkpointer.latest_step() == 1
    checkpointer.save(3, state, {})
    checkpointer.close()
    assert len(said) == 1
    assert Checkpointer(tmp_path).restore_newest(state).step == 3
