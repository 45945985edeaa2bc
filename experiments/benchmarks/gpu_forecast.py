"""Forecasts what a training step costs on an H100 or H200, without having one.

make gpu-forecast

Compiles the step of several variants for the GPU, counts the kernels of each and adds up the least
time that each kernel can take. Rewrites its output after every variant.
"""

import collections
import os

os.environ["JAX_PLATFORMS"] = "cpu"  # Else JAX would look for a driver.

from cls_jax.errors import UserError
from experiments.benchmarks.gpu_compile import CompiledStep, compile_step
from experiments.benchmarks.gpu_hlo import parse_module
from experiments.benchmarks.gpu_roofline import GPUS, Kernel, list_kernels
from experiments.paper import grid

# Variant, and on how many devices.
_VARIANTS = (
    "bfloat16,unrolled,device:1 bfloat16,mesh,device:2 bfloat16,mesh,device:4 "
    "float32,unrolled,tfdata:1 bfloat16,vmap,device:1 bfloat16,remat,device:1 "
    "bfloat16,separate,device:1"
)
_SMALL_BYTES = 2**20
_WARNING = """\
**A forecast: nothing here was run.** For every kernel of the program that XLA compiled it takes
the longer of bytes / bandwidth and operations / peak, and adds these times up. So it is a lower
bound and cannot see: the gaps between kernels (a few microseconds each where they are launched
one by one, less as a CUDA graph); how far from the peak cuDNN's convolutions stay, which with
16 to 128 channels may be a factor of 2 to 4; which algorithms autotuning would pick (it is off,
since it needs the device) and what they read twice; what the cache keeps from one kernel to the
next; how long devices wait for each other. Use it to compare forms of the step, not to promise
times."""


def main() -> None:
    """Compiles all variants and writes the tables."""
    parser = grid.create_parser(__doc__, "250", "experiments/results/gpu_forecast.md")
    parser.set_defaults(config="configs/cifar10.py")
    parser.add_argument("--variants", default=_VARIANTS, help="space-separated VARIANT:DEVICES")
    parser.add_argument("--method", default="cls", help="the method whose step is compiled")
    parser.add_argument("--save_hlo", help="a folder for the compiled programs' text")
    arguments = grid.parse_arguments(parser)
    config = grid.create_cell(arguments, arguments.budgets[0], arguments.method, 0).config
    results: list[tuple[CompiledStep, list[Kernel]]] = []
    for variant, num_devices in map(_split, arguments.variants.split()):
        compiled = compile_step(variant, config, num_devices)
        results.append((compiled, list_kernels(parse_module(compiled.hlo))))
        if arguments.save_hlo:
            _save_hlo(arguments.save_hlo, compiled)
        grid.write_output(arguments.output, describe_forecast(config, results))


def _split(text: str) -> tuple[str, int]:
    variant, _, num_devices = text.partition(":")
    if not (num_devices or "1").isdigit():
        raise UserError(f"{text!r} has no number of devices: write it as {variant}:2.")
    return variant, int(num_devices or 1)


def _save_hlo(folder: str, compiled: CompiledStep) -> None:
    os.makedirs(folder, exist_ok=True)
    name = f"{compiled.variant.replace(',', '-')}-{compiled.devices}.txt"
    with open(os.path.join(folder, name), "w") as file:
        file.write(compiled.hlo)


def describe_forecast(config, results: list[tuple[CompiledStep, list[Kernel]]]) -> str:
    """All of the output, as Markdown."""
    parts = [
        f"# Forecast of a step on a GPU\n\n{grid.describe_provenance()}",
        f"{config.method.name}, depth {config.model.depth}, width {config.model.width}, "
        f"B = {config.batch_size}, μ = {config.mu}, {config.data.image_size} pixels.\n",
        f"{_WARNING}\n",
        f"## Variants\n\n{describe_totals(results)}\n",
        "GB are read and written per step and device; memory holds state, dataset and temporaries; "
        "small kernels touch less than 1 MiB, so that starting them takes longer than running.\n",
    ]
    for compiled, kernels in results:
        title = f"{compiled.variant}, {_count_devices(compiled.devices)}"
        parts.append(f"## {title}\n\n{describe_parts(kernels)}\n")
        if collectives := [kernel for kernel in kernels if kernel.is_collective]:
            parts.append(f"{describe_collectives(collectives)}\n")
    return "\n".join(parts)


def describe_totals(results: list[tuple[CompiledStep, list[Kernel]]]) -> str:
    """A Markdown table with a row per variant."""
    header = ["variant", "devices", "kernels", "small ones", "collectives", "GB", "TFLOP"]
    header += [f"{gpu.name} ms" for gpu in GPUS] + ["memory", "compiled in"]
    rows = []
    for compiled, kernels in results:
        small = [kernel for kernel in kernels if kernel.bytes_moved < _SMALL_BYTES]
        rows.append(
            [
                compiled.variant,
                compiled.devices,
                f"{_count(kernels):,}",
                f"{_count(small):,}",
                _count([kernel for kernel in kernels if kernel.is_collective]),
                f"{_sum_bytes(kernels) / 1e9:.1f}",
                f"{sum(kernel.repeats * kernel.flops for kernel in kernels) / 1e12:.2f}",
                *_describe_milliseconds(kernels),
                f"{compiled.peak_bytes / 2**30:.2f} GiB",
                f"{compiled.compile_seconds:.0f} s",
            ]
        )
    return _format_table(header, rows)


def describe_parts(kernels: list[Kernel]) -> str:
    """A Markdown table of where the time goes, longest first."""
    parts = collections.defaultdict(list)
    for kernel in kernels:
        parts[kernel.part].append(kernel)
    header = ["part", "kernels", "GB", *(f"{gpu.name} ms" for gpu in GPUS)]
    rows = [
        [name, f"{_count(part):,}", f"{_sum_bytes(part) / 1e9:.2f}", *_describe_milliseconds(part)]
        for name, part in sorted(parts.items(), key=lambda item: -_sum_seconds(item[1], GPUS[0]))
    ]
    return _format_table(header, rows)


def describe_collectives(collectives: list[Kernel]) -> str:
    """One sentence on what devices exchange."""
    kinds = collections.defaultdict(list)
    for kernel in collectives:
        kinds[kernel.kind.removesuffix("-start"), kernel.part].append(kernel)
    described = [
        f"{_count(group)} {kind} ({part}, {_sum_bytes(group) / 2e6:.2f} MB)"
        for (kind, part), group in kinds.items()
    ]
    return f"Devices exchange: {'; '.join(described)}."


def _describe_milliseconds(kernels: list[Kernel]) -> list[str]:
    return [f"{1e3 * _sum_seconds(kernels, gpu):.2f}" for gpu in GPUS]


def _sum_seconds(kernels: list[Kernel], gpu) -> float:
    return sum(kernel.compute_seconds(gpu) for kernel in kernels)


def _sum_bytes(kernels: list[Kernel]) -> int:
    return sum(kernel.repeats * kernel.bytes_moved for kernel in kernels)


def _count(kernels: list[Kernel]) -> int:
    return sum(kernel.repeats for kernel in kernels)


def _count_devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _format_table(header: list[str], rows: list[list]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    grid.run_main(main)
