"""Train, evaluate and use semi-supervised image classifiers.

python main.py --config configs/cifar10.py:250 [--workdir DIR] [--config.KEY=VALUE …]
python main.py --mode eval --workdir DIR
"""

import os
import pathlib

# TensorFlow only feeds images; its start-up notes are not for our users.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from absl import app, flags
from ml_collections import config_flags

from cls_jax.command_line import exit_with_sentence, parse_flags, prepare_process
from cls_jax.errors import UserError

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "A file of configs/, with :BUDGET[,METHOD].")
flags.DEFINE_enum("mode", "train", ["train", "eval"], "What to do.")
flags.DEFINE_string("workdir", None, "The run's folder; runs/<what is trained> by default.")


def main(_) -> None:
    """Dispatches on --mode."""
    prepare_process()
    try:
        {"train": run_train, "eval": run_eval}[FLAGS.mode]()
    except UserError as error:
        exit_with_sentence(error)


def run_train() -> None:
    """Trains or goes on, then says how well and where to look."""
    from cls_jax import config as config_lib
    from cls_jax import result, run_folder, train

    if FLAGS.config is None:
        raise UserError("Training needs a configuration: add --config configs/digits.py:40.")
    config_lib.validate_config(FLAGS.config)
    workdir = pathlib.Path(FLAGS.workdir or run_folder.get_default_workdir(FLAGS.config))
    outcome = train.train(FLAGS.config, workdir)
    print(f"\nTest accuracy after {outcome['step']:,} steps:")
    print(result.describe_accuracies(outcome))
    print(f"\nCurves:         tensorboard --logdir {workdir}")
    print(f"Evaluate again: python main.py --mode eval --workdir {workdir}")
    print(f"All numbers:    {workdir / run_folder.RESULT}")


def run_eval() -> None:
    """Evaluates the newest checkpoint of a run."""
    from cls_jax import evaluate_run, result

    if FLAGS.workdir is None:
        raise UserError("Evaluation needs the folder of a run: add --workdir DIR.")
    step, accuracies = evaluate_run.evaluate_run(pathlib.Path(FLAGS.workdir))
    print(f"Test accuracy after {step:,} steps:")
    print(result.describe_accuracies(accuracies))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
