"""Train, evaluate and use semi-supervised image classifiers.

python main.py --config configs/cifar10.py:250 [--workdir DIR] [--config.KEY=VALUE …]
python main.py --mode eval --workdir DIR [--data_dir PATH]
python main.py --mode predict --workdir DIR --images PATH --output predictions.csv [--suggest K]
python main.py --mode export --workdir DIR --output FOLDER
python main.py --mode report --workdir DIR [--data_dir PATH]

docs/configuration.md lists every KEY. For a folder of images, `cls-jax` (or `python -m cls_jax`)
does the same with fewer options.
"""

from absl import app, flags
from ml_collections import config_flags

from cls_jax.cli.process import (
    OPTIONS,
    parse_flags,
    prepare_process,
    reexec_with_malloc_settings,
    run_to_end,
)

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "Config file: configs/cifar10.py:250[,METHOD].")
flags.DEFINE_enum("mode", "train", list(OPTIONS), "What to do.")
flags.DEFINE_string("workdir", None, "Folder of the run; to train, by default one under runs/.")
flags.DEFINE_string("data_dir", None, "For eval and report: where the dataset is if it has moved.")
flags.DEFINE_string("images", None, "For predict: a folder, a glob or a file.")
flags.DEFINE_string("output", None, "For predict: a .csv or .parquet; for export: a folder.")
flags.DEFINE_integer("suggest", 0, "For predict: how many images to suggest for labeling.", 0)
flags.DEFINE_string("coordinator_address", None, "With several processes: host:port of process 0.")
flags.DEFINE_integer("num_processes", None, "With several processes: their number.")
flags.DEFINE_integer("process_id", None, "With several processes: index of this one, from 0.")


def main(_) -> None:
    """Sets up the process and runs the command."""
    prepare_process()
    run_to_end(run)


def run() -> None:
    """Joins the other processes, if there are any, and dispatches on --mode."""
    from cls_jax.cli import commands
    from cls_jax.parallel import distributed

    distributed.initialize_distributed(
        FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id
    )
    if FLAGS.mode == "train":
        commands.train_run(FLAGS.config, FLAGS.workdir)
    elif FLAGS.mode == "eval":
        commands.evaluate_run(FLAGS.workdir, FLAGS.data_dir)
    elif FLAGS.mode == "predict":
        commands.predict_images(FLAGS.workdir, FLAGS.images, FLAGS.output, FLAGS.suggest)
    elif FLAGS.mode == "export":
        commands.export_run(FLAGS.workdir, FLAGS.output)
    else:
        commands.report_run(FLAGS.workdir, FLAGS.data_dir)


if __name__ == "__main__":
    reexec_with_malloc_settings()  # Before the configuration, and with it JAX, is imported.
    app.run(main, flags_parser=parse_flags)
