"""Several real processes on this machine train one run together."""

import os
import re
import signal
import socket
import sqlite3

import numpy as np
import pytest

from cls_jax.config import read_config
from cls_jax.errors import UserError
from cls_jax.io import read_json
from cls_jax.parallel.distributed import check_values, has_scheduler, initialize_distributed
from cls_jax.photos.inference.assessment import evaluate_run
from cls_jax.photos.inference.calibration import CALIBRATION
from cls_jax.photos.inference.unknown import UNKNOWN
from cls_jax.runs.folder import CONFIG, read_result
from cls_jax.runs.metrics import read_metrics
from tests.conftest import ROOT, train_interrupted
from tests.photos.helpers import write_images
from tests.processes import TINY

pytestmark = pytest.mark.usefixtures("tiny_model")  # As the processes have it.

_SHARED = ["--config.data.pipeline=device", "--config.log_every=1"]
_SHARED += ["--config.mesh.network=1", "--config.mesh.data=2"]


def find_address() -> str:
    """A free address for the coordinator."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


@pytest.fixture
def start_all(start_program):
    """Starts the processes of one run, each with its --workdir and one CPU device."""

    def start_all(workdirs, *options, method="cls", program=ROOT / "main.py"):
        run = [f"--config=configs/digits.py:20,{method}", *TINY, *_SHARED, *options]
        run += [f"--coordinator_address={find_address()}", f"--num_processes={len(workdirs)}"]
        return [
            start_program(*run, f"--workdir={workdir}", f"--process_id={i}", program=program)
            for i, workdir in enumerate(workdirs)
        ]

    return start_all


SLURM_STEP = ["SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"]


def finish(process) -> tuple[int, str]:
    """Exit code and output of a process that has to end by itself."""
    code, output, error = process.finish()
    return code, output + error


def finish_all(processes, expected=0) -> list[str]:
    """The outputs of processes that all have to end with this exit code."""
    ends = list(map(finish, processes))
    assert {code for code, _ in ends} == {expected}, ends
    return [output for _, output in ends]


def test_two_processes_compute_what_one_does(start_all, start_program, tmp_path):
    # With a Wide ResNet and seed 0, the first gradient on two devices differs by 6e-5 from that on
    # one device, with one process as with two. With seed 1 they agree to 1e-7.
    options = ["--config.num_steps=4", "--config.seed=1", "--config.data.pipeline=tfdata"]
    options.append("--config.method.inferred=1.0")  # Neighbors and labels by both together.
    options.append("--config.data.validation=0.1")  # 134 images calibrate.
    processes = start_all([tmp_path / "two"] * 2, *options)
    output, other_output = finish_all(processes)
    assert "Test accuracy" in output
    assert "Test accuracy" not in other_output

    alone = ["--config=configs/digits.py:20", *TINY, *_SHARED, *options, "--config.mesh.data=1"]
    code, output = finish(start_program(*alone, f"--workdir={tmp_path / 'one'}"))
    assert code == 0, output
    ours, theirs = read_metrics(tmp_path / "two"), read_metrics(tmp_path / "one")
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == [0, 0, 1, 2, 3, 4]
    for a, b in zip(ours, theirs, strict=True):
        same = {"train/loss", "train/gradient_norm", "monitors/distance_ema"}
        for name in a.keys() & (same | {"test/accuracy_instant", "test/accuracy_probe"}):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, err_msg=name)
    for name in (CALIBRATION, UNKNOWN):
        ours, theirs = (read_json(tmp_path / number / name) for number in ("two", "one"))
        assert ours.keys() == theirs.keys()
        for key in {"temperature", "uniform_share", "num_images", "quantiles"} & ours.keys():
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-3, atol=1e-3, err_msg=key)
    assert len(read_result(tmp_path / "two")["per_class"]) == 10
    # Here on the four devices of this process.
    found = evaluate_run(tmp_path / "two")
    assert found.step == 4
    assert found.accuracies["test/accuracy"] == read_metrics(tmp_path / "two")[-1]["test/accuracy"]


@pytest.mark.slow
def test_a_lost_process_ends_the_other_and_the_run_resumes_in_one(start_all, tmp_path, capsys):
    options = ["--config.num_steps=1000000", "--config.checkpoint_every=10"]
    first, second = start_all([tmp_path] * 2, *options, method="supervised")  # Compiles faster.
    first.wait_until(lambda: any((tmp_path / "checkpoints").glob("*0")))
    second.kill(signal.SIGKILL)
    code, output = finish(first)
    assert code != 0
    # The runtime may notice before this project's code does.
    assert "process of this run was lost" in output or "another task died" in output

    train_interrupted(read_config(tmp_path / CONFIG), tmp_path, num_batches=2)
    start_step = int(re.search(r"from step (\d+)", capsys.readouterr().out)[1])
    assert start_step >= 10
    assert start_step % 10 == 0


@pytest.mark.slow
def test_a_process_asked_to_stop_stops_the_other_and_both_save_one_step(start_all, tmp_path):
    options = ["--config.num_steps=2000", "--config.checkpoint_every=1000"]
    options += ["--config.mesh.network=2", "--config.mesh.data=1"]
    first, second = start_all([tmp_path] * 2, *options)
    first.wait_until(lambda: read_metrics(tmp_path))
    second.kill(signal.SIGTERM)
    output, _ = finish_all([first, second], 143)
    (step,) = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()]
    assert f"Stopped before step {step}, and the newest checkpoint is from step {step}" in output


def test_processes_of_different_runs_are_refused(start_all, tmp_path):
    for output in finish_all(start_all([tmp_path / "a", tmp_path / "b"]), 2):
        assert "differ from process 0 in config or --workdir" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("differs", ["images", "labels"])
def test_processes_with_other_data_under_one_path_end_before_features(
    differs, start_program, tmp_path
):
    processes, address = [], find_address()
    for i in range(2):
        count = 3 + i * (differs == "images")
        counts = {"labeled/a": count, "labeled/b": count}
        photos = write_images(tmp_path / f"host{i}" / "photos", counts, (8, 8))
        if differs == "labels":
            table = "file,label\nlabeled/a/0.png,a\nlabeled/b/0.png,b\nlabeled/b/1.png,"
            (photos / "labels.csv").write_text(table + "ba"[i])
        config = f"--config={ROOT}/configs/folder.py:photos,supervised"
        options = [config, *TINY, "--config.data.channels=1", "--config.data.pipeline=device"]
        options += [f"--coordinator_address={address}", "--num_processes=2", f"--process_id={i}"]
        options.append(f"--workdir={tmp_path / 'run'}")
        processes.append(start_program(*options, cwd=tmp_path / f"host{i}"))
    for output in finish_all(processes, 2):
        assert "Processes [1] see other images or labels than process 0" in output
    assert not (tmp_path / "run").exists()


PREPARATION = """
import os, pathlib, sys
import numpy as np
from cls_jax.parallel.distributed import barrier, from_all_processes, initialize_distributed

