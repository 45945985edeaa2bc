"""Four virtual CPU devices for every test, and configurations small enough for seconds."""

import importlib.metadata
import os
import pathlib

import platformdirs

# Tests start dozens of processes. Without bytecode each would compile the sources of JAX and
# TensorFlow again, which takes up to 20 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Before JAX is imported anywhere. Tests of one device ask for a mesh of one.
os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time of the tests is compilation, which takes a fifth of the CPU time like this: a
# step of FixMatch 0.6 s instead of 3.0. The programs compute the same. One mode for all: tests
# compare runs bit by bit, among them runs that several files share.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # Later ones abort on it.
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# Where in the sources each operation stands is not looked at: lowering takes a tenth less time.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
# Tests compile the same few programs again and again. What is kept for the next time, and for other
# clones, is keyed by program, options and versions.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(platformdirs.user_cache_path("cls_jax-tests"))
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# A worker may look up a program while another one is writing it: JAX warns and compiles it again.
# pyproject.toml says the same for the tests themselves.
os.environ["PYTHONWARNINGS"] = "ignore:Error reading persistent compilation cache entry"
# Threads of linear algebra mostly wait for each other, see `process.share_cores`: half of the CPU
# time of tests that fit classifiers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import collections
import contextlib
import functools
import gc
import importlib.util
import itertools
import shutil
from collections.abc import Callable

import filelock
import jax
import numpy as np
import pytest

from cls_jax.batch import DatasetSpec, RawBatch
from cls_jax.models import wide_resnet
from cls_jax.runs.folder import RESULT

# Of what `create_tiny_config` asks for.
DATASET_SPEC = DatasetSpec(image_shape=(8, 8, 1), num_classes=10, num_images=1347)
ROOT = pathlib.Path(__file__).parent.parent
PROGRAMS = platformdirs.user_cache_path("cls_jax-tests")
_ALL_STAGES = wide_resnet._STAGES
# The first needs half the time of the others, which also draw a window that nobody sees.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), "")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long begin first, so that no worker is alone with one at the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        counts = collections.Counter(item.path for item in items)
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (item.path not in slow, -counts[item.path]))


def pytest_collection_finish() -> None:
    """Modules imported by now stay, so garbage collections in tests need not look at them.

    Collections are rare: JAX makes many objects while it traces, and few of them are in cycles.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_sessionfinish() -> None:
    """Deletes the programs that have not been used for the longest time, beyond 300 MB."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        stats = {path: path.stat() for path in PROGRAMS.glob("*")}
        newest = sorted(stats, key=lambda path: stats[path].st_atime, reverse=True)
        sizes = itertools.accumulate(stats[path].st_size for path in newest)
        for path, size in zip(newest, sizes, strict=True):
            if size > 300e6:
                path.unlink()


def load_config(name: str, argument: str):
    """Builds configs/<name>.py as the command line does."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument)


def create_tiny_config(argument: str = "20", **changes):
    """Digits at their native 8 x 8 pixels with a tiny network on one device: steps of milliseconds.

    Changes are given by key with "__" for ".", as in method__tau=0.5.
    """
    config = load_config("digits", argument)
    config.num_steps, config.batch_size, config.mu = 6, 8, 2
    config.log_every, config.eval_every, config.checkpoint_every = 1, 3, 2
    config.data.image_size, config.data.cutout = 8, 3
    config.data.randaugment_ops = 0  # Building or compiling them takes longer than the steps.
    config.mesh.network = config.mesh.data = 1
    for key, value in changes.items():
        *parents, leaf = key.split("__")
        functools.reduce(getattr, parents, config)[leaf] = value
    return config


def create_raw_batch(config, num_views: int = 2, seed: int = 0, channels: int = 1) -> RawBatch:
    """Random images and labels of a configuration's sizes. Some unlabeled truths are unknown."""
    rng = np.random.default_rng(seed)
    size, b, u = config.data.image_size, config.batch_size, config.batch_size * config.mu
    return RawBatch(
        x=rng.integers(0, 256, (b, size, size, channels), dtype=np.uint8),
        y=rng.integers(0, 10, b).astype(np.int32),
        u=rng.integers(0, 256, (num_views, u, size, size, channels), dtype=np.uint8),
        u_index=np.arange(u, dtype=np.int32),
        u_truth=rng.integers(-1, 10, u).astype(np.int32),
    )


def _die() -> None:
    raise KeyboardInterrupt


def train_interrupted(
    config, workdir, num_batches: int, interrupt: Callable = _die, train: Callable | None = None
) -> None:
    """Trains until the input stream has given `num_batches`, then interrupts the run.

    By default as if the process had died; where `interrupt` returns, the stream continues. `train`
    is `run_training` unless it is given.
    """
    from cls_jax.training import loop

    train = train or loop.run_training
    create_pipeline = loop.create_pipeline

    def create_broken_pipeline(*args):
        def break_off(inputs):
            for i, step_input in enumerate(inputs):
                if i == num_batches:
                    interrupt()
                yield step_input

        inputs, *rest = create_pipeline(*args)
        return break_off(inputs), *rest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_pipeline", create_broken_pipeline)
        if interrupt is not _die:
            train(config, workdir)
            return
        with pytest.raises(KeyboardInterrupt):
            train(config, workdir)


def one_of(first, *others) -> list:
    """Cases of which `make test` checks the first, and `make test-slow` the others."""
    values = [other if isinstance(other, tuple) else (other,) for other in others]
    return [first, *(pytest.param(*each, marks=pytest.mark.slow) for each in values)]


@contextlib.contextmanager
def note_compilations(name: str):
    """Gives a list that grows with each compilation of a function whose name contains this one."""
    compiled = []

    def note(event: str, duration: float, fun_name: str = "", **_):
        if event.endswith("backend_compile_duration") and name in fun_name:
            compiled.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture(scope="session", autouse=True)
def one_block():
    """Wide ResNets have one block: most of the time of the tests would be their compilation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_resnet, "_STAGES", ((32, 2),))
        yield


@pytest.fixture(scope="module")
def whole_networks(one_block):
    """Wide ResNets have all their blocks: for tests of the networks themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide_resnet, "_STAGES", _ALL_STAGES)
        yield


@pytest.fixture(scope="module")
def tiny_model():
    """All runs of a file have a `TinyNet`."""
    from tests.core.methods.tiny_model import use_tiny_model

    with use_tiny_model():
        yield


@pytest.fixture(scope="session")
def trained_run(one_block, tmp_path_factory):
    """The folder of a short run of CLS on digits of 8 x 8 pixels. Not to be changed."""
    root = tmp_path_factory.getbasetemp()
    # The first worker to come trains it for all. Each has a copy of its own.
    shared = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "trained"
    with filelock.FileLock(f"{shared}.lock"):
        if not (shared / RESULT).exists():
            from cls_jax.training.loop import run_training

            run_training(create_tiny_config(), shared)
    return shutil.copytree(shared, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def start_program(tmp_path_factory):
    """Starts main.py, or another program, in a process of its own: `Launcher.start`."""
    from tests.processes import Launcher

    launcher = Launcher(tmp_path_factory.mktemp("processes"))
    yield launcher.start
    launcher.close()
