"""CLS's switches: off they change no bit, on they compute their formulas."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.config import create_config, read_config, to_json
from cls_jax.methods import METHODS
from cls_jax.methods.cls import AblationFlags, create_method
from cls_jax.methods.cls_exchange import choose_sent
from cls_jax.methods.cls_switches import SWITCHES
from cls_jax.methods.pseudo_labels import PseudoLabels
from tests.conftest import create_tiny_config
from tests.methods import oracles_rules, published_cls
from tests.methods.oracles import TABLE_2
from tests.methods.rule_cases import (
    ALL_ON,
    KINDS,
    PRESETS,
    B,
    U,
    compile_loss,
    compute_output,
    create_batch,
    create_hparams,
    create_logits,
    create_state,
    init_state,
    to_case,
)
from tests.methods.tiny_model import run_steps, tiny_model

__all__ = ["tiny_model"]
VARIANTS = [
    {},
    {"align": "own"},
    {"align": "joint"},
    {"adaptive_tau": "on"},
    {"exchange_rule": "surer", "tau": 0.3},
    {"exchange_rule": "agree", "tau": 0.3},
    {"lambda_cutmix": 0.7, "tau": 0.3},
    {"ramp": 0.6, "tau": 0.3},
    {"weight_power": 2.0, "tau": 0.3},
    *({**preset, "tau": 0.3} for preset in PRESETS.values()),
    ALL_ON,
    {**ALL_ON, "statistics_decay": 0.2},
]


def create_pair(kind):
    """Logits of two networks, which share only some opinions."""
    logits = np.stack([create_logits(kind, network) for network in range(2)])
    logits[1, B : B + U // 2] = logits[0, B : B + U // 2]
    return logits


def publish(name):
    """The method with the frozen loss."""
    compute_loss = functools.partial(published_cls.compute_loss, AblationFlags(*TABLE_2[name]))
    return dataclasses.replace(METHODS[name], compute_loss=compute_loss)


@pytest.mark.parametrize("name", TABLE_2)
def test_with_switches_off_the_loss_has_the_bits_of_the_published_one(name):
    logits = jnp.asarray(create_pair("random")[: METHODS[name].num_networks], jnp.float32)
    batch = jax.tree.map(jnp.asarray, create_batch(2))
    ours, theirs = (
        compile_loss(name, False, (), compute_loss)(logits, (), batch, jnp.float32(0.3))
        for compute_loss in (METHODS[name].compute_loss, publish(name).compute_loss)
    )
    assert init_state(name) == ours.method_state == ()
    assert set(ours.monitors) == set(theirs.monitors)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.usefixtures("tiny_model")
def test_with_switches_off_training_has_the_bits_of_the_published_one(monkeypatch):
    config = create_tiny_config("20,cls", method__tau=0.3)
    ours = run_steps(config, num_steps=5)
    monkeypatch.setitem(METHODS, "cls", publish("cls"))
    theirs = run_steps(config, num_steps=5)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert 0 < ours[1][-1]["monitors/exchange_ratio"] < 1


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-9), (False, 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(changes) or "off")
def test_losses_and_state_equal_a_numpy_reading(changes, kind, x64, tolerance):
    logits, batch = create_pair(kind), create_batch(2)
    state = create_state("cls", kind, **changes)
    output = compute_output("cls", logits, state, batch, x64=x64, **changes)
    cases = [to_case(network, batch) for network in logits]
    states = [{leaf: value[b] for leaf, value in dict(state).items()} for b in range(2)]
    hparams = create_hparams("cls", **changes)
    losses, labels, new_states = oracles_rules.cls(cases, states, hparams, 0.3)
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(output.losses, losses, **close)
    np.testing.assert_array_equal(output.pseudo_labels, labels)
    assert set(dict(output.method_state)) == set(new_states[0])
    for b, new_state in enumerate(new_states):
        for leaf, value in new_state.items():
            np.testing.assert_allclose(output.method_state[leaf][b], value, **close, err_msg=leaf)


def test_a_weight_that_just_reaches_the_threshold_is_sent():
    weight = np.float32([[0.25, 0.5, 0.75]])
    labels = PseudoLabels(np.int32([[0, 1, 1]]), None, weight, None)
    fixed = {"adaptive_tau": "off", "tau": 0.5}
    assert np.asarray(choose_sent(fixed, labels, ())).tolist() == [[False, True, True]]
    # The bar of class 0 is half of the mean weight, that of class 1 all of it.
    state = {"confidence": np.float32([0.5]), "predicted": np.float32([[0.25, 0.5, 0.25]])}
    adaptive = np.asarray(choose_sent({"adaptive_tau": "on"}, labels, state))
    assert adaptive.tolist() == [[True, True, True]]
    state["confidence"] = np.float32([1.0])  # Never above 0.95.
    certain = labels._replace(weight=np.float32([[0.475, 0.95, 0.949]]))
    adaptive = np.asarray(choose_sent({"adaptive_tau": "on"}, certain, state))
    assert adaptive.tolist() == [[True, True, False]]


def test_cases_send_some_labels_and_refuse_some():
    """Else the comparison above would compare little."""
    logits, batch = create_pair("random"), create_batch(2)
    for rule in ("surer", "agree"):
        output = compute_output("cls", logits, (), batch, exchange_rule=rule, tau=0.3)
        sent = output.monitors["monitors/exchange_ratio"].mean()
        received = output.monitors["monitors/received_ratio"].mean()
        assert 0 < received < sent < 1
    logits = create_pair("empty_mask")
    output = compute_output("cls", logits, (), batch, exchange_rule="all")
    np.testing.assert_array_equal(output.monitors["monitors/exchange_ratio"], 0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_and_come_from_neither_state_nor_weak_views(kind):
    changes = tuple(sorted(ALL_ON.items()))
    state = create_state("cls", kind, **ALL_ON)
    state, batch = jax.tree.map(jnp.asarray, (state, create_batch(2)))

    def compute(logits):
        output = compile_loss("cls", False, changes)(logits, state, batch, jnp.float32(0.3))
        return sum(map(jnp.sum, jax.tree.leaves(output.method_state))), output.losses.sum()

    state_gradient, loss_gradient = jax.jacrev(compute)(jnp.asarray(create_pair(kind), jnp.float32))
    np.testing.assert_array_equal(state_gradient, 0)
    np.testing.assert_array_equal(loss_gradient[:, B : B + U], 0)
    assert np.all(np.isfinite(loss_gradient))


def test_ramp_starts_without_unlabeled_losses_and_ends_as_without_a_ramp():
    logits, batch = create_pair("random"), create_batch(2)

    def compute(progress, **changes):
        return compute_output("cls", logits, (), batch, progress, tau=0.3, **changes)

    start, end, off = compute(0.0, ramp=0.5), compute(0.5, ramp=0.5), compute(0.5)
    np.testing.assert_allclose(start.losses, start.monitors["train/loss_supervised"])
    np.testing.assert_allclose(end.losses, off.losses)


def test_only_switches_that_need_a_state_carry_one():
    assert init_state("cls", exchange_rule="agree", lambda_cutmix=1.0, ramp=0.5) == ()
    assert set(init_state("cls", align="own")) == {"predicted", "target"}
    state = init_state("cls", adaptive_tau="on", tau=0.7)
    assert set(state) == {"predicted", "confidence"}
    np.testing.assert_allclose(state["confidence"], 0.7, rtol=1e-6)


def test_configuration_of_an_older_run_is_read_with_all_switches_off(tmp_path):
    stored = json.loads(to_json(create_config("40,cls")))
    for switch in SWITCHES:
        del stored["method"][switch]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(stored))
    assert to_json(read_config(path)) == to_json(create_config("40,cls"))


def test_preset_changes_defaults_only():
    preset = create_method(exchange=True, negative=True, reweight=True, align="joint")
    assert preset.hyperparameters["align"].default == "joint"
    assert set(preset.hyperparameters) == set(METHODS["cls"].hyperparameters)
    assert METHODS["cls"].hyperparameters["align"].default == "off"
    with pytest.raises(KeyError):
        create_method(exchange=True, negative=True, reweight=True, aline="joint")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_cls_with_its_switches_on(name):
    ours, theirs = METHODS[name], METHODS["cls"]
    defaults = {key: hp.default for key, hp in theirs.hyperparameters.items()} | PRESETS[name]
    assert {key: hp.default for key, hp in ours.hyperparameters.items()} == defaults
    assert (ours.mu, ours.num_networks, ours.init_state) == (theirs.mu, 2, theirs.init_state)
    logits, batch = create_pair("random"), create_batch(2)
    state = create_state(name, "random")
    expected = compute_output("cls", logits, state, batch, **PRESETS[name])
    actual = compute_output(name, logits, state, batch)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
