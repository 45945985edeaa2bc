"""How a run from pretrained weights begins and ends: heads and labels from frozen features.

**First heads** are fitted to given labels, or to labels from frozen features. A randomly
initialized head would backpropagate its errors into the pretrained layers, and its pseudo-labels
are wrong. So fine-tuning starts from a fitted one (LP-FT: Kumar et al., ICLR 2022).

**After the last step**, heads are refitted (`model.final_head=inferred`). Frozen features and
fine-tuned networks err differently, so the product of their probabilities is more accurate than
either. Where classes form clusters, training pulls the clusters further apart, and labels
propagated along a graph of the trained features are more accurate still. Elsewhere that graph is
wrong. So there is a graph of the last layer and one of all stages, with exponents that depend on
the weights that held-out labels gave to these graphs before training. Heads fitted to the combined
labels bring this into the networks.

Shape suffixes: N networks, B images, C features, S features of stages, K classes.
"""

import dataclasses
import functools
import pathlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cls_jax.batch import PyTree
from cls_jax.data.sampling import StreamSpec, take_rows
from cls_jax.data.types import Dataset, ImageSource, Selection
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.methods.losses import PseudoLabels
from cls_jax.methods.options import INFERRED_LABELS
from cls_jax.models.layers import ALL_FEATURES, FEATURES
from cls_jax.parallel import compilation
from cls_jax.parallel.distributed import arrays_from_main_process, is_main_process
from cls_jax.parallel.mesh import DATA_AXIS, NETWORK_AXIS, to_global_arrays
from cls_jax.photos.features.decide import decide
from cls_jax.photos.features.graph import compute_weight, join_features, propagate_labels
from cls_jax.photos.features.heads import INSTANT_C, PROBE_C, Head, fit_head, fit_heads
from cls_jax.photos.features.infer import pool, take_log
from cls_jax.photos.features.instant import INSTANT_FILE, read_instant
from cls_jax.photos.features.network import FrozenFeatures, FrozenNetwork
from cls_jax.photos.features.relations import LAST, STAGES, Relations
from cls_jax.photos.start.fit_instant import INSTANT, write_instant_folder
from cls_jax.photos.start.fit_labels import FittedClasses, fit_labels, name_figures
from cls_jax.photos.start.frozen import (
    PHOTO_WEIGHT_READERS,
    compute_frozen,
    compute_run_features,
    find_native_size,
    read_networks,
    read_other_networks,
)
from cls_jax.photos.start.hold_out import open_run_dataset
from cls_jax.runs.folder import write_pseudo_labels
from cls_jax.training.evaluate import iterate_on_mesh
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import RunEnd
from cls_jax.training.rounds import RecordLabels
from cls_jax.training.setup import TrainSetup, TrainState
from cls_jax.training.stages import Stages

# Unlabeled images to which heads are fitted before training. Their features, at the run's
# resolution, are used for nothing else, and more images do not improve the heads.
_MAX_UNLABELED = 1_000
# To which they are refitted: at most so many labeled and so many other images. More would take
# minutes on a CPU.
MAX_REFITTED = 10_000
# The exponent of a graph of trained features is this many times the weight that held-out labels
# gave to the frozen graph of the same layers, relative to its probes. From 3 to 6, clothing and
# CIFAR-10 differ by about 1 point (experiments/results/any_folder.md).
_GRAPH_EXPONENT = 4.0
_MAX_RATIO = 3.0  # Because the weight of the probes may be 0.