address, rank, root = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
initialize_distributed(address, 4, rank)
from cls_jax.photos.plan.rules import create_folder_config
from cls_jax.photos.images import files
from cls_jax.photos.folder import dataset as folder

decoded, listed, decode, list_images = [], [], files.decode_image, folder.list_images
files.decode_image = lambda *args: decoded.append(1) or decode(*args)
folder.list_images = lambda *args: listed.append(1) or list_images(*args)
config, names = create_folder_config("photos", "cls"), None
config.data.image_size = 8
for home, num_later in (("shared", 0), (str(rank), 150)):
    os.environ["XDG_CACHE_HOME"] = str(root / home)
    dataset = folder.load_folder(config.data)
    assert from_all_processes(len(decoded)) == [50, 50, 50, 51]
    assert dataset.skipped_files == (("unlabeled/bad.png", "not an image of a known format"),)
    barrier("decoded")
    decoded.clear()
    paths = [pathlib.Path("photos", name) for name in dataset.train.files]
    images = [decode(path.open("rb"), (8, 8, 3)) for path in paths]
    np.testing.assert_array_equal(dataset.train.images[:], images)
    assert len(decoded) == num_later
    decoded.clear()
assert from_all_processes(len(listed)) == [2, 0, 0, 0]
"""


@pytest.mark.slow
def test_four_processes_list_once_and_decode_a_quarter_each(start_program, tmp_path):
    address, counts = find_address(), {"labeled/a": 10, "labeled/b": 10, "unlabeled": 180}
    write_images(tmp_path / "photos", counts)
    (tmp_path / "photos/unlabeled/bad.png").write_text("no image")
    (program := tmp_path / "program.py").write_text(PREPARATION)
    options = {"program": program, "cwd": tmp_path}
    finish_all([start_program(address, rank, tmp_path, **options) for rank in range(4)])
    for home in ("shared", *"0123"):
        with sqlite3.connect(tmp_path / home / "cls_jax/store/rows-1.sqlite") as db:
            assert db.execute("SELECT count(*) FROM rows").fetchone() == (200,)
        db.close()


SLOW_START = """
import pathlib, runpy, sys, time
from cls_jax.photos.start import stages

def compute_features(*args, **kwargs):
    pathlib.Path({folder!r}, sys.argv[-1].lstrip("-")).touch()
    time.sleep(3000)

stages.init_state_with_heads = compute_features
runpy.run_path("main.py", run_name="__main__")
"""


@pytest.mark.slow
def test_a_process_asked_to_stop_while_it_prepares_ends_all(start_all, tmp_path):
    (program := tmp_path / "program.py").write_text(SLOW_START.format(folder=str(tmp_path)))
    processes = start_all([tmp_path / "run"] * 2, method="supervised", program=program)
    for process in processes:
        process.wait_until(lambda: len(list(tmp_path.glob("process_id=*"))) == 2)
    processes[1].kill(signal.SIGTERM)
    for output in finish_all(processes, 143):
        assert "Stopped before the first step" in output


CHECKPOINTS = """
import os, pathlib, resource, sys, time
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from cls_jax.parallel.distributed import all_processes, initialize_distributed

