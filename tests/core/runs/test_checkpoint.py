"""A state is restored as it was saved, or found to be damaged."""

import contextlib
import errno
import gc
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.runs import checkpoint as checkpoint_lib
from cls_jax.runs.checkpoint import Checkpointer, hash_rows
from cls_jax.training.setup import create_train_setup
from tests.conftest import DATASET_SPEC, create_tiny_config, one_of

# When one of Orbax's reads or writes fails, its others end without being awaited.
pytestmark = [
    pytest.mark.usefixtures("tiny_model"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore::pytest.PytestUnhandledThreadExceptionWarning",
        "ignore:coroutine .* was never awaited:RuntimeWarning",
    ),
]


@pytest.fixture(autouse=True)
def collect_here():
    """Orbax's warnings appear at garbage collection: here, not within another test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def initial_state(tiny_model):
    return create_train_setup(create_tiny_config(), DATASET_SPEC).init_state()


@pytest.fixture
def state(initial_state):
    return jax.tree.map(jnp.copy, initial_state)


def save(workdir, steps, state, keep=3):
    """Saves states that differ only in their step."""
    checkpointer = Checkpointer(workdir, keep)
    for step in steps:
        checkpointer.save(step, state.replace(step=state.step * 0 + step), {"train_seconds": 1.5})
    checkpointer.close()


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def get_addresses(tree):
    return [leaf.addressable_data(0).unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("mesh", [(1, 1), (2, 2)])
def test_a_state_restored_onto_shapes_has_the_same_bits_and_runs_the_same_program(
    tmp_path, state, mesh
):
    """On any mesh. The first step after a resume may reuse the state's memory."""
    save(tmp_path, [5], state)
    config = create_tiny_config(mesh__network=mesh[0], mesh__data=mesh[1])
    shapes = create_train_setup(config, DATASET_SPEC).state_shapes
    step, restored, metadata = Checkpointer(tmp_path).restore_newest(shapes)
    assert step == int(restored.step) == 5
    assert metadata["train_seconds"] == 1.5
    assert_equal(restored.replace(step=0 * restored.step), state)
    for leaf, shape in zip(jax.tree.leaves(restored), jax.tree.leaves(shapes), strict=True):
        assert leaf.sharding == shape.sharding  # Spelled alike: the step is not compiled again.
        assert leaf.committed
    add_one = jax.jit(lambda s: jax.tree.map(lambda leaf: leaf + 1, s), donate_argnums=0)
    addresses = get_addresses(restored)
    assert get_addresses(add_one(restored)) == addresses


def test_reading_prints_nothing(workdir, caplog):
    """Orbax would warn of each folder that it only reads."""
    assert Checkpointer(workdir).latest_step() is not None
    assert not caplog.records


def test_only_the_newest_are_kept(tmp_path, state):
    assert Checkpointer(tmp_path).restore_newest(state) is None
    left_by_a_kill = tmp_path / "checkpoints" / "1.orbax-checkpoint-tmp"
    left_by_a_kill.mkdir(parents=True)
    save(tmp_path, (1, 2, 3), state, keep=2)
    assert Checkpointer(tmp_path).latest_step() == 3
    steps = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert steps == {"2", "3"}


def test_hashes_stay_what_stored_checkpoints_hold_and_other_formats_are_refused(
    tmp_path, state, monkeypatch
):
    pairs = np.arange(4, dtype="<f4").reshape(2, 2)
    first, second = (hashlib.sha256(b"float32(2, 2)" + row.tobytes()).hexdigest() for row in pairs)
    hashes = hash_rows({"a": {"b": np.asfortranarray(pairs)}, "c": np.array(True)})
    expected = {"a/b": {0: first, 1: second}}
    assert hashes == expected | {"c": {0: hashlib.sha256(b"bool()\1").hexdigest()}}
    monkeypatch.setattr(checkpoint_lib, "FORMAT_VERSION", 99)
    save(tmp_path, [1], state)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format version 99"):
        Checkpointer(tmp_path).restore_newest(state)