def init_state_with_heads(
    setup: TrainSetup,
    dataset: Dataset,
    spec: StreamSpec,
    fitted: FittedClasses | None,
    round_index: int = 0,
) -> TrainState:
    """The state before the first step of a round, with the heads that `model.init_head` asks for.

    Heads are fitted to given labels ("probe") and features of the run's networks, or to inferred
    labels ("inferred"), see `_choose_inferred`. `fitted` are the run's labels from frozen features,
    None if neither heads nor loss need them.

    Raises a UserError if the pretrained weights cannot be read or do not fit.
    """
    config, state = setup.config, setup.init_state(round_index)
    if fitted is not None and config.method.get("inferred"):
        inferred = _create_targets(setup, fitted)
        state = state.replace(method_state=state.method_state | {INFERRED_LABELS: inferred})
    if config.model.init_head == "random":
        return state
    if config.model.init_head == "inferred":
        assert fitted is not None, "heads fitted to inferred labels need these"
        features_NBC, labels, weights = _choose_inferred(setup, dataset, fitted)
    else:
        labeled, weights = spec.labeled_indices, None
        features_NBC = compute_trained_features(setup, state, dataset.train.images, labeled)
        labels = dataset.train.labels[labeled]
    heads = fit_heads(
        features_NBC,
        labels,
        setup.dataset_spec.num_classes,
        seed=(config.seed, round_index),
        inverse_penalty=PROBE_C if weights is None else INSTANT_C,
        weights_B=weights,
    )
    # Other numbers of threads round differently.
    heads = arrays_from_main_process(heads)
    return state.replace(
        params=replace_heads(setup, state.params, heads),
        ema_params=replace_heads(setup, state.ema_params, heads),
    )


