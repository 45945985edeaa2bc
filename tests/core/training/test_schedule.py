"""What a step takes from the length of its run."""

import numpy as np
import pytest

from cls_jax.batch import DatasetSpec
from cls_jax.config import flatten, with_values
from cls_jax.methods import METHODS, choose_decay
from cls_jax.training.schedule import create_schedule
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import create_raw_batch, create_tiny_config

DECAYS = {"ema_decay", "model.bn_momentum", "method.statistics_decay", "method.class_mean_decay"}


def create_config(method, num_steps, warmup_steps, **changes):
    """A run of so many steps, whose running means last as long as it is good for it."""
    config = create_tiny_config(f"20,{method}", num_steps=num_steps, **changes)
    config.optimizer.warmup_steps = warmup_steps
    decays = DECAYS & flatten(config.to_dict()).keys()
    return with_values(config, dict.fromkeys(decays, choose_decay(num_steps)))


def lower_step(config, channels=1):
    """The text of a run's step before it is compiled."""
    size, num_views = config.data.image_size, len(METHODS[config.method.name].unlabeled_views)
    setup = create_train_setup(config, DatasetSpec((size, size, channels), 10, num_images=1347))
    batch = create_raw_batch(config, num_views, channels=channels)
    step = create_train_step(setup)
    return step.lower(setup.state_shapes, batch, create_schedule(config)).as_text()


@pytest.mark.usefixtures("tiny_model")
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("cls", {"method__balanced_head": True, "method__inferred": 1.0}),
        ("adamatch", {"accumulate_steps": 2}),
        ("remixmatch", {}),
        ("softmatch", {"method__weak_pass": "fast"}),
        ("ups", {}),
    ],
)
def test_runs_that_differ_in_their_length_have_the_same_program(method, changes):
    """Each method has a use of the length, or of a decay, that the others lack."""
    short, long = (
        lower_step(create_config(method, num_steps, warmup_steps, **changes))
        for num_steps, warmup_steps in ((6, 0), (4_000, 20))
    )
    assert short == long
    if method == "cls":  # What it is compared with is not empty.
        other = create_config(method, 6, 0, **changes, optimizer__learning_rate=0.01)
        assert lower_step(other) != short


def test_the_parts_of_a_batch_move_a_mean_as_far_as_its_decay_says():
    for num_parts in (1, 4):
        config = create_tiny_config("20,freematch", num_steps=50, accumulate_steps=num_parts)
        config.ema_decay, config.model.bn_momentum, config.method.statistics_decay = 0.99999, 0.9, 0
        schedule = create_schedule(config)
        assert (schedule.num_steps, schedule.round_length, schedule.warmup_steps) == (50, 50, 0)
        assert schedule.ema_share == np.float32(1e-5)  # Not 1 - float32(0.99999).
        assert (1 - schedule.norm_share) ** num_parts == pytest.approx(0.9)
        assert schedule.mean_share == 1
    assert create_schedule(create_tiny_config("20,ups", num_steps=50)).round_length < 50
