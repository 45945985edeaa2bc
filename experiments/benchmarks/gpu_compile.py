"""Compiles the training step for an NVIDIA GPU on a machine that has none.

The CUDA wheels (`jax[cuda12]`) hold the whole compiler. It needs no driver where the device is
described in words, autotuning is off (it runs kernels), and matrix products are left to cuBLAS
(Triton's need autotuning). What comes out can be read but not run.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec as P

from cls_jax.batch import DatasetSpec
from cls_jax.data.pipelines import device
from cls_jax.data.sampling import create_stream_spec
from cls_jax.errors import UserError
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from experiments.benchmarks.variants import (
    NUM_CLASSES,
    NUM_IMAGES,
    configure_variant,
    create_random_batch,
)

# H100 SXM, as XLA reads it off such a device. The H200 has the same processor, so the same program.
_TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step that was compiled for a GPU.

    Attributes:
        variant: see `experiments.benchmarks.variants`.
        devices: how many it runs on.
        hlo: the optimized program as text.
        peak_bytes: memory of one device: state, dataset and temporaries.
        compile_seconds: of tracing and compiling.
    """

    variant: str
    devices: int
    hlo: str
    peak_bytes: int
    compile_seconds: float


def compile_step(variant: str, config, num_devices: int = 1) -> CompiledStep:
    """Compiles the step of a variant.

    Args:
        variant: "precision,lowering,input", input being "device" or "tfdata".
        config: sizes, method and augmentation.
        num_devices: with lowering "mesh" the networks are spread over them first, then the batch.

    Raises:
        UserError: if the CUDA wheels are missing.
    """
    started = time.perf_counter()
    config, source = configure_variant(variant, config, num_devices)
    config.data.pipeline = "device" if source == "device" else "tfdata"
    step, state, step_input = _trace(config, create_topology(num_devices).devices)
    with _without_compilation_cache():
        compiled = step.lower(state, step_input).compile(compiler_options=_OPTIONS)
    memory = compiled.memory_analysis()
    peak = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return CompiledStep(
        variant,
        num_devices,
        compiled.as_text(),
        peak - memory.alias_size_in_bytes,
        time.perf_counter() - started,
    )


def create_topology(num_devices: int) -> topologies.TopologyDescription:
    """H100s that are not there.

    Raises:
        UserError: if the CUDA wheels are missing.
    """
    _add_assembler_to_path()
    try:
        return topologies.get_topology_desc(
            platform="cuda", topology=f"1x1x{num_devices}", target_config=_TARGET
        )
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(
            "Compiling for a GPU needs JAX's CUDA wheels and JAX_PLATFORMS=cpu: "
            "run make gpu-forecast."
        ) from error


@contextlib.contextmanager
def _without_compilation_cache() -> Iterator[None]:
    """A program for a device that is not there would be written to the cache but not read back."""
    was_enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides once whether it uses the cache.
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", was_enabled)
        compilation_cache.reset_cache()


def _add_assembler_to_path() -> None:
    """XLA looks for ptxas on the path; the wheel nvidia-cuda-nvcc has it."""
    for folder in pathlib.Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin"):
        if str(folder) not in os.environ["PATH"].split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([str(folder), os.environ["PATH"]])


def _trace(config, devices: list[jax.Device]):
    """The step, its state and its input as shapes: arrays would need the devices."""
    image_shape = (config.data.image_size, config.data.image_size, len(config.data.mean))
    setup = create_train_setup(config, DatasetSpec(image_shape, NUM_CLASSES, NUM_IMAGES), devices)
    if config.data.pipeline == "device":
        step_input, specs, create_batch = _trace_device_pipeline(config, setup)
        step = create_train_step(setup, create_batch, specs)
    else:
        step_input, specs = create_random_batch(config), BATCH_SPECS
        step = create_train_step(setup)
    return step, setup.state_shapes, _to_abstract(step_input, setup.mesh, specs)


def _trace_device_pipeline(config, setup):
    """What `device.create_pipeline` returns, with shapes in place of the dataset."""
    method, image_shape = setup.method, setup.dataset_spec.image_shape
    indices = np.arange(NUM_IMAGES, dtype=np.int32)
    spec = create_stream_spec(
        config,
        method.labeled_view,
        method.unlabeled_views,
        indices[: config.num_labels],
        indices,
    )
    data = device.DeviceData(
        seed=np.uint32(config.seed),
        images=jax.ShapeDtypeStruct((NUM_IMAGES, *image_shape), np.uint8),
        labels=indices,
        labeled_indices=spec.labeled_indices,
        unlabeled_indices=indices,
    )
    specs = device.DeviceData(*(P() for _ in data))
    return data, specs, device.make_batch_creator(spec, image_shape, setup.mesh)


def _to_abstract(tree, mesh, specs):
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        to_shardings(mesh, specs),
    )
