"""How long a run takes, estimated from a few measured steps, and the time that it may take.

Cost is assumed to grow in proportion to pixels and to images per batch.
"""

import dataclasses

from ml_collections import ConfigDict

from cls_jax.methods import get_method
from cls_jax.parallel import compilation
from cls_jax.photos.folder.dataset import FolderSummary
from cls_jax.photos.inference import suspects
from cls_jax.photos.start import stages

# At most this share of the time goes to features of the unlabeled images, and to one evaluation.
# Beyond it, the graph leaves out images, and networks are evaluated after the last step only.
_FEATURE_SHARE, _EVAL_SHARE = 0.25, 0.05
_STEP_SHARE = 0.05  # At least this share goes to steps.
# Seconds per image in the graph: label propagation, probes and heads. And fixed seconds: imports,
# compiling evaluation and features, the report (measured on two cores).
_FIT_SECONDS, _FIXED_SECONDS = 0.006, 25.0
_BUSY = 1.5  # A slowdown that people are told.
_NUM_EVALUATIONS = 3  # Of pretrained networks, unless they take too long.
_PREDICTIONS_PER_STEP = 3  # A step takes about as long as so many predictions of its images.
# From this many steps on, a higher resolution is preferred. Below, batches get smaller. On trash,
# 40 steps at 224 pixels ended at 65.0% and 55.1% (two draws), 80 steps at 63.3% and 56.3%, and 80
# steps at 160 pixels at 57.0% (the first draw, experiments/results/any_folder.md).
ENOUGH_STEPS = 40


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Measured times of a few real steps and images."""

    compile_seconds: float
    step_seconds: float  # The median of the steps after the first.
    memory: str  # A sentence that compares a step's memory with the device's.
    image_size: int
    batch_size: int
    decode_seconds: float = 0.0  # For an image.
    # For an image, of the frozen network at its native resolution. 0 for runs without a graph.
    feature_seconds: float = 0.0
    other_seconds: float = 0.0  # The same by the networks of `model.inferred_by`.
    # How much longer the steps took because other programs computed, too. 1: alone.
    slowdown: float = 1.0
    num_images: int = 0  # Training images for which the step was compiled.

    def describe_slowdown(self) -> str | None:
        """A sentence about other programs if they cost much time, or None."""
        if self.slowdown < _BUSY:
            return None
        return (
            f"The machine is busy: steps take about {self.slowdown:.2g} times as long as they "
            "would alone."
        )

    def estimate_step(self, image_size: int, batch_size: int) -> float:
        """Seconds of a step."""
        cost = self.step_seconds / (self.image_size**2 * self.batch_size)  # Of a pixel's area.
        return cost * image_size**2 * batch_size


def guess_step(config: ConfigDict, predict_seconds: float) -> float:
    """Seconds of a step at the resolution at which a prediction of an image takes this long."""
    return _PREDICTIONS_PER_STEP * predict_seconds * config.batch_size * count_views(config)


def count_views(config: ConfigDict) -> int:
    """Images that the networks of a step see for each labeled image."""
    method = get_method(config.method.name)
    return method.num_networks * (1 + config.mu * len(method.unlabeled_views))


@dataclasses.dataclass(frozen=True)
class Budget:
    """The time that a run may take, and what its steps take."""

    seconds: float  # Of the whole training.
    spent: float  # Of these, so far.
    max_steps: int
    measured: Measurement
    summary: FolderSummary
    config: ConfigDict  # What was measured. Only what does not depend on the time is read.
    began: float = 0.0  # By `time.monotonic` of this process.
    # Training images, once they are decoded and their features are in the store: `spent` then
    # includes this.
    num_decoded: int | None = None

    def limit_inferred(self, inferred_by: str) -> int | None:
        """Unlabeled images whose labels can be inferred in this time. None for all.

        By the run's network, and by those of `inferred_by`, which were measured.
        """
        if not self.measured.feature_seconds:
            return None
        measured = self.measured
        per_image = measured.feature_seconds + (measured.other_seconds if inferred_by else 0)
        per_image += measured.decode_seconds + _FIT_SECONDS
        affordable = int(_FEATURE_SHARE * self.seconds / per_image)
        return max(affordable, 1) if affordable < self._count_training()[1] else None

    def is_compiled(self, image_size: int, batch_size: int, num_steps: int) -> bool:
        """Whether the step of a run of so many has the program that was compiled to measure it.

        The run's images may turn out to be fewer than the folder has files, and networks from
        random weights are normalized by all images, not by a sample.
        """
        measured = self.measured
        return (
            (image_size, batch_size) == (measured.image_size, measured.batch_size)
            and self.num_decoded in (None, measured.num_images)
            and compilation.is_tuned(num_steps) == compilation.is_tuned(self.config.num_steps)
            and bool(self.config.model.init or self.config.data.mean)
        )

    def estimate_left(
        self, config: ConfigDict, image_size: int, batch_size: int, num_steps: int
    ) -> float:
        """Seconds that are left for steps of a size, of which there are about `num_steps`."""
        rest, evaluation = self._estimate_rest(config, image_size)
        times = self.count_evaluations(config, image_size)
        left = self.seconds - self.spent - rest - times * evaluation
        is_compiled = self.is_compiled(image_size, batch_size, num_steps)
        return left if is_compiled else left - self.measured.compile_seconds

    def choose_step_seconds(
        self, config: ConfigDict, image_size: int, batch_size: int, num_steps: int
    ) -> float:
        """Seconds for steps of a size: what is left, but at least 5% of the whole time.

        On an accelerator that is worth hundreds of steps, and the rest may be longer than planned.
        """
        left = self.estimate_left(config, image_size, batch_size, num_steps)
        return max(left, _STEP_SHARE * self.seconds)

    def is_enough(self, config: ConfigDict, image_size: int, batch_size: int) -> bool:
        """Whether this is time for a training that is worth having."""
        seconds = self.choose_step_seconds(config, image_size, batch_size, ENOUGH_STEPS)
        return seconds >= ENOUGH_STEPS * self.measured.estimate_step(image_size, batch_size)

    def count_evaluations(self, config: ConfigDict, image_size: int) -> int:
        """Evaluations that the time allows: several, or the one after the last step."""
        _, evaluation = self._estimate_rest(config, image_size)
        return _NUM_EVALUATIONS if evaluation <= _EVAL_SHARE * self.seconds else 1

    def _count_training(self) -> tuple[int, int]:
        """The numbers of training images whose label is used, and of all others."""
        most = self.summary.num_labeled
        num_labeled = min(self.config.num_labels or most, most)
        return num_labeled, most - num_labeled + self.summary.num_unlabeled

    def _estimate_rest(self, config: ConfigDict, image_size: int) -> tuple[float, float]:
        """Seconds for all but measuring, compiling, steps and evaluations, and per evaluation.

        Evaluations see each image with raw and with averaged parameters.
        """
        measured, summary = self.measured, self.summary
        num_networks = get_method(config.method.name).num_networks
        infer = measured.estimate_step(image_size, 1) / _PREDICTIONS_PER_STEP / count_views(config)
        num_held_out = len(summary.layout.validation) + len(summary.layout.test)
        num_labeled, num_others = self._count_training()
        num_fitted = num_labeled + min(num_others, config.model.inferred_images or num_others)
        seconds = _FIXED_SECONDS
        if measured.feature_seconds:
            seconds += num_fitted * _FIT_SECONDS
        if self.num_decoded is None:
            seconds += (num_labeled + num_others + num_held_out) * measured.decode_seconds
            if measured.feature_seconds:
                per_image = measured.feature_seconds + measured.decode_seconds
                seconds += (num_fitted + num_held_out) * per_image
            if config.model.inferred_by:
                seconds += num_fitted * measured.other_seconds
        # What the trained networks see after the last step: for the report, and for their last
        # layers.
        num_seen = min(num_labeled, suspects.MAX_IMAGES) + min(num_others, suspects.MAX_UNLABELED)
        if config.model.final_head == "inferred":
            num_seen += min(num_labeled, stages.MAX_REFITTED) + num_fitted - num_labeled
            seconds += num_fitted * _FIT_SECONDS
        seconds += num_networks * num_seen * infer
        return seconds, 2 * num_networks * num_held_out * infer
