"""What a run does before its first step and after its last one, besides training."""

from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from cls_jax.data.sampling import StreamSpec
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError
from cls_jax.training.setup import TrainSetup, TrainState


class Stages:
    """Networks start from their initial weights, and end as they were trained.

    A subclass may fit their last layers before and after training. `run_training` calls its methods
    in every process.

    Attributes:
        measured: Metrics to be written at step 0, set by `before_first_step`.
        name_baselines: Chooses and names those that belong to the run's result.
        files: The names of what `before_first_step` may write into the run's folder.
    """

    name_baselines: Callable[[Mapping[str, float]], dict[str, float | None]] = staticmethod(
        lambda known: {}
    )
    files: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}

    def before_first_step(
        self, setup: TrainSetup, dataset: Dataset, spec: StreamSpec, round_index: int = 0
    ) -> TrainState:
        """The state before the first step of a round. Not called for a resumed run's first round.

        Raises a UserError if the configuration asks for more than initial weights.
        """
        config = setup.config
        is_fitted = config.model.init_head != "random" or config.model.final_head != "trained"
        if is_fitted or config.method.get("inferred"):
            raise UserError(
                "Heads and labels from frozen features are part of cls_jax.photos: train with "
                "main.py or cls-jax, or set model.init_head=random, model.final_head=trained and "
                "method.inferred=0."
            )
        return setup.init_state(round_index)

    def changes_end(self, config: ConfigDict) -> bool:
        """Whether `after_last_step` does anything, which may take minutes."""
        return False

    def after_last_step(
        self,
        setup: TrainSetup,
        dataset: Dataset,
        spec: StreamSpec,
        state: TrainState,
        say: Callable[[str], None],
    ) -> TrainState:
        """The last state, before it is evaluated and saved. `say` shows a sentence to the user."""
        return state
