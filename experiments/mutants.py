"""Mutation testing: how many small faults in the code do the tests notice?

python -m experiments.mutants [--count 172] [--seed 0] [--only methods/uda] [--again FILE]

First all tests of `SUITE` run once, without a fault: that gives the CPU time of each and the
functions that it calls. Then every mutant, a module with one small change, meets the tests that may
notice it (`choose_tests`) until one fails. A mutant that passes `--budget` CPU seconds of tests has
survived. Mutants are drawn at random, the same for the same seed, evenly from the modules of
`GROUPS`. Survivors are to be killed by a better test or explained: some change nothing that can be
observed.

Every mutant runs in a fork of a process that has imported the libraries but nothing of the project,
on a copy of the tree; processes that tests start run without the fault.
"""

import argparse
import collections
import dataclasses
import importlib
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile

from experiments.mutant_tests import Case, Outcome, record_tests, run_mutant
from experiments.mutations import Mutant, draw_mutants

ROOT = pathlib.Path(__file__).parent.parent

# Group → its modules below cls_jax/.
GROUPS = {
    "methods": [
        *(f"methods/{name}.py" for name in ("adamatch", "alignment", "cls", "cls_exchange")),
        *(f"methods/{name}.py" for name in ("cls_switches", "consistency", "cutmix", "flexmatch")),
        *(f"methods/{name}.py" for name in ("freematch", "infomatch", "losses", "mixmatch")),
        *(f"methods/{name}.py" for name in ("mixup", "pseudo_label", "pseudo_labels")),
        *(f"methods/{name}.py" for name in ("remixmatch", "self_adaptive", "softmatch")),
        *(f"methods/{name}.py" for name in ("supervised", "trunk", "uda", "ups", "ups_selection")),
    ],
    "schedules": ["methods/schedules.py", "training/optimizer.py"],
    "step": ["training/step.py", "training/state.py", "training/rounds.py"],
    "progress": ["training/progress.py", "training/loop.py"],
    "evaluation": ["training/evaluate.py"],
    "models": ["models/batch_norm.py", "models/ensemble.py", "models/layer_order.py"],
    "augmentation": [
        *(f"data/augment/{name}.py" for name in ("randaugment", "views", "jax_augment")),
    ],
    "label split": ["data/label_split.py"],
    "sampling": ["data/sampling.py", "data/pipelines/device.py"],
    "run folder": ["runs/folder.py", "runs/result.py"],
    "checkpoints": ["runs/checkpoint.py"],
}

# Tests that mutants meet: those of these modules, without whole programs for every method.
SUITE = (
    *(f"tests/methods/test_{name}.py" for name in ("alignment", "cls_switches", "cutmix")),
    *(f"tests/methods/test_{name}.py" for name in ("losses", "mixing", "oracles")),
    *(f"tests/methods/test_{name}.py" for name in ("pseudo_labels", "registry", "rules")),
    *(f"tests/methods/test_{name}.py" for name in ("schedules", "ups", "weak_pass")),
    *("tests/data/augment/test_randaugment.py", "tests/data/pipelines/test_device.py"),
    *(f"tests/data/test_{name}.py" for name in ("label_split", "sampling")),
    *(f"tests/models/test_{name}.py" for name in ("batch_norm", "ensemble", "layer_order")),
    *(f"tests/runs/test_{name}.py" for name in ("checkpoint", "folder", "result")),
    "tests/test_io.py",
    *(f"tests/training/test_{name}.py" for name in ("evaluate", "loop", "not_finite", "optimizer")),
    *(f"tests/training/test_{name}.py" for name in ("pretrained", "progress", "state", "step")),
)

# Imported before the first fork; nothing is run with them: that would not survive one.
_LIBRARIES = (
    *("jax", "flax.linen", "optax", "orbax.checkpoint", "scipy.stats", "PIL.Image"),
    *("sklearn.datasets", "clu.metric_writers", "tensorflow"),
)
_COPIED = ("cls_jax", "configs", "experiments", "tests", "docs")


