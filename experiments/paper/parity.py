"""Compares the training step with that of the authors' released PyTorch code.

python -m experiments.paper.parity --peer PATH

PATH is a checkout of the authors' code; PyTorch must be installed. Both start from the authors'
initial weights and take the same steps on the same random batches. The authors' step in double
precision is the reference: the table shows the errors of ours and theirs, both in float32, as
|x - reference| / |reference| (Euclidean norms over all arrays of a kind).
"""

import math

import jax
import numpy as np

from cls_jax.batch import DatasetSpec, RawBatch
from cls_jax.training.setup import TrainState, create_train_setup
from cls_jax.training.step import create_train_step
from experiments.benchmarks.variants import create_random_batch
from experiments.paper import grid
from experiments.paper.authors import NUM_CLASSES, Peer, import_torch

Arrays = dict[str, np.ndarray]

# The running variance differs by definition: PyTorch keeps the unbiased one, Flax the biased.
KINDS = ("parameters", "EMA", "running mean", "running variance")

# BatchNorms whose output the authors' network drops, and whose statistics only their code updates.
DEAD_NORMS = ("stage2_block1/norm1/", "stage3_block1/norm1/")


def rename(name: str) -> str:
    """The name of one of the authors' arrays in our pytrees, as path/to/leaf.

    Example: "block2.layer.0.bn1.weight" is "stage2_block1/norm1/scale".
    """
    *modules, leaf = name.split(".")
    if modules[0].startswith("block"):
        stage, block = modules[0].removeprefix("block"), int(modules[2]) + 1
        modules = [f"stage{stage}_block{block}", modules[3]]
    else:
        modules = [{"conv1": "stem", "fc": "head"}.get(modules[0], modules[0])]
    is_norm = modules[-1].startswith("bn")
    layer = modules[-1].replace("bn", "norm").replace("convShortcut", "projection")
    if modules == ["bn1"]:
        layer = "norm"
    leaves = {"weight": "scale" if is_norm else "kernel", "bias": "bias"}
    leaves |= {"running_mean": "mean", "running_var": "var"}
    return "/".join([*modules[:-1], layer, leaves[leaf]])


def to_ours(state_dict) -> Arrays:
    """A model's arrays under our names and in our layouts (kernels HWIO, dense [in, out])."""
    arrays = {}
    for name, tensor in state_dict.items():
        if name.endswith("num_batches_tracked"):
            continue
        array = tensor.detach().cpu().numpy().copy()
        arrays[rename(name)] = array.transpose({4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim))
    return arrays


def set_networks(state: TrainState, networks: list[Arrays]) -> TrainState:
    """A state with the given networks instead of its own. The EMA starts as the networks."""

    def take(path, leaf):
        key = "/".join(entry.key for entry in path)
        stacked = np.stack([network[key] for network in networks]).astype(np.float32)
        return jax.device_put(stacked.reshape(leaf.shape), leaf.sharding)

    trees = {name: getattr(state, name) for name in ("params", "batch_stats", "ema_params")}
    fill = jax.tree_util.tree_map_with_path
    return state.replace(**{name: fill(take, tree) for name, tree in trees.items()})


def collect_ours(state: TrainState) -> dict[str, Arrays]:
    """The arrays of network 1 of a state by kind."""
    trees = jax.device_get((state.params, state.batch_stats, state.ema_params))
    params, stats, ema = (
        {"/".join(entry.key for entry in path): np.asarray(leaf[0]) for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, trees)
    )
    return _split(params | stats, ema)


def collect_theirs(peer: Peer) -> dict[str, Arrays]:
    """The arrays of model 1 and of its EMA by kind."""
    return _split(to_ours(peer.models[0].state_dict()), to_ours(peer.ema.state_dict()))


def _split(arrays: Arrays, ema: Arrays) -> dict[str, Arrays]:
    statistics = ("/mean", "/var")
    alive = {k: v for k, v in arrays.items() if not k.startswith(DEAD_NORMS)}
    kinds = (
        {k: v for k, v in arrays.items() if not k.endswith(statistics)},
        {k: v for k, v in ema.items() if not k.endswith(statistics)},
        *({k: v for k, v in alive.items() if k.endswith(end)} for end in statistics),
    )
    return dict(zip(KINDS, kinds, strict=True))