def _choose_inferred(
    setup: TrainSetup, dataset: Dataset, fitted: FittedClasses
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Features [N, B, C] for the first heads, with inferred labels int [B] and their weights [B].

    Labels come from features at the network's native resolution, which it was pretrained for. These
    features are at the run's resolution, which the heads see in training. If the two differ, only
    the labeled and at most 1,000 other images are used. On photos, a head on half of the
    features is as good as one on all.
    """
    network = fitted.classifier.frozen
    image_size, chosen = setup.config.data.image_size, np.arange(len(fitted.rows))
    if network.image_size != image_size:
        others = take_rows(chosen[~fitted.is_labeled], _MAX_UNLABELED)
        chosen = np.sort(np.concatenate([chosen[fitted.is_labeled], others]))
    at_run_size = dataclasses.replace(network, image_size=image_size)
    split, data_dir = dataset.train.take(fitted.rows[chosen]), setup.config.data.data_dir
    features_BC = compute_frozen(dataset, split, data_dir, [at_run_size]).pooled
    return (
        np.broadcast_to(features_BC, (setup.method.num_networks, *features_BC.shape)),
        fitted.inferred.labels[chosen],
        fitted.inferred.sample_weights[chosen],
    )


def _create_targets(setup: TrainSetup, fitted: FittedClasses) -> PseudoLabels:
    """The targets of `method.inferred` for every training image, on the mesh. Mean weight 1."""
    inferred, p = fitted.inferred, fitted.inferred.probabilities
    weights = inferred.weights / max(inferred.weights.mean(), 1e-12)
    complementary = _draw_least_probable(p, (setup.config.seed, zlib.crc32(b"complementary")))
    columns = PseudoLabels(
        jnp.asarray(inferred.labels),
        jnp.asarray(complementary),
        jnp.asarray(weights),
        jnp.asarray(p.max(axis=1)),
    )

    def fill(column: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        """A table [N, images], with zeros for unused images."""
        table = np.zeros(shape.shape, shape.dtype)
        table[:, fitted.rows] = column
        return table

    stacked = jax.tree.map(fill, columns, setup.state_shapes.method_state[INFERRED_LABELS])
    stacked = arrays_from_main_process(stacked)
    return to_global_arrays(stacked, setup.mesh, setup.state_specs.method_state[INFERRED_LABELS])


def fit_final_heads(
    setup: TrainSetup,
    state: TrainState,
    dataset: Dataset,
    fitted: FittedClasses,
    record: RecordLabels = lambda *columns: None,
) -> TrainState:
    """Fits the heads of the EMA networks to labels from features, the networks, and two graphs.

    All networks share the graphs: their features are those of all networks, concatenated. Each
    network's head sees all of its pooled features. At most 10,000 labeled images are used, and as
    many others, evenly spaced. `record` gets the labels of all others.

    Returns:
        The state with the new heads in `ema_params`.
    """
    is_labeled, inferred = fitted.is_labeled, fitted.inferred
    parts = [take_rows(np.flatnonzero(part), MAX_REFITTED) for part in (is_labeled, ~is_labeled)]
    used = np.sort(np.concatenate(parts))
    stacked = jax.device_get(state.ema_params["head"])
    heads = [
        Head(kernel, bias) for kernel, bias in zip(stacked["kernel"], stacked["bias"], strict=True)
    ]
    all_features = compute_trained_features(
        setup, state, dataset.train.images, fitted.rows[used], ALL_FEATURES
    )
    width = len(heads[0].kernel)
    features_NBC, descriptors_NBC, stages_NBS = np.split(all_features, [width, 2 * width], axis=-1)
    num_classes = setup.dataset_spec.num_classes
    given = np.where(is_labeled[used], inferred.labels[used], -1)
    descriptors, stages = join_features(descriptors_NBC), np.concatenate(stages_NBS, axis=-1)
    relations = Relations(FrozenFeatures(descriptors, descriptors, stages))
    found = [_predict(heads, features_NBC), inferred.probabilities[used]]
    for depth in (LAST, STAGES):
        found.append(propagate_labels(relations.connect(0, depth), given, num_classes))
    exponents = _GRAPH_EXPONENT * np.minimum(inferred.labeler_weights.graph_ratios, _MAX_RATIO)
    p_BK = pool(np.array([1, 1, *exponents]), map(take_log, found))
    labels = np.where(is_labeled[used], inferred.labels[used], decide(p_BK).best)
    weights = np.where(is_labeled[used], inferred.sample_weights[used], compute_weight(p_BK))
    heads = [fit_head(f_BC, labels, num_classes, INSTANT_C, weights) for f_BC in features_NBC]
    # Processes round sums differently, so all use process 0's heads.
    heads = arrays_from_main_process(heads)
    is_new = ~is_labeled[used]
    columns = [(fitted.rows[used][is_new], labels[is_new], weights[is_new])]
    others = fitted.rows[np.setdiff1d(np.flatnonzero(~is_labeled), used)]
    for first in range(0, len(others), MAX_REFITTED):  # All at once would fill the memory.
        part = others[first : first + MAX_REFITTED]
        p_BK = _predict(heads, compute_trained_features(setup, state, dataset.train.images, part))
        columns.append((part, decide(p_BK).best, compute_weight(p_BK)))
    rows, inferred_labels, inferred_weights = map(np.concatenate, zip(*columns, strict=True))
    record(rows, inferred_labels, inferred_weights)
    return state.replace(ema_params=replace_heads(setup, state.ema_params, heads))


def _predict(heads: list[Head], features_NBC: np.ndarray) -> np.ndarray:
    """The networks' mean probabilities [B, K]."""
    pairs = zip(heads, features_NBC, strict=True)
    return np.mean([head.compute_probabilities(f_BC) for head, f_BC in pairs], axis=0)


def _draw_least_probable(p_BK: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """The least probable class of each row, int [B]. Ties are drawn.

    A given label leaves exactly 0 to all other classes. Always taking the first of them would teach
    the networks that it is the rarest class.
    """
    ties = p_BK == p_BK.min(axis=1, keepdims=True)
    draws = np.random.default_rng(seed).uniform(0.5, 1, p_BK.shape)
    least: np.ndarray = np.argmax(ties * draws, axis=1)
    return least


def compute_trained_features(
    setup: TrainSetup,
    state: TrainState,
    images: ImageSource,
    indices: np.ndarray,
    kind: str = FEATURES,
) -> np.ndarray:
    """Features of clean images by the EMA networks, normalized by their running statistics.

    They are float32 [N, len(indices), C]. The `kind` ALL_FEATURES has features, descriptors and
    stages, concatenated to 2C + S.
    """
    sharded = jax.shard_map(
        lambda state, batch: setup.infer(state.ema_params, state.batch_stats, batch, kind),
        mesh=setup.mesh,
        in_specs=(setup.state_specs, P(DATA_AXIS)),
        out_specs=P(NETWORK_AXIS, DATA_AXIS),
    )
    compute = compilation.jit(
        sharded,
        runs=-(-len(indices) // setup.config.eval_batch_size),
        out_shardings=NamedSharding(setup.mesh, P()),
    )
    batches = iterate_on_mesh(setup, Selection(images, indices), indices)
    parts = [np.asarray(compute(state, on_mesh)) for on_mesh, *_ in batches]
    return np.concatenate(parts, axis=1)[:, : len(indices)]


def replace_heads(setup: TrainSetup, params: PyTree, heads: Sequence[Head]) -> PyTree:
    """A copy of stacked parameters with these heads, one per network, on the mesh."""
    kernels, biases = zip(*heads, strict=True)
    stacked = {"kernel": np.stack(kernels), "bias": np.stack(biases)}
    specs = setup.state_specs.params["head"]
    # With a balanced head, the method's own head starts there, too.
    names = {"head", METHOD_HEAD} & params.keys()
    return params | {name: to_global_arrays(stacked, setup.mesh, specs) for name in names}


class FeatureStages(Stages):
    """Fits heads to labels from frozen features, before the first step and after the last one.

    What it fits is what the configuration asks for (`model.init_head`, `method.inferred`,
    `model.final_head`), which may be nothing. The instant classifier that a run begins with is in
    the folder `instant/` of the run.
    """

    name_baselines = staticmethod(name_figures)
    files = (INSTANT,)

    def __init__(self, workdir: pathlib.Path):
        """For the run in `workdir`."""
        super().__init__()
        self._workdir = workdir
        self._fitted: FittedClasses | None = None

    def before_first_step(
        self, setup: TrainSetup, dataset: Dataset, spec: StreamSpec, round_index: int = 0
    ) -> TrainState:
        """See `init_state_with_heads`."""
        config = setup.config
        fitted = self._get_fitted(setup, dataset, spec) if needs_labels(config) else None
        if fitted is not None and round_index == 0:
            self.measured = fitted.figures
            fitted.write_labels(self._workdir, dataset)
            if fitted.classifier.network is not None and is_main_process():
                folder = self._workdir / INSTANT
                write_instant_folder(folder, config, dataset, spec.labeled_indices, fitted)
        state = init_state_with_heads(setup, dataset, spec, fitted, round_index)
        if not setup.method.select_labels and not self.changes_end(config):
            self._fitted = None  # Its tables take memory and are no longer needed.
        return state

    def changes_end(self, config: ConfigDict) -> bool:
        """Whether `model.final_head` asks for it."""
        return bool(config.model.final_head == "inferred")

    def after_last_step(
        self,
        setup: TrainSetup,
        dataset: Dataset,
        spec: StreamSpec,
        state: TrainState,
        say: Callable[[str], None],
    ) -> TrainState:
        """See `fit_final_heads`."""
        say("refitting the heads to labels from frozen features and the trained networks")
        record = functools.partial(write_pseudo_labels, self._workdir, dataset)
        fitted = self._get_fitted(setup, dataset, spec)
        return fit_final_heads(setup, state, dataset, fitted, record)

    def _get_fitted(self, setup: TrainSetup, dataset: Dataset, spec: StreamSpec) -> FittedClasses:
        """The run's labels. A resumed run infers them again with the network in its folder."""
        if self._fitted is None:
            config, path = setup.config, self._workdir / INSTANT / INSTANT_FILE
            networks: tuple[FrozenNetwork, ...] = ()
            if path.exists():
                network = read_instant(path).frozen
                networks = network, *read_other_networks(config, network)
            elif config.model.init:
                assert setup.read_weights is not None, config.model.init
                networks = read_networks(
                    config,
                    setup.read_weights(),
                    find_native_size(config),
                    channels=setup.dataset_spec.image_shape[-1],
                )
            labeled, unlabeled = spec.labeled_indices, spec.unlabeled_indices
            features = compute_run_features(config, dataset, labeled, unlabeled, networks)
            self._fitted = fit_labels(dataset, labeled, features)
        return self._fitted


def train_with_stages(
    config: ConfigDict,
    workdir: pathlib.Path,
    load: Callable[[ConfigDict], Dataset] | None = None,
) -> tuple[dict[str, Any], RunEnd | None]:
    """`run_training` with everything that the product adds: folders, stages and weights.

    `load` loads the dataset. None for `open_run_dataset`.
    """
    return run_training(
        config,
        workdir,
        load=load or functools.partial(open_run_dataset, workdir=workdir),
        stages=FeatureStages(workdir),
        weight_readers=PHOTO_WEIGHT_READERS,
    )


def needs_labels(config: ConfigDict) -> bool:
    """Whether a run infers labels from frozen features."""
    heads = config.model.init_head, config.model.final_head
    return "inferred" in heads or bool(config.method.get("inferred"))
