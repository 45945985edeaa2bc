"""Kernels, bytes and operations of a compiled program, and the time that a GPU needs at least.

Every instruction that becomes a kernel takes max(bytes / bandwidth, operations / peak): the
roofline (Williams et al., 2009). Bytes are what a kernel has to read and write once, so a kernel
that reads twice, or whose input is still in the cache, is counted wrongly.
"""

import collections
import dataclasses
import math
import re

from experiments.benchmarks.gpu_hlo import (
    Computation,
    Instruction,
    Module,
    count_bytes,
    count_elements,
    list_arrays,
)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What the roofline needs of a device; from NVIDIA's data sheets, SXM, without sparsity.

    Attributes:
        name: as people call it.
        bandwidth: of its memory, bytes per second.
        peaks: operations per second, by unit.
    """

    name: str
    bandwidth: float
    peaks: dict[str, float]


# "fp32" counts multiply and add; "simple" one instruction per element.
_HOPPER = {"bf16": 989e12, "tf32": 494e12, "fp32": 67e12, "simple": 33.5e12}
GPUS = (Gpu("H100", 3.35e12, _HOPPER), Gpu("H200", 4.8e12, _HOPPER))

# Opcodes that move nothing: they name memory, or compute while compiling.
_FREE = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all"}
_FREE |= {"opt-barrier", "partition-id", "replica-id"}
# Within a fusion: opcodes that only choose which element is read.
_ADDRESSING = {"broadcast", "iota", "reduce", "slice", "transpose", "reshape", "concatenate"}
_ADDRESSING |= {"convert", "pad", "copy"}
_CALLS = ("call", "conditional", "async-start")
_COLLECTIVE = re.compile(r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+)")

# Which Python function on the stack makes a kernel part of what; the first that fits.
_PARTS = (
    ("shuffle", ("sample_indices", "shuffle_index")),
    ("augmentation", ("_create_batch", "normalize_batch")),
    ("BatchNorm, activation", ("BatchNorm.__call__", "Block.__call__", "WideResNet.__call__")),
    ("BatchNorm, activation", ("ResidualBlock.__call__", "ResNet18.__call__")),
    ("forward, other", ("Ensemble.forward",)),
    ("loss", ("compute_loss",)),
    ("optimizer, EMA, monitors", ("create_train_step.<locals>.step_on_device",)),
)
OTHER_PART, CONVOLUTIONS = "copies, transposes", "convolutions"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An instruction that the device runs.

    Attributes:
        name: of the instruction.
        kind: its opcode, with the kind of a fusion or the target of a call to a library.
        part: of the step.
        repeats: how often it runs in one step.
        bytes_moved: read and written, each time.
        flops: of matrix products and convolutions, each time.
        operations: of everything else, one for each element and instruction, each time.
        unit: which peak limits its `flops`.
    """

    name: str
    kind: str
    part: str
    repeats: int
    bytes_moved: int
    flops: int = 0
    operations: int = 0
    unit: str = "fp32"

    @property
    def is_collective(self) -> bool:
        """Whether devices exchange something."""
        return bool(_COLLECTIVE.match(self.kind))

    def compute_seconds(self, gpu: Gpu) -> float:
        """The roofline, of all repeats."""
        return self.repeats * max(
            self.bytes_moved / gpu.bandwidth,
            self.flops / gpu.peaks[self.unit],
            self.operations / gpu.peaks["simple"],
        )


def list_kernels(module: Module) -> list[Kernel]:
    """All kernels of one run of a program, in the order in which they start.

    A loop's kernels are counted as often as it runs, where the compiler knows (else once).
    """
    return _walk(module, module.entry, 1)


def _walk(module: Module, name: str, repeats: int) -> list[Kernel]:
    kernels = []
    computation = module.computations[name]
    for instruction in computation.values():
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            continue
        if opcode == "while":
            trips = int(instruction.find(r'known_trip_count[^}]*"n":"?(\d+)') or 1)
            for which in ("condition", "body"):
                inner = instruction.find(which + r"=%([\w.\-]+)")
                kernels += _walk(module, inner, repeats * trips)
        elif opcode in _CALLS:
            for inner in _find_called(instruction):
                kernels += _walk(module, inner, repeats)
        else:
            kernels.append(_create_kernel(module, computation, instruction, repeats))
    return kernels


def _find_called(instruction: Instruction) -> list[str]:
    pattern = r"(?:to_apply|calls|true_computation|false_computation)=%([\w.\-]+)"
    branches = instruction.find(r"branch_computations=\{([^}]*)\}") or ""
    called = re.findall(pattern, instruction.attributes)
    return called + re.findall(r"%([\w.\-]+)", branches)