def describe(outcomes: list[Outcome]) -> str:
    """Counts by group as a Markdown table, then the survivors."""
    groups = {module: group for group, modules in GROUPS.items() for module in modules}
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        counts[groups[outcome.mutant.module]][outcome.fate] += 1
        counts["all"][outcome.fate] += 1
    lines = ["| group | mutants | killed | timed out | survived |", "|---|---|---|---|---|"]
    for group in [*GROUPS, "all"]:
        counter = counts[group]
        numbers = [counter.total(), *(counter[x] for x in ("killed", "timed out", "survived"))]
        lines.append(f"| {group} | {' | '.join(map(str, numbers))} |")
    survivors = [f"- {x.mutant} {x.test}" for x in outcomes if x.fate == "survived"]
    return "\n".join([*lines, "", "Survivors:", "", *(survivors or ["none"])]) + "\n"


def choose_mutants(arguments: argparse.Namespace) -> list[Mutant]:
    """The mutants that the command line asks for."""
    modules = [module for modules in GROUPS.values() for module in modules]
    sources = {module: (ROOT / "cls_jax" / module).read_text() for module in modules}
    mutants = draw_mutants(sources, arguments.count, arguments.seed)
    if arguments.again:
        rows = map(json.loads, pathlib.Path(arguments.again).read_text().splitlines())
        survivors = {row["mutant"] for row in rows if row["fate"] == "survived"}
        mutants = [mutant for mutant in mutants if str(mutant) in survivors]
    return [mutant for mutant in mutants if arguments.only in str(mutant)]


def prepare_process(folder: pathlib.Path) -> None:
    """Copies the tree to `folder` and makes it this process's; imports the libraries."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache")
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in ROOT.glob("*"):
        if path.is_file():
            shutil.copy(path, folder)
    os.chdir(folder)
    sys.dont_write_bytecode = False  # Forks read what the first has compiled.
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    sys.modules["experiments"].__path__[:] = [str(folder / "experiments")]
    # Even the smallest of the programs that mutants share are compiled once only.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    # What the tests set before they import JAX.
    spec = importlib.util.spec_from_file_location("mutants_conftest", "tests/conftest.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    for library in _LIBRARIES:
        importlib.import_module(library)


def record_suite(memory: pathlib.Path | None) -> dict[str, Case]:
    """The cases of `SUITE`; those of tests that `memory` knows are read from it."""
    known: dict[str, Case] = {}
    if memory and memory.exists():
        known = {test: Case(**case) for test, case in json.loads(memory.read_text()).items()}
    modules = [module for modules in GROUPS.values() for module in modules]
    cases = record_tests(SUITE, modules, known)
    if memory:
        memory.write_text(json.dumps(cases, default=dataclasses.asdict))
    return cases


def main() -> None:
    """Runs the mutants and prints the table; a log of JSON lines grows meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=172, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", default="", help="of these, those whose description has this")
    parser.add_argument("--again", default="", help="a log: of these, its survivors")
    parser.add_argument("--budget", type=float, default=40, help="CPU seconds of tests per mutant")
    parser.add_argument("--log", default="runs/mutants.jsonl", help="a row for each mutant")
    parser.add_argument("--memory", type=pathlib.Path, help="a file that remembers what tests call")
    arguments = parser.parse_args()
    mutants = choose_mutants(arguments)
    log = pathlib.Path(arguments.log).resolve()
    memory = arguments.memory and arguments.memory.resolve()
    log.parent.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, log.open("w") as file:
        prepare_process(pathlib.Path(folder))
        cases = record_suite(memory)
        print(f"{len(cases)} tests in {sum(case.seconds for case in cases.values()):.0f} s")
        for mutant in mutants:
            outcome = run_mutant(mutant, cases, arguments.budget)
            outcomes.append(outcome)
            row = {"mutant": str(mutant), "fate": outcome.fate, "test": outcome.test}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{outcome.seconds:5.1f} s {outcome.fate}: {mutant} {outcome.test}", flush=True)
    print(describe(outcomes))


if __name__ == "__main__":
    main()
