"""What the networks of a run say of a set of images: accuracies and features.

Shape suffixes: N networks, B images, C features, K classes.
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.batch import PyTree
from cls_jax.data.types import ImageSource
from cls_jax.parallel import compilation
from cls_jax.parallel.ahead import compute_ahead
from cls_jax.parallel.collectives import sum_over_data
from cls_jax.parallel.distributed import together
from cls_jax.parallel.machine import release_freed_memory
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, get_process_shard, to_global_arrays
from cls_jax.training.setup import TrainSetup, TrainState
from cls_jax.training.step import check_memory

Accuracies = dict[str, float]

# Batches in flight: enough to keep the device busy while the host prepares the next.
_MAX_IN_FLIGHT = 2


def create_eval_step(setup: TrainSetup) -> jax.stages.Wrapped:
    """Compiles (state, images, labels, is_image) → counts of correct images by class.

    The images are the same as for `TrainSetup.infer`, the labels int32 [B], and `is_image` is False
    for padding. Counts are int32: "raw" and "ema" of shape [N, K], "ensemble" [K] (the mean of the
    EMA networks' probabilities). Nothing is donated: the state is still needed.
    """

    def eval_step(
        state: TrainState, images: jax.Array, labels: jax.Array, is_image: jax.Array
    ) -> dict[str, jax.Array]:
        """Counts on this device's networks and images, summed over the devices that share them."""
        classes = jax.nn.one_hot(labels, setup.dataset_spec.num_classes, dtype=jnp.int32)

        def compute_probabilities(params: PyTree) -> jax.Array:
            return jax.nn.softmax(setup.infer(params, state.batch_stats, images))

        def count_correct(probabilities: jax.Array) -> jax.Array:
            is_correct = (jnp.argmax(probabilities, axis=-1) == labels) & is_image
            return sum_over_data(jnp.sum(is_correct[..., None] * classes, axis=-2))

        ema = compute_probabilities(state.ema_params)
        # Devices hold equally many networks, so the mean of means is the mean of all.
        mean = jax.lax.pmean(jnp.mean(ema, axis=0), NETWORK_AXIS)
        return {
            "raw": count_correct(compute_probabilities(state.params)),
            "ema": count_correct(ema),
            "ensemble": count_correct(mean),
        }

    sharded_step = jax.shard_map(
        eval_step,
        mesh=setup.mesh,
        in_specs=(setup.state_specs, P(DATA_AXIS), P(DATA_AXIS), P(DATA_AXIS)),
        out_specs={"raw": P(NETWORK_AXIS), "ema": P(NETWORK_AXIS), "ensemble": P()},
    )
    return jax.jit(sharded_step, out_shardings=NamedSharding(setup.mesh, P()))


def create_evaluate(setup: TrainSetup, sizes: Sequence[int] = ()) -> Callable[..., Accuracies]:
    """Returns a function (state, images, labels) → accuracies in percent, each image counted once.

    Sets of these `sizes` are compiled for at once, others when they are evaluated. Raises a
    UserError, as the function does, if a batch needs more memory than a device has.

    They are "test/accuracy" (network 1 with EMA parameters: the figure to report),
    "test/balanced_accuracy" (its mean of the accuracies within each class that has test images),
    "test/accuracy_network_<i>" and "test/accuracy_ensemble" (EMA), and
    "test/accuracy_live_network_<i>" (raw). None without images or if interrupted.
    """
    eval_step = create_eval_step(setup)
    # Without sizes, a finished run is evaluated once.
    num_evaluations = 1 + setup.config.num_steps // setup.config.eval_every
    most_images = max(sizes, default=0)

    @functools.cache
    def compile_for(batch_size: int) -> jax.stages.Compiled:
        """The step for batches of so many images."""
        like = functools.partial(
            jax.ShapeDtypeStruct, sharding=NamedSharding(setup.mesh, P(DATA_AXIS))
        )
        images = like((batch_size, *setup.dataset_spec.image_shape), jnp.uint8)
        labels, is_image = (like((batch_size,), dtype) for dtype in (jnp.int32, jnp.bool))
        lowered = eval_step.lower(setup.state_shapes, images, labels, is_image)
        options = compilation.choose_options(runs=num_evaluations * -(-most_images // batch_size))
        compiled: jax.stages.Compiled = lowered.compile(compiler_options=options or None)
        release_freed_memory()
        most = setup.config.eval_batch_size
        remedy = f"choose an eval_batch_size below {most:,}"
        device, what = setup.mesh.local_devices[0], f"evaluating {most:,} images at once"
        together(lambda: check_memory(compiled, device, what, remedy))
        return compiled

    for size in sizes:
        if size:
            compile_for(_choose_batch_size(setup, size))

    def evaluate(
        state: TrainState,
        images: ImageSource,
        labels: np.ndarray,
        should_stop: Callable[[], bool] = lambda: False,
        split: str = "test",
    ) -> Accuracies:
        """Evaluates. Gives up before the next batch if `should_stop()`. `split` replaces "test"."""
        counts: list[dict[str, jax.Array]] = []
        with contextlib.closing(iterate_on_mesh(setup, images, labels)) as batches:
            for shown, classes, is_image in batches:
                if should_stop():
                    return {}
                counts.append(compile_for(len(shown))(state, shown, classes, is_image))
                if len(counts) > _MAX_IN_FLIGHT:  # Wait for an earlier batch, not for this one.
                    jax.block_until_ready(counts[-1 - _MAX_IN_FLIGHT])
        if not counts:
            return {}
        correct = jax.tree.map(lambda *parts: sum(parts), *jax.device_get(counts))
        sizes = np.bincount(labels, minlength=correct["ensemble"].size)
        return _name_accuracies(correct, sizes, split)

    return evaluate


def _name_accuracies(correct: dict[str, np.ndarray], sizes: np.ndarray, split: str) -> Accuracies:
    """Accuracies in percent from correct images of each class [..., K] and images per class [K]."""
    shares = jax.tree.map(lambda counts: 100.0 * counts.sum(axis=-1) / sizes.sum(), correct)
    is_tested = sizes > 0
    within_classes = correct["ema"][0, is_tested] / sizes[is_tested]
    accuracies = {
        f"{split}/accuracy": shares["ema"][0],
        f"{split}/balanced_accuracy": 100.0 * np.mean(within_classes),
        f"{split}/accuracy_ensemble": shares["ensemble"],
    }
    for i, (ema, raw) in enumerate(zip(shares["ema"], shares["raw"], strict=True), 1):
        accuracies[f"{split}/accuracy_network_{i}"] = ema
        accuracies[f"{split}/accuracy_live_network_{i}"] = raw
    return {name: float(value) for name, value in accuracies.items()}


def compute_accuracies(p_NBK: np.ndarray, labels: np.ndarray, split: str = "test") -> Accuracies:
    """The same accuracies from probabilities float [N, B, K], which count as raw and as EMA."""
    num_classes = p_NBK.shape[-1]

    def count(p_BK: np.ndarray) -> np.ndarray:
        return np.bincount(labels[p_BK.argmax(axis=-1) == labels], minlength=num_classes)

    networks = np.stack([count(p_BK) for p_BK in p_NBK])
    correct = {"raw": networks, "ema": networks, "ensemble": count(p_NBK.mean(axis=0))}
    return _name_accuracies(correct, np.bincount(labels, minlength=num_classes), split)


def _choose_batch_size(setup: TrainSetup, num_images: int) -> int:
    """Images at once: `eval_batch_size` for each shard, or fewer for a small set."""
    num_shards: int = setup.mesh.shape[DATA_AXIS]
    most: int = min(setup.config.eval_batch_size, -(-num_images // num_shards))
    return max(1, most) * num_shards


def iterate_on_mesh(
    setup: TrainSetup, images: ImageSource, labels: np.ndarray, size: int = 0
) -> Generator[tuple[jax.Array, jax.Array, jax.Array], None, None]:
    """Cuts a set into batches of one size on the mesh, one batch ahead: images, labels, a mask.

    A batch has `size` images, a multiple of the shards, by default up to `eval_batch_size` for each
    of them. Every process reads only those of its own devices. The last batch is padded with zeros,
    for which the mask is False.
    """
    part = get_process_shard(setup.mesh)
    size = size or _choose_batch_size(setup, len(labels))
    local = np.arange(size)[part.take(size)]

    def read(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = np.minimum(local + start, len(labels))
        is_image = rows < len(labels)
        missing = int(np.sum(~is_image))
        rows = rows[is_image]
        found = images[rows]
        padded = np.pad(found, [(0, missing), *[(0, 0)] * (found.ndim - 1)])
        return padded, np.pad(labels[rows], (0, missing)), is_image

    with contextlib.closing(compute_ahead(read, range(0, len(labels), size), 1)) as batches:
        for batch in batches:
            shapes = jax.tree.map(lambda array: (size, *array.shape[1:]), batch)
            yield to_global_arrays(batch, setup.mesh, (P(DATA_AXIS),) * 3, shapes)