def _create_kernel(
    module: Module, computation: Computation, instruction: Instruction, repeats: int
) -> Kernel:
    opcode = instruction.opcode
    part = _find_part(module, instruction)
    if opcode == "fusion":
        fused = module.computations[instruction.find(r"calls=%([\w.\-]+)")]
        kind = "fusion " + instruction.find(r"kind=k(\w+)")
        moved = _count_fusion_bytes(fused)
        operations = _count_operations(fused)
        return Kernel(instruction.name, kind, part, repeats, moved, operations=operations)
    target = instruction.find(r'custom_call_target="([^"]*)"') or ""
    if "conv" in target:
        return _create_convolution(computation, instruction, target, repeats)
    if "matmul" in target or "gemm" in target:
        return _create_product(computation, instruction, target, part, repeats)
    written = count_bytes(instruction.shape)
    read = sum(count_bytes(computation[name].shape) for name in instruction.operands)
    if opcode in ("dynamic-slice", "gather", "slice"):
        read = written
    return Kernel(instruction.name, target or opcode, part, repeats, read + written)


def _create_convolution(
    computation: Computation, instruction: Instruction, target: str, repeats: int
) -> Kernel:
    """A call of cuDNN. Its result is a tuple of the array and scratch memory."""
    result = _first_array(instruction.shape)
    operands = [computation[name].shape for name in instruction.operands]
    if "BackwardFilter" in target:
        kernel, output = result, operands[1]
    elif "BackwardInput" in target:
        kernel, output = operands[1], operands[0]
    else:
        kernel, output = operands[1], result
    labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes).group(1)
    ((dtype, sizes),) = list_arrays(_first_array(kernel))
    per_output = math.prod(sizes) // sizes[labels.index("o")]
    moved = count_bytes(result) + sum(map(count_bytes, operands))
    flops = 2 * count_elements(output) * per_output
    unit = _choose_unit(dtype, instruction)
    kind = re.sub(r"^__cudnn\$", "", target)
    return Kernel(instruction.name, kind, CONVOLUTIONS, repeats, moved, flops, unit=unit)


def _create_product(
    computation: Computation, instruction: Instruction, target: str, part: str, repeats: int
) -> Kernel:
    """A call of cuBLAS."""
    result = _first_array(instruction.shape)
    operands = [computation[name].shape for name in instruction.operands]
    ((dtype, sizes),) = list_arrays(_first_array(operands[0]))
    axis = int(instruction.find(r'lhs_contracting_dimensions":\["(\d+)') or len(sizes) - 1)
    moved = count_bytes(result) + sum(map(count_bytes, operands))
    flops = 2 * count_elements(result) * sizes[axis]
    unit = _choose_unit(dtype, instruction)
    return Kernel(instruction.name, target, part, repeats, moved, flops, unit=unit)


def _choose_unit(dtype: str, instruction: Instruction) -> str:
    if dtype == "bf16":
        return "bf16"
    # JAX's default precision lets the libraries round float32 operands to TF32.
    return "fp32" if "HIGHEST" in instruction.attributes.upper() else "tf32"


def _first_array(shape: str) -> str:
    return re.match(r"\(?(\w+\[[\d,]*\])", shape).group(1)


def _count_fusion_bytes(fused: Computation) -> int:
    """What a fusion reads of its parameters and writes of its results."""
    users = collections.defaultdict(list)
    for instruction in fused.values():
        for place, name in enumerate(instruction.operands):
            users[name].append((instruction, place))
    parameters = [each for each in fused.values() if each.opcode == "parameter"]
    read = sum(_count_read(each, users) for each in parameters)
    (root,) = [each for each in fused.values() if each.is_root]
    results = [fused[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return read + sum(_count_written(each, fused) for each in results)


def _count_read(source: Instruction, users: dict[str, list[tuple[Instruction, int]]]) -> int:
    """Bytes of a fusion's parameter that are needed: a slice or gather reads only its result."""
    whole = count_bytes(source.shape)
    total = 0
    for user, place in users[source.name]:
        if user.opcode in ("slice", "dynamic-slice", "gather") and place == 0:
            total += count_bytes(user.shape)
        elif user.opcode == "bitcast":
            total += _count_read(user, users)
        elif user.opcode != "dynamic-update-slice" or place != 0:
            return whole
    return min(total, whole)


def _count_written(result: Instruction, fused: Computation) -> int:
    while result.opcode == "bitcast":
        result = fused[result.operands[0]]
    if result.opcode == "dynamic-update-slice":
        return count_bytes(fused[result.operands[1]].shape)
    return count_bytes(result.shape)


def _count_operations(fused: Computation) -> int:
    total = 0
    for instruction in fused.values():
        if instruction.opcode == "reduce":
            total += count_elements(fused[instruction.operands[0]].shape)
        elif instruction.opcode not in _FREE | _ADDRESSING:
            arrays = list_arrays(instruction.shape)[:1]
            total += sum(math.prod(sizes) for _, sizes in arrays)
    return total


def _find_part(module: Module, instruction: Instruction) -> str:
    """The part of the step; where the compiler dropped the origin, that of what is fused."""
    called = instruction.find(r"calls=%([\w.\-]+)")
    candidates = [instruction, *reversed(list(module.computations.get(called or "", {}).values()))]
    for candidate in candidates:
        functions = module.get_functions(candidate)
        for part, names in _PARTS:
            if any(function in names for function in functions):
                return part
    return OTHER_PART
