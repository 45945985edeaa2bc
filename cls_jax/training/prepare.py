"""What training needs before its first step: images, labels, networks, weights, the run's folder.

`model.init` decides the architecture, the weights, and the normalization that they expect.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.batch import PyTree
from cls_jax.config import OPTIONS, check_channels, read_config, with_values
from cls_jax.data.label_split import choose_long_tail, choose_unlabeled_indices
from cls_jax.data.pipelines import check_pipeline
from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.ensemble import take_network
from cls_jax.models.layers import Architecture
from cls_jax.models.weights.backbones import split_inits
from cls_jax.models.weights.layout import Normalization, Weights, to_torch
from cls_jax.models.weights.sources import check_init, find_architecture, read_init
from cls_jax.parallel.distributed import check_same_data, decide, together
from cls_jax.runs.best import BEST_CHECKPOINT
from cls_jax.runs.checkpoint import Checkpointer, Restored
from cls_jax.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    DATASET,
    RESULT,
    check_dataset,
    load_labeled_indices,
    read_dataset_description,
    read_mean_and_std,
    undo_start,
    use_mean_and_std,
)
from cls_jax.runs.sessions import lock_run_folder
from cls_jax.training.setup import TrainSetup, TrainState, create_train_setup


class RunEnd(NamedTuple):
    """Where a training stands: at its end, or at a checkpoint."""

    setup: TrainSetup
    state: TrainState
    step: int


# Reads the weights that a `model.init` names, or returns None if it names nothing of its kind.
WeightReader = Callable[[str], Weights | None]


class Prepared(NamedTuple):
    """Everything that training needs besides the state."""

    setup: TrainSetup
    dataset: Dataset
    spec: StreamSpec  # Of the batches.
    workdir: pathlib.Path  # The run's folder.


class ChosenImages(NamedTuple):
    """A dataset, and which of its training images a run uses."""

    dataset: Dataset
    labeled: np.ndarray  # int32 [num_labels], training images that count as labeled.
    unlabeled: np.ndarray  # int32, training images of the unlabeled set.


def check_packages(config: ConfigDict) -> None:
    """Raises a UserError unless the extras and weights that a configuration needs are there.

    Datasets check theirs when they are opened, which comes next. Reads nothing and costs nothing,
    so it comes before everything else.
    """
    check_pipeline(config.data.get("pipeline", ""))  # An instant classifier has none.
    for init in (config.model.init, *split_inits(config.model.inferred_by)):
        if init:
            check_init(init)


def check_frozen(config: ConfigDict) -> None:
    """Raises a UserError if a run without weights to start from keeps a part of its network."""
    if not config.model.init and (config.model.bn_frozen or config.optimizer.frozen_stages):
        raise UserError(
            "model.bn_frozen and optimizer.frozen_stages keep what a pretrained network has "
            "learned: set model.init, or leave them out."
        )


def prepare_run(
    config: ConfigDict,
    workdir: pathlib.Path,
    load: Callable[[ConfigDict], Dataset],
    weight_readers: Sequence[WeightReader],
) -> Prepared:
    """Loads the data, chooses the labels, and builds the networks. Writes nothing.

    The configuration is what `resolve_model` returned, and the folder need not exist. Raises a
    UserError if the folder, the data or the devices do not fit the configuration.
    """
    read = functools.partial(read_weights, config.model.init, weight_readers)
    dataset, labeled, unlabeled = choose_images(config, workdir, load)
    dataset = use_stored_normalization(config, dataset, read, workdir)
    setup, spec = create_setup(config, dataset, labeled=labeled, unlabeled=unlabeled, read=read)
    return Prepared(setup, dataset, spec, workdir)


def choose_images(
    config: ConfigDict, workdir: pathlib.Path, load: Callable[[ConfigDict], Dataset]
) -> ChosenImages:
    """Loads the dataset and chooses which images are labeled and unlabeled.

    Raises a UserError if the folder or the data do not fit the configuration, or processes see
    other data.
    """
    dataset = load(config)
    labeled, unlabeled = together(lambda: _choose_indices(config, workdir, dataset))
    held_out = [len(split) for split in dataset.held_out.values()]
    described = (dataset.fingerprint, dataset.shape, dataset.class_names, held_out)
    known = dataset.train.labels, dataset.validation.labels, dataset.test.labels, labeled
    check_same_data([repr(described).encode(), *(array.tobytes() for array in known)])
    return ChosenImages(dataset, labeled, unlabeled)


def _choose_indices(
    config: ConfigDict, workdir: pathlib.Path, dataset: Dataset
) -> tuple[np.ndarray, np.ndarray]:
    """The labeled and the unlabeled training images. Raises the UserErrors of `choose_images`."""
    check_dataset(workdir, dataset)
    check_channels(config, dataset.name, dataset.image_shape[-1])
    imbalance = config.data.imbalance
    labeled = load_labeled_indices(
        workdir, dataset, num_labels=config.num_labels, seed=config.seed, imbalance=imbalance
    )
    candidates = choose_long_tail(
        dataset.train.labels,
        dataset.num_classes,
        config.data.unlabeled_imbalance or imbalance,
        config.seed,
    )
    includes_labeled = config.data.unlabeled_includes_labeled
    return labeled, choose_unlabeled_indices(candidates, labeled, includes_labeled)


def create_setup(
    config: ConfigDict,
    dataset: Dataset,
    labeled: np.ndarray,
    unlabeled: np.ndarray,
    read: Callable[[], Weights],
) -> tuple[TrainSetup, StreamSpec]:
    """The setup of a run on a dataset, normalized as the dataset says, and its stream of batches.

    Indices of the labeled and of the unlabeled training images are int [num_labels] and [n]. `read`
    reads the weights of `model.init`, and is called only if there are any.
    """
    setup = create_train_setup(
        use_mean_and_std(config, dataset.mean, dataset.std),
        dataset.shape.split(dataset.train.labels[labeled], len(unlabeled)),
        read_weights=read,
    )
    spec = StreamSpec(
        config=config,
        labeled_view=setup.method.labeled_view,
        unlabeled_views=setup.method.unlabeled_views,
        labeled_indices=labeled,
        unlabeled_indices=unlabeled,
    )
    return setup, spec


@contextlib.contextmanager
def hold_folder(
    workdir: pathlib.Path,
    check: Callable[[], None],
    create: Callable[[], None],
    others: Sequence[str] = (),
) -> Iterator[Callable[[], None]]:
    """Creates a run's folder where there is none, and keeps other sessions out of it.

    `check` raises a UserError if the folder has something else, and `create` writes the files that
    define the run. Both are called in process 0. Yields a function to call once the run has begun:
    if the block fails before, what it wrote to a new folder is removed, see `undo_start`. Raises a
    UserError if another process trains there, or the processes do not share the folder.
    """
    begun: list[Callable[[], None]] = []
    with contextlib.ExitStack() as stack:

        def hold() -> None:
            stack.enter_context(lock_run_folder(workdir))
            check()  # Again, since another session may have been faster.
            begun.append(stack.enter_context(undo_start(workdir, others)))
            create()

        def look() -> None:
            if not (workdir / CONFIG).exists():
                raise UserError(
                    f"Process {jax.process_index()} does not see the files of process 0 in "
                    f"{workdir}: pass a --workdir that all machines share."
                )

        decide(hold)
        together(look)
        yield begun[0] if begun else lambda: None


def resolve_model(config: ConfigDict) -> ConfigDict:
    """The configuration with the `model.name` that its `model.init` implies, as "builtin:…" does.

    So do the weights of the table of backbones that are on the hub.

    Raises a UserError if another `model.name` was set, or there are no such weights.
    """
    init = config.model.init
    name = config.model.name
    implied = find_architecture(init)
    if implied in ("", name):
        return config
    if name != OPTIONS["model.name"].default:
        raise UserError(
            f"model.init={init:.100} has weights of another architecture than "
            f"model.name={name}: set only one of the two."
        )
    return with_values(config, {"model.name": implied})


def read_run_weights(init: str) -> Weights | None:
    """The weights of network 1 of a trained run. A `WeightReader`."""
    path = pathlib.Path(init).expanduser()
    if not (path / CONFIG).exists():
        return None
    setup, state, _ = restore_run(path)
    networks = {"params": state.ema_params, "batch_stats": state.batch_stats}
    normalization = tuple(setup.config.data.mean), tuple(setup.config.data.std)
    return collect_weights(setup.config.model.name, setup.ensemble.model, networks, normalization)


# In the order in which they are asked. The last one reads files, and weights that come with a
# package or from a hub.
WEIGHT_READERS: tuple[WeightReader, ...] = (read_run_weights, read_init)


def read_weights(init: str, readers: Sequence[WeightReader] = WEIGHT_READERS) -> Weights:
    """Reads the weights of a `model.init`, or raises a UserError."""
    found = next((weights for read in readers if (weights := read(init)) is not None), None)
    if found is None:
        raise UserError(f"model.init={init:.200} names no weights: see cls-jax help pretrained.")
    return found


def collect_weights(
    name: str, model: Architecture, networks: PyTree, normalization: Normalization
) -> Weights:
    """The first of stacked networks, "params" and "batch_stats", without additional heads.

    `name` is the architecture's in `MODELS`, and the normalization that of the training.
    """
    variables = jax.device_get(take_network(networks, 0))
    for head in model.head_names[1:]:
        del variables["params"][head]
    return Weights(to_torch(variables, MODELS[name].layout), normalization)


def use_stored_normalization(
    config: ConfigDict,
    dataset: Dataset,
    read: Callable[[], Weights],
    workdir: pathlib.Path | None = None,
) -> Dataset:
    """The dataset with the mean and deviation that the pretrained weights expect.

    `read` reads these weights. Values set by the user take precedence. A resumed run has its own in
    its folder.
    """
    if not config.model.init or config.data.mean:
        return dataset
    if workdir is not None and decide(lambda: (workdir / DATASET).exists()):
        mean, std = read_mean_and_std(workdir)
    else:
        stored = read().normalization
        mean, std = stored or MODELS[config.model.name].layout.normalization
    return dataclasses.replace(dataset, mean=mean, std=std)


def restore_run(
    workdir: pathlib.Path, config: ConfigDict | None = None, step: int | str | None = None
) -> RunEnd:
    """The state of a run on the devices at hand.

    `config` is the run's configuration, None to read it. The state is the newest, or that of
    `step`, a number or "best", on the validation images. Raises a UserError if there is no such
    checkpoint.
    """
    # On the devices at hand, not the training's.
    devices = {"mesh.network": 0, "mesh.data": 0}
    config = with_values(config or read_config(workdir / CONFIG), devices)
    checkpointer = Checkpointer(workdir)
    if checkpointer.latest_step() is None:
        if (workdir / RESULT).exists():
            raise UserError(
                f"{workdir} is finished, but its checkpoints have been deleted: restore "
                f"{CHECKPOINTS}/ from a backup, or delete {RESULT} to train it again."
            )
        raise UserError(
            f"{workdir} holds no checkpoint yet: train until step {config.checkpoint_every} first."
        )
    _, dataset_spec = read_dataset_description(workdir)
    if not config.data.mean:
        mean, std = read_mean_and_std(workdir)
        config = use_mean_and_std(config, mean, std)
    # Restored parameters replace any others, so weights are not read. That the run began with some
    # decides which modules its networks share.
    read = functools.partial(read_weights, config.model.init)
    setup = create_train_setup(config, dataset_spec, read_weights=read)
    restored = _restore(checkpointer, workdir, setup, None if step is None else str(step))
    checkpointer.close()
    assert restored is not None, workdir  # It has a latest step.
    number, state, _ = restored
    return RunEnd(setup, state, number)


def _restore(
    checkpointer: Checkpointer, workdir: pathlib.Path, setup: TrainSetup, step: str | None
) -> Restored | None:
    """The newest checkpoint, or that of a step. Raises a UserError if there is none of it."""
    if step is None:
        return checkpointer.restore_newest(setup.state_shapes)
    best = Checkpointer(workdir, folder=BEST_CHECKPOINT)
    chosen = best.latest_step() if step == "best" else int(step) if step.isdecimal() else None
    for one in (checkpointer, best):
        if chosen is not None and (restored := one.restore(chosen, setup.state_shapes)):
            return restored
    steps = sorted({*checkpointer.list_steps(), *best.list_steps()})
    known = ", ".join(map(str, steps)) + (" or best" if best.list_steps() else "")
    why = ""
    if step == "best":
        why = " (it is kept where a run has validation images, see data.validation)"
    raise UserError(f"{workdir} has no checkpoint of step {step!r:.100}{why}: choose {known}.")
