"""Forecasts the cost of a training step on an H100 or H200, without having one.

make gpu-forecast

JAX's CUDA wheels contain the whole compiler. It needs no driver if the device is described in text,
autotuning is off (it runs kernels) and matrix products are left to cuBLAS (Triton's need
autotuning). In the text of the compiled step, every instruction that becomes a kernel takes the
longer of bytes / bandwidth and, for convolutions and matrix products, operations / peak: the
roofline (Williams et al., 2009). Bytes are what a kernel has to read and write once, so one that
reads twice, or whose input is still in the cache, is counted wrongly. JAX's `cost_analysis` is
empty for a device that is not there. The output is rewritten after every variant.
"""

import collections
import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterator

os.environ["JAX_PLATFORMS"] = "cpu"  # Else JAX would look for a driver.

import jax
import numpy as np
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec as P

from cls_jax.batch import DatasetSpec
from cls_jax.data.pipelines import device
from cls_jax.data.sampling import StreamSpec
from cls_jax.errors import UserError
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.schedule import SCHEDULE_SPECS, create_schedule
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from experiments.benchmarks import variants
from experiments.benchmarks.variants import NUM_IMAGES
from experiments.paper import grid

# Variant, and on how many devices.
_VARIANTS = (
    "bfloat16,unrolled,device:1 bfloat16,mesh,device:2 bfloat16,mesh,device:4 "
    "float32,unrolled,tfdata:1 bfloat16,remat,device:1 "
    "bfloat16,separate,device:1"
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
# NVIDIA's data sheets, SXM, without sparsity: bytes per second, and operations per second by unit.
BANDWIDTHS = {"H100": 3.35e12, "H200": 4.8e12}
PEAKS = {"bf16": 989e12, "tf32": 494e12, "fp32": 67e12}
_WARNING = """\
**A forecast: nothing here was run.** The times are a lower bound. They do not include: the gaps
between kernels (a few microseconds each where they are launched one by one, less as a CUDA graph);
how far from the peak cuDNN's convolutions stay, which with 16 to 128 channels may be a factor of 2
to 4; which algorithms autotuning would pick (it is off, since it needs the device) and what they
read twice; what the cache keeps from one kernel to the next; how long devices wait for each other.
Use them to compare variants of the step, not to predict times."""

# Opcodes that move no data: they name memory, or are computed at compile time.
_FREE = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all"}
_FREE |= {"opt-barrier", "partition-id", "replica-id"}
_SLICES = ("slice", "dynamic-slice", "gather")
_COLLECTIVE = re.compile(r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+)")
_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "token": 0} | {
    f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64)
}
_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|token)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation in the grammar of `jax.stages.Compiled.as_text()`."""

    name: str  # Unique in the module.
    shape: str  # As written, as in "bf16[960,32]{1,0}" or a tuple of such.
    opcode: str  # Such as "fusion", "custom-call" or "add".
    operands: tuple[str, ...]  # Names of other instructions. None for parameters and constants.
    attributes: str  # The text after the operands, with the metadata.
    is_root: bool  # Whether it is what its computation returns.

    def find(self, pattern: str) -> str:
        """The first group of a regular expression in the attributes, or an empty string."""
        found = re.search(pattern, self.attributes)
        return found.group(1) if found else ""


# Instructions by name, in the order in which they were scheduled.
Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An instruction that the device runs."""

    name: str  # The instruction's name.
    kind: str  # "convolution", "matrix product", the name of a collective, or "other".
    repeats: int  # How often it runs in one step.
    bytes_moved: int  # Bytes read and written, each time.
    flops: int = 0  # Operations of matrix products and convolutions, each time.
    unit: str = "fp32"  # Which peak limits its `flops`.

    def compute_seconds(self, gpu: str) -> float:
        """The roofline of all repeats."""
        return self.repeats * max(self.bytes_moved / BANDWIDTHS[gpu], self.flops / PEAKS[self.unit])


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The cost of one step of a variant."""

    variant: str  # As in `experiments.benchmarks.variants`.
    num_devices: int  # How many devices it runs on.
    kernels: list[Kernel]  # What one device runs, in the order in which kernels start.
    peak_bytes: int  # Memory of one device: state, dataset and temporaries.
    compile_seconds: float  # Time of tracing and compiling.


def parse_module(text: str) -> tuple[dict[str, Computation], str]:
    """Reads the text of an optimized module: computations by name, and the name of the entry.

    Raises:
        ValueError: If the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    current, entry = {}, ""
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations[header.group(2)] = {}
            entry = header.group(2) if header.group(1) else entry
        elif found := _INSTRUCTION.match(line):
            root, name, rest = found.groups()
            end = _find_closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
            shape, (opcode, rest) = rest[:end], rest[end + 1 :].split("(", 1)
            end = _find_closing("(" + rest)
            # Between a constant's brackets is its value, between a parameter's its number.
            names = () if opcode in ("parameter", "constant") else _find_names(rest[: end - 1])
            current[name] = Instruction(name, shape, opcode, names, rest[end:], root is not None)
    if not entry:
        raise ValueError("This is not the text of an HLO module: it has no ENTRY computation")
    return computations, entry


