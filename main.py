"""Train, evaluate and use semi-supervised image classifiers.

python main.py --config configs/cifar10.py:250 [--workdir DIR] [--config.KEY=VALUE …]
python main.py --mode eval --workdir DIR
python main.py --mode predict --workdir DIR --images PATH --output predictions.csv [--suggest K]
python main.py --mode export --workdir DIR --output FOLDER
python main.py --mode report --workdir DIR
"""

import os

# TensorFlow only feeds images; its start-up notes are not for our users.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from absl import app, flags
from ml_collections import config_flags

from cls_jax.cli.process import (
    parse_flags,
    prepare_process,
    reexec_with_malloc_settings,
    run_to_end,
)

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "A file of configs/, with :BUDGET[,METHOD].")
flags.DEFINE_enum("mode", "train", ["train", "eval", "predict", "export", "report"], "What to do.")
flags.DEFINE_string("workdir", None, "The run's folder; runs/<what is trained> by default.")
flags.DEFINE_string("images", None, "To predict: a folder, a glob or a file.")
flags.DEFINE_string("output", None, "The .csv or .parquet to write, or the folder to export to.")
flags.DEFINE_integer("suggest", 0, "How many images to suggest for labelling.", lower_bound=0)
flags.DEFINE_string("coordinator_address", None, "Of several processes: host:port of the first.")
flags.DEFINE_integer("num_processes", None, "How many processes there are.")
flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")


def main(_) -> None:
    """Meets the other processes, if there are any, and dispatches on --mode."""
    prepare_process()
    run_to_end(run)


def run() -> None:
    """Runs the command that --mode names."""
    from cls_jax.cli import commands
    from cls_jax.parallel import distributed

    distributed.initialize_distributed(
        FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id
    )
    if FLAGS.mode == "train":
        commands.train_run(FLAGS.config, FLAGS.workdir)
    elif FLAGS.mode == "eval":
        commands.evaluate_run(FLAGS.workdir)
    elif FLAGS.mode == "predict":
        commands.predict_images(FLAGS.workdir, FLAGS.images, FLAGS.output, FLAGS.suggest)
    elif FLAGS.mode == "export":
        commands.export_run(FLAGS.workdir, FLAGS.output)
    else:
        commands.report_run(FLAGS.workdir)


if __name__ == "__main__":
    reexec_with_malloc_settings()  # Before the configuration, and with it JAX, is imported.
    app.run(main, flags_parser=parse_flags)
