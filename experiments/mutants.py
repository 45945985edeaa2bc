"""Mutation testing: how many small faults in the code do the tests notice?

python -m experiments.mutants [--count 200] [--rooms methods,training] [--seed 0]

A mutant is the project with one operator, comparison, constant or call changed. Each runs the tests
of its module; one that they pass has survived. Mutants are drawn at random, the same for the same
seed, evenly from the modules of `TARGETS`. Survivors are listed, to be killed by a better test or
explained: some change nothing that can be observed.

Every mutant runs in a fork of a process that has imported the libraries but nothing of the project,
on a copy of the tree.
"""

import argparse
import ast
import collections
import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
TIMEOUT_SECONDS = 400

# Losses and states of every method against their oracles: seconds, without compiling a network.
_METHODS = (
    "tests/methods/test_oracles.py tests/methods/test_rules.py tests/methods/test_cls_switches.py "
    "tests/methods/test_alignment.py tests/methods/test_mixing.py tests/methods/test_schedules.py "
    "tests/methods/test_registry.py"
)

# Module → the tests that must notice a fault in it, the quickest first.
TARGETS = {
    "methods/losses.py": f"tests/methods/test_losses.py {_METHODS}",
    "methods/pseudo_labels.py": f"tests/methods/test_pseudo_labels.py {_METHODS}",
    "methods/ups_selection.py": "tests/methods/test_ups.py",
    **{
        f"methods/{name}.py": _METHODS
        for name in (
            *("schedules", "mixup", "cutmix", "alignment", "trunk", "cls", "cls_exchange"),
            *("cls_switches", "consistency", "mixmatch", "pseudo_label", "remixmatch"),
            *("supervised", "uda", "ups", "adamatch", "flexmatch", "freematch", "infomatch"),
            *("self_adaptive", "softmatch"),
        )
    },
    "training/step.py": "tests/training/test_step.py tests/training/test_loop.py",
    "training/optimizer.py": "tests/training/test_optimizer.py",
    "training/state.py": "tests/training/test_state.py tests/training/test_step.py",
    "training/evaluate.py": "tests/training/test_evaluate.py",
    "models/batch_norm.py": "tests/models/test_batch_norm.py",
    "models/layer_order.py": "tests/models/test_layer_order.py",
    "models/ensemble.py": "tests/models/test_ensemble.py tests/training/test_step.py",
    "data/sampling.py": "tests/data/test_sampling.py",
    "data/label_split.py": "tests/data/test_label_split.py",
    "data/augment/randaugment.py": "tests/data/augment",
    "data/augment/views.py": "tests/data/augment",
    "data/augment/jax_augment.py": "tests/data/augment",
    "data/pipelines/device.py": "tests/data/pipelines tests/data/test_sampling.py",
    "runs/folder.py": "tests/runs/test_folder.py tests/training/test_loop.py",
    "runs/checkpoint.py": "tests/runs/test_checkpoint.py",
    "runs/checksum.py": "tests/runs/test_checkpoint.py",
    "runs/result.py": "tests/training/test_loop.py",
}

