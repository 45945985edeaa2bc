"""The start of a run: its instant classifier, and the first heads of its networks.

`compute_start` runs once per run. A run without steps ends there. In others,
`init_state_with_heads` fits the networks' heads to the same inferred labels, which may stay a term
of the loss (`method.graph`), or to the given labels.

Shape suffixes: N networks, B images, C features, K classes.
"""

import pathlib
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset, Selection
from cls_jax.methods.losses import PseudoLabels, draw_least_probable
from cls_jax.parallel.distributed import arrays_from_main_process
from cls_jax.parallel.mesh import to_global_arrays
from cls_jax.photos.features.extract import (
    FrozenFeatures,
    FrozenNetwork,
    extract_features,
    extract_from_arrays,
)
from cls_jax.photos.features.heads import INSTANT_C, PROBE_C, fit_heads
from cls_jax.photos.features.instant import InstantClassifier, fit_classifier
from cls_jax.photos.features.labels import InferredLabels, label_images
from cls_jax.photos.folder.dataset import take_rows
from cls_jax.photos.images.decode import get_decode_options
from cls_jax.photos.plan.rules import find_own_image_size
from cls_jax.training.evaluate import Accuracies, compute_accuracies, compute_trained_features
from cls_jax.training.setup import TrainSetup, TrainState, get_own_settings, replace_heads

# Unlabeled images to which heads are fitted before training. Their features, at the run's
# resolution, are used for nothing else, and more images do not improve the heads.
_MAX_UNLABELED = 1_000

# Takes indices of training images int [m], their pseudo-labels int [m] and weights float [m].
RecordLabels = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]


class Start(NamedTuple):
    """Labels from frozen features, for the images of a run."""

    rows: np.ndarray  # The training images that the run uses, int [B], sorted.
    is_labeled: np.ndarray  # bool [B].
    inferred: InferredLabels
    classifier: InstantClassifier
    # In percent: "test/accuracy_probe", "test/accuracy_instant" and so on, and
    # `InferredLabels.figures` as "labels/…".
    accuracies: Accuracies


def compute_start(
    setup: TrainSetup, dataset: Dataset, spec: StreamSpec, network: FrozenNetwork | None = None
) -> Start | None:
    """The start of a run, or None if neither heads nor loss need one.

    Features are computed at the network's own resolution. Without pretrained weights they are
    pixels. A resumed run uses the network stored in its folder. Raises a UserError if the
    pretrained weights cannot be read or do not fit.
    """
    config, has_steps = setup.config, setup.config.num_steps > 0
    init_head = config.model.init_head
    heads = init_head, config.model.final_head
    if has_steps and "graph" not in heads and not config.method.get("graph"):
        return None
    if network is None and config.model.init:
        network = open_frozen_network(setup)
    # All, unless `data.imbalance` or `model.graph_images` leaves some out.
    others = np.setdiff1d(spec.unlabeled_indices, spec.labeled_indices)
    others = take_rows(others, config.model.graph_images or len(others))
    rows = np.union1d(spec.labeled_indices, others)
    train = compute_frozen(dataset, config.data.data_dir, network, "train", rows)
    held_out = {part: labels for part, _, labels in dataset.held_out if len(labels)}
    is_labeled = np.isin(rows, spec.labeled_indices)
    labels = np.where(is_labeled, dataset.train_labels[rows], -1)
    inferred = label_images(train, labels, setup.dataset_spec.num_classes)
    classifier = fit_classifier(network, train, inferred)
    probe_only = InstantClassifier(network, inferred.probe)
    accuracies = {f"labels/{name}": value for name, value in inferred.figures.items()}
    for part, labels in held_out.items():
        features = compute_frozen(dataset, config.data.data_dir, network, part)
        for name, fitted in (("probe", probe_only), ("instant", classifier)):
            figures = compute_accuracies(fitted.compute_both(features)[0], labels, part)
            accuracies[f"{part}/accuracy_{name}"] = figures[f"{part}/accuracy"]
            if not has_steps and name == ("instant" if init_head == "graph" else "probe"):
                accuracies |= figures
    if not has_steps and init_head == "probe":
        classifier = probe_only
    return Start(rows, is_labeled, inferred, classifier, accuracies)