def measure_error(arrays: Arrays, referee: Arrays) -> float:
    """|arrays - referee| / |referee|, Euclidean norms over all arrays."""
    assert set(arrays) == set(referee)
    squared = sum(float(np.sum((arrays[k] - referee[k].astype(np.float64)) ** 2)) for k in referee)
    return math.sqrt(squared / sum(float(np.sum(referee[k] ** 2)) for k in referee))


def create_batch(config, seed: int) -> RawBatch:
    """A batch of random images, uint8: blocks of color under noise.

    The noise matters: in areas of one color, all pixels cross the kink of LeakyReLU at once, so
    that rounding differences of 1e-7 in an activation change gradients by 1e-3.
    """
    rng = np.random.default_rng(seed)
    size, b, u = config.data.image_size, config.batch_size, config.batch_size * config.mu
    coarse = rng.integers(0, 256, (b + 2 * u, 4, 4, 3))
    blocks = np.kron(coarse, np.ones((1, size // 4, size // 4, 1)))
    noise = rng.integers(-60, 61, blocks.shape)
    images = np.clip(blocks + noise, 0, 255).astype(np.uint8)
    labels = rng.integers(0, NUM_CLASSES, b).astype(np.int32)
    unlabeled = images[b:].reshape(2, u, size, size, 3)
    return create_random_batch(config)._replace(x=images[:b], y=labels, u=unlabeled)


def compare_steps(path: str, config, num_steps: int) -> list[tuple[str, int, float, float]]:
    """Takes steps with all three.

    Returns:
        Rows (quantity, step, our error, their error), errors relative to the referee.
    """
    torch = import_torch()
    theirs, referee = Peer(path, config, "cpu"), Peer(path, config, "cpu")
    for model in (*referee.models, referee.ema):
        model.double()
    setup = create_train_setup(config, DatasetSpec((32, 32, 3), NUM_CLASSES, 50_000))
    state = setup.init_state()
    state = set_networks(state, [to_ours(model.state_dict()) for model in theirs.models])
    train_step, schedule = create_train_step(setup), setup.put_schedule()
    mean, std = np.array(config.data.mean), np.array(config.data.std)
    rows = []
    for step in range(num_steps):
        batch = create_batch(config, step)
        rate = config.optimizer.learning_rate * math.cos(7 * math.pi * step / 16 / config.num_steps)
        images = np.concatenate([batch.x, *batch.u]) / 255.0
        images = torch.from_numpy(((images - mean) / std).transpose(0, 3, 1, 2).copy())
        labels = torch.from_numpy(batch.y.astype(np.int64))
        state, metrics = train_step(state, batch, schedule)
        losses = [
            sum(loss.item() for loss in peer.step(pixels, labels, rate)) / 2
            for peer, pixels in ((theirs, images.float()), (referee, images))
        ]
        ours = float(metrics["train/loss"])
        errors = (abs(x - losses[1]) / abs(losses[1]) for x in (ours, losses[0]))
        rows.append(("loss", step + 1, *errors))
        parts = [collect_ours(state), collect_theirs(theirs), collect_theirs(referee)]
        for kind in KINDS:
            errors = (measure_error(part[kind], parts[2][kind]) for part in parts[:2])
            rows.append((kind, step + 1, *errors))
    return rows


def main() -> None:
    """Prints and writes the table."""
    parser = grid.create_parser(__doc__, "250", "runs/parity.md")
    parser.add_argument("--peer", required=True, help="a checkout of the authors' PyTorch code")
    parser.add_argument("--steps", type=int, default=3, help="how many steps to take")
    parser.set_defaults(config="configs/cifar10.py")
    arguments = grid.parse_arguments(parser)
    config = grid.create_config(arguments)
    config.mesh.network = config.mesh.data = 1
    rows = compare_steps(arguments.peer, config, arguments.steps)
    lines = ((name, step, f"{ours:.1e}", f"{theirs:.1e}") for name, step, ours, theirs in rows)
    table = grid.format_table(("quantity", "after step", "ours", "theirs"), lines)
    grid.write_page(arguments.output, "Parity with the authors' step", table)


if __name__ == "__main__":
    grid.run_main(main)