def damage(path: pathlib.Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.unlink()
    if kind != "removed":
        path.write_bytes(content if kind == "flipped" else content[: len(content) // 2])


@pytest.fixture(scope="module")
def two_checkpoints(initial_state, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    save(workdir, (2, 4), initial_state)
    return workdir


# Emptied ones are in `tests/programs/test_distributed.py`.
@pytest.mark.parametrize("kind", one_of("flipped", "truncated", "removed"))
def test_every_damaged_file_of_the_newest_is_found_or_harmless(
    two_checkpoints, tmp_path, state, kind
):
    newest = two_checkpoints / "checkpoints" / "4"
    files = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    num_found = 0
    for i, file in enumerate(files):
        workdir = shutil.copytree(two_checkpoints, tmp_path / str(i))
        path = workdir / "checkpoints" / "4" / file
        if not path.stat().st_size:
            continue
        damage(path, kind)
        checkpointer, warnings = Checkpointer(workdir, keep=3), []
        checkpointer.warn = warnings.append
        step, restored, _ = checkpointer.restore_newest(state)
        assert step == int(restored.step)
        assert_equal(restored.replace(step=state.step), state)
        is_found = step == 2
        num_found += is_found
        assert ["the checkpoint of step 4" in line for line in warnings] == [True] * is_found
        # A found one is set aside.
        assert (workdir / "damaged_checkpoints" / "4").exists() == is_found
        assert (workdir / "checkpoints" / "4").exists() != is_found
    assert num_found >= 4  # Others, such as empty marks of success, may be missing.


@pytest.fixture
def workdir(two_checkpoints, tmp_path):
    """A copy of the run with two checkpoints."""
    return shutil.copytree(two_checkpoints, tmp_path / "run")


def test_a_reader_leaves_a_damaged_checkpoint_where_it_is(workdir, state, capsys):
    path = workdir / "checkpoints" / "4" / "notes" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"train_seconds": 2.5}))
    assert Checkpointer(workdir).restore_newest(state)[0] == 2
    assert "step 4" in capsys.readouterr().err
    assert path.exists()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(workdir, state):
    for step in ("2", "4"):
        shutil.rmtree(workdir / "checkpoints" / step / "state")
    for _ in range(2):
        with pytest.raises(UserError, match="has no intact checkpoint"):
            Checkpointer(workdir, keep=3).restore_newest(state)
    assert {path.name for path in (workdir / "damaged_checkpoints").iterdir()} == {"2", "4"}


@contextlib.contextmanager
def leave_descriptors(num_left):
    """Leaves the process so many file descriptors, unless others are closed meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        next_number = 1 + max(map(int, os.listdir("/proc/self/fd")))
        while stack.enter_context(open(os.devnull)).fileno() < next_number:  # Closed ones are free.
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_number + 1 + num_left, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


@pytest.mark.parametrize("num_left", [2, 3])
def test_a_refusal_of_the_system_is_no_damage(workdir, state, num_left):
    """Here the process has so few file descriptors left that it can read one file but not all."""
    checkpointer, refusals = Checkpointer(workdir, keep=3), []
    for _ in range(5):  # Threads of other tests may close a descriptor in between.
        try:
            with leave_descriptors(num_left):
                assert checkpointer.restore_newest(state)[0] == 4
        except UserError as error:
            refusals.append(str(error))
            break
    assert re.search(r"step 4 .*cannot be read \(Too many open files\)", refusals[0])
    assert not (workdir / "damaged_checkpoints").exists()
    assert checkpointer.restore_newest(state)[0] == 4


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), OSError(errno.ESTALE, "stale")])
def test_what_a_second_attempt_reads_is_no_damage(workdir, state, monkeypatch, error):
    read, errors = Checkpointer._read, [error]

    def fail_once(*arguments):
        if errors:
            raise errors.pop()
        return read(*arguments)

    monkeypatch.setattr(Checkpointer, "_read", fail_once)
    assert Checkpointer(workdir, keep=3).restore_newest(state)[0] == 4
    assert not (workdir / "damaged_checkpoints").exists()


def test_damage_is_set_aside_also_on_another_file_system(workdir, state, monkeypatch):
    error = OSError(errno.EXDEV, "Invalid cross-device link")
    (workdir / "checkpoints" / "4" / "notes" / "metadata").write_text("{}")
    monkeypatch.setattr(os, "rename", unittest.mock.Mock(side_effect=error))
    assert Checkpointer(workdir, keep=3).restore_newest(state)[0] == 2
    assert (workdir / "damaged_checkpoints" / "4" / "notes" / "metadata").read_text() == "{}"
    assert not (workdir / "checkpoints" / "4").exists()


def test_failed_saves_are_reported_and_keep_old_checkpoints(tmp_path, state):
    checkpointer, warnings = Checkpointer(tmp_path, keep=1), []
    checkpointer.warn = warnings.append
    checkpointer.save(1, state, {})
    checkpointer.finish()
    # The folder of checkpoints is gone, and a file takes its place.
    away = (tmp_path / "checkpoints").rename(tmp_path / "away")
    (tmp_path / "checkpoints").write_text("no folder")
    checkpointer.save(2, state, {})
    checkpointer.finish()
    assert "step 2 could not be written" in warnings[0]
    assert checkpointer.latest_step() is None
    (tmp_path / "checkpoints").unlink()
    away.rename(tmp_path / "checkpoints")
    assert checkpointer.latest_step() == 1
    # A failure in the background, which Orbax's manager would report again and again.
    full = OSError(errno.ENOSPC, "No space left on device")
    checkpointer.save(3, state, {})
    checkpointer._manager.wait_until_finished()  # Only its report fails, not what it is doing.
    checkpointer._manager.wait_until_finished = unittest.mock.Mock(side_effect=full)
    checkpointer.save(4, state, {})
    checkpointer.close()
    assert ["(No space left on device)" in line for line in warnings] == [False, True]
    assert Checkpointer(tmp_path).restore_newest(state)[0] == 4