def _find_names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"%([\w.\-]+)", text))


def _find_closing(text: str) -> int:
    """Where the bracket closes that the text opens with."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place
    raise ValueError(f"No closing bracket in {text[:80]!r}")


def _list_arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Element types and sizes of all arrays in a shape."""
    return [
        (dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(shape)
    ]


@functools.cache
def count_bytes(shape: str) -> int:
    """Bytes of all arrays in a shape, without padding."""
    return sum(_BYTES.get(dtype, 1) * math.prod(sizes) for dtype, sizes in _list_arrays(shape))


def list_kernels(
    computations: dict[str, Computation], name: str, repeats: int = 1
) -> Iterator[Kernel]:
    """All kernels of one run of a computation, in the order in which they start.

    A loop's kernels are counted as often as it runs, where the compiler knows (else once).
    """
    for instruction in computations[name].values():
        opcode = instruction.opcode
        if opcode == "while":
            trips = int(instruction.find(r'known_trip_count[^}]*"n":"?(\d+)') or 1)
            for inner in ("condition", "body"):
                called = instruction.find(inner + r"=%([\w.\-]+)")
                yield from list_kernels(computations, called, repeats * trips)
        elif opcode in ("call", "conditional", "async-start"):
            pattern = r"(?:to_apply|calls|true_computation|false_computation)=%([\w.\-]+)"
            branches = _find_names(instruction.find(r"branch_computations=\{([^}]*)\}"))
            for called in (*re.findall(pattern, instruction.attributes), *branches):
                yield from list_kernels(computations, called, repeats)
        elif opcode == "fusion":
            fused = computations[instruction.find(r"calls=%([\w.\-]+)")]
            yield Kernel(instruction.name, "other", repeats, _count_fusion_bytes(fused))
        elif opcode not in _FREE and not opcode.endswith("-done"):
            yield _create_kernel(computations[name], instruction, repeats)


def _create_kernel(computation: Computation, instruction: Instruction, repeats: int) -> Kernel:
    """The kernel of a library call, a collective, or a single operation."""
    shapes = [computation[name].shape for name in instruction.operands]
    target = instruction.find(r'custom_call_target="([^"]*)"')
    is_convolution = "conv" in target
    if is_convolution or "matmul" in target or "gemm" in target:
        # The result is a tuple of the array and scratch memory.
        result = re.match(r"\(?(\w+\[[\d,]*\])", instruction.shape).group(1)
        count = _count_convolution if is_convolution else _count_product
        flops, dtype = count(instruction, result, shapes)
        # JAX's default precision lets the libraries round float32 operands to TF32.
        unit = "fp32" if "HIGHEST" in instruction.attributes.upper() else "tf32"
        kind = "convolution" if is_convolution else "matrix product"
        bytes_moved = count_bytes(result) + sum(map(count_bytes, shapes))
        unit = "bf16" if dtype == "bf16" else unit
        return Kernel(instruction.name, kind, repeats, bytes_moved, flops, unit)
    written = count_bytes(instruction.shape)
    read = written if instruction.opcode in _SLICES else sum(map(count_bytes, shapes))
    collective = _COLLECTIVE.match(instruction.opcode)
    kind = collective.group(0).removesuffix("-start") if collective else "other"
    return Kernel(instruction.name, kind, repeats, read + written)


def _count_convolution(instruction: Instruction, result: str, shapes: list[str]) -> tuple[int, str]:
    """Operations of a call of cuDNN, and the type of its kernel's elements."""
    kernel, output = shapes[1], result
    if "BackwardFilter" in instruction.attributes:
        kernel, output = result, shapes[1]
    elif "BackwardInput" in instruction.attributes:
        output = shapes[0]
    labels = instruction.find(r"dim_labels=\w+_(\w+)->")
    dtype, sizes = _list_arrays(kernel)[0]
    per_output = math.prod(sizes) // sizes[labels.index("o")]
    return 2 * math.prod(_list_arrays(output)[0][1]) * per_output, dtype


def _count_product(instruction: Instruction, result: str, shapes: list[str]) -> tuple[int, str]:
    """Operations of a call of cuBLAS, and the type of its operands' elements."""
    dtype, sizes = _list_arrays(shapes[0])[0]
    axis = int(instruction.find(r'lhs_contracting_dimensions":\["(\d+)') or len(sizes) - 1)
    return 2 * math.prod(_list_arrays(result)[0][1]) * sizes[axis], dtype


def _count_fusion_bytes(fused: Computation) -> int:
    """What a fusion reads of its parameters and writes of its results."""
    users = collections.defaultdict(list)
    for instruction in fused.values():
        for place, name in enumerate(instruction.operands):
            users[name].append((instruction, place))
    (root,) = [each for each in fused.values() if each.is_root]
    results = [fused[name] for name in root.operands] if root.opcode == "tuple" else [root]
    parameters = [each for each in fused.values() if each.opcode == "parameter"]
    read = sum(_count_read(each, users) for each in parameters)
    return read + sum(_count_written(each, fused) for each in results)


def _count_read(source: Instruction, users: dict[str, list[tuple[Instruction, int]]]) -> int:
    """Bytes of a fusion's parameter that are needed: a slice or gather reads only its result."""
    whole = count_bytes(source.shape)
    total = 0
    for user, place in users[source.name]:
        if user.opcode in _SLICES and place == 0:
            total += count_bytes(user.shape)
        elif user.opcode == "bitcast":
            total += _count_read(user, users)
        elif user.opcode != "dynamic-update-slice" or place != 0:
            return whole
    return min(total, whole)


def _count_written(result: Instruction, fused: Computation) -> int:
    while result.opcode == "bitcast":
        result = fused[result.operands[0]]
    updated = result.opcode == "dynamic-update-slice"
    return count_bytes(fused[result.operands[1]].shape if updated else result.shape)


def compile_step(variant: str, config, num_devices: int = 1) -> Forecast:
    """Compiles the step of a variant with the input "device" or "tfdata" and counts what it costs.

    Raises:
        UserError: If the CUDA wheels are missing.
    """
    started = time.perf_counter()
    config, source = variants.configure_variant(variant, config, num_devices)
    config.data.pipeline = "device" if source == "device" else "tfdata"
    step, *arguments = _trace(config, create_topology(num_devices).devices)
    with _without_compilation_cache():
        compiled = step.lower(*arguments).compile(compiler_options=_OPTIONS)
    memory = compiled.memory_analysis()
    peak = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    kernels = list(list_kernels(*parse_module(compiled.as_text())))
    peak -= memory.alias_size_in_bytes
    return Forecast(variant, num_devices, kernels, peak, time.perf_counter() - started)


def create_topology(num_devices: int) -> topologies.TopologyDescription:
    """A description of H100s that this machine does not have.

    Raises:
        UserError: If the CUDA wheels are missing.
    """
    _add_assembler_to_path()
    try:
        return topologies.get_topology_desc(
            platform="cuda", topology=f"1x1x{num_devices}", target_config=_TARGET
        )
    except (RuntimeError, NotImplementedError) as error:
        needed = "JAX's CUDA wheels and JAX_PLATFORMS=cpu: run make gpu-forecast."
        raise UserError(f"Compiling for a GPU needs {needed}") from error


@contextlib.contextmanager
def _without_compilation_cache() -> Iterator[None]:
    """A program for an absent device would be written to the cache but not read back."""
    was_enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides once whether it uses the cache.
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", was_enabled)
        compilation_cache.reset_cache()


def _add_assembler_to_path() -> None:
    """XLA looks for ptxas on the path. The wheel nvidia-cuda-nvcc has it."""
    for folder in pathlib.Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin"):
        if str(folder) not in os.environ["PATH"].split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([str(folder), os.environ["PATH"]])


def _trace(config, devices: list[jax.Device]):
    """The step, and its state, input and schedule as shapes: arrays would need the devices."""
    image_shape = (config.data.image_size, config.data.image_size, len(config.data.mean))
    spec = DatasetSpec(image_shape, variants.NUM_CLASSES, NUM_IMAGES)
    setup = create_train_setup(config, spec, devices)
    if config.data.pipeline == "device":
        step_input, specs, create_batch = _trace_device_pipeline(config, setup)
        step = create_train_step(setup, create_batch, specs)
    else:
        step_input, specs = variants.create_random_batch(config), BATCH_SPECS
        step = create_train_step(setup)

    def describe(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    shardings = to_shardings(setup.mesh, (specs, SCHEDULE_SPECS))
    shapes = jax.tree.map(describe, (step_input, create_schedule(config)), shardings)
    return step, setup.state_shapes, *shapes


def _trace_device_pipeline(config, setup):
    """What `device.create_pipeline` returns, with shapes instead of the dataset."""
    method, image_shape = setup.method, setup.dataset_spec.image_shape
    indices = np.arange(NUM_IMAGES, dtype=np.int32)
    views = method.labeled_view, method.unlabeled_views
    spec = StreamSpec(config, *views, indices[: config.num_labels], indices)
    images = jax.ShapeDtypeStruct((NUM_IMAGES, *image_shape), np.uint8)
    data = (np.uint32(config.seed), images, indices, indices, spec.labeled_indices, indices)
    return data, (P(),) * len(data), device.make_batch_creator(spec, image_shape, setup.mesh)


def describe_forecasts(config, forecasts: list[Forecast]) -> str:
    """All of the output, as Markdown."""
    header = ["variant", "devices", "kernels", "small ones", "GB", "TFLOP"]
    header += [f"{gpu} ms" for gpu in BANDWIDTHS] + ["convolutions", "memory", "compiled in"]
    rows, exchanges = [], []
    for each in forecasts:
        kernels = each.kernels
        seconds = [sum(k.compute_seconds(gpu) for k in kernels) for gpu in BANDWIDTHS]
        convolutions = [kernel for kernel in kernels if kernel.kind == "convolution"]
        share = sum(kernel.compute_seconds("H100") for kernel in convolutions) / seconds[0]
        small = [kernel for kernel in kernels if kernel.bytes_moved < 2**20]
        row = [each.variant, each.num_devices]
        row += [f"{sum(kernel.repeats for kernel in group):,}" for group in (kernels, small)]
        row += [f"{sum(kernel.repeats * kernel.bytes_moved for kernel in kernels) / 1e9:.1f}"]
        row += [f"{sum(kernel.repeats * kernel.flops for kernel in kernels) / 1e12:.2f}"]
        row += [f"{1e3 * value:.2f}" for value in seconds] + [f"{share:.0%}"]
        row += [f"{each.peak_bytes / 2**30:.2f} GiB", f"{each.compile_seconds:.0f} s"]
        rows.append(row)
        kinds = collections.Counter()
        for kernel in kernels:
            if _COLLECTIVE.match(kernel.kind):
                kinds[kernel.kind] += kernel.repeats
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        if counts:
            exchanges.append(f"- {each.variant} on {each.num_devices} devices: {counts}")
    return (
        f"# Forecast of a step on a GPU\n\n{grid.describe_provenance()}\n"
        f"{config.method.name}, depth {config.model.depth}, width {config.model.width}, "
        f"B = {config.batch_size}, μ = {config.mu}, {config.data.image_size} pixels.\n\n"
        f"{_WARNING}\n\n{grid.format_table(header, rows)}\n\n"
        "GB are read and written per step and device. Small kernels touch less than 1 MiB, so that "
        "starting them takes longer than running. Memory holds state, dataset and temporaries.\n\n"
        "Collectives:\n\n" + "\n".join(exchanges or ["none"]) + "\n"
    )


def main() -> None:
    """Compiles all variants and writes the table."""
    parser = grid.create_parser(__doc__, "250", "experiments/results/gpu_forecast.md")
    parser.set_defaults(config="configs/cifar10.py")
    parser.add_argument("--variants", default=_VARIANTS, help="space-separated VARIANT:DEVICES")
    parser.add_argument("--method", default="cls", help="the method whose step is compiled")
    arguments = grid.parse_arguments(parser)
    config = grid.create_config(arguments, arguments.method)
    forecasts = []
    for text in arguments.variants.split():
        variant, _, num_devices = text.partition(":")
        if not (num_devices or "1").isdigit():
            raise UserError(f"{text!r} has no number of devices: write it as {variant}:2.")
        forecasts.append(compile_step(variant, config, int(num_devices or 1)))
        grid.write_output(arguments.output, describe_forecasts(config, forecasts))


if __name__ == "__main__":
    grid.run_main(main)
