"""Linear heads before and after fine-tuning.

A randomly initialized head backpropagates its errors into the pretrained layers, and its pseudo
labels are wrong. So fine-tuning starts from a linear probe (LP-FT: Kumar et al., ICLR 2022):
`model.init_head=probe` first fits the heads to the features of the labeled images,
`model.init_head=graph` to the features of all images, with propagated labels. Training then goes on
as in any other run, or ends at once with `num_steps=0`.

In trained features the classes lie farther apart, so labels spread to more of the right images.
`model.final_head=graph` propagates them once more and fits the heads of the EMA networks again.

Shape suffixes: N networks, B images, C features, K classes.
"""

import contextlib
import dataclasses
import pathlib
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cls_jax.config.from_folder import find_own_image_size
from cls_jax.data.images.decode import get_decode_options
from cls_jax.data.sampling import StreamSpec
from cls_jax.data.sources.folder import take_rows
from cls_jax.data.types import Dataset, ImageSource, Selection
from cls_jax.errors import UserError
from cls_jax.features.extract import FrozenFeatures, FrozenNetwork, extract_features, read_features
from cls_jax.features.extract import compute_features as compute_frozen_features
from cls_jax.features.graph import build_graph, compute_weight, join_features
from cls_jax.features.instant import (
    INSTANT_C,
    PROBE_C,
    Head,
    PropagatedLabels,
    fit_head,
    label_images,
    spread_labels,
)
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.methods.losses import PseudoLabels, draw_least_probable
from cls_jax.models.layers import DESCRIPTORS, FEATURES
from cls_jax.parallel.distributed import arrays_from_main_process
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, to_global_arrays
from cls_jax.training.evaluate import iterate_on_mesh
from cls_jax.training.setup import TrainSetup, TrainState, get_own_settings

# Unlabeled images that the heads of networks to be trained are fitted to. Their features, of the
# run's resolution, serve nothing else, and more images make no better heads.
_MAX_UNLABELED = 1_000
# Labeled images in the graph of trained features, and others. More would take minutes on a CPU.
_MAX_FINAL = 10_000

# Takes indices of training images int [m], their pseudo-labels int [m] and weights float [m].
RecordLabels = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]


def init_state(
    setup: TrainSetup,
    dataset: Dataset,
    spec: StreamSpec,
    round_index: int = 0,
    report: Callable[[dict[str, float]], Any] = lambda accuracies: None,
    record: RecordLabels = lambda *columns: None,
) -> TrainState:
    """The state before the first step of a round, with the heads that `model.init_head` asks for.

    With the head "graph", `record` is called with the propagated labels of the unlabeled images,
    and `report` with what the labels say about graph and probe (`PropagatedLabels.figures`) and,
    with test images, the accuracies on them of the linear probe and the instant classifier.

    Raises:
        UserError: If the pretrained weights cannot be read or do not fit.
    """
    state = setup.init_state(round_index)
    init_head, has_graph_loss = setup.config.model.init_head, setup.config.method.get("graph")
    seed = (setup.config.seed, round_index)
    if init_head == "graph" or has_graph_loss:
        start = propagate_labels(setup, dataset, spec, report, record)
    if has_graph_loss:
        own, _ = state.method_state
        state = state.replace(method_state=(own, _create_graph_labels(setup, start)))
    if init_head == "random":
        return state
    if init_head == "graph":
        heads = fit_instant_heads(setup, dataset, start, seed)
    else:
        labels = dataset.train_labels[spec.labeled_indices]
        features_NBC = compute_features(setup, state, dataset.train_images, spec.labeled_indices)
        heads = fit_heads(features_NBC, labels, setup.dataset_spec.num_classes, seed)
    # Threads of other numbers round differently, and features of all images have been computed.
    heads = arrays_from_main_process(heads)
    return state.replace(
        params=_replace_heads(setup, state.params, heads),
        ema_params=_replace_heads(setup, state.ema_params, heads),
    )


