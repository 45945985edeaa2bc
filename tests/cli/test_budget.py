"""`--minutes`: what is chosen from the time of a step."""

import math

import pytest

from cls_jax.cli import budget
from cls_jax.config import from_folder, validate_config
from cls_jax.errors import UserError
from tests.test_from_folder import CPU, PRETRAINED, create_summary


def choose(monkeypatch, seconds, minutes=None, resources=PRETRAINED, side=500, **settings):
    """What is chosen and said where a step at 128 pixels takes these seconds."""
    measured = []

    def profile_folder(config, summary):
        measured.append(config)
        return budget.Rehearsal(1.0, seconds * (config.data.image_size / 128) ** 2, "")

    monkeypatch.setattr(budget, "profile_folder", profile_folder)
    config = from_folder.create_folder_config("photos", "cls")
    from_folder.apply_settings(config, settings)
    given = from_folder.FolderContext(config, create_summary(side), resources, settings)
    from_folder.fit_to_folder(given)
    sentence = budget.fit_to_minutes(given, minutes)
    validate_config(config)
    assert len(measured) <= 1
    return config, sentence


@pytest.mark.parametrize(
    ("seconds", "minutes", "image_size", "num_steps", "batch_size"),
    [
        # Of 97 steps in half of 10 minutes, 80.
        *((1.0, None, 224, 80, 8), (0.1, 2.0, 224, 160, 8), (2.0, 10.0, 160, 80, 8)),
        *((9.0, 10.0, 96, 80, 4), (60.0, 10.0, 96, 20, 4), (1e-4, 60.0, 224, 20_000, 8)),
    ],
)
def test_time_buys_resolution_then_steps(
    monkeypatch, seconds, minutes, image_size, num_steps, batch_size
):
    config, sentence = choose(monkeypatch, seconds, minutes)
    chosen = (config.data.image_size, config.num_steps, config.batch_size)
    assert chosen == (image_size, num_steps, batch_size)
    assert f"{num_steps:,} steps" in sentence
    assert f"{image_size} pixels" in sentence
    # What depends on the number of steps follows.
    assert config.eval_every == min(math.ceil(num_steps / 3), 500)


def test_what_the_user_sets_wins_and_small_photographs_are_enlarged_to_160_pixels(monkeypatch):
    config, sentence = choose(monkeypatch, 1.0, 10.0, num_steps=17)
    assert (config.num_steps, config.data.image_size, sentence) == (17, 128, None)
    config, _ = choose(monkeypatch, 9.0, 10.0, **{"data.image_size": 160, "batch_size": 16})
    assert (config.data.image_size, config.batch_size, config.num_steps) == (160, 16, 20)
    assert choose(monkeypatch, 1e-3, 10.0, side=100)[0].data.image_size == 160


def test_other_networks_have_no_default_and_keep_their_resolution(monkeypatch):
    config, sentence = choose(monkeypatch, 0.5, None, CPU)
    assert (config.num_steps, sentence) == (5000, None)
    config, sentence = choose(monkeypatch, 16.0, 10.0, CPU)
    assert (config.num_steps, config.data.image_size) == (240, 32)
    # A contradiction is found before a step is measured. A batch that is halved keeps its parts.
    for settings, remedy in (
        ({"optimizer.learning_rate": 0.03}, r"too large for optimizer\.name=adamw"),
        ({"batch_size": 6, "accumulate_steps": 4}, "choose one of its divisors"),
    ):
        with pytest.raises(UserError, match=remedy):
            choose(monkeypatch, float("nan"), 10.0, **settings)
    config, _ = choose(monkeypatch, 60.0, 10.0, accumulate_steps=3)
    assert (config.batch_size, config.accumulate_steps) == (6, 3)
