"""The newer methods against NumPy readings of their formulas, and their known traps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods import METHODS, Context, freematch
from cls_jax.methods.cutmix import cutmix
from tests.methods import oracles_rules
from tests.methods.rule_cases import (
    KEY,
    KINDS,
    NUM_IMAGES,
    RULES,
    B,
    GivenLogits,
    K,
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

# Every value of every switch occurs.
VARIANTS = [
    *((name, {}) for name in RULES),
    # Statistics that move far in a step: whether they move before they are used shows.
    ("freematch", {"statistics_decay": 0.2}),
    ("infomatch", {"statistics_decay": 0.2}),
    ("softmatch", {"statistics": "aligned", "align_to": "predicted", "statistics_decay": 0.2}),
    ("adamatch", {"ramp": 0.5, "align_to": "labels", "confidence": 0.9, "statistics_decay": 0.2}),
    ("flexmatch", {"warmup": "off"}),
]


def num_views(name):
    return len(METHODS[name].unlabeled_views)


def read_formulas(name, logits, state, batch, progress, **changes):
    state = {leaf: value[0] for leaf, value in state.items()}
    hparams = create_hparams(name, **changes)
    return getattr(oracles_rules, name)(to_case(logits[0], batch), state, hparams, progress)


@pytest.mark.parametrize(("x64", "tolerance"), [(True, 1e-9), (False, 1e-5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_loss_labels_and_state_equal_a_numpy_reading(name, changes, kind, x64, tolerance):
    logits, batch = create_logits(kind)[None], create_batch(num_views(name))
    state = create_state(name, kind, **changes)
    output = compute_output(name, logits, state, batch, x64=x64, **changes)
    loss, labels, new_state = read_formulas(name, logits, state, batch, 0.3, **changes)
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(output.losses[0], loss, **close)
    np.testing.assert_array_equal(output.pseudo_labels[0], labels)
    assert set(output.method_state) == set(new_state)
    for leaf, value in new_state.items():
        np.testing.assert_allclose(output.method_state[leaf][0], value, **close, err_msg=leaf)
    if kind == "empty_mask" and name != "softmatch":
        assert output.monitors["monitors/mask_ratio"] == 0


@pytest.mark.parametrize("name", RULES)
def test_neither_state_nor_weak_views_nor_labels_carry_a_gradient(name):
    batch, state = create_batch(num_views(name)), create_state(name, "random")

    def sum_up(logits):
        output = compute_in_single(name, logits, state, batch)
        floats = [s for s in jax.tree.leaves(output.method_state) if s.dtype == logits.dtype]
        return sum(map(jnp.sum, floats), jnp.zeros(())), output.losses.sum()

    logits = jnp.asarray(create_logits("random")[None], jnp.float32)
    state_gradient, loss_gradient = jax.jacrev(sum_up)(logits)
    np.testing.assert_array_equal(state_gradient, 0)
    np.testing.assert_array_equal(loss_gradient[:, B : B + U], 0)
    assert np.all(np.isfinite(loss_gradient))
    assert np.any(loss_gradient[:, :B] != 0)
    assert np.any(loss_gradient[:, B + U :] != 0)


def compute_in_single(name, logits, state, batch, **changes):
    """As `compute_output`, but differentiable."""
    state, batch = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32 if leaf.dtype.kind == "f" else jnp.int32),
        (state, batch),
    )
    compute = compile_loss(name, False, tuple(sorted(changes.items())))
    return compute(logits, state, batch, jnp.float32(0.3))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite(name, kind):
    batch, state = create_batch(num_views(name)), create_state(name, kind)
    gradient = jax.grad(lambda z: compute_in_single(name, z, state, batch).losses.sum())(
        jnp.asarray(create_logits(kind)[None], jnp.float32)
    )
    assert np.all(np.isfinite(gradient))


def test_gradients_of_freematch_are_finite_where_probabilities_are_zero_and_nothing_is_taught():
    logits = jnp.asarray(200 * create_logits("random")[None], jnp.float32)
    state = create_state("freematch", "random")
    for threshold in (0.0, 3.0):  # Everything is taught, nothing is.
        state["threshold"] = np.array([threshold])
        output = compute_in_single("freematch", logits, state, create_batch(2))
        assert output.monitors["monitors/mask_ratio"] == (threshold == 0)
        gradient = jax.grad(
            lambda z, state=state: compute_in_single(
                "freematch", z, state, create_batch(2)
            ).losses.sum()
        )(logits)
        assert np.all(np.isfinite(gradient))


def test_freematch_moves_its_threshold_before_the_first_mask():
    logits, batch = create_logits("random")[None], create_batch(2)
    output = compute_output("freematch", logits, init_state("freematch"), batch)
    confidence = oracles_rules.softmax(logits[0, B : B + U]).max(-1).mean()
    np.testing.assert_allclose(
        output.method_state["threshold"], [0.999 / K + 0.001 * confidence], rtol=1e-6
    )
    # Images below the mean confidence are taught too: the bar is still almost 1 / K.
    assert output.monitors["monitors/mask_ratio"] == 1


@pytest.mark.parametrize("name", ["freematch", "infomatch"])
def test_an_image_that_just_reaches_the_self_adaptive_threshold_is_taught(name):
    """All are certain of the same class, and a mean without memory is their confidence, 1."""
    logits, batch = create_logits("certain_class")[None], create_batch(num_views(name))
    state = create_state(name, "certain_class")
    output = compute_output(name, logits, state, batch, statistics_decay=0.0)
    assert output.monitors["monitors/threshold"] == output.monitors["monitors/mask_ratio"] == 1


def test_gradient_of_freematchs_fairness_in_the_mean_is_q_minus_r():
    q, zeta = np.array([[0.1, 0.5, 0.2, 0.15, 0.05]]), np.array([[0.3, -1.0, 0.7, 0.0, 0.2]])
    ones = jnp.ones((1, K))

    def compute(zeta, q):
        return freematch.compute_fairness(q, jax.nn.softmax(zeta), ones, ones).sum()

    r = oracles_rules.softmax(zeta)
    np.testing.assert_allclose(jax.grad(compute)(jnp.asarray(zeta), q), q - r, atol=1e-6)
    np.testing.assert_allclose(jax.grad(compute)(jnp.asarray(zeta), jnp.asarray(r)), 0, atol=1e-6)


def test_freematchs_fairness_ignores_images_that_are_not_taught():
    logits, batch = create_logits("random")[None], create_batch(2)
    state = create_state("freematch", "random")
    state["threshold"], state["predicted"] = np.array([0.9]), np.full((1, K), 1 / K)
    before = compute_output("freematch", logits, state, batch)
    _, mask, _ = oracles_rules.freematch_rule(
        to_case(logits[0], batch), {k: v[0] for k, v in state.items()}, create_hparams("freematch")
    )
    assert 0 < mask.sum() < U
    changed = logits.copy()
    changed[0, B + U : B + 2 * U][mask == 0] *= -1
    after = compute_output("freematch", changed, state, batch)
    np.testing.assert_array_equal(before.losses, after.losses)


def test_softmatchs_weight_is_one_above_the_mean_and_labels_ignore_alignment():
    logits, batch = create_logits("random")[None], create_batch(2)
    state = create_state("softmatch", "random")
    state["target"] = np.array([[0.96, 0.01, 0.01, 0.01, 0.01]])
    output = compute_output("softmatch", logits, state, batch)
    weak = logits[0, B : B + U]
    np.testing.assert_array_equal(output.pseudo_labels[0], weak.argmax(-1))
    aligned = oracles_rules.aligned(
        oracles_rules.softmax(weak), state["predicted"][0], state["target"][0]
    )
    assert np.any(aligned.argmax(-1) != weak.argmax(-1))
    state["mean"], state["variance"] = np.array([0.0]), np.array([1e-6])
    output = compute_output("softmatch", logits, state, batch)
    np.testing.assert_array_equal(output.monitors["monitors/confidence_weight"], 1.0)


def test_softmatch_stays_finite_where_the_variance_has_vanished():
    state = create_state("softmatch", "random")
    state["variance"] = np.array([0.0])
    output = compute_output("softmatch", create_logits("all_equal")[None], state, create_batch(2))
    assert np.all(np.isfinite(output.losses))


def test_adamatchs_threshold_follows_the_confidence_of_the_labeled_batch():
    logits, batch = create_logits("random")[None], create_batch(2)
    thresholds = []
    for scale in (0.0, 1.0, 100.0):
        changed = logits.copy()
        changed[:, :B] *= scale
        output = compute_output("adamatch", changed, create_state("adamatch", "random"), batch)
        thresholds.append(output.monitors["monitors/threshold"].item())
    np.testing.assert_allclose([thresholds[0], thresholds[2]], [0.95 / K, 0.95], rtol=1e-2)
    assert thresholds[0] < thresholds[1] < thresholds[2]


def test_adamatch_teaches_what_just_reaches_its_threshold():
    """Predictions of 1 where the labeled ones are 1, too."""
    logits, state = create_logits("certain_class")[None], create_state("adamatch", "random")
    output = compute_output("adamatch", logits, state, create_batch(2), confidence=1.0)
    assert output.monitors["monitors/threshold"] == output.monitors["monitors/mask_ratio"] == 1


def test_adamatchs_ramp_rises_from_nothing_to_the_loss_without_it_and_stays():
    logits, batch = create_logits("random")[None], create_batch(2)
    state = create_state("adamatch", "random")

    def compute(progress, ramp):
        output = compute_output("adamatch", logits, state, batch, progress, ramp=ramp)
        return (output.losses - output.monitors["train/loss_supervised"]).item()

    start, middle, end, later, off = (
        compute(*arguments)
        for arguments in ((0, 0.5), (0.25, 0.5), (0.5, 0.5), (0.9, 0.5), (0.9, 0))
    )
    np.testing.assert_allclose([start, middle, end, later], [0, off / 2, off, off], atol=1e-5)
    assert off > 0.1


def test_adamatchs_mean_prediction_starts_at_that_of_the_first_batch():
    logits, batch = create_logits("random")[None], create_batch(2)
    mean = oracles_rules.softmax(logits[0, B : B + U]).mean(0)
    for progress in (0.0, 0.5):
        output = compute_output("adamatch", logits, init_state("adamatch"), batch, progress)
        is_first = np.allclose(output.method_state["predicted"][0], mean, atol=1e-6)
        assert is_first == (progress == 0)


def test_flexmatch_teaches_everything_at_first_and_notes_only_confident_labels():
    logits, batch = create_logits("random")[None], create_batch(2)
    state = init_state("flexmatch")
    np.testing.assert_array_equal(state["label"], -1)
    output = compute_output("flexmatch", logits, state, batch)
    assert output.monitors["monitors/mask_ratio"] == 1
    p = oracles_rules.softmax(logits[0, B : B + U])
    is_confident = p.max(-1) >= 0.95
    assert 0 < is_confident.sum() < U
    expected = np.full(NUM_IMAGES, -1)
    expected[batch.u_index[is_confident]] = p.argmax(-1)[is_confident]
    np.testing.assert_array_equal(output.method_state["label"][0], expected)


def test_flexmatch_teaches_and_notes_what_just_reaches_its_bar():
    logits, batch = create_logits("certain_class")[None], create_batch(2)
    state = create_state("flexmatch", "certain_class")
    state["label"] = np.full((1, NUM_IMAGES), 2, np.int32)  # The bar of class 2 is τ itself.
    state["label"][0, batch.u_index] = -1
    output = compute_output("flexmatch", logits, state, batch, tau=1.0)
    assert output.monitors["monitors/mask_ratio"] == 1
    assert np.all(output.method_state["label"] == 2)


def test_flexmatch_counts_an_image_once_that_a_batch_holds_twice():
    """Where one epoch ends and the next begins; either label may win, on all devices the same."""
    logits, batch = create_logits("all_confident")[None], create_batch(2)
    batch = batch._replace(u_index=np.zeros(U, np.int32))
    output = compute_output("flexmatch", logits, init_state("flexmatch"), batch)
    table = output.method_state["label"][0]
    assert np.sum(table != -1) == 1
    assert table[0] == logits[0, B : B + U].argmax(-1).max()


def test_flexmatchs_bar_is_full_for_the_largest_class_once_all_images_have_a_label():
    """Images that the stream never shows never have one and do not keep the bar low."""
    state = create_state("flexmatch", "random")
    state["label"] = np.full((1, NUM_IMAGES), 2, np.int32)
    state["label"][0, :3] = -1
    output = compute_output("flexmatch", create_logits("random")[None], state, create_batch(2))
    np.testing.assert_allclose(output.monitors["monitors/threshold"], 0.95 / K)


def test_flexmatchs_class_balance_compares_the_classes_learned_least_and_most():
    state = create_state("flexmatch", "random")
    state["label"] = np.array([[0] * 10 + [1, 2, 3, 4] * 5], np.int32)
    output = compute_output("flexmatch", create_logits("random")[None], state, create_batch(2))
    np.testing.assert_allclose(output.monitors["monitors/class_balance"], 0.5)


def test_udas_annealing_starts_at_the_probability_of_a_guess():
    """1 / K and not one over the number of images: here K < B, and p lies between the two."""
    logits, batch = create_logits("random")[None], create_batch(2)
    p = np.full((B, K), 0.205)
    p[np.arange(B), batch.y] = 0.18
    logits[0, :B] = np.log(p)
    output = compute_output("uda", logits, (), batch, progress=0.0, annealing="linear")
    np.testing.assert_allclose(output.monitors["train/loss_supervised"], -np.log(0.18), rtol=1e-5)


def test_udas_annealing_ends_with_all_images():
    """Also those whose probability is 1, as is the threshold."""
    logits, batch = create_logits("random")[None], create_batch(2)
    logits[0, :B] = 0
    logits[0, np.arange(B // 2), batch.y[: B // 2]] = 1e4
    output = compute_output("uda", logits, (), batch, progress=1.0, annealing="linear")
    np.testing.assert_allclose(output.monitors["train/loss_supervised"], np.log(K) / 2, rtol=1e-5)


class RecordingEnsemble(GivenLogits):
    """Keeps the groups of images of each pass."""

    def forward_concatenated(self, params, batch_stats, groups, dropout_key=None):
        self.model.append(groups)
        return super().forward_concatenated(params, batch_stats, groups, dropout_key)

    def exchange(self, tree):
        return jax.tree.map(lambda leaf: leaf[::-1], tree)


@pytest.mark.parametrize("name", ["infomatch", "cls_plus"])
def test_cutmix_mixes_weak_views(name):
    passes, num_networks = [], METHODS[name].num_networks
    batch, state = create_batch(num_views(name)), create_state(name, "random")
    context = Context(
        ensemble=RecordingEnsemble(model=passes),
        hparams=create_hparams(name),
        ema_params=None,
        method_state=state,
        key=jax.random.key(KEY),
        progress=jnp.float32(0.3),
    )
    logits = jnp.asarray(np.tile(create_logits("random"), (num_networks, 1, 1)), jnp.float32)
    METHODS[name].compute_loss(logits, {}, batch, context)
    ((*_, mixed),) = passes
    expected = cutmix(context.key, jnp.asarray(batch.u[0]), jnp.asarray(batch.u_index))
    np.testing.assert_array_equal(mixed, expected.images)


@pytest.mark.parametrize("name", [*RULES, "cls_plus"])
def test_every_default_of_the_newer_methods_has_a_source(name):
    for key, hyperparameter in METHODS[name].hyperparameters.items():
        assert hyperparameter.source, key
        if not hyperparameter.choices:
            assert np.isfinite([hyperparameter.low, hyperparameter.high]).all(), key
