"""Runs tests on mutants: which tests a mutant concerns, and what becomes of it.

Every mutant meets its tests in a fork of a process that has imported the libraries but nothing of
the project, on a copy of the tree. Processes that tests start run without the fault.
"""

import ast
import builtins
import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from experiments.mutations import Mutant, instrument

# A fault may cost time: this many times the CPU time of the tests, and seconds on top.
_PATIENCE = (4, 30)
# CPU seconds of a test that costs nothing to try.
_QUICK = 0.1
# A fork that waits for something for so many seconds waits forever.
_GIVE_UP_SECONDS = 900


@dataclasses.dataclass
class Case:
    """One test as it ran without a fault.

    Attributes:
        seconds: its CPU time.
        functions: the project's that it called, each as "module:name:first line".
    """

    seconds: float = 0.0
    functions: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "killed", "timed out" or "survived", and the test that failed."""

    mutant: Mutant
    fate: str
    test: str
    seconds: float


class Recorder:
    """A plugin of pytest: which functions of instrumented modules each test calls, and its time."""

    def __init__(self, known: dict[str, Case]) -> None:
        """Runs tests that are not in `known`; its other cases are kept where the test exists."""
        self.cases: dict[str, Case] = {}
        self.failed: list[str] = []
        self._known = known
        self._on_import: set[str] = set()
        builtins.note_call = self._on_import.add  # type: ignore[attr-defined]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leaves out what is known."""
        tests = {item.nodeid for item in items}
        self.cases |= {test: case for test, case in self._known.items() if test in tests}
        items[:] = [item for item in items if item.nodeid not in self._known]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any):
        """Records one test; session fixtures count for the first test that needs them."""
        called: set[str] = set()
        builtins.note_call = called.add  # type: ignore[attr-defined]
        started = time.process_time()
        outcome = yield
        # What a module calls on import concerns every test of it.
        modules = {function.split(":")[0] for function in called}
        called |= {name for name in self._on_import if name.split(":")[0] in modules}
        self.cases[item.nodeid] = Case(time.process_time() - started, sorted(called))
        builtins.note_call = self._on_import.add  # type: ignore[attr-defined]
        return outcome

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keeps failures."""
        if report.failed:
            self.failed.append(report.nodeid)


class Selector:
    """A plugin of pytest that runs given tests in a given order and keeps the first that fails."""

    def __init__(self, tests: list[str]):
        """Runs `tests`, given by node id."""
        self._ranks = {test: rank for rank, test in enumerate(tests)}
        self.killer = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Chooses and orders."""
        items[:] = [item for item in items if item.nodeid in self._ranks]
        items.sort(key=lambda item: self._ranks[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keeps the first failure."""
        if report.failed and not self.killer:
            self.killer = report.nodeid


def call_in_fork(function: Callable[[], Any], cpu_seconds: int | None = None) -> Any:
    """Returns the function's JSON result from a fork of this process.

    Raises:
        TimeoutError: if it needs more CPU time than this.
        ChildProcessError: if the fork died without a result.
    """
    with tempfile.NamedTemporaryFile("r") as file:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            if cpu_seconds:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                pathlib.Path(file.name).write_text(json.dumps(function()))
            finally:
                os._exit(0)
        code = _wait(pid, _GIVE_UP_SECONDS if cpu_seconds else 0)
        text = file.read()
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise TimeoutError
    if not text:
        raise ChildProcessError(f"a fork ended with {code}")
    return json.loads(text)


def _wait(pid: int, seconds: int) -> int:
    """Returns the exit code of a child, which is killed after so many seconds; 0 is for ever."""
    previous = signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(seconds)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run_pytest(arguments: list[str], plugin: Any) -> int:
    """Runs pytest in this process; returns its exit code."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *arguments], plugins=[plugin]))


def record_tests(
    files: Sequence[str], modules: Sequence[str], known: dict[str, Case]
) -> dict[str, Case]:
    """Runs test files without a fault; returns the cases of all their tests by node id.

    Args:
        files: paths in the current folder.
        modules: paths below cls_jax/ of those whose functions count.
        known: cases of an earlier run, which are not run again.

    Raises:
        ValueError: if a test fails.
    """

    def record() -> tuple[list[str], dict[str, Any]]:
        sources = {module: pathlib.Path("cls_jax", module).read_text() for module in modules}
        import_instead({module: instrument(module, text) for module, text in sources.items()})
        recorder = Recorder(known)
        run_pytest(list(files), recorder)
        return recorder.failed, {k: dataclasses.asdict(v) for k, v in recorder.cases.items()}

    failed, cases = call_in_fork(record)
    if failed or not cases:
        raise ValueError(f"without any fault, these tests fail: {failed}")
    return {test: Case(**case) for test, case in cases.items()}


def choose_tests(mutant: Mutant, cases: dict[str, Case], budget: float) -> list[str]:
    """The tests that may notice a mutant, in the order in which they are tried.

    They are those of the module's own file, and of every file of which one test calls the changed
    function or, for a change that runs on import, anything in the module. Not only the tests that
    call it: where JAX has traced a function before, a test seems not to call it, and others read
    tables. Tests that call the function, and any of milliseconds, come first; the quickest first.

    Args:
        mutant: the change.
        cases: all tests.
        budget: CPU seconds that the tests may take together; at least one is chosen.
    """
    own_file = f"/test_{pathlib.Path(mutant.module).stem}.py"

    def calls_it(case: Case) -> bool:
        if mutant.function is None:
            return any(name.startswith(f"{mutant.module}:") for name in case.functions)
        return f"{mutant.module}:{mutant.function}" in case.functions

    calling = {test for test, case in cases.items() if calls_it(case)}
    files = {test.split("::")[0] for test in calling}

    def rank(test: str) -> tuple[bool, float]:
        seconds = cases[test].seconds
        return test not in calling and seconds > _QUICK, seconds

    affected = [test for test in cases if own_file in test or test.split("::")[0] in files]
    affected.sort(key=rank)
    chosen, seconds = [], 0.0
    for test in affected:
        seconds += cases[test].seconds
        if chosen and seconds > budget:
            break
        chosen.append(test)
    return chosen


def run_mutant(mutant: Mutant, cases: dict[str, Case], budget: float) -> Outcome:
    """Runs the tests that a mutant concerns, for at most `budget` CPU seconds, in a fork.

    Raises:
        ValueError: if pytest ends with neither success nor failures: an error of this program.
    """
    tests = choose_tests(mutant, cases, budget)
    if not tests:
        return Outcome(mutant, "survived", "no test calls it", 0.0)

    def run() -> tuple[int, str]:
        import_instead({mutant.module: mutant.source})
        selector = Selector(tests)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        return run_pytest(["-x", *files], selector), selector.killer

    started = time.monotonic()
    factor, extra = _PATIENCE
    try:
        patience = extra + factor * int(sum(cases[test].seconds for test in tests))
        code, killer = call_in_fork(run, patience)
    except TimeoutError:
        return Outcome(mutant, "timed out", "", time.monotonic() - started)
    except ChildProcessError:
        code, killer = pytest.ExitCode.TESTS_FAILED, "the process died"
    if code > pytest.ExitCode.INTERRUPTED:
        raise ValueError(f"{mutant}: pytest ended with {code} and ran no test.")
    # It is interrupted when a module cannot be imported.
    fate = "killed" if code else "survived"
    return Outcome(mutant, fate, killer if code else "", time.monotonic() - started)


def import_instead(sources: dict[str, str | ast.Module]) -> None:
    """Makes these the sources of modules, given by path below cls_jax/, in this process."""
    paths = {
        "cls_jax." + module.removesuffix(".py").replace("/", "."): module for module in sources
    }
    assert not paths.keys() & sys.modules.keys(), paths

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            return compile(sources[paths[fullname]], self.path, "exec", dont_inherit=True)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> Any:
            if fullname not in paths:
                return None
            file = str(pathlib.Path("cls_jax", paths[fullname]).resolve())
            loader = Loader(fullname, file)
            return importlib.util.spec_from_file_location(fullname, file, loader=loader)

    sys.meta_path.insert(0, Finder())
