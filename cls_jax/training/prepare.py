"""What training needs before its first step: images, labels, networks, weights, the run's folder.

`model.init` decides the architecture, the weights, and the normalization that they expect.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import OPTIONS, read_config
from cls_jax.data.label_split import choose_long_tail, choose_unlabeled_indices
from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.ensemble import take_network
from cls_jax.models.layers import Architecture
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.models.weights.sources import BUILTIN, HUB, read_init
from cls_jax.parallel.distributed import barrier, check_same_data, is_main_process
from cls_jax.photos.features.instant import read_instant
from cls_jax.runs.checkpoint import CHECKPOINTS, Checkpointer
from cls_jax.runs.folder import (
    CONFIG,
    DATASET,
    INSTANT_FILE,
    RESULT,
    check_dataset,
    check_run_folder,
    create_run_folder,
    find_trained,
    is_instant,
    load_labeled_indices,
    read_dataset_description,
    read_mean_and_std,
    use_mean_and_std,
)
from cls_jax.runs.sessions import lock_run_folder
from cls_jax.training.setup import TrainSetup, TrainState, create_train_setup, restore_newest

# Everything that training needs besides the state: the setup, the images and labels, the stream of
# batches, and the run's folder.
Prepared = tuple[TrainSetup, Dataset, StreamSpec, pathlib.Path]


def prepare_run(
    config: ConfigDict, workdir: pathlib.Path, load: Callable[[ConfigDict], Dataset]
) -> Prepared:
    """Loads the data, chooses the labels, and builds the networks. Writes nothing.

    The configuration is what `resolve_model` returned, and the folder need not exist. Raises a
    UserError if the folder, the data or the devices do not fit the configuration.
    """
    dataset = use_own_normalization(config, load(config), workdir)
    check_dataset(workdir, dataset)
    imbalance = config.data.imbalance
    labeled = load_labeled_indices(workdir, dataset, config.num_labels, config.seed, imbalance)
    candidates = choose_long_tail(dataset.train_labels, dataset.num_classes, imbalance, config.seed)
    unlabeled = choose_unlabeled_indices(
        candidates, labeled, config.data.unlabeled_includes_labeled
    )
    held_out = [len(images) for _, images, _ in dataset.held_out]
    described = (dataset.fingerprint, dataset.shape, dataset.class_names, held_out)
    known = dataset.train_labels, dataset.validation_labels, dataset.test_labels, labeled
    check_same_data([repr(described).encode(), *(array.tobytes() for array in known)])
    setup, spec = create_setup(config, dataset, labeled, unlabeled)
    return setup, dataset, spec, workdir


def create_setup(
    config: ConfigDict,
    dataset: Dataset,
    labeled: np.ndarray,
    unlabeled: np.ndarray,
    num_images: int | None = None,
) -> tuple[TrainSetup, StreamSpec]:
    """The setup of a run on a dataset, normalized as the dataset says, and its stream of batches.

    Indices of the labeled and of the unlabeled training images are int [num_labels] and [n].
    `num_images` is the size of the whole dataset if this one is a sample of it.
    """
    shape, num_unlabeled = dataset.shape, len(unlabeled)
    if num_images is not None:
        shape, num_unlabeled = shape._replace(num_images=num_images), num_images
    setup = create_train_setup(
        use_mean_and_std(config, dataset.mean, dataset.std),
        shape.split(dataset.train_labels[labeled], num_unlabeled),
        read_weights=functools.partial(read_weights, config),
    )
    views = setup.method.labeled_view, setup.method.unlabeled_views
    return setup, StreamSpec(config, *views, labeled, unlabeled)


@contextlib.contextmanager
def hold_folder(config: ConfigDict, prepared: Prepared) -> Iterator[None]:
    """Creates the run's folder where there is none, and keeps other sessions out of it.

    Raises a UserError if another process trains there, or the processes do not share the folder.
    """
    _, dataset, spec, workdir = prepared
    with contextlib.ExitStack() as stack:
        if is_main_process():
            stack.enter_context(lock_run_folder(workdir))
            check_run_folder(workdir, config)  # Again, since another session may have been faster.
            create_run_folder(workdir, config, spec.labeled_indices, dataset)
        barrier("folder")
        if not (workdir / CONFIG).exists():
            raise UserError(
                f"Process {jax.process_index()} does not see the files of process 0 in "
                f"{workdir}: pass a --workdir that all machines share."
            )
        yield


def resolve_model(config: ConfigDict) -> ConfigDict:
    """The configuration with the `model.name` that its `model.init` implies, as "builtin:…" does.

    Raises a UserError if another `model.name` was set, or images are not of 3 channels.
    """
    init, name = config.model.init, config.model.name
    is_folder, channels = config.data.name == "folder", config.data.channels
    if is_folder and channels != 3 and init.startswith((BUILTIN, HUB)):
        raise UserError(
            f"The weights {init:.100} are for images of 3 channels, and data.channels is "
            f"{channels}: remove --instant, and set --config.model.init= to start from random "
            "weights."
        )
    implied = init.removeprefix(BUILTIN)
    if implied in (init, name):
        return config
    if name != OPTIONS["model.name"].default:
        raise UserError(
            f"model.init={init:.100} has weights of another architecture than "
            f"model.name={name}: set only one of the two."
        )
    config = config.copy_and_resolve_references()
    config.model.name = implied
    return config


def read_weights(config: ConfigDict) -> Weights:
    """Reads the weights of `model.init`, or raises a `UserError`."""
    path = pathlib.Path(config.model.init).expanduser()
    is_run = (path / CONFIG).exists()
    if is_instant(instant := find_trained(path) if is_run else path):
        network = read_instant(instant.with_name(INSTANT_FILE)).network
        assert network is not None, "read from a file"
        return network.weights
    if is_run:
        setup, state, _ = restore_run(path)
        trees = {"params": state.ema_params, "batch_stats": state.batch_stats}
        return collect_weights(setup.config, setup.ensemble.model, trees)
    return read_init(config.model.init)


def collect_weights(config: ConfigDict, model: Architecture, networks: Any) -> Weights:
    """The first of stacked networks, "params" and "batch_stats", without additional heads."""
    variables = jax.device_get(take_network(networks, 0))
    for name in model.head_names[1:]:
        del variables["params"][name]
    data, layout = config.data, MODELS[config.model.name].layout
    return Weights(to_torch(variables, layout), (tuple(data.mean), tuple(data.std)))


def use_own_normalization(
    config: ConfigDict, dataset: Dataset, workdir: pathlib.Path | None = None
) -> Dataset:
    """The dataset with the mean and deviation that the pretrained weights expect.

    Values set by the user take precedence. A resumed run has its own in its folder.
    """
    if not config.model.init or config.data.mean:
        return dataset
    if workdir is not None and (workdir / DATASET).exists():
        mean, std = read_mean_and_std(workdir)
    else:
        own = read_weights(config).normalization
        mean, std = own or MODELS[config.model.name].layout.normalization
    return dataclasses.replace(dataset, mean=mean, std=std)


def restore_run(workdir: pathlib.Path) -> tuple[TrainSetup, TrainState, int]:
    """Setup, newest state and its step, on the devices at hand.

    Raises a UserError if there is no checkpoint.
    """
    config = read_config(workdir / CONFIG)
    config.mesh.network = config.mesh.data = 0  # The devices at hand, not the training's.
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
        config = use_mean_and_std(config, *read_mean_and_std(workdir))
    setup = create_train_setup(
        config, dataset_spec, read_weights=functools.partial(read_weights, config)
    )
    restored = restore_newest(checkpointer, setup)
    checkpointer.close()
    assert restored is not None, workdir  # It has a latest step.
    step, state, _ = restored
    return setup, state, step
