"""Chooses the input pipeline. Only the chosen one is imported, so only tf.data needs TensorFlow."""

from jax.sharding import Mesh

from cls_jax.data.sampling import InputPipeline, StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.extras import check_extra, is_installed


def get_default_pipeline() -> str:
    """The authors' kind of pipeline, tf.data, where TensorFlow is installed, and else "device"."""
    return "tfdata" if is_installed("tf") else "device"


def check_pipeline(name: str) -> None:
    """Raises a UserError if the pipeline is tf.data, and TensorFlow is not installed."""
    if name == "tfdata":
        check_extra("tf", "data.pipeline=tfdata", "set --config.data.pipeline=device")


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Builds the pipeline `config.data.pipeline` for steps first_step, …, num_steps - 1.

    Raises the same as `check_pipeline`.
    """
    check_pipeline(spec.config.data.pipeline)
    if spec.config.data.pipeline == "device":
        from cls_jax.data.pipelines import device

        return device.create_pipeline(
            spec, dataset, mesh, first_step=first_step, num_steps=num_steps
        )
    from cls_jax.data.pipelines import tfdata

    return tfdata.create_pipeline(spec, dataset, mesh, first_step=first_step, num_steps=num_steps)
