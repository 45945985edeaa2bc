"""Chooses the input pipeline. Only the chosen one is imported, so only tf.data needs TensorFlow."""

import importlib.util

from jax.sharding import Mesh

from cls_jax.data.sampling import InputPipeline, StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Builds the pipeline `config.data.pipeline` for steps first_step, …, num_steps - 1.

    Raises a UserError if the pipeline is tf.data, and TensorFlow is not installed.
    """
    if spec.config.data.pipeline == "device":
        from cls_jax.data.pipelines import device

        return device.create_pipeline(
            spec, dataset, mesh, first_step=first_step, num_steps=num_steps
        )
    if not importlib.util.find_spec("tensorflow"):
        raise UserError(
            "data.pipeline=tfdata needs TensorFlow: pip install '.[tf]', or set "
            "--config.data.pipeline=device."
        )
    from cls_jax.data.pipelines import tfdata

    return tfdata.create_pipeline(spec, dataset, mesh, first_step=first_step, num_steps=num_steps)