address, rank, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
initialize_distributed(address, 2, rank)
from cls_jax.errors import UserError
from cls_jax.runs.checkpoint import Checkpointer

mesh = jax.make_mesh((2,), ("network",))
shardings = {"split": NamedSharding(mesh, P("network")), "whole": NamedSharding(mesh, P())}

def make(step):
    values = step + np.arange(6, dtype=np.float32).reshape(2, 3)
    return {
        name: jax.make_array_from_callback((2, 3), sharding, lambda index: values[index])
        for name, sharding in shardings.items()
    }

def check(restored, step):
    found, state, _ = restored
    assert found == step, found
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(make(step))):
        assert ours.sharding == theirs.sharding
        np.testing.assert_array_equal(ours.addressable_data(0), theirs.addressable_data(0))

checkpointer, states = Checkpointer(folder, keep=3), {step: make(step) for step in (1, 2)}
with jax.transfer_guard("disallow"):
    for step, state in states.items():
        checkpointer.save(step, state, {})
    checkpointer.finish()
    assert all_processes(True) and not all_processes(rank == 0)
    # Two folders are written at the same time, and one process is late.
    both = [Checkpointer(folder, keep=1, folder=name) for name in ("one", "other")]
    for step in range(1, 6):
        for written in both:
            written.save(step, states[1], {})
            time.sleep(rank * 0.1)
    for written in both:
        written.finish(5)
if rank == 1:  # A network file system may show it an older state of the folder.
    list_folder = pathlib.Path.iterdir
    pathlib.Path.iterdir = lambda path: [] if path == checkpointer.folder else list_folder(path)
check(checkpointer.restore_newest(make(0)), 2)
if rank == 0:
    for path in (checkpointer.folder / "2" / "state").rglob("d/*"):
        path.write_bytes(b"")
check(checkpointer.restore_newest(make(0)), 1)
if rank == 1:  # It has no file descriptors left.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
try:
    raise AssertionError(checkpointer.restore_newest(make(0)))
except UserError as error:
    assert "Too many open files" in str(error), error
"""


@pytest.mark.slow
def test_processes_agree_on_checkpoints_and_verify_them(start_program, tmp_path):
    program, address, run = tmp_path / "program.py", find_address(), tmp_path / "run"
    program.write_text(CHECKPOINTS)
    finish_all([start_program(address, rank, run, program=program) for rank in range(2)])
    assert [path.name for path in (run / "damaged_checkpoints").iterdir()] == ["2"]


FULL_DISK = """
import runpy, sys
from cls_jax.runs.metrics import MetricsWriter

flush, returned = MetricsWriter.flush, []

def flush_later(writer):
    waits = not returned and "--process_id=0" in sys.argv
    returned.append(flush(writer) and not waits)
    return returned[-1]

MetricsWriter.flush = flush_later
runpy.run_path("main.py", run_name="__main__")
"""


@pytest.mark.slow
def test_processes_skip_a_save_together_while_rows_wait_for_disk_space(start_all, tmp_path):
    (program := tmp_path / "program.py").write_text(FULL_DISK)
    options = ["--config.num_steps=4", "--config.checkpoint_every=2", "--config.eval_every=100"]
    run = tmp_path / "run"
    finish_all(start_all([run] * 2, *options, method="supervised", program=program))
    assert [path.name for path in (run / "checkpoints").iterdir() if path.is_dir()] == ["4"]


LITTLE_MEMORY = """
import runpy, sys
from cls_jax.training import step

asked = []

def get_device_memory(device):
    asked.append(device)
    return 0 if "--process_id=1" in sys.argv and len(asked) == {refused} else 2**40

step.get_device_memory = get_device_memory
runpy.run_path("main.py", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("refused", "what"), [(1, "Evaluating 450 images at once"), (2, "A step")])
def test_a_process_whose_device_is_too_small_ends_both_with_its_sentence(
    start_all, tmp_path, refused, what
):
    (program := tmp_path / "program.py").write_text(LITTLE_MEMORY.format(refused=refused))
    run = tmp_path / "run"
    for output in finish_all(start_all([run] * 2, method="supervised", program=program), 2):
        assert f"Error: {what} needs" in output
        assert "which has 0.0 GiB: " in output
    assert not (run / CONFIG).exists()  # It was no run yet.


def test_invalid_values_are_refused():
    check_values("[::1]:1234", 2, 1)  # Raises nothing.
    for values, message in ((("a:1", None, 0), "together"), (("localhost", 2, 0), "host:port")):
        with pytest.raises(UserError, match=message):
            initialize_distributed(*values)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        (dict.fromkeys(SLURM_STEP, "4"), True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # A notebook in a pod.
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
    ],
)
def test_a_scheduler_is_recognized(monkeypatch, variables, expected):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "JOB_COMPLETION")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_scheduler() == expected