_OPERATORS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
    **{ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: path below cls_jax/.
        line: where, from 1.
        before: the changed expression.
        after: what it becomes.
        source: the whole module with the change.
    """

    module: str
    line: int
    before: str
    after: str
    source: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        """One line for the list of survivors."""
        return f"cls_jax/{self.module}:{self.line}: `{self.before}` → `{self.after}`"


def iterate_mutants(module: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines.

    Left alone: docstrings and messages (strings), annotations, decorators and imports.
    """
    tree = ast.parse(source)
    skipped = {id(node) for root in _find_skipped(tree) for node in ast.walk(root)}
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    encoded = source.encode()
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[node.end_lineno - 1] + node.end_col_offset
        before = encoded[first:last].decode()
        for mutated in _mutate(node):
            after = f"({ast.unparse(mutated)})"
            changed = (encoded[:first] + after.encode() + encoded[last:]).decode()
            yield Mutant(module, node.lineno, " ".join(before.split()), after[1:-1], changed)


def _find_skipped(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Hyperparameter":
            yield from node.args[1:]  # Bounds: a wider or narrower one changes no result.
        elif isinstance(node, ast.FunctionDef):
            yield from node.decorator_list
            if node.returns is not None:
                yield node.returns
        elif isinstance(node, ast.ClassDef):
            yield from node.decorator_list


def _mutate(node: ast.AST) -> Iterator[ast.AST]:
    """The changed versions of one expression."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        yield _copy(node, op=_OPERATORS[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        yield _copy(node, ops=[_OPERATORS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield _copy(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif _is_call(node, "stop_gradient") or _is_call(node, "pmean") or _is_call(node, "psum"):
        yield node.args[0]


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", None) == name


def _copy(node: ast.AST, **changes) -> ast.AST:
    fields = {name: getattr(node, name) for name in node._fields}
    return type(node)(**fields | changes)


def draw_mutants(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Draws mutants evenly from the modules of the rooms: the same for the same seed."""
    rng = random.Random(seed)
    queues = []
    for module in TARGETS:
        if rooms and not module.startswith(tuple(f"{room}/" for room in rooms)):
            continue
        mutants = list(iterate_mutants(module, (ROOT / "cls_jax" / module).read_text()))
        rng.shuffle(mutants)
        queues.append(mutants)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(queues):
        drawn += [queue.pop() for queue in queues if queue]
    return drawn[:count]


def run_mutant(mutant: Mutant, folder: pathlib.Path) -> str:
    """Runs the mutant's tests on a copy of the tree: "killed", "survived" or "timed out"."""
    path = folder / "cls_jax" / mutant.module
    original = path.read_text()
    path.write_text(mutant.source)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _run_tests(folder, TARGETS[mutant.module].split())
    try:
        return _wait(pid)
    finally:
        path.write_text(original)


def _run_tests(folder: pathlib.Path, tests: list[str]) -> None:
    """Ends this process with pytest's exit code."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        pytest = importlib.import_module("pytest")
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
    finally:
        os._exit(int(code))


def _wait(pid: int) -> str:
    def expire(*_) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, expire)
    signal.alarm(TIMEOUT_SECONDS)
    try:
        _, status = os.waitpid(pid, 0)
        return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
    except TimeoutError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "timed out"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def copy_tree(folder: pathlib.Path) -> None:
    """Copies what tests need."""
    for name in ("cls_jax", "configs", "experiments", "tests", "docs"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".cache")
        )
    for path in ROOT.glob("*"):
        if path.is_file():
            shutil.copy(path, folder)


def run_all(mutants: list[Mutant], worker: int) -> list[tuple[Mutant, str]]:
    """Runs mutants one after the other, printing each; stops if the tests fail without one."""
    for library in ("jax", "flax.linen", "optax", "pytest", "orbax.checkpoint"):
        importlib.import_module(library)  # Once, and no backend: it would not survive a fork.
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy_tree(folder)
        for i, mutant in enumerate(mutants, 1):
            outcome = run_mutant(mutant, folder)
            outcomes.append((mutant, outcome))
            print(f"[{worker}] {i}/{len(mutants)} {outcome}: {mutant}", flush=True)
    return outcomes


def describe(outcomes: list[tuple[Mutant, str]]) -> str:
    """Counts by room as a Markdown table, then the survivors."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for mutant, outcome in outcomes:
        counts[mutant.module.split("/")[0]][outcome] += 1
    lines = ["| room | mutants | killed | timed out | survived |", "|---|---|---|---|---|"]
    for room, counter in sorted(counts.items()):
        numbers = [counter.total(), *(counter[x] for x in ("killed", "timed out", "survived"))]
        lines.append(f"| {room} | {' | '.join(map(str, numbers))} |")
    survivors = [f"- {mutant}" for mutant, outcome in outcomes if outcome == "survived"]
    return "\n".join([*lines, "", "Survivors:", "", *(survivors or ["none"])]) + "\n"


def main() -> None:
    """Runs the mutants in two processes and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants to run")
    parser.add_argument("--rooms", default="", help="comma-separated rooms; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--output", default="runs/mutants.md", help="the page to write")
    arguments = parser.parse_args()
    rooms = [room for room in arguments.rooms.split(",") if room]
    mutants = draw_mutants(rooms, arguments.count, arguments.seed)
    shares = [mutants[i :: arguments.jobs] for i in range(arguments.jobs)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        parts = pool.starmap(run_all, zip(shares, range(arguments.jobs), strict=True))
    page = describe([outcome for part in parts for outcome in part])
    output = pathlib.Path(arguments.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
