"""Update rules against NumPy, on parameters of two stacked networks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cls_jax.errors import UserError
from cls_jax.models import WideResNet
from cls_jax.training.optimizer import (
    compute_learning_rate,
    create_optimizer,
    get_learning_rate,
    split_frozen,
)
from cls_jax.training.schedule import create_schedule
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import create_train_step
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config

pytestmark = pytest.mark.usefixtures("whole_networks")

NUM_STEPS = 12
MODEL = WideResNet(3)
# Blocks between a module and the head. The head's own rate is separate.
DISTANCES = {"stem": 4, "stage1_block1": 3, "stage1_block2": 2, "stage2_block1": 1, "norm": 1}
SHAPES = {
    "stem": {"kernel": (2, 3, 3, 1, 2)},
    "stage1_block1": {"kernel": (2, 4, 4)},
    "stage1_block2": {"kernel": (2, 4, 4), "bias": (2, 4)},
    "stage2_block1": {"kernel": (2, 4, 4)},
    "norm": {"scale": (2, 4), "bias": (2, 4)},
    "head": {"kernel": (2, 4, 3), "bias": (2, 3)},
}
FINE_TUNING = {"optimizer__layer_decay": 0.5, "optimizer__warmup_steps": 3}
FINE_TUNING |= {"optimizer__head_steps": 2, "optimizer__head_learning_rate": 0.008}
FINE_TUNING |= {"optimizer__frozen_stages": 1}
ADAMW = {"optimizer__name": "adamw", "optimizer__learning_rate": 0.004}


def create_config(**changes):
    return create_tiny_config(num_steps=NUM_STEPS, optimizer__weight_decay=0.1, **changes)


def draw_tree(rng):
    return {
        module: {name: rng.normal(size=shape) for name, shape in leaves.items()}
        for module, leaves in SHAPES.items()
    }


def to_jax(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def run(optimizer, params, gradients, schedule, frozen_stages=0):
    """Parameters after each step, and the last state."""
    update = jax.jit(optimizer.update)
    state, history = optimizer.init(to_jax(params)), []
    params, frozen = split_frozen(to_jax(params), frozen_stages, MODEL)
    for gradient in gradients:
        trained = {name: gradient[name] for name in params}
        updates, state = update(to_jax(trained), state, params, schedule=schedule)
        params = optax.apply_updates(params, updates)
        history.append(params | frozen)
    return history, state


def oracle_rate(module, step, settings):
    """The learning rate of a module, written out."""
    is_head = module == "head"
    if module in ("stem", "stage1_block1", "stage1_block2") and settings.frozen_stages:
        return 0.0
    if not is_head and step < settings.head_steps:
        return 0.0
    base = (settings.head_learning_rate if is_head else 0.0) or settings.learning_rate
    warmup = settings.warmup_steps
    since_start = step - (0 if is_head else settings.head_steps)
    rise = min(since_start / warmup, 1.0) if warmup else 1.0
    progress = max(step - warmup, 0) / (NUM_STEPS - warmup)
    decay = 1.0 if is_head else settings.layer_decay ** DISTANCES[module]
    return base * decay * rise * math.cos(math.pi * settings.cosine_cycles * progress)


def oracle(params, gradients, settings):
    """PyTorch's formulas of Nesterov SGD and AdamW, in float64: parameters after each step."""
    params = {(m, n): leaf.copy() for m, leaves in params.items() for n, leaf in leaves.items()}
    mean, square = ({key: np.zeros_like(leaf) for key, leaf in params.items()} for _ in range(2))
    history = []
    for step, gradient in enumerate(gradients):
        for module, name in params:
            key, g = (module, name), gradient[module][name]
            decay = 0.1 * params[key] if name == "kernel" else 0.0
            if settings.name == "sgd":
                mean[key] = 0.9 * mean[key] + g + decay
                direction = g + decay + 0.9 * mean[key]
            else:
                mean[key] = 0.9 * mean[key] + 0.1 * g
                square[key] = 0.999 * square[key] + 0.001 * g**2
                root = np.sqrt(square[key] / (1 - 0.999 ** (step + 1))) + 1e-8
                direction = mean[key] / (1 - 0.9 ** (step + 1)) / root + decay
            params[key] = params[key] - oracle_rate(module, step, settings) * direction
        history.append(dict(params))
    return history


