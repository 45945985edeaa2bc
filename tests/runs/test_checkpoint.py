"""A state is restored as it was saved, or found to be damaged."""

import errno
import gc
import hashlib
import json
import pathlib
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
from tests.conftest import DATASET_SPEC, create_tiny_config
from tests.methods.tiny_model import tiny_model

__all__ = ["tiny_model"]

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
    """Their complaints come when they are collected: here, not within another test."""
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
def test_a_state_restored_onto_shapes_has_the_same_bits_and_runs_the_same_program(tmp_path, mesh):
    """The first step after a resume may reuse the state's memory and is not compiled again."""
    setup = create_train_setup(
        create_tiny_config(mesh__network=mesh[0], mesh__data=mesh[1]), DATASET_SPEC
    )
    state = setup.init_state()
    save(tmp_path, [5], state)
    expected = jax.tree.map(np.array, jax.device_get(state))
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    step, restored, metadata = Checkpointer(tmp_path).restore_newest(setup.state_shapes)
    gc.collect()
    # Nothing else stays on the device.
    made = sum(array.nbytes for array in jax.live_arrays() if id(array) not in before)
    assert made == sum(leaf.nbytes for leaf in jax.tree.leaves(restored))
    assert step == int(restored.step) == 5
    assert metadata["train_seconds"] == 1.5
    assert_equal(restored.replace(step=expected.step), expected)
    for leaf, shape in zip(
        jax.tree.leaves(restored), jax.tree.leaves(setup.state_shapes), strict=True
    ):
        assert leaf.sharding == shape.sharding
        assert leaf.committed
    add_one = jax.jit(lambda s: jax.tree.map(lambda leaf: leaf + 1, s), donate_argnums=0)
    addresses = get_addresses(restored)
    after = add_one(restored)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(restored))
    assert get_addresses(after) == addresses


def test_saving_copies_the_state_to_the_host_explicitly_and_as_a_whole(
    tmp_path, state, monkeypatch
):
    """On a GPU the loop's guard refuses implicit copies, and the next step donates the state."""
    fetch, save_args = jax.device_get, checkpoint_lib.ocp.args.StandardSave
    fetched, given, implicit = [], [], []
    array_type = type(jax.tree.leaves(state)[0])
    convert = array_type.__array__

    def note_fetch(tree):
        fetched.append(tree)
        with monkeypatch.context() as patch:
            patch.setattr(array_type, "__array__", convert)
            return fetch(tree)

    def note_save(tree):
        given.append(tree)
        return save_args(tree)

    def note_implicit(self, *args, **kwargs):
        implicit.append(self.shape)
        return convert(self, *args, **kwargs)

    checkpointer = Checkpointer(tmp_path, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_get", note_fetch)
        patch.setattr(array_type, "__array__", note_implicit)
        patch.setattr(checkpoint_lib.ocp.args, "StandardSave", note_save)
        with jax.transfer_guard("disallow"), jax.transfer_guard_device_to_host("disallow"):
            checkpointer.save(3, state, {})
        checkpointer.close()
    assert fetched == [state]
    assert not implicit
    for array, view in zip(
        jax.tree.leaves(given), jax.tree.leaves(jax.device_get(state)), strict=True
    ):
        assert isinstance(array, np.ndarray)
        assert not np.shares_memory(array, view)


def test_a_run_without_checkpoints_has_none(tmp_path, state):
    assert Checkpointer(tmp_path).restore_newest(state) is None
    assert Checkpointer(tmp_path, keep=2).restore_newest(state) is None
    assert Checkpointer(tmp_path).latest_step() is None


def test_only_the_newest_are_kept(tmp_path, state):
    save(tmp_path, (1, 2, 3), state, keep=2)
    assert Checkpointer(tmp_path).latest_step() == 3
    steps = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert steps == {"2", "3"}


def test_state_of_one_device_restores_onto_four(tmp_path, state):
    save(tmp_path, [0], state)
    config = create_tiny_config(mesh__network=2, mesh__data=2)
    spread = create_train_setup(config, DATASET_SPEC).init_state()
    restored = Checkpointer(tmp_path).restore_newest(spread).state
    assert_equal(restored, state)
    assert len(restored.params["head"]["kernel"].sharding.device_set) == 4


def test_checkpoint_of_another_format_version_is_refused(tmp_path, state, monkeypatch):
    monkeypatch.setattr(checkpoint_lib, "FORMAT_VERSION", 99)
    save(tmp_path, [1], state)
    monkeypatch.undo()
    with pytest.raises(UserError, match="format version 99"):
        Checkpointer(tmp_path).restore_newest(state)


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float16", "int32", "float64"])
def test_hash_sees_every_bit_the_type_and_the_shape_of_arrays(dtype):
    array = np.arange(6).reshape(2, 3).astype(jnp.dtype(dtype))
    flipped = np.repeat(array.view(np.uint8)[None], 8 * array.nbytes, axis=0)
    for i, words in enumerate(flipped.reshape(8 * array.nbytes, -1)):
        words[i // 8] ^= 1 << i % 8
    others = [*flipped.view(array.dtype), array.T, array.reshape(-1), array[0, 0]]
    others += [array.view(np.uint8), array]
    assert len({str(hash_rows({"a": other})) for other in others}) == len(others)
    assert hash_rows({"a": array}) == hash_rows({"a": array.copy(order="F")})


def test_hashes_stay_what_stored_checkpoints_hold(tmp_path, state, monkeypatch):
    pairs = np.arange(4, dtype="<f4").reshape(2, 2)
    first, second = (hashlib.sha256(b"float32(2, 2)" + row.tobytes()).digest() for row in pairs)
    hashes = hash_rows({"a": {"b": pairs}, "c": np.array(True)})
    expected = {"a/b": (2, {0: first, 1: second})}
    assert hashes == expected | {"c": (1, {0: hashlib.sha256(b"bool()\1").digest()})}

    def hash_whole(arrays):  # As earlier versions did.
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): hashlib.sha256(
                f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes()
            ).hexdigest()
            for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
        }

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_lib, "FORMAT_VERSION", 3)
        patch.setattr(checkpoint_lib, "hash_rows", lambda arrays: arrays)
        patch.setattr(checkpoint_lib, "_gather_hashes", hash_whole)
        save(tmp_path, [1, 2], state)
    assert Checkpointer(tmp_path).restore_newest(state).step == 2
    for path in (tmp_path / "checkpoints" / "2").glob("state/**/d/*"):
        path.write_bytes(b"")
    assert Checkpointer(tmp_path).restore_newest(state).step == 1