def fit_final_heads(
    setup: TrainSetup,
    state: TrainState,
    dataset: Dataset,
    spec: StreamSpec,
    record: RecordLabels = lambda *columns: None,
) -> TrainState:
    """Fits the heads of the EMA networks again, to labels propagated along their features.

    All networks share the graph, whose descriptors are those of all networks side by side, and its
    labels. Each has a head on all of its own features. At most 10,000 labeled images are used, and
    as many others, evenly spaced. `record` gets their labels, and for the rest those that the
    networks predict with these heads.

    Returns:
        The state with other heads in `ema_params`. They do not depend on the heads there were.
    """
    rest = np.setdiff1d(spec.unlabeled_indices, spec.labeled_indices)
    labeled, unlabeled = take_rows(spec.labeled_indices, _MAX_FINAL), take_rows(rest, _MAX_FINAL)
    rows = np.concatenate([labeled, unlabeled])
    labels = np.full(len(rows), -1)
    labels[: len(labeled)] = dataset.train_labels[labeled]
    both_NBC = compute_features(setup, state, dataset.train_images, rows, DESCRIPTORS)
    features_NBC, descriptors_NBC = np.split(both_NBC, 2, axis=-1)
    graph = build_graph(join_features(descriptors_NBC))
    num_classes = setup.dataset_spec.num_classes
    spread = spread_labels(join_features(features_NBC), graph, labels, num_classes)
    heads = [
        fit_head(features_BC, spread.labels, num_classes, INSTANT_C, spread.sample_weights)
        for features_BC in features_NBC
    ]
    # Sums on several devices round differently, and here a difference must not cost the run.
    heads = arrays_from_main_process(heads)
    columns = [(unlabeled, spread.labels[len(labeled) :], spread.weights[len(labeled) :])]
    others = np.setdiff1d(rest, unlabeled)
    for first in range(0, len(others), _MAX_FINAL):  # All of their features would fill the memory.
        part = others[first : first + _MAX_FINAL]
        features_NBC = compute_features(setup, state, dataset.train_images, part)
        pairs = zip(heads, features_NBC, strict=True)
        p_BK = np.mean([head.compute_probabilities(f_BC) for head, f_BC in pairs], axis=0)
        columns.append((part, p_BK.argmax(axis=1), compute_weight(p_BK)))
    record(*map(np.concatenate, zip(*columns, strict=True)))
    return state.replace(ema_params=_replace_heads(setup, state.ema_params, heads))


def fit_heads(
    features_NBC: np.ndarray,
    labels_B: np.ndarray,
    num_classes: int,
    seed: tuple[int, ...],
    inverse_penalty: float = PROBE_C,
    weights_B: np.ndarray | None = None,
) -> list[Head]:
    """A head for every network, each on its own part of the features.

    Networks with the same head and the same pretrained weights would stay the same: they see the
    same batches. So N networks divide the features among them at random, like the two views of
    co-training (Blum and Mitchell, 1998). Kernels of all other features start from 0.
    """
    num_networks, _, num_features = features_NBC.shape
    # With a number of its own: the bare seed, or the seed and zeros, draws the labeled images.
    generator = np.random.default_rng((*seed, zlib.crc32(b"probe")))
    parts = np.array_split(generator.permutation(num_features), num_networks)
    return [
        fit_head(features_BC, labels_B, num_classes, inverse_penalty, weights_B, np.sort(part))
        for features_BC, part in zip(features_NBC, parts, strict=True)
    ]


class InstantLabels(NamedTuple):
    """Labels that were propagated along a graph of frozen features."""

    rows: np.ndarray  # The training images that a run uses, int [B], sorted.
    is_labeled: np.ndarray  # bool [B].
    spread: PropagatedLabels
    head: Head | None  # Fitted to the labels, if there are test images.


