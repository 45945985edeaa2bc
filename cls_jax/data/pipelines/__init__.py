"""Chooses the input pipeline. Only the chosen one is imported, so only tf.data needs TensorFlow."""

from jax.sharding import Mesh

from cls_jax.data.sampling import InputPipeline, StreamSpec
from cls_jax.data.types import Dataset


def create_pipeline(
    spec: StreamSpec, dataset: Dataset, mesh: Mesh, first_step: int, num_steps: int
) -> InputPipeline:
    """Builds the pipeline `config.data.pipeline` for steps first_step, …, num_steps - 1.

    Raises:
        UserError: if the pipeline is "device" and the dataset too large for a device's memory.
    """
    if spec.data.pipeline == "device":
        from cls_jax.data.pipelines import device

        return device.create_pipeline(spec, dataset, mesh)
    from cls_jax.data.pipelines import tfdata

    return tfdata.create_pipeline(spec, dataset, mesh, first_step, num_steps)
