"""The paper's Table 1: CLS and the nine methods it is compared with.

python -m experiments.table1 --config configs/digits.py --budgets 20,40 --seeds 0,1,2,3
"""

from experiments import grid, paper
from experiments.tables import run_table

if __name__ == "__main__":
    grid.run_main(
        lambda: run_table("Table 1", paper.TABLE_1, "experiments/results/table1_digits.md")
    )