def propagate_labels(
    setup: TrainSetup,
    dataset: Dataset,
    spec: StreamSpec,
    report: Callable[[dict[str, float]], Any],
    record: RecordLabels,
) -> InstantLabels:
    """Labels for the training images, along a graph of features at the network's own resolution.

    Without pretrained weights, pixels are the features. See `init_state` for the arguments.
    """
    num_classes = setup.dataset_spec.num_classes
    network = _open_frozen_network(setup) if setup.config.model.init else None
    # All of them, unless `data.imbalance` leaves some out.
    rows = np.union1d(spec.labeled_indices, spec.unlabeled_indices)
    features = _compute_frozen(setup, dataset, network, "train", rows)
    is_labeled = np.isin(rows, spec.labeled_indices)
    labels = np.where(is_labeled, dataset.train_labels[rows], -1)
    spread, head = label_images(features, labels, num_classes), None
    report({f"labels/{name}": value for name, value in spread.figures.items()})
    record(rows[~is_labeled], spread.labels[~is_labeled], spread.weights[~is_labeled])
    if len(dataset.test_images):
        test_features = _compute_frozen(setup, dataset, network, "test").pooled
        head = fit_head(
            features.pooled, spread.labels, num_classes, INSTANT_C, spread.sample_weights
        )
        accuracies = {
            f"test/accuracy_{name}": 100.0
            * float(np.mean(fitted.predict(test_features) == dataset.test_labels))
            for name, fitted in (("probe", spread.probe), ("instant", head))
        }
        report(accuracies)
    return InstantLabels(rows, is_labeled, spread, head)


def fit_instant_heads(
    setup: TrainSetup, dataset: Dataset, start: InstantLabels, seed: tuple[int, ...]
) -> list[Head]:
    """A head for every network, fitted to propagated labels.

    The heads see features of the run's resolution. On photographs, a head on half of the features
    is as good as one on all. A single network at its own resolution has the head of `start`, if
    there is one. Networks that are trained at another resolution have heads that are fitted to the
    labeled and at most 1,000 other images.
    """
    config, network = setup.config, _open_frozen_network(setup)
    image_size, num_networks = config.data.image_size, setup.method.num_networks
    if start.head is not None and num_networks == 1 and network.image_size == image_size:
        return [start.head]
    chosen = np.arange(len(start.rows))
    if config.num_steps and network.image_size != image_size:
        others = take_rows(chosen[~start.is_labeled], _MAX_UNLABELED)
        chosen = np.sort(np.concatenate([chosen[start.is_labeled], others]))
    network = network._replace(image_size=image_size)
    features = _compute_frozen(setup, dataset, network, "train", start.rows[chosen]).pooled
    return fit_heads(
        np.broadcast_to(features, (num_networks, *features.shape)),
        start.spread.labels[chosen],
        setup.dataset_spec.num_classes,
        seed,
        INSTANT_C,
        start.spread.sample_weights[chosen],
    )