@pytest.mark.parametrize("fine_tuning", [{}, FINE_TUNING], ids=["plain", "fine-tuning"])
@pytest.mark.parametrize("rule", [{}, ADAMW], ids=["sgd", "adamw"])
def test_updates_equal_pytorchs_formulas_with_decay_on_kernels_only(rule, fine_tuning):
    config, rng = create_config(**rule, **fine_tuning), np.random.default_rng(0)
    params, gradients = draw_tree(rng), [draw_tree(rng) for _ in range(NUM_STEPS)]
    optimizer = create_optimizer(config, MODEL)
    schedule, frozen = create_schedule(config), config.optimizer.frozen_stages
    history, _ = run(optimizer, params, gradients, schedule, frozen)
    for ours, theirs in zip(history, oracle(params, gradients, config.optimizer), strict=True):
        for (module, name), leaf in theirs.items():
            # Far below the smallest effect of any option.
            np.testing.assert_allclose(ours[module][name], leaf, rtol=2e-5, atol=2e-6)


def test_defaults_have_the_bits_and_the_state_of_optax_sgd():
    """Runs and checkpoints from before there was a choice of optimizer continue unchanged."""

    def find_kernels(tree):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", tree)

    def create_reference(schedule):
        def rate(step):
            return compute_learning_rate(step, 0.03, schedule.round_length, 7 / 16)

        return optax.chain(
            optax.add_decayed_weights(0.1, mask=find_kernels),
            optax.sgd(rate, momentum=0.9, nesterov=True),
        )

    schedule = create_schedule(create_config())
    reference = optax.GradientTransformationExtraArgs(
        create_reference(schedule).init,
        lambda *arguments, schedule: create_reference(schedule).update(*arguments),
    )
    rng = np.random.default_rng(1)
    params, gradients = draw_tree(rng), [draw_tree(rng) for _ in range(NUM_STEPS)]
    theirs, ours = (
        run(optimizer, params, gradients, schedule)
        for optimizer in (reference, create_optimizer(create_config(), MODEL))
    )
    assert jax.tree.structure(ours[1]) == jax.tree.structure(theirs[1])
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    # Options change no layout either, except that what is frozen has no momentum.
    state = create_optimizer(create_config(**FINE_TUNING), MODEL).init(to_jax(params))
    trained = {name: to_jax(params[name]) for name in ("stage2_block1", "norm", "head")}
    assert jax.tree.structure(state) == jax.tree.structure(reference.init(trained))


@pytest.mark.parametrize("fine_tuning", [{}, FINE_TUNING], ids=["plain", "fine-tuning"])
def test_the_rate_that_is_written_down_is_that_of_the_step(fine_tuning):
    config = create_config(**fine_tuning)
    config.optimizer.layer_decay, config.optimizer.frozen_stages = 1.0, 0
    for step in range(NUM_STEPS):
        expected = oracle_rate("norm", step, config.optimizer)
        assert get_learning_rate(config, step) == pytest.approx(expected)


def find_changed(before, after):
    """Names of the modules with a parameter that differs."""
    differs = jax.tree.map(lambda a, b: np.any(a != b), before, after)
    return {name for name, leaves in differs.items() if any(jax.tree.leaves(leaves))}


def test_head_is_trained_first_then_all_but_the_frozen_stages():
    """One stage is frozen, and for one step only the head is trained."""
    changes = {"optimizer__frozen_stages": 1, "optimizer__head_steps": 1}
    config = create_tiny_config("20,fixmatch", **ADAMW, **changes)
    setup = create_train_setup(config, DATASET_SPEC)
    batch, step = create_raw_batch(config), create_train_step(setup)
    schedule = setup.put_schedule()
    states = [jax.device_get(setup.init_state())]
    for _ in range(2):
        state, _ = step(jax.tree.map(jnp.asarray, states[-1]), batch, schedule)
        states.append(jax.device_get(state))
    first, second, third = states
    assert find_changed(first.params, second.params) == {"head"}
    changed = {"stage2_block1", "stage3_block1", "norm", "head"}
    assert find_changed(second.params, third.params) == changed
    # Frozen or not, BatchNorm's statistics follow the new images.
    for before, after in ((first, second), (second, third)):
        assert find_changed(before.batch_stats, after.batch_stats) == set(before.batch_stats)
    # Frozen parameters have neither momentum nor an average.
    frozen = {"stem", "stage1_block1"}
    assert not frozen & set(third.opt_state[0].mu)
    assert not frozen & find_changed(third.params, third.ema_params)
    with pytest.raises(UserError, match=r"frozen_stages=4 .*choose at most 3"):
        create_train_setup(create_tiny_config(optimizer__frozen_stages=4), DATASET_SPEC)
