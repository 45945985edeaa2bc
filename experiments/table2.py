"""The paper's Table 2: what each part of CLS adds to FixMatch.

python -m experiments.table2 --config configs/digits.py --budgets 20,40 --seeds 0,1,2,3
"""

from experiments import grid, paper
from experiments.tables import run_table

if __name__ == "__main__":
    grid.run_main(
        lambda: run_table("Table 2", paper.TABLE_2, "experiments/results/table2_digits.md")
    )
