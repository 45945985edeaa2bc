"""The training step in several variants, compiled on random images, ready to be timed.

A variant is written "precision,lowering,input" or "precision,lowering,input,repeat":

- precision: float32 (on NVIDIA GPUs with products in TF32, JAX's default), highest (float32
  throughout) or bfloat16.
- lowering: unrolled, on one device; mesh, one network per device; remat, unrolled and keeping less
  for the gradient (`model.remat`); or separate, unrolled with the weakly augmented images in a pass
  of their own (`method.weak_pass=fast`).
- input: synthetic, one batch repeated; device, made inside the step; tfdata, made by TensorFlow on
  the host.
- repeat: how many steps one call of the compiled program takes; 1 by default.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Generator
from typing import Any

import jax
import numpy as np

from cls_jax.batch import RawBatch
from cls_jax.data.label_split import choose_labeled_indices
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import NO_IMAGES, Dataset, Split
from cls_jax.errors import UserError
from cls_jax.methods import get_method
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training.prepare import read_weights
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step, measure_memory

NUM_IMAGES, NUM_CLASSES = 50_000, 10  # As many as CIFAR-10 has.
_MAX_BYTES = 2**30  # Of large images, as many as fit.

_CHOICES = {
    "precision": ("float32", "highest", "bfloat16"),
    "lowering": ("unrolled", "mesh", "remat", "separate"),
    "input": ("synthetic", "device", "tfdata"),
}


@dataclasses.dataclass
class StepVariant:
    """A function that takes steps, and measurements of it, as far as known."""

    name: str
    advance: Callable[[int], float]  # Takes a number of steps and returns their seconds.
    num_images: int  # Images that one step trains on.
    memory_bytes: int = 0  # Memory of the compiled step as the compiler counts it.
    flops: float = 0.0  # Operations of one step as XLA counts them.
    compile_seconds: float = 0.0  # Time of lowering and compiling.
    close: Callable[[], None] = lambda: None  # TensorFlow's threads would keep the program alive.
    seconds: list[float] = dataclasses.field(default_factory=list)  # Per step, for each block.

    def run(self, num_steps: int) -> None:
        """Times a block of steps."""
        self.seconds.append(self.advance(num_steps) / num_steps)


def configure_variant(name: str, config, num_devices: int = 0) -> tuple[Any, str]:
    """A copy of the configuration for a variant, and the variant's input.

    Args:
        name: The variant.
        config: Sizes, method and augmentation.
        num_devices: The number of devices over which the lowering "mesh" spreads networks first,
            then the batch. By default there is one for each network.

    Raises:
        UserError: If there is no such variant, or the method does not have it.
    """
    parts = name.split(",")
    if len(parts) not in (3, 4):
        raise UserError(f"A variant is precision,lowering,input[,repeat], not {name!r}.")
    for part, (field, choices) in zip(parts[:3], _CHOICES.items(), strict=True):
        if part not in choices:
            raise UserError(f"Unknown {field} {part!r} in {name!r}: use {', '.join(choices)}.")
    precision, lowering, source = parts[:3]
    config = config.copy_and_resolve_references()
    config.model.dtype = "bfloat16" if precision == "bfloat16" else "float32"
    config.model.matmul_precision = "highest" if precision == "highest" else "default"
    config.model.remat = lowering == "remat"
    config.mesh.network = config.mesh.data = 1
    if lowering == "separate":
        if "weak_pass" not in config.method:
            raise UserError(f"{config.method.name} has no weak pass: leave {name!r} out.")
        config.method.weak_pass = "fast"
    if lowering == "mesh":
        config.mesh.network = get_method(config.method.name).num_networks
        config.mesh.data = max(1, num_devices // config.mesh.network)
    return config, source


def create_variant(name: str, config, title: str = "") -> StepVariant:
    """Compiles the step of a variant, with the arguments and errors of `configure_variant`."""
    return trace_variant(name, config, title)()


def trace_variant(name: str, config, title: str = "") -> Callable[[], StepVariant]:
    """Traces the step of a variant. The function that is returned compiles it, on any thread."""
    config, source = configure_variant(name, config)
    repeat = int(name.split(",")[3]) if name.count(",") == 3 else 1
    dataset = create_random_dataset(config)
    read = functools.partial(read_weights, config)
    setup = create_train_setup(config, dataset.shape, read_weights=read)
    state, schedule = setup.init_state(), setup.put_schedule()
    inputs, input_specs, create_batch = create_inputs(source, config, setup, dataset)
    step = create_train_step(setup, create_batch, input_specs)
    lowered = repeat_step(step, repeat).lower(state, next(inputs), schedule)

    def compile_variant() -> StepVariant:
        started = time.perf_counter()
        compiled = lowered.compile()
        compile_seconds = time.perf_counter() - started

        def advance(num_steps: int) -> float:
            nonlocal state
            num_calls = max(1, num_steps // repeat)
            started = time.perf_counter()
            for _ in range(num_calls):
                state, _ = compiled(state, next(inputs), schedule)
            jax.block_until_ready(state)
            return (time.perf_counter() - started) * num_steps / (num_calls * repeat)

        # Of the traced program: in the compiled one, cuDNN's convolutions count for nothing. The
        # body of a loop counts once.
        flops = (lowered.cost_analysis() or {}).get("flops", 0.0)
        return StepVariant(
            *(title or name, advance, count_images(config), measure_memory(compiled) or 0),
            *(flops, compile_seconds, inputs.close),
        )

    return compile_variant


def create_inputs(source: str, config, setup, dataset: Dataset):
    """The pipeline of a variant: endless inputs, their specs, and the batch function."""
    if source == "synthetic":
        batch = jax.device_put(create_random_batch(config), to_shardings(setup.mesh, BATCH_SPECS))
        return _repeat(batch), BATCH_SPECS, lambda state, batch: batch
    config.data.pipeline = source
    return create_pipeline(create_spec(config), dataset, setup.mesh, 0, config.num_steps)


def create_spec(config) -> StreamSpec:
    """The stream of a random dataset, all of whose images are unlabeled."""
    method = get_method(config.method.name)
    everything = np.arange(_count_random_images(config), dtype=np.int32)
    labeled = choose_labeled_indices(
        everything % NUM_CLASSES, config.num_labels, NUM_CLASSES, config.seed
    )
    return StreamSpec(config, method.labeled_view, method.unlabeled_views, labeled, everything)


def _repeat(batch: RawBatch) -> Generator[RawBatch, None, None]:
    while True:
        yield batch


def repeat_step(step, repeat: int):
    """Several steps with the same input as one program, which returns the last monitors."""
    if repeat == 1:
        return step

    def steps(state, step_input, schedule):
        state, monitors = jax.lax.scan(
            lambda state, _: step(state, step_input, schedule), state, length=repeat
        )
        return state, jax.tree.map(lambda values: values[-1], monitors)

    return jax.jit(steps, donate_argnums=0)


def count_images(config) -> int:
    """Images that go through every network in a step."""
    views = len(get_method(config.method.name).unlabeled_views)
    return config.batch_size * (1 + views * config.mu)


def create_random_dataset(config) -> Dataset:
    """As many images as CIFAR has, or fewer large ones, of noise."""
    shape = (config.data.image_size, config.data.image_size, len(config.data.mean))
    num_images = _count_random_images(config)
    labels = (np.arange(num_images) % NUM_CLASSES).astype(np.int32)
    images = np.random.default_rng(0).integers(0, 256, (num_images, *shape), dtype=np.uint8)
    names = tuple(map(str, range(NUM_CLASSES)))
    return Dataset("noise", names, Split(images, labels), NO_IMAGES, shape)


def _count_random_images(config) -> int:
    return min(NUM_IMAGES, _MAX_BYTES // (config.data.image_size**2 * len(config.data.mean)))


def create_random_batch(config) -> RawBatch:
    """A batch of noise for the configuration's method."""
    rng = np.random.default_rng(0)
    num_views = len(get_method(config.method.name).unlabeled_views)
    size, channels = config.data.image_size, len(config.data.mean)
    b, u = config.batch_size, config.batch_size * config.mu if num_views else 0
    return RawBatch(
        x=rng.integers(0, 256, (b, size, size, channels), dtype=np.uint8),
        y=rng.integers(0, NUM_CLASSES, b).astype(np.int32),
        u=rng.integers(0, 256, (num_views, u, size, size, channels), dtype=np.uint8),
        u_index=np.arange(u, dtype=np.int32),
        u_truth=np.zeros(u, np.int32),
    )
