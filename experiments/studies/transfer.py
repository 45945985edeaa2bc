"""Few labels of your own photos: from random weights, and from ImageNet weights.

python -m experiments.studies.transfer --data FOLDER --labels 250 --seeds 0 --pixels 64
python -m experiments.studies.transfer --data FOLDER --imbalance 10 \
  --rows supervised,fixmatch,freematch,published,cls,cls_plus

FOLDER is arranged as in docs/own_images.md, with a test folder. The rows of the table:

- scratch: CLS from random weights, with the default network of configs/folder.py;
- probe: the frozen pretrained network, with logistic regression on its features as its head;
- supervised, fixmatch, freematch, cls, cls_plus: the pretrained network, fine-tuned by that method,
  `cls_plus` with `lambda_cutmix=0`;
- published: likewise by CLS as in the paper.

Finished runs are skipped and interrupted ones resume; the probe has no run and takes a minute.
"""

import argparse
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.config import validate_config
from cls_jax.photos.folder.dataset import open_dataset
from cls_jax.photos.start.frozen import PHOTO_WEIGHT_READERS
from cls_jax.photos.start.stages import init_state_with_heads
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.prepare import prepare_run, resolve_model
from experiments.paper import grid

_INIT = "builtin:efficientnet_lite0"
# A run of minutes on a CPU. Running means and EMA must have forgotten their start by its end.
_SHORT = {"num_steps": 300, "batch_size": 16, "mu": 3, "ema_decay": 0.99, "model.bn_momentum": 0.99}
_SHORT |= {"log_every": 10, "eval_every": 100, "checkpoint_every": 50}
# Frozen stages save their part of the backward pass, which is large for large feature maps.
_FINE_TUNING = _SHORT | {"model.init": _INIT, "model.init_head": "probe"}
_FINE_TUNING |= {"model.bn_frozen": True}  # With batch statistics, 9 points less.
_FINE_TUNING |= {"optimizer.name": "adamw", "optimizer.learning_rate": 3e-4}
_FINE_TUNING |= {"optimizer.layer_decay": 0.9, "optimizer.warmup_steps": 20}
_FINE_TUNING |= {"optimizer.frozen_stages": 2}
_FAST = {"method.weak_pass": "fast"}  # With frozen BatchNorm the same gradients, for less.
# Running class means, too, must forget their start.
_DECAY = {"method.statistics_decay": 0.99}
PROBE = "probe"
Outcomes = dict[tuple[str, int], list[dict[str, Any]]]  # Row and budget → results.


class Row(NamedTuple):
    """A row of the table."""

    title: str  # Its first cell.
    method: str  # Empty for the probe.
    settings: dict[str, Any]  # Values by key.


ROWS = {
    "scratch": Row("CLS from random weights", "cls", _SHORT),
    PROBE: Row("linear probe", "", {"model.init": _INIT, "model.init_head": "probe"}),
    "supervised": Row("supervised fine-tuning", "supervised", _FINE_TUNING),
    "fixmatch": Row("FixMatch, fine-tuning", "fixmatch", _FINE_TUNING | _FAST),
    "freematch": Row("FreeMatch, fine-tuning", "freematch", _FINE_TUNING | _DECAY),
    "published": Row("CLS as published, fine-tuning", "cls", _FINE_TUNING | _FAST),
    "cls": Row(
        "`cls_plus` with `lambda_cutmix=0`, fine-tuning",
        "cls_plus",
        _FINE_TUNING | _DECAY | _FAST | {"method.lambda_cutmix": 0.0},
    ),
    "cls_plus": Row("`cls_plus`, fine-tuning", "cls_plus", _FINE_TUNING | _DECAY | _FAST),
}
_DEFAULT_ROWS = ("scratch", PROBE, "supervised", "fixmatch", "cls")


