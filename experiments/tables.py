"""Shared by the programs that make tables: train the grid, write Markdown."""

from experiments import grid, paper


def run_table(title: str, rows: dict[str, str], output: str) -> None:
    """Trains all methods at all budgets and seeds and writes the table.

    Args:
        title: title of the page.
        rows: method → its name in the paper.
        output: default path of the Markdown file.
    """
    parser = grid.create_parser(title, budgets="20,40", output=output)
    parser.add_argument("--methods", default=",".join(rows), help="comma-separated methods")
    arguments = grid.parse_arguments(parser)
    methods = arguments.methods.split(",")
    cells = {
        (method, budget): [
            grid.create_cell(arguments, budget, method, seed) for seed in arguments.seeds
        ]
        for budget in arguments.budgets
        for method in methods
    }
    results = iter(grid.run_grid([cell for group in cells.values() for cell in group]))
    outcomes = {key: [next(results) for _ in group] for key, group in cells.items()}
    text = (
        f"# {title}\n\n{grid.describe_provenance()}\n"
        f"Test accuracy in percent of network 1 (EMA weights) after the last step, mean ± standard "
        f"deviation over seeds {', '.join(map(str, arguments.seeds))}.\n\n"
        f"{format_table(rows, methods, arguments.budgets, outcomes)}\n"
    )
    grid.write_output(arguments.output, text)


def format_table(
    rows: dict[str, str], methods: list[str], budgets: list[int], outcomes: dict
) -> str:
    """Markdown with one row per method, and the paper's figure next to ours if it has one.

    Args:
        rows: method → its name in the paper.
        methods: in the order of the rows.
        budgets: in the order of the columns.
        outcomes: (method, budget) → results of all seeds.
    """
    dataset = next(iter(outcomes.values()))[0]["dataset"]
    header, lines = ["method"], [[rows.get(method, method)] for method in methods]
    for budget in budgets:
        header.append(f"{dataset}@{budget}")
        for line, method in zip(lines, methods, strict=True):
            accuracies = [result["test_accuracy"] for result in outcomes[method, budget]]
            line.append(grid.describe_mean(accuracies))
        if paper.get_accuracy("cls", dataset, budget) is not None:
            header.append("paper")
            for line, method in zip(lines, methods, strict=True):
                line.append(paper.get_accuracy(method, dataset, budget))
    table = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)