def init_state_with_heads(
    setup: TrainSetup, dataset: Dataset, spec: StreamSpec, start: Start | None, round_index: int = 0
) -> TrainState:
    """The state before the first step of a round, with the heads that `model.init_head` asks for.

    Heads are fitted to given labels ("probe") and features of the run's networks, or to inferred
    labels ("graph"), see `_choose_inferred`. A randomly initialized head would backpropagate its
    errors into the pretrained layers, and its pseudo-labels are wrong. So fine-tuning starts from a
    fitted one (LP-FT: Kumar et al., ICLR 2022).

    Raises a UserError if the pretrained weights cannot be read or do not fit.
    """
    config, state = setup.config, setup.init_state(round_index)
    if start is not None and config.method.get("graph"):
        state = state.replace(
            method_state=state.method_state | {"graph": _create_graph_labels(setup, start)}
        )
    if config.model.init_head == "random":
        return state
    if config.model.init_head == "graph":
        assert start is not None, "heads fitted to inferred labels need a start"
        inverse_penalty = INSTANT_C
        features_NBC, labels, weights = _choose_inferred(setup, dataset, start)
    else:
        labeled, inverse_penalty, weights = spec.labeled_indices, PROBE_C, None
        labels = dataset.train_labels[labeled]
        features_NBC = compute_trained_features(setup, state, dataset.train_images, labeled)
    num_classes, seed = setup.dataset_spec.num_classes, (config.seed, round_index)
    heads = fit_heads(features_NBC, labels, num_classes, seed, inverse_penalty, weights)
    # Other numbers of threads round differently.
    heads = arrays_from_main_process(heads)
    return state.replace(
        params=replace_heads(setup, state.params, heads),
        ema_params=replace_heads(setup, state.ema_params, heads),
    )


def _choose_inferred(
    setup: TrainSetup, dataset: Dataset, start: Start
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [N, B, C] for the first heads, with inferred labels and their weights [B].

    Labels come from features at the network's own resolution, which it was pretrained for. These
    features are at the run's resolution, which the heads see in training. If the two differ, only
    the labeled and at most 1,000 other images are used. On photographs, a head on half of the
    features is as good as one on all.
    """
    config, network = setup.config, open_frozen_network(setup)
    image_size, chosen = config.data.image_size, np.arange(len(start.rows))
    if network.image_size != image_size:
        others = take_rows(chosen[~start.is_labeled], _MAX_UNLABELED)
        chosen = np.sort(np.concatenate([chosen[start.is_labeled], others]))
    network, rows = network._replace(image_size=image_size), start.rows[chosen]
    features = compute_frozen(dataset, config.data.data_dir, network, "train", rows).pooled
    features = np.broadcast_to(features, (setup.method.num_networks, *features.shape))
    return features, start.inferred.labels[chosen], start.inferred.sample_weights[chosen]


def _create_graph_labels(setup: TrainSetup, start: Start) -> PseudoLabels:
    """The targets of `method.graph` for every training image, on the mesh. Mean weight 1."""
    inferred, p = start.inferred, start.inferred.probabilities
    weights = inferred.weights / max(inferred.weights.mean(), 1e-12)
    complementary = draw_least_probable(p, (setup.config.seed, zlib.crc32(b"complementary")))
    columns = PseudoLabels(*map(jnp.asarray, (inferred.labels, complementary, weights, p.max(1))))

    def fill(column: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        """A table [N, images], with zeros for unused images."""
        table = np.zeros(shape.shape, shape.dtype)
        table[:, start.rows] = column
        return table

    stacked = jax.tree.map(fill, columns, setup.state_shapes.method_state["graph"])
    stacked = arrays_from_main_process(stacked)
    return to_global_arrays(stacked, setup.mesh, setup.state_specs.method_state["graph"])


def open_frozen_network(setup: TrainSetup) -> FrozenNetwork:
    """The run's pretrained weights at their own resolution, or at that of a run without steps."""
    config = setup.config
    assert setup.read_weights is not None, config.model.init
    return FrozenNetwork(
        config.model.name,
        setup.read_weights()._replace(
            normalization=(tuple(config.data.mean), tuple(config.data.std))
        ),
        find_own_image_size(config) if config.num_steps else config.data.image_size,
        tuple(get_own_settings(config).items()),
        get_decode_options(config.data),
        setup.dataset_spec.image_shape[-1],
    )


def compute_frozen(
    dataset: Dataset,
    data_dir: str,
    network: FrozenNetwork | None,
    part: str,
    rows: np.ndarray | None = None,
) -> FrozenFeatures:
    """Features of the "train", "validation" or "test" images, or their pixels instead.

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
        root = pathlib.Path(data_dir).expanduser()
        decoded = images if dataset.image_shape == network.image_shape else None
        return extract_features([root / file for file in files], network, images=decoded)
    return extract_from_arrays(images, network)