def create_cell(arguments: argparse.Namespace, row: str, budget: int, seed: int) -> grid.Cell:
    """One run of a row.

    Raises:
        UserError: If an option is not a key, or a value is invalid.
    """
    _, method, settings = ROWS[row]
    config = grid.load_config(arguments.config, f"{arguments.data},{method or 'supervised'}")
    sizes = {"data.image_size": arguments.pixels, "data.imbalance": arguments.imbalance}
    config.update_from_flattened_dict(settings | sizes | {"num_labels": budget, "seed": seed})
    for key, text in arguments.overrides.items():
        grid.set_value(config, key, text)
    validate_config(config)
    config = resolve_model(config)
    tail = "" if arguments.imbalance == 1 else f"-{arguments.imbalance:g}to1"
    name = f"{row}-{arguments.pixels}px-{budget}{tail}-seed{seed}"
    return grid.Cell(config, pathlib.Path(arguments.runs) / name)


def probe(cell: grid.Cell) -> float:
    """Test accuracy in percent of one network with the head of `model.init_head=probe`."""
    setup, dataset, spec, _ = prepare_run(
        cell.config, cell.workdir, open_dataset, PHOTO_WEIGHT_READERS
    )
    state = init_state_with_heads(setup, dataset, spec, fitted=None)
    return create_evaluate(setup)(state, dataset.test.images, dataset.test.labels)["test/accuracy"]


def train_rows(arguments: argparse.Namespace, rows: Sequence[str]) -> Outcomes:
    """Row and budget → results of all seeds. The probe's have only the accuracy."""
    runs, outcomes = {}, {}
    for row in rows:
        for budget in arguments.budgets:
            cells = [create_cell(arguments, row, budget, seed) for seed in arguments.seeds]
            if row == PROBE:
                outcomes[row, budget] = [{"test_accuracy": probe(cell)} for cell in cells]
            else:
                runs[row, budget] = cells
    return outcomes | grid.run_groups(runs)


def format_table(rows: Iterable[str], budgets: Sequence[int], outcomes: Outcomes) -> str:
    """Markdown with a row per row, and accuracy and minutes of training per budget."""
    header = ["", *(part for budget in budgets for part in (f"{budget} labels", "minutes"))]
    lines = []
    for row in rows:
        line = [ROWS[row].title]
        for budget in budgets:
            results = outcomes[row, budget]
            seconds = [result.get("train_seconds", 0.0) for result in results]
            line.append(grid.describe_mean(result["test_accuracy"] for result in results))
            line.append(f"{np.mean(seconds) / 60:.1f}" if row != PROBE else "")
        lines.append(line)
    return grid.format_table(header, lines)


def describe_settings(row: str) -> str:
    """The values that a row sets, as Markdown."""
    settings = (f"`{key}={value}`" for key, value in ROWS[row].settings.items())
    return f"- {ROWS[row].title}: {', '.join(settings)}"


def main() -> None:
    """Trains missing runs and writes the page."""
    parser = grid.create_parser(__doc__, "250", "experiments/results/transfer.md")
    parser.set_defaults(config="configs/folder.py", seeds="0", runs="runs/transfer")
    parser.add_argument("--data", required=True, help="folder of images with a test folder")
    parser.add_argument("--labels", dest="budgets", help="the same as --budgets")
    parser.add_argument("--pixels", type=int, default=64, help="height and width of the images")
    parser.add_argument("--rows", default=",".join(_DEFAULT_ROWS), help=f"among {', '.join(ROWS)}")
    parser.add_argument("--imbalance", type=float, default=1.0, help="data.imbalance of all rows")
    arguments = grid.parse_arguments(parser)
    rows = arguments.rows.split(",")
    outcomes = train_rows(arguments, rows)
    text = (
        f"Test accuracy in percent at {arguments.pixels} pixels (fine-tuning: EMA weights of "
        f"network 1 after the last step), classes {arguments.imbalance:g}:1 in training, mean ± "
        f"standard deviation over the seeds ({', '.join(map(str, arguments.seeds))}), and minutes "
        f"of training.\n\n"
        f"{format_table(rows, arguments.budgets, outcomes)}\n\n"
        "Settings:\n\n" + "\n".join(map(describe_settings, rows))
    )
    grid.write_page(arguments.output, "From a pretrained network", text)


if __name__ == "__main__":
    grid.run_main(main)
