"""Writes the page about the trainings of part B of experiments/gpu_check.sh, with their curves.

python -m experiments.paper.cifar10_page OUT... --output experiments/results/cifar10_h200.md

Each OUT is a folder that the part has written: its log, and runs in parts. Without a GPU in the log
it is a rehearsal, whose figures mean nothing, and the page says so.
"""

import argparse
import io
import json
import pathlib
import re
import statistics
import tarfile
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cls_jax.errors import UserError
from cls_jax.methods import get_method
from experiments.paper import grid
from experiments.paper.figures import create_axes
from experiments.paper.tables import TABLE_1, get_accuracy

_MONITORS = {
    "monitors/exchange_ratio": "exchanged (w ≥ τ)",
    "monitors/pseudo_label_overlap": "same pseudo-label",
    "monitors/complementary_label_overlap": "same complementary label",
    "monitors/pseudo_label_accuracy": "right pseudo-labels",
}
_PREFACE = """Accuracies in percent after the last step; nothing is selected on the test images.
The images are CIFAR-10's re-compressed as JPEG, 50,000 to train on and 8,000 to test on, so no
figure is comparable with the paper's: means of four runs of 307,200 steps on the original images.
Images computed are weak and strong views, through each network.
"""
_CARD = re.compile(r"[^,\[]+, [\d.]+, \d+ MiB, \d+ MHz")  # As nvidia-smi prints it.
_FILES = ("config.json", "metrics.jsonl", "result.json")


class TimedRun(NamedTuple):
    """A training of part B."""

    card: str  # "" without a GPU.
    config: dict[str, Any]  # By section.
    rows: list[dict[str, Any]]  # Of the metrics.
    result: dict[str, Any]

    @property
    def title(self) -> str:
        """Method, labels and seed."""
        label = TABLE_1.get(self.result["method"], self.result["method"])
        return f"{label}, {self.result['num_labels']} labels, seed {self.result['seed']}"

    @property
    def images_per_step(self) -> int:
        """Images through all networks: weak and strong views of each."""
        method = get_method(self.result["method"])
        views = 1 + self.config["mu"] * len(method.unlabeled_views)
        return int(method.num_networks * self.config["batch_size"] * views)

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Millions of images computed, and the test accuracy in percent."""
        found = [(row["step"], row["test/accuracy"]) for row in self.rows if "test/accuracy" in row]
        return [(1e-6 * self.images_per_step * step, accuracy) for step, accuracy in found]


def read_runs(out: pathlib.Path) -> list[TimedRun]:
    """The finished runs in a folder of part B. Raises a UserError if there are none."""
    log = out / "B.log"
    lines = log.read_text().splitlines() if log.exists() else []
    card = next(filter(_CARD.fullmatch, lines), "")
    runs = []
    for first in sorted(out.glob("B-*.tar.aa")):
        parts = sorted(out.glob(f"{first.stem}.*"))
        stored = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        with tarfile.open(fileobj=stored) as tar:
            files = {
                member.name.rpartition("/")[2]: tar.extractfile(member)
                for member in tar
                if member.isfile() and member.name.count("/") == 1 and member.name.endswith(_FILES)
            }
            found = {name: file.read().decode() for name, file in files.items() if file}
        if found.keys() >= set(_FILES):
            config, result = (json.loads(found[name]) for name in ("config.json", "result.json"))
            rows = [json.loads(line) for line in found["metrics.jsonl"].splitlines()]
            runs.append(TimedRun(card, config, rows, result))
    if not runs:
        raise UserError(f"{out} has no finished run of part B: its training can be resumed.")
    return runs


def describe_runs(runs: Sequence[TimedRun]) -> str:
    """The tables: results, equal numbers of images, monitors."""
    results = []
    for run in runs:
        result, seconds = run.result, run.result["train_seconds"]
        images = run.images_per_step * result["step"]
        figures = [result.get(f"test_accuracy{name}") for name in ("", "_network_2", "_ensemble")]
        shown = ["–" if value is None else f"{value:.2f}" for value in figures]
        shown += [f"{result['step']:,}", f"{seconds / 60:.1f}", f"{result['step'] / seconds:.1f}"]
        shown += [f"{images / seconds:,.0f}", f"{images / 1e6:.1f}"]
        paper = get_accuracy(result["method"], "cifar10", result["num_labels"])
        results.append([run.title, *shown, paper or "–"])
    header = ["", "network 1 (EMA)", "network 2", "ensemble", "steps", "minutes", "steps/s"]
    header += ["images/s", "million images", "the paper, 307,200 steps"]
    fewest = min(run.curve[-1][0] for run in runs)
    equal = []
    for run in runs:
        images, accuracy = max(point for point in run.curve if point[0] <= fewest * (1 + 1e-9))
        equal.append([run.title, f"{images:.1f}", f"{accuracy:.2f}"])
    monitors = [[run.title, *_average(run.rows, _MONITORS)] for run in runs]
    return "\n\n".join(
        [
            grid.format_table(header, results),
            f"With at most {fewest:.1f} million images computed, at the last evaluation before "
            "(the learning rate of a longer run is still high there):",
            grid.format_table(["", "million images", "network 1 (EMA)"], equal),
            "Means over the last tenth of the run:",
            grid.format_table(["", *_MONITORS.values()], monitors),
        ]
    )


def _average(rows: Sequence[dict[str, Any]], names: Iterable[str]) -> list[str]:
    """Means over the last tenth of the steps, "–" for what a method does not have."""
    first = 0.9 * max(row["step"] for row in rows)
    late = [row for row in rows if row["step"] >= first]
    found = ([row[name] for row in late if row.get(name) is not None] for name in names)
    return [f"{statistics.mean(values):.3f}" if values else "–" for values in found]


def draw_curves(runs: Sequence[TimedRun], path: pathlib.Path) -> None:
    """Draws the test accuracies over the number of images computed."""
    figure, (axis,) = create_axes(1)
    for run in runs:
        axis.plot(*zip(*run.curve, strict=True), label=run.title, marker=".", linewidth=1.3)
    axis.set(xlabel="million images computed", ylabel="test accuracy (%)")
    axis.legend(loc="lower right")
    figure.savefig(path)


def main() -> None:
    """Writes the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="+", type=pathlib.Path, help="a folder of part B")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the page")
    arguments = parser.parse_args()
    runs = [run for out in arguments.out for run in read_runs(out)]
    cards = sorted({run.card for run in runs})
    where = "Rehearsed without a GPU: these figures mean nothing."
    if all(cards):
        where = "; ".join(cards)
    picture = arguments.output.with_suffix(".png")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(runs, picture)
    title = "CIFAR-10 in nine minutes of a GPU"
    head = f"# {title}\n\n{where}\n\n![{title}]({picture.name})"
    grid.write_output(str(arguments.output), f"{head}\n\n{_PREFACE}\n{describe_runs(runs)}\n")


if __name__ == "__main__":
    grid.run_main(main)
