"""How a run from pretrained weights begins and ends: heads and labels from frozen features."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.parallel.distributed import is_main_process
from cls_jax.photos.features.instant import read_instant
from cls_jax.photos.features.instant_file import INSTANT_FILE
from cls_jax.photos.features.network import FrozenNetwork
from cls_jax.photos.start.fit_instant import INSTANT, write_instant_folder
from cls_jax.photos.start.fit_labels import FittedClasses, fit_labels, name_figures
from cls_jax.photos.start.frozen import (
    PHOTO_WEIGHT_READERS,
    compute_run_features,
    find_native_size,
    read_networks,
    read_other_networks,
)
from cls_jax.photos.start.heads import fit_final_heads, init_state_with_heads
from cls_jax.photos.start.hold_out import open_run_dataset
from cls_jax.runs.folder import write_pseudo_labels
from cls_jax.training.loop import run_training
from cls_jax.training.prepare import RunEnd
from cls_jax.training.setup import TrainSetup, TrainState
from cls_jax.training.stages import Stages


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
