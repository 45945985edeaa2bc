"""Compares one training step, and the batches made on the device, between accelerator and CPU.

python -m experiments.benchmarks.compare_devices --config configs/cifar10.py

Float32 with full-precision products; exits with code 1 if a bound is missed.
"""

import sys

import jax
import numpy as np

from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step, make_batch_fn
from experiments.benchmarks.variants import create_inputs, create_random_dataset
from experiments.paper import grid

# Of an image's values: augmentations round to integers, and devices compute what they round.
MAX_DIFFERING = 1e-4
MAX_LOSS_DIFFERENCE = 1e-4
MAX_PARAMETER_DIFFERENCE = 1e-3  # Relative, of the norm.


def compute_on(device: jax.Device, config):
    """The batch of step 0, and monitors and parameters after one step on one device."""
    with jax.default_device(device):
        dataset = create_random_dataset(config)
        setup = create_train_setup(config, dataset.shape, [device])
        state = setup.init_state()
        inputs, specs, create_batch = create_inputs("device", config, setup, dataset)
        batch = make_batch_fn(setup, create_batch, specs)(state, next(inputs))
        random_batch = next(create_inputs("synthetic", config, setup, dataset)[0])
        state, monitors = create_train_step(setup)(state, random_batch, setup.put_schedule())
        return jax.device_get((batch, monitors, state.params))


def main() -> None:
    """Prints the differences."""
    parser = grid.create_parser(__doc__, "250", "")
    arguments = grid.parse_arguments(parser)
    config = grid.create_config(arguments)
    config.mesh.network = config.mesh.data = 1
    config.model.matmul_precision = "highest"
    accelerator, cpu = jax.devices()[0], jax.devices("cpu")[0]
    ours, theirs = compute_on(accelerator, config), compute_on(cpu, config)
    pairs = zip(ours[0], theirs[0], strict=True)
    differing = [np.mean(np.asarray(a) != np.asarray(b)) for a, b in pairs]
    loss = max(abs(float(ours[1][name] - theirs[1][name])) for name in ours[1] if "loss" in name)
    difference = _norm(jax.tree.map(np.subtract, ours[2], theirs[2])) / _norm(theirs[2])
    print(f"{accelerator.device_kind} against {cpu.device_kind}")
    shares = ", ".join(
        f"{name} {share:.1e}" for name, share in zip(ours[0]._fields, differing, strict=True)
    )
    print(f"batches: share of values that differ: {shares} (bound {MAX_DIFFERING})")
    print(f"losses differ by at most {loss:.2e} (bound {MAX_LOSS_DIFFERENCE})")
    print(f"parameters after a step differ by {difference:.2e} (bound {MAX_PARAMETER_DIFFERENCE})")
    if (
        max(differing) > MAX_DIFFERING
        or loss > MAX_LOSS_DIFFERENCE
        or difference > MAX_PARAMETER_DIFFERENCE
    ):
        sys.exit(1)


def _norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree))))


if __name__ == "__main__":
    grid.run_main(main)
