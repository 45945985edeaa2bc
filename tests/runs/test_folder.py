"""A run's folder can be created again after any interruption of its creation."""

import errno
import os
import pathlib
import sys

import numpy as np
import pytest

from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.runs.folder import (
    LABELED_INDICES,
    check_run_folder,
    create_run_folder,
    get_default_workdir,
    load_labeled_indices,
    write_labeled_indices,
)
from cls_jax.runs.sessions import LOCK, lock_run_folder
from tests.conftest import create_tiny_config

_LABELS = np.repeat(np.arange(10, dtype=np.int32), 4)
_BUDGET = np.array([0, 1, 2, 5, *range(8, 40, 2)])  # Unequal: no draw gives it.
_IMAGES = np.zeros((40, 8, 8, 1), np.uint8)
_DATASET = Dataset(
    name="tiny",
    class_names=tuple("abcdefghij"),
    train_images=_IMAGES,
    train_labels=_LABELS,
    test_images=_IMAGES[:2],
    test_labels=_LABELS[:2],
    image_shape=(8, 8, 1),
    mean=(0.5,),
    std=(0.2,),
    fingerprint="0" * 32,
    skipped_files=(("a.png", "empty"),),
)


def start_run(workdir, config):
    """What training does before its first step. Returns the labeled images."""
    check_run_folder(workdir, config)
    labeled = load_labeled_indices(workdir, _DATASET, config.num_labels, config.seed)
    with lock_run_folder(workdir):
        check_run_folder(workdir, config)
        create_run_folder(workdir, config, labeled, _DATASET)
    return labeled


class Killed(BaseException):
    """The end of the process: nothing in it may tidy up."""


@pytest.fixture(scope="module")
def interrupt():
    """Calls a function of a folder: allows so many changes there, then raises the error.

    Returns whether it came to that.
    """
    running = {}

    def listen(event, arguments):
        if not running:
            return
        is_writing = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        is_change = is_writing or event in ("os.mkdir", "os.rename")
        if is_change and str(arguments[0]).startswith(running["folder"]):
            running["left"] -= 1
            if running["left"] < 0:
                raise running["error"]

    def run(allowed, error, function, folder, *arguments):
        running.update(folder=str(folder), left=allowed, error=error)
        try:
            function(folder, *arguments)
        finally:
            left = running["left"]
            running.clear()
        return left < 0

    sys.addaudithook(listen)  # For the rest of the process.
    return run


@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("is_budget_given", [False, True])
def test_the_same_command_resumes_after_a_stop_at_any_file_operation(
    tmp_path, interrupt, error, is_budget_given
):
    config = create_tiny_config()

    def prepare(workdir):
        if is_budget_given:
            write_labeled_indices(workdir, _BUDGET, _DATASET)
        return workdir

    undisturbed = prepare(tmp_path / "undisturbed")
    expected = start_run(undisturbed, config)
    assert np.array_equal(np.sort(expected), _BUDGET) == is_budget_given
    for allowed in range(100):
        workdir = prepare(tmp_path / str(allowed))
        try:
            if not interrupt(allowed, error, start_run, workdir, config):
                break
        except (Killed, UserError):
            pass
        np.testing.assert_array_equal(start_run(workdir, config), expected)
        for file in undisturbed.iterdir():
            if file.name != LOCK:
                assert (workdir / file.name).read_bytes() == file.read_bytes()
    assert allowed >= 10  # The folder, its lock, and two operations for each of four files.


def test_an_interrupted_start_never_passes_its_labels_to_another_seed(tmp_path, interrupt):
    """Labels drawn by one seed must not look like a budget that the user supplied."""
    config, other = create_tiny_config(), create_tiny_config(seed=1)
    expected = start_run(tmp_path / "other", other)
    for allowed in range(1, 10):
        workdir = tmp_path / str(allowed)
        with pytest.raises(Killed):
            interrupt(allowed, Killed(), start_run, workdir, config)
        try:
            labeled = start_run(workdir, other)
        except UserError as refused:
            assert "another configuration (seed" in str(refused)  # noqa: PT017
        else:
            np.testing.assert_array_equal(labeled, expected)


def test_a_budget_that_was_interrupted_while_it_was_written_can_be_written_again(
    tmp_path, interrupt
):
    with pytest.raises(Killed):
        interrupt(2, Killed(), write_labeled_indices, tmp_path, _BUDGET, _DATASET)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(LABELED_INDICES)
    assert left.name.endswith(".partial")
    check_run_folder(tmp_path, create_tiny_config())


@pytest.mark.parametrize(
    ("num_labels", "num_steps", "name"),
    [
        (0, 6, "pets, all-all-cls-seed3"),
        (9, 6, "pets, all-9-cls-seed3"),
        (9, 0, "pets, all-9-instant-seed3"),
    ],
)
def test_default_folder_has_the_names_of_the_images_and_of_the_method(num_labels, num_steps, name):
    config = create_tiny_config(data__name="folder", data__data_dir="/photos/pets, all", seed=3)
    config.num_labels, config.num_steps = num_labels, num_steps
    assert get_default_workdir(config) == pathlib.Path("runs", name)
