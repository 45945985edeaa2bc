"""Times every convolution of a network on its own: XLA beside oneDNN, as PyTorch calls it.

python -m experiments.benchmark_layers --config configs/cifar10.py --config.batch_size=4 \
  --config.mu=7 --output runs/layers.md

Sizes are those of one network's training pass. Forward, the gradient of the images and the gradient
of the kernel are timed apart, in turns, on random numbers in float32. --forms chooses among "xla",
as the networks have it; "patches", one product of all patches; "onednn", PyTorch's default; and
"onednn_channels_last".
"""

import argparse
import collections
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp

from cls_jax.errors import UserError
from cls_jax.methods import get_method
from cls_jax.training.setup import create_model
from experiments import grid
from experiments.peer import NUM_CLASSES, import_torch
from experiments.step_variants import count_images

PASSES = ("forward", "images", "kernel")
_FORMS = ("xla", "patches", "onednn", "onednn_channels_last")


class Convolution(NamedTuple):
    """Sizes of a convolution with square images and kernel.

    Attributes:
        num_images: B.
        size: height and width of the images.
        channels: of the images.
        features: of the result.
        kernel: height and width of the kernel.
        stride: in both directions.
        padding: zeros on each side.
    """

    num_images: int
    size: int
    channels: int
    features: int
    kernel: int
    stride: int
    padding: int

    @property
    def out_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Multiplications and additions of one pass; each of the three has as many."""
        pixels = self.num_images * self.out_size**2
        return 2 * pixels * self.kernel**2 * self.channels * self.features

    def __str__(self) -> str:
        """As in "3x3, 32 to 64, 32 pixels, stride 2"."""
        text = f"{self.kernel}x{self.kernel}, {self.channels} to {self.features}"
        return f"{text}, {self.size} pixels" + (f", stride {self.stride}" * (self.stride > 1))


def list_convolutions(config: Any) -> collections.Counter[Convolution]:
    """The ungrouped convolutions of one network's forward pass, and how often each occurs."""
    size, channels = config.data.image_size, len(config.data.mean)
    images = jnp.zeros((count_images(config), size, size, channels))
    model = create_model(config, get_method(config.method.name), NUM_CLASSES)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    found: collections.Counter[Convolution] = collections.Counter()
    for equation in _walk(jax.make_jaxpr(model.apply)(variables, images).jaxpr):
        params = equation.params
        if equation.primitive.name == "conv_general_dilated" and params["feature_group_count"] == 1:
            x, kernel = (variable.aval.shape for variable in equation.invars)
            stride, padding = params["window_strides"][0], params["padding"][0][0]
            found[Convolution(*x[:2], *kernel[2:], kernel[0], stride, padding)] += 1
    return found