def _create_graph_labels(setup: TrainSetup, start: InstantLabels) -> PseudoLabels:
    """The targets of `method.graph` by training image, on the mesh, weights with the mean 1."""
    spread, p = start.spread, start.spread.probabilities
    weights = spread.weights / max(spread.weights.mean(), 1e-12)
    complementary = draw_least_probable(p, (setup.config.seed, zlib.crc32(b"complementary")))
    columns = PseudoLabels(*map(jnp.asarray, (spread.labels, complementary, weights, p.max(1))))
    _, shapes = setup.state_shapes.method_state

    def fill(column: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        """A table [N, images], with zeros for those that the run does not use."""
        table = np.zeros(shape.shape, shape.dtype)
        table[:, start.rows] = column
        return table

    stacked = arrays_from_main_process(jax.tree.map(fill, columns, shapes))
    return to_global_arrays(stacked, setup.mesh, setup.state_specs.method_state[1])


def _open_frozen_network(setup: TrainSetup) -> FrozenNetwork:
    """The run's pretrained weights at their own resolution."""
    config = setup.config
    assert setup.read_weights is not None, config.model.init
    normalization = (tuple(config.data.mean), tuple(config.data.std))
    weights = setup.read_weights()._replace(normalization=normalization)
    return FrozenNetwork(
        config.model.name,
        weights,
        find_own_image_size(config),
        tuple(get_own_settings(config).items()),
        get_decode_options(config.data),
        setup.dataset_spec.image_shape[-1],
    )


def _compute_frozen(
    setup: TrainSetup,
    dataset: Dataset,
    network: FrozenNetwork | None,
    part: str,
    rows: np.ndarray | None = None,
) -> FrozenFeatures:
    """Features of the training or the test images, or their pixels as both kinds of features.

    `rows` are the places of the wanted images among them. None for all.
    """
    images, files = getattr(dataset, f"{part}_images"), getattr(dataset, f"{part}_files")
    if rows is not None:
        images, files = Selection(images, rows), [files[row] for row in rows if files]
    if network is None:
        pixels = np.asarray(images[:], np.float32)
        pixels = pixels.reshape(len(pixels), -1) / np.float32(255)
        return FrozenFeatures(pixels, pixels, pixels[:, :0])
    if files:
        root = pathlib.Path(setup.config.data.data_dir).expanduser()
        shape = (network.image_size, network.image_size, network.channels)
        is_decoded = dataset.image_shape == shape
        decoded = images if is_decoded else None
        return extract_features([root / file for file in files], network, images=decoded)
    return compute_frozen_features(images, network)


def recall_features(setup: TrainSetup, dataset: Dataset, data_dir: str) -> Dataset:
    """The dataset with the features of its images instead of their pixels, where they are on disk.

    An instant classifier is made of these features. Its network need not see the images again to
    be evaluated, which would take minutes on a CPU: `TrainSetup.infer` takes either.

    Returns:
        A dataset with float16 [n, C] for each kind of images, training, validation or test, whose
        features are known. The same dataset if the run has steps, which change the features.
    """
    config = setup.config
    known: dict[str, Any] = {}
    is_frozen = config.num_steps == 0 and config.model.init and config.model.init_head == "graph"
    # Several processes must do the same, and each has a disk of its own.
    if not (is_frozen and dataset.train_files) or jax.process_count() > 1:
        return dataset
    # The weights may have gone since. Those of another run are read by way of the devices.
    with contextlib.suppress(UserError), jax.transfer_guard("allow"):
        network, root = _open_frozen_network(setup), pathlib.Path(data_dir).expanduser()
        if network.image_size != config.data.image_size:
            return dataset
        for part in ("train", "validation", "test"):
            files = [root / file for file in getattr(dataset, f"{part}_files")]
            if (features := read_features(files, network)) is not None:
                known[f"{part}_images"] = features.pooled
    return dataclasses.replace(dataset, **known)


def compute_features(
    setup: TrainSetup,
    state: TrainState,
    images: ImageSource,
    indices: np.ndarray,
    kind: str = FEATURES,
) -> np.ndarray:
    """Features of clean images by the EMA networks, normalized by their running statistics.

    They are float32 [N, len(indices), C], or 2C with the `kind` DESCRIPTORS.
    """

    def apply(state: TrainState, images: jax.Array) -> jax.Array:
        return setup.infer(state.ema_params, state.batch_stats, images, kind)

    specs = setup.state_specs, P(DATA_AXIS)
    sharded = jax.shard_map(
        apply, mesh=setup.mesh, in_specs=specs, out_specs=P(NETWORK_AXIS, DATA_AXIS)
    )
    compute = jax.jit(sharded, out_shardings=NamedSharding(setup.mesh, P()))
    batches = iterate_on_mesh(setup, Selection(images, indices), indices)
    parts = [np.asarray(compute(state, on_mesh)) for on_mesh, *_ in batches]
    return np.concatenate(parts, axis=1)[:, : len(indices)]


def _replace_heads(setup: TrainSetup, params: dict, heads: list[Head]) -> dict:
    """A copy of stacked parameters with these heads, on the mesh."""
    stacked = {name: np.stack([getattr(head, name) for head in heads]) for name in Head._fields}
    specs = setup.state_specs.params["head"]
    # With a balanced head, the method's own starts there, too.
    names = {"head", METHOD_HEAD} & params.keys()
    return params | {name: to_global_arrays(stacked, setup.mesh, specs) for name in names}
