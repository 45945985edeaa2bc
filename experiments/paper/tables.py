"""The paper's Tables 1 and 2: CLS, the methods it is compared with, and its parts.

python -m experiments.paper.tables --table 1 --config configs/digits.py --budgets 20,40
python -m experiments.paper.tables --table 2 --config configs/digits.py --budgets 20,40
"""

from experiments.paper import grid

# Dataset and budget of the six columns.
COLUMNS = [("cifar10", budget) for budget in (40, 250, 4000)]
COLUMNS += [("cifar100", budget) for budget in (400, 2500, 10_000)]

# Method → its name in the tables.
TABLE_1 = {
    "supervised": "Supervised w/ RA",
    "pseudo_label": "Pseudo-Label",
    "ups": "UPS",
    "pi_model": "Π-Model",
    "mean_teacher": "Mean Teacher",
    "uda": "UDA",
    "mixmatch": "MixMatch",
    "remixmatch": "ReMixMatch",
    "fixmatch": "FixMatch",
    "cls": "CLS",
}
TABLE_2 = {
    "fixmatch": "FixMatch",
    "fixmatch_nl": "FixMatch w/ NL",
    "fixmatch_rw": "FixMatch w/ RW",
    "fixmatch_nl_rw": "FixMatch w/ (NL & RW)",
    "cls_no_nl": "CLS w/o NL",
    "cls_no_rw": "CLS w/o RW",
    "cls": "CLS",
}

TABLES = {1: TABLE_1, 2: TABLE_2}

# Accuracies in percent, mean ± standard deviation over 4 runs, as the paper reports them.
_ROWS = """
supervised | 35.96 ± .88 | 60.78 ± .65 | 87.36 ± .32 | 20.43 ± .22 | 46.93 ± .47 | 68.42 ± .33
pseudo_label | – | 51.31 ± .66 | 84.62 ± .38 | – | 43.26 ± .43 | 65.78 ± .29
ups | – | 78.39 ± .88 | 89.59 ± .64 | – | 52.34 ± .45 | 68.77 ± .25
pi_model | – | 46.24 ± 5.48 | 86.41 ± .56 | – | 43.85 ± .68 | 63.53 ± .16
mean_teacher | – | 69.44 ± 3.11 | 91.22 ± .21 | – | 47.19 ± .62 | 66.21 ± .33
uda | 71.63 ± 6.72 | 91.10 ± 1.15 | 95.08 ± .22 | 41.24 ± .92 | 66.89 ± .32 | 75.23 ± .45
mixmatch | 54.65 ± 9.78 | 89.21 ± 1.22 | 93.66 ± .18 | 33.43 ± 2.14 | 61.14 ± .67 | 72.17 ± .42
remixmatch | 81.94 ± 7.63 | 94.48 ± .36 | 95.26 ± .14 | 54.88 ± 2.33 | 73.37 ± .41 | 76.88 ± .63
fixmatch | 88.29 ± 3.44 | 94.85 ± .76 | 95.73 ± .15 | 51.81 ± 2.16 | 72.73 ± .66 | 77.33 ± .24
cls | 91.82 ± 1.77 | 95.55 ± .33 | 96.28 ± .06 | 55.91 ± 1.12 | 74.06 ± .28 | 79.27 ± .16
fixmatch_nl | 89.58 ± 2.11 | 94.91 ± .87 | 95.89 ± .07 | 52.76 ± 1.61 | 73.21 ± .46 | 77.45 ± .54
fixmatch_rw | 89.87 ± 1.98 | 94.89 ± 1.06 | 95.82 ± .11 | 52.43 ± 2.87 | 73.37 ± .43 | 77.75 ± .32
fixmatch_nl_rw | 90.24 ± 1.87 | 94.98 ± .65 | 96.02 ± .29 | 53.42 ± 1.33 | 73.49 ± .35 | 78.31 ± .18
cls_no_nl | 90.61 ± 2.64 | 94.87 ± 1.11 | 96.03 ± .09 | 52.87 ± 1.31 | 72.78 ± .39 | 78.55 ± .25
cls_no_rw | 90.89 ± 2.57 | 94.91 ± .87 | 96.05 ± .07 | 53.59 ± 1.95 | 73.34 ± .41 | 78.69 ± .33
"""


def get_accuracy(method: str, dataset: str, budget: int) -> str | None:
    """The paper's figure for a cell, as text; "–" if it has none, None if it has no such column."""
    if (dataset, budget) not in COLUMNS:
        return None
    for line in _ROWS.strip().splitlines():
        name, *figures = (field.strip() for field in line.split("|"))
        if name == method:
            return figures[COLUMNS.index((dataset, budget))]
    return "–"  # Newer than the paper.


def format_table(
    names: dict[str, str], methods: list[str], budgets: list[int], outcomes: dict
) -> str:
    """Formats one row per method, with the paper's figure next to ours if it has one.

    `names` are those of the paper, `outcomes` maps (method, budget) to the results of all seeds.
    """
    dataset = next(iter(outcomes.values()))[0]["dataset"]
    header, lines = ["method"], [[names.get(method, method)] for method in methods]
    for budget in budgets:
        has_figure = (dataset, budget) in COLUMNS
        header += [f"{dataset}@{budget}", *["paper"] * has_figure]
        for line, method in zip(lines, methods, strict=True):
            line.append(grid.describe_mean(r["test_accuracy"] for r in outcomes[method, budget]))
            if has_figure:
                line.append(get_accuracy(method, dataset, budget))
    return grid.format_table(header, lines)


def main() -> None:
    """Trains all methods with all budgets and seeds and writes the table."""
    parser = grid.create_parser(__doc__, budgets="20,40", output="")
    parser.add_argument("--table", type=int, choices=TABLES, default=1, help="of the paper")
    parser.add_argument("--methods", help="comma-separated methods; by default those of the table")
    arguments = grid.parse_arguments(parser)
    names = TABLES[arguments.table]
    methods = arguments.methods.split(",") if arguments.methods else list(names)
    cells = {
        (method, budget): grid.create_cells(arguments, budget, method)
        for budget in arguments.budgets
        for method in methods
    }
    text = (
        f"Test accuracy in percent of network 1 (EMA weights) after the last step, mean ± standard "
        f"deviation over seeds {', '.join(map(str, arguments.seeds))}.\n\n"
        f"{format_table(names, methods, arguments.budgets, grid.run_groups(cells))}"
    )
    output = arguments.output or f"experiments/results/table{arguments.table}_digits.md"
    grid.write_page(output, f"Table {arguments.table}", text)


if __name__ == "__main__":
    grid.run_main(main)
