"""What a training step takes from the length of its run.

These numbers are arguments of the compiled step and not constants in it, so that runs that differ
only in them share one program: what was compiled to measure a step also trains.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from cls_jax.batch import Leaf
from cls_jax.methods import get_mean_decay, get_round_length


class Schedule(NamedTuple):
    """The number of steps, and how far running means move in one. Float32 scalars.

    A mean moves by a share of its distance from a new value, 1 - decay, which the host computes in
    double precision: in float32, 1 - 0.99999 would be off by 0.1%.
    """

    num_steps: Leaf  # Of the run.
    round_length: Leaf  # Steps after which the learning rate starts over, see `get_round_length`.
    warmup_steps: Leaf
    ema_share: Leaf  # Of the parameters' average.
    # Of BatchNorm's statistics and of the method's means: in one part of a batch, see
    # `accumulate_steps`.
    norm_share: Leaf
    mean_share: Leaf


SCHEDULE_SPECS = Schedule._make([P()] * len(Schedule._fields))  # The same on all devices.


def create_schedule(config: ConfigDict) -> Schedule:
    """The schedule of a run, in NumPy."""
    num_parts = config.accumulate_steps
    schedule = Schedule(
        num_steps=config.num_steps,
        round_length=get_round_length(config),
        warmup_steps=config.optimizer.warmup_steps,
        ema_share=1 - config.ema_decay,
        norm_share=_share_per_part(config.model.bn_momentum, num_parts),
        mean_share=_share_per_part(get_mean_decay(config.method), num_parts),
    )
    rounded: Schedule = jax.tree.map(np.float32, schedule)
    return rounded


def _share_per_part(decay: float, num_parts: int) -> float:
    """The share of each of `num_parts` updates that together leave `decay` of a mean."""
    share: float = 1 - decay ** (1 / num_parts)
    return share
