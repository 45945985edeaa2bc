"""Untrusted files: bounded, checked, and only displayed."""

import concurrent.futures
import json
import os

import pytest

from cls_jax.config import read_config
from cls_jax.errors import UserError
from cls_jax.io import (
    describe_error,
    make_printable,
    open_regular,
    read_bytes,
    read_json,
    write_atomically,
)
from cls_jax.process import exit_with_error
from cls_jax.runs.folder import read_dataset_description, read_mean_and_std, read_result

DEEP = "[" * 100_000
DATASET = {"class_names": ["a", "b"], "image_shape": [8, 8, 3], "num_images": 4}
DATASET |= {"mean": [0.5] * 3, "std": [0.2] * 3, "fingerprint": ""}


def test_pipes_folders_large_and_deep_files_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match=r"regular file|directory"):
            open_regular(path)
    path = tmp_path / "a.json"
    path.write_text(DEEP)
    with pytest.raises(ValueError, match="deeply"):
        read_json(path)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_bytes(path, 10)


def test_the_reason_why_a_file_cannot_be_read_does_not_name_it_again(tmp_path):
    with pytest.raises(OSError, match="nothing") as caught:
        open_regular(tmp_path / "nothing")
    assert describe_error(caught.value) == "No such file or directory"


def test_terminal_only_shows_names(capsys):
    name = "a\x1b[2J\r\nb\u2028\u202e\udcff 猫 Größe"
    assert make_printable(name) == r"a\x1b[2J\r\nb\u2028\u202e\udcff 猫 Größe"
    with pytest.raises(SystemExit):
        exit_with_error(f"{name} is not a folder.")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == r"Error: a\x1b[2J\r\nb\u2028\u202e\udcff 猫 Größe is not a folder."


@pytest.mark.parametrize(
    ("read", "change"),
    [
        *((read_dataset_description, {"class_names": names}) for names in ("ab", [1, 2], [])),
        *((read_dataset_description, {"image_shape": shape}) for shape in ([2**40, 8, 3], [8, 8])),
        (read_dataset_description, {"num_images": -1}),
        *((read_mean_and_std, {"std": std}) for std in ([0.2] * 2, [0.2, 0.0, 0.2])),
        (read_mean_and_std, {"mean": [1e400] * 3}),
    ],
)
def test_description_of_impossible_images_is_refused(tmp_path, read, change):
    (tmp_path / "dataset.json").write_text(json.dumps(DATASET | change))
    with pytest.raises(UserError, match="does not describe the run's dataset"):
        read(tmp_path)


DAMAGED = ["[]", "", '{"step": 1, "test_accuracy": "x"}', DEEP, '{"num_labels": 1e400}', "\udcff"]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_file_of_a_run_names_the_remedy(tmp_path, text):
    for name in ("result.json", "config.json"):
        (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match="delete it and rerun the command that trained"):
        read_result(tmp_path)
    with pytest.raises(UserError, match=r"cannot read .*use the version that wrote it"):
        read_config(tmp_path / "config.json")


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path):
    path, texts = tmp_path / "file.json", [str(i) * 1000 for i in range(2)]

    def write(text):
        for _ in range(50):
            write_atomically(path, text)
            assert path.read_text() in texts

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(write, texts))
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]
