"""Properties of every method, and parts of losses.

The losses themselves, with given draws, are compared with NumPy in `test_oracles.py`.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import DatasetSpec
from cls_jax.config import validate_config
from cls_jax.methods import METHODS, Context, choose_decay, get_round_length, losses
from cls_jax.methods import cutmix as cutmix_lib
from cls_jax.methods.mixmatch import mixup
from cls_jax.methods.simpro import start_epoch
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, ROOT, create_raw_batch, create_tiny_config
from tests.core.methods.oracles import softmax

K = 5
UNEQUAL = [0.5, 0.2, 0.1, 0.15, 0.05]


@pytest.mark.parametrize(
    ("name", "align_to", "start"),
    [
        ("softmatch", "labels", UNEQUAL),
        ("softmatch", "uniform", [1 / K] * K),
        ("adamatch", "predicted", [1 / K] * K),
        ("cls_plus", None, UNEQUAL),
    ],
)
def test_means_start_at_the_target_so_that_alignment_begins_as_the_identity(name, align_to, start):
    spec = DatasetSpec((1, 1, 1), K, 30, 27, UNEQUAL)
    state = METHODS[name].create_state({"align_to": align_to}, spec)
    for leaf in ("target", "predicted"):
        np.testing.assert_allclose(state[leaf], start, rtol=1e-6)


KEY = jax.random.key(0)
sample_boxes = jax.jit(cutmix_lib.sample_boxes, static_argnums=(2, 3))


def test_every_pixel_is_pasted_about_equally_often_and_shares_are_at_least_one_half():
    boxes = np.asarray(sample_boxes(KEY, jnp.arange(4000), 32, 32))
    share = 1 - boxes.mean((1, 2))
    assert share.min() >= 0.5 - 1e-6
    # Uncut boxes have a quarter of the area on average. What the border cuts off is less than half.
    assert 0.75 < share.mean() < 0.875
    np.testing.assert_allclose(boxes.mean(0), boxes.mean(0)[::-1, ::-1], atol=0.04)
    # A box depends on the image and not on its place, so the number of devices does not matter.
    index = jnp.array([7, 3, 11, 5])
    np.testing.assert_array_equal(sample_boxes(KEY, index, 32, 32), boxes[index])
    assert np.any(boxes[index] != sample_boxes(jax.random.key(1), index, 32, 32))


@pytest.mark.parametrize("gap", [0.0, 1.0, 10.0, 15.0, 20.0, 100.0, 1e4])
def test_log_one_minus_p_is_exact_and_its_gradient_finite_up_to_saturation(gap):
    logits = np.array([gap, 0.0, -1.0])
    rest = softmax(logits)[1:].sum()  # 1 - p without cancellation.
    value = losses.log_one_minus_softmax(jnp.asarray(logits, jnp.float32))
    np.testing.assert_allclose(value[0], np.log(max(rest, losses.MIN_PROBABILITY)), rtol=1e-5)
    gradient = jax.jacobian(losses.log_one_minus_softmax)(jnp.asarray(logits, jnp.float32))
    assert jnp.all(jnp.isfinite(value))
    assert jnp.all(jnp.isfinite(gradient))


@pytest.mark.parametrize("alpha", [0.1, 0.75, 5.0])
def test_images_and_targets_are_mixed_alike_across_groups(alpha):
    """With one-hot images the mixture can be read off, at least half of which is the image."""
    images = jnp.eye(1000).reshape(1000, 20, 50, 1)
    split = [images[:300], images[300:]]
    targets = [group.reshape(1, len(group), 1000) for group in split]
    mixed, mixed_targets = mixup(jax.random.key(3), split, targets, alpha)
    assert [len(group) for group in mixed] == [300, 700]
    rows = np.concatenate(mixed).reshape(1000, 1000)
    np.testing.assert_allclose(rows, np.concatenate(mixed_targets, axis=1)[0], atol=1e-6)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)
    assert rows[:300, 300:].sum() > 0  # Labeled images meet unlabeled ones.
    own = np.diag(rows)
    assert own.min() >= 0.5
    # λ ~ Beta(α, α) has the variance 1 / (4 (2α + 1)), as has λ' around ½.
    np.testing.assert_allclose(np.mean((own - 0.5) ** 2), 1 / (8 * alpha + 4), rtol=0.1)


@pytest.mark.parametrize(
    ("num_steps", "rounds", "length"), [(6, 1, 6), (6, 2, 3), (7, 2, 4), (10, 4, 3)]
)
def test_rounds_are_equally_long_but_for_the_last(num_steps, rounds, length):
    config = create_tiny_config("20,ups", num_steps=num_steps, method__rounds=rounds)
    assert get_round_length(config) == length
    # A method without rounds has one.
    assert get_round_length(create_tiny_config(num_steps=7)) == 7


def test_running_means_follow_the_length_of_a_round_and_forget_their_start():
    for num_steps in (1, 25, 250, 300, 1_000, 5_000, 300_000):
        assert 0 <= choose_decay(num_steps) <= 0.999
        assert choose_decay(num_steps) ** num_steps < 0.05
    assert [choose_decay(n) for n in (500, 2_000, 10_000, 307_200)] == [0.99, 0.99, 0.998, 0.999]


def test_running_means_are_those_of_exact_arithmetic_however_slow():
    """In float32, a share of 1e-5 and 1 - share do not add up to 1: means would fall to 0.9986."""
    values = np.random.default_rng(0).uniform(0, 2, 50_000).astype(np.float32)
    context = Context(None, {}, None, None, KEY, 0.0, mean_share=np.float32(1e-5))
    move = lambda mean, value: (context.move_mean(mean, value), None)  # noqa: E731
    found, _ = jax.jit(lambda values: jax.lax.scan(move, jnp.float32(1), values))(values)
    expected = functools.reduce(
        lambda mean, value: mean + 1e-5 * (value - mean), values.tolist(), 1
    )
    np.testing.assert_allclose(found, expected, rtol=3e-5)
    exact = context._replace(mean_share=np.float32(1)).move_mean(jnp.float32(1e8), values[0])
    assert exact == values[0]  # Without an average.


def test_simpro_estimates_frequencies_also_in_a_run_that_is_given_more_steps():
    method, spec = METHODS["simpro"], DatasetSpec((1, 1, 1), 2, 30, 27, (0.5, 0.5))
    hparams = {name: one.default for name, one in method.hyperparameters.items()}
    state = method.create_state(hparams, spec)
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], state)

    @jax.jit
    def count_changes(state, first, num_steps):
        def take_step(step, carry):
            state, changes = carry
            progress = jnp.float32(step) / num_steps
            new = start_epoch(Context(None, hparams, None, state, KEY, progress, 0.0))
            changes += jnp.any(new["unlabeled"] != state["unlabeled"])
            new["count_unlabeled"] += jnp.array([[30.0, 2.0]])
            return new, changes

        return jax.lax.fori_loop(first, num_steps, take_step, (state, 0))

    state, changes = count_changes(state, 0, 100)
    assert changes == 85
    assert count_changes(state, 100, 300)[1] == 86 - 28


@pytest.mark.usefixtures("tiny_model")
def test_every_method_is_documented_and_the_example_of_a_new_one_trains(monkeypatch):
    page = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"| `{name}` |" in page for name in METHODS)
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    namespace = {}
    exec(compile(example, "docs/methods.md", "exec"), namespace)
    monkeypatch.setitem(METHODS, "entropy", namespace["METHODS"]["entropy"])
    config = create_tiny_config("20,entropy")
    validate_config(config)
    setup = create_train_setup(config, DATASET_SPEC)
    batch = create_raw_batch(config, num_views=1)
    _, monitors = create_train_step(setup)(setup.init_state(), batch, setup.put_schedule())
    assert 0 < float(monitors["monitors/entropy"]) <= np.log(10)
