"""Programs in processes of their own, forked from one that has imported what they need.

Importing JAX takes seconds, and tests start a dozen of them. A fork has threads, standard streams,
an exit and a backend of JAX of its own, like any process.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from tests.conftest import ROOT

PATIENCE_S = 600  # Neighbors may be busy.
# Digits at their native size, without RandAugment, which takes seconds to compile.
TINY = ["--config.batch_size=8", "--config.mu=2", "--config.data.image_size=8"]
TINY += ["--config.data.cutout=3", "--config.data.randaugment_ops=0"]
_LAUNCHER = """
import contextlib, gc, json, os, runpy, sys, warnings
import cls_jax.photos.plan.plan, cls_jax.data.datasets, cls_jax.photos.inference.assessment
import cls_jax.training.loop, ml_collections.config_flags, sklearn.datasets
from cls_jax.models import wide_resnet
from cls_jax.parallel import distributed
from tests.core.methods.tiny_model import use_tiny_model

with contextlib.suppress(ImportError):
    import tensorflow, clu.metric_writers
distributed._HEARTBEAT_SECONDS = 20  # A test waits for a process that is lost.
# A warning that people would see in the terminal ends the program.
warnings.simplefilter("error")
for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
    warnings.simplefilter("ignore", hidden)
gc.freeze()  # Otherwise an exiting fork scans, and so copies, all modules for a second.
for line in sys.stdin:
    request = json.loads(line)
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
    elif child := os.fork():
        print(child, flush=True)
    else:
        for number, path in enumerate(request["outputs"], start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.chdir(request["cwd"])
        import jax

        jax.config.update("jax_num_cpu_devices", 1)
        if request["is_tiny"]:
            tiny = use_tiny_model()
            tiny.__enter__()
        else:
            wide_resnet._STAGES = ((32, 2),)
            jax.config.update("jax_disable_most_optimizations", False)
            del os.environ["XLA_FLAGS"]
        program, *_ = sys.argv = request["arguments"]
        sys.orig_argv = ["python", *sys.argv]
        runpy.run_path(program, run_name="__main__")
        sys.exit()
"""


class Launcher:
    """Starts processes, each with one CPU device.

    They have a `TinyNet` in place of any network, or if not `is_tiny`, a block of convolutions and
    all of XLA's optimizations, as users have.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request, default=str) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self, *arguments, program=ROOT / "main.py", cwd: pathlib.Path = ROOT, is_tiny: bool = True
    ) -> "Program":
        """Starts `python PROGRAM ARGUMENTS` in a folder."""
        self._count += 1
        outputs = self._folder / str(self._count)
        words = list(map(str, [program, *arguments]))
        return Program(self, outputs, arguments=words, cwd=cwd, is_tiny=is_tiny)

    def close(self) -> None:
        self._process.communicate()


class Program:
    """A process."""

    def __init__(self, launcher: Launcher, outputs: pathlib.Path, **request):
        self._launcher, self._code = launcher, None
        self._outputs = [outputs.with_suffix(".out"), outputs.with_suffix(".err")]
        self.pid = launcher.ask(outputs=self._outputs, **request)

    def read(self) -> str:
        """What the process has printed so far."""
        path = self._outputs[0]  # Which the process creates itself.
        return path.read_text() if path.exists() else ""

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        if self._code is None:
            self._code = self._launcher.ask(poll=self.pid)
        return self._code

    def finish(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a process that ends by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            raise TimeoutError("A process did not end.")
        return self._code, *(path.read_text() for path in self._outputs)

    def wait_until(self, condition) -> None:
        """Returns once a condition holds that the process brings about."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            assert self.poll() is None, self.finish()
            time.sleep(0.1)

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)
