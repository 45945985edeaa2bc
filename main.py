"""Train and evaluate semi-supervised image classifiers.

python main.py --config configs/cifar10.py:250 [--workdir DIR] [--config.KEY=VALUE …]
python main.py --mode eval --workdir DIR [--step N|best] [--data_dir PATH] [--eval_batch_size N]

docs/configuration.md lists every KEY. `cls-jax` (or `python -m cls_jax`) trains on a folder of
images, and predicts, reports and exports with any run.
"""

import pathlib

from absl import app, flags
from ml_collections import config_flags

from cls_jax.process import (
    exit_with_error,
    parse_flags,
    prepare_process,
    run_to_end,
)

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "Config file: configs/cifar10.py:250[,METHOD].")
flags.DEFINE_enum("mode", "train", ["train", "eval"], "What to do.")
flags.DEFINE_string("workdir", None, "Folder of the run; to train, by default one under runs/.")
flags.DEFINE_string("data_dir", None, "For eval: where the dataset is if it has moved.")
flags.DEFINE_integer("eval_batch_size", None, "For eval: images at once, if not the training's.")
flags.DEFINE_string(
    "step", None, "For eval: the checkpoint's step, or best (on validation images)."
)
flags.DEFINE_string("profile", None, "FIRST:LAST: trace these steps into the run's folder.")
flags.DEFINE_string("coordinator_address", None, "With several processes: host:port of process 0.")
flags.DEFINE_integer("num_processes", None, "With several processes: their number.")
flags.DEFINE_integer("process_id", None, "With several processes: index of this one, from 0.")


def main(_) -> None:
    """Checks the options, sets up the process and runs the command."""
    if FLAGS.mode == "train" and FLAGS.config is None:
        exit_with_error("Training needs a configuration: add --config configs/digits.py:40.")
    if FLAGS.mode == "train" and FLAGS.data_dir is not None:
        exit_with_error("--data_dir is for --mode eval: use --config.data.data_dir to train.")
    if FLAGS.mode == "train" and FLAGS.eval_batch_size is not None:
        exit_with_error(
            "--eval_batch_size is for --mode eval: use --config.eval_batch_size to train."
        )
    if FLAGS.mode == "train" and FLAGS.step is not None:
        exit_with_error("--step is for --mode eval: use --config.num_steps to train.")
    if FLAGS.mode == "eval" and FLAGS.workdir is None:
        exit_with_error("Evaluation needs the folder of a run: add --workdir DIR.")
    if FLAGS.mode == "eval" and FLAGS.config is not None:
        exit_with_error("--mode eval reads the configuration from --workdir: remove --config.")
    if FLAGS.config is not None and "method.name" in config_flags.get_override_values(
        FLAGS["config"]
    ):
        exit_with_error(
            "method.name cannot be set by itself, since each method has its own defaults: choose "
            "the method after the config's colon, as in --config configs/cifar10.py:250,fixmatch."
        )
    run_to_end(prepare_process, run)


def run() -> None:
    """Joins the other processes, if there are any, and dispatches on --mode."""
    from cls_jax.parallel import distributed
    from cls_jax.photos.cli import commands

    distributed.initialize_distributed(
        FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id
    )
    if FLAGS.mode == "train":
        if FLAGS.profile is not None:
            FLAGS.config.profile = FLAGS.profile
        given = config_flags.get_override_values(FLAGS["config"])
        commands.train_config(FLAGS.config, FLAGS.workdir, given)
    else:
        commands.evaluate_workdir(
            pathlib.Path(FLAGS.workdir),
            data_dir=FLAGS.data_dir,
            eval_batch_size=FLAGS.eval_batch_size,
            step=FLAGS.step,
        )


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