def _walk(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _walk(inner)


def convolve(layer: Convolution, x_BHWC: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution as the networks compute it."""
    padding = [(layer.padding, layer.padding)] * 2
    return jax.lax.conv_general_dilated(
        x_BHWC, kernel, (layer.stride,) * 2, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def multiply_patches(layer: Convolution, x_BHWC: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution as a product of patches [B, H, W, k k C] and kernel [k k C, features]."""
    p, stop = layer.padding, layer.stride * (layer.out_size - 1) + 1
    padded = jnp.pad(x_BHWC, [(0, 0), (p, p), (p, p), (0, 0)])
    shifts = [
        padded[:, i : i + stop : layer.stride, j : j + stop : layer.stride]
        for i in range(layer.kernel)
        for j in range(layer.kernel)
    ]
    return jnp.concatenate(shifts, axis=-1) @ kernel.reshape(-1, layer.features)


def create_jax_passes(layer: Convolution, form: Callable[..., jax.Array]) -> list[Callable]:
    """Compiled functions without arguments, one for each of `PASSES`."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (layer.num_images, layer.size, layer.size, layer.channels))
    kernel = jax.random.normal(keys[1], (layer.kernel,) * 2 + (layer.channels, layer.features))
    y_bar = jax.random.normal(keys[2], jax.eval_shape(form, x, kernel).shape)
    functions = (
        form,
        lambda x, kernel, y_bar: jax.vjp(lambda x: form(x, kernel), x)[1](y_bar),
        lambda x, kernel, y_bar: jax.vjp(lambda kernel: form(x, kernel), kernel)[1](y_bar),
    )
    arguments = ((x, kernel), (x, kernel, y_bar), (x, kernel, y_bar))
    compiled = [
        jax.jit(function).lower(*values).compile()
        for function, values in zip(functions, arguments, strict=True)
    ]
    return [
        functools.partial(lambda run, *values: jax.block_until_ready(run(*values)), run, *values)
        for run, values in zip(compiled, arguments, strict=True)
    ]


def create_torch_passes(layer: Convolution, channels_last: bool) -> list[Callable]:
    """Functions without arguments, one for each of `PASSES`, by PyTorch on this CPU."""
    torch = import_torch()
    memory = torch.channels_last if channels_last else torch.contiguous_format

    def random(*shape: int) -> Any:
        return torch.randn(*shape).to(memory_format=memory)

    x = random(layer.num_images, layer.channels, layer.size, layer.size)
    kernel = random(layer.features, layer.channels, layer.kernel, layer.kernel)
    y_bar = random(layer.num_images, layer.features, layer.out_size, layer.out_size)
    sizes = ([layer.stride] * 2, [layer.padding] * 2, [1, 1])

    def pull(*wanted: bool) -> Any:
        return torch.ops.aten.convolution_backward(
            y_bar, x, kernel, None, *sizes, False, [0, 0], 1, [*wanted, False]
        )

    return [
        lambda: torch.nn.functional.conv2d(x, kernel, None, *sizes),
        lambda: pull(True, False),
        lambda: pull(False, True),
    ]


def create_passes(layer: Convolution, form: str) -> list[Callable]:
    """Functions without arguments, one for each of `PASSES`, by a form.

    Raises:
        UserError: if there is no such form, or no PyTorch for it.
    """
    if form not in _FORMS:
        raise UserError(f"Unknown form {form!r}: choose from {', '.join(_FORMS)}.")
    if form in ("xla", "patches"):
        return create_jax_passes(
            layer, functools.partial(convolve if form == "xla" else multiply_patches, layer)
        )
    return create_torch_passes(layer, form == "onednn_channels_last")


def measure(
    layer: Convolution, forms: list[str], turns: int, calls: int
) -> dict[tuple[str, str], float]:
    """Median seconds of one call by (form, pass), the forms in turns."""
    passes = {form: create_passes(layer, form) for form in forms}
    seconds: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for turn in range(turns + 1):
        for form, functions in passes.items():
            for name, function in zip(PASSES, functions, strict=True):
                started = time.perf_counter()
                for _ in range(calls):
                    function()
                if turn > 0:  # The first turn warms up.
                    seconds[form, name].append((time.perf_counter() - started) / calls)
    return {key: statistics.median(values) for key, values in seconds.items()}


def format_table(
    layers: collections.Counter[Convolution],
    measured: dict[Convolution, dict[tuple[str, str], float]],
    forms: list[str],
) -> str:
    """Markdown: per layer and form, GFLOP/s of the passes; last, milliseconds of all layers."""
    titles = [f"{form}: {' / '.join(PASSES)}" for form in forms]
    lines = [["layer", "times", *titles], ["---"] * (2 + len(forms))]
    for layer, count in layers.items():
        cells = [
            " / ".join(f"{layer.flops / measured[layer][form, name] / 1e9:.0f}" for name in PASSES)
            for form in forms
        ]
        lines.append([str(layer), str(count), *cells])
    totals = [
        [
            1e3 * sum(n * measured[layer][form, name] for layer, n in layers.items())
            for name in PASSES
        ]
        for form in forms
    ]
    cells = [f"{' / '.join(f'{t:.0f}' for t in total)} = {sum(total):.0f} ms" for total in totals]
    lines.append(["all", str(layers.total()), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def create_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = grid.create_parser(__doc__, "250", "runs/layers.md")
    parser.add_argument("--forms", default="xla onednn", help=f"among {', '.join(_FORMS)}")
    parser.add_argument("--turns", type=int, default=7, help="blocks of every form")
    parser.add_argument("--calls", type=int, default=8, help="calls per block")
    return parser


def main() -> None:
    """Times all layers and writes the table."""
    arguments = grid.parse_arguments(create_parser())
    config = grid.create_cell(arguments, arguments.budgets[0], "cls", 0).config
    layers, forms = list_convolutions(config), arguments.forms.split()
    measured = {layer: measure(layer, forms, arguments.turns, arguments.calls) for layer in layers}
    table = format_table(layers, measured, forms)
    text = f"# Convolutions\n\n{grid.describe_provenance()}\nGFLOP/s.\n\n{table}\n"
    grid.write_output(arguments.output, text)


if __name__ == "__main__":
    grid.run_main(main)
