"""Lists the programs that code compiles, with their options and how often they run."""

import dataclasses
from typing import Any

import jax
import pytest
from jax._src import compiler, pjit
from jax._src.interpreters import pxla

from cls_jax.parallel import compilation
from cls_jax.photos.features import network


@dataclasses.dataclass
class Program:
    """A program for a device."""

    name: str  # Such as jit_train_step.
    code: int  # A hash of what is compiled.
    options: dict[str, Any]  # As given to `compiler_options`.
    executable: Any = dataclasses.field(repr=False)
    runs: int = 0

    @property
    def is_tuned(self) -> bool:
        """Whether a GPU's compiler would time kernels for it."""
        return "xla_gpu_autotune_level" not in self.options


def record_programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Makes programs believe that there is a GPU, and returns the list that they will fill.

    They run on the CPU, whose compiler accepts the options and does nothing about them. Programs
    compiled before are forgotten.
    """
    programs: list[Program] = []
    compile_program, run_program = compiler.compile_or_get_cached, pxla.ExecuteReplicated.__call__

    def compile_and_list(backend, computation, devices, options, *args, **kwargs):
        executable = compile_program(backend, computation, devices, options, *args, **kwargs)
        name = computation.operation.attributes["sym_name"].value
        given = dict(options.env_option_overrides)
        programs.append(Program(name, hash(str(computation)), given, executable))
        return executable

    def run_and_count(self, *args):
        for program in programs:
            program.runs += program.executable is self.xla_executable
        return run_program(self, *args)

    jax.clear_caches()
    network.open_network.cache_clear()  # Those that are open have programs without options.
    monkeypatch.setattr(compilation, "_get_platform", lambda: "gpu")
    compilation.choose_options(1)  # Which options XLA knows is asked before, not by two threads.
    monkeypatch.setattr(compiler, "compile_or_get_cached", compile_and_list)
    monkeypatch.setattr(pxla.ExecuteReplicated, "__call__", run_and_count)
    # Otherwise only the first run of a program would pass through Python.
    monkeypatch.setattr(pjit, "_get_fastpath_data", lambda *args, **kwargs: None)
    monkeypatch.setattr(pxla.MeshExecutable, "create_cpp_call", lambda *args: None)
    return programs
