"""Messages and images that describe a run as it starts and stops."""

import pathlib
import sys

import jax
import numpy as np

from cls_jax.batch import RawBatch
from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.models import count_parameters
from cls_jax.runs.checkpoint import describe_newest
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.setup import TrainSetup, describe_model
from cls_jax.training.state import TrainState

_NUM_SHOWN_IMAGES = 8


def warn_of_lost_steps(workdir: pathlib.Path, first_step: int, checkpoint_every: int) -> None:
    """Warns if the metrics of a run reach far beyond its newest checkpoint."""
    measured = max((row["step"] for row in read_metrics(workdir)), default=0)
    if measured >= first_step + 2 * checkpoint_every:
        print(
            f"Warning: this run had reached step {measured}, but "
            f"{describe_newest(first_step or None)}: it continues from step {first_step}.",
            file=sys.stderr,
        )


def select_images(batch: RawBatch, spec: StreamSpec) -> dict[str, np.ndarray]:
    """A few images of every view, for TensorBoard."""
    batch = jax.device_get(batch)
    views = {f"views/labeled_{spec.labeled_view}": batch.x}
    for i, view in enumerate(spec.unlabeled_views):
        views[f"views/unlabeled_{i + 1}_{view}"] = batch.u[i]
    return {name: images[:_NUM_SHOWN_IMAGES] for name, images in views.items()}


def describe_run(
    setup: TrainSetup,
    state: TrainState,
    dataset: Dataset,
    num_labeled: int,
    first_step: int,
    workdir: pathlib.Path,
) -> str:
    """Describes the networks, the data and the devices, with warnings about the data."""
    config, num_networks = setup.config, setup.method.num_networks
    parameters = count_parameters(state.params) // num_networks
    devices = " x ".join(str(size) for size in setup.mesh.shape.values())
    start = f"from step {first_step}" if first_step else "from the start"
    warnings = list(dataset.warnings)
    if num_labeled == len(dataset.train_images):
        warnings.append(
            "Every training image is labeled: add others in unlabeled/, or set "
            "--config.num_labels=N to use only N of the labels."
        )
    return "".join(f"Warning: {warning}\n" for warning in warnings) + (
        f"{config.method.name} on {dataset.name}: {num_labeled:,} labels, "
        f"{len(dataset.train_images):,} training and {len(dataset.test_images):,} test images\n"
        f"{num_networks} x {describe_model(config)} "
        f"({parameters:,} parameters each) on {devices} {jax.default_backend()} device(s)\n"
        f"{start} to step {config.num_steps:,} in {workdir}"
    )
