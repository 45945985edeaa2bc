"""What the modes of the command line do and print."""

import pathlib
import shlex

from cls_jax.config import validate_config
from cls_jax.errors import UserError
from cls_jax.processes import is_first
from cls_jax.result import describe_accuracies, describe_monitors


def train_run(config, workdir: str | None) -> None:
    """Trains or goes on, then says how well and where to look.

    Raises:
        UserError: if there is no configuration or something does not fit it.
    """
    from cls_jax.run_folder import RESULT, get_default_workdir
    from cls_jax.train import train

    if config is None:
        raise UserError("Training needs a configuration: add --config configs/digits.py:40.")
    validate_config(config)
    folder = pathlib.Path(workdir or get_default_workdir(config))
    result = train(config, folder)
    if not is_first():
        return
    has_test = result["test_accuracy"] is not None
    if has_test:
        print(f"\nTest accuracy after {result['step']:,} steps:")
        print(describe_accuracies(result))
    else:
        print(f"\nWithout test images, after {result['step']:,} steps, over the last batches:")
        print(describe_monitors(result["monitors"]))
    quoted = shlex.quote(str(folder))
    print(f"\nCurves:         tensorboard --logdir {quoted}")
    if has_test:
        print(f"Evaluate again: python main.py --mode eval --workdir {quoted}")
    print(f"All numbers:    {folder / RESULT}")


def evaluate_run(workdir: str | None) -> None:
    """Evaluates the newest checkpoint of a run.

    Raises:
        UserError: if there is no run.
    """
    from cls_jax import evaluate_run

    if workdir is None:
        raise UserError("Evaluation needs the folder of a run: add --workdir DIR.")
    step, accuracies = evaluate_run.evaluate_run(pathlib.Path(workdir))
    if is_first():
        print(f"Test accuracy after {step:,} steps:")
        print(describe_accuracies(accuracies))