def flip_a_bit(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES = {
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


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damaged_file_of_the_newest_is_found_or_harmless(
    two_checkpoints, tmp_path, state, damage
):
    newest = two_checkpoints / "checkpoints" / "4"
    files = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    assert len(files) > 5
    num_found = 0
    for i, file in enumerate(files):
        workdir = shutil.copytree(two_checkpoints, tmp_path / str(i))
        path = workdir / "checkpoints" / "4" / file
        if not path.stat().st_size:
            continue
        DAMAGES[damage](path)
        warnings = []
        restored = Checkpointer(workdir, keep=3, warn=warnings.append).restore_newest(state)
        assert restored.step == int(restored.state.step)
        assert_equal(restored.state.replace(step=state.step), state)
        is_found = restored.step == 2
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
    shutil.rmtree(workdir / "checkpoints" / "4" / "state")
    before = sorted(workdir.rglob("*"))
    assert Checkpointer(workdir).restore_newest(state).step == 2
    assert "step 4" in capsys.readouterr().err
    assert sorted(workdir.rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda metadata: metadata | {"train_seconds": 2.5}, 2),
        (lambda metadata: dict(reversed(metadata.items())), 4),  # The order does not matter.
    ],
)
def test_changed_metadata_are_found(workdir, state, change, step):
    path = workdir / "checkpoints" / "4" / "notes" / "metadata"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert Checkpointer(workdir).restore_newest(state).step == step


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(workdir, state):
    for step in ("2", "4"):
        shutil.rmtree(workdir / "checkpoints" / step / "state")
    for _ in range(2):
        with pytest.raises(UserError, match="has no intact checkpoint"):
            Checkpointer(workdir, keep=3).restore_newest(state)
    assert {path.name for path in (workdir / "damaged_checkpoints").iterdir()} == {"2", "4"}


def test_failed_saves_are_reported_and_keep_old_checkpoints(tmp_path, state):
    warnings = []
    checkpointer = Checkpointer(tmp_path, keep=1, warn=warnings.append)
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
    checkpointer.save(3, state, {})
    checkpointer._manager.wait_until_finished()
    # A failure in the background, which Orbax's manager would report again and again.
    full = OSError(errno.ENOSPC, "No space left on device")
    checkpointer._manager.wait_until_finished = unittest.mock.Mock(side_effect=full)
    checkpointer.save(4, state, {})
    checkpointer.close()
    assert ["(No space left on device)" in line for line in warnings] == [False, True]
    assert Checkpointer(tmp_path).restore_newest(state).step == 4
