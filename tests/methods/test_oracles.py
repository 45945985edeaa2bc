"""Every method against its oracle: losses, parts, statistics, state, labels and gradients.

The newer methods, and `cls_plus`, have theirs in `test_rules.py` and
`test_cls_plus.py`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import Batch
from cls_jax.methods import METHODS, Context
from cls_jax.models.ensemble import Ensemble
from tests.methods.oracle_parts import (
    CENTERING,
    DROPOUT_MASK,
    PIXELS,
    SIZE,
    STATS_MOMENTUM,
    Inputs,
    K,
    draw_lambda,
)
from tests.methods.oracles import TABLE_2, compute_expected, differentiate
from tests.methods.rule_cases import RULES

# What the papers and their authors' code use, by method: its shape, then its hyperparameters.
FIXMATCH = {"num_networks": 1, "mu": 7, "views": ("weak", "strong")}
CLS = {**FIXMATCH, "num_networks": 2, "mu": 8}
SPECS = {
    "supervised": {"num_networks": 1, "mu": 7, "views": (), "labeled_view": "strong"},
    "pseudo_label": {"num_networks": 1, "mu": 1, "views": ("weak",)},
    "ups": {"num_networks": 1, "mu": 1, "views": ("strong",), "labeled_view": "strong"},
    "pi_model": {"num_networks": 1, "mu": 1, "views": ("weak", "weak")},
    "mean_teacher": {"num_networks": 1, "mu": 1, "views": ("weak", "weak")},
    "uda": FIXMATCH,
    "mixmatch": {"num_networks": 1, "mu": 1, "views": ("weak", "weak")},
    "remixmatch": {"num_networks": 1, "mu": 1, "views": ("weak", "strong", "strong")},
    **dict.fromkeys(("fixmatch", "fixmatch_nl", "fixmatch_rw", "fixmatch_nl_rw"), FIXMATCH),
    **dict.fromkeys(("cls", "cls_no_nl", "cls_no_rw"), CLS),
}
LAMBDAS = {"lambda_self": 2.0, "lambda_co": 1.0, "tau": 0.85}
SETTINGS = {
    "supervised": {},
    "pseudo_label": {"lambda_u": 1.0, "ramp": 0.4, "threshold": 0.95},
    "ups": {
        "rounds": 10,
        "threshold_positive": 0.70,
        "std_positive": 0.05,
        "threshold_negative": 0.05,
        "std_negative": 0.005,
        "temperature_negative": 2.0,
        "balanced_share": 7 / 20,
        "passes": 10,
        "dropout": 0.3,
    },
    "pi_model": {"lambda_u": 10.0, "ramp": 0.4},
    "mean_teacher": {"lambda_u": 50.0, "ramp": 0.4},
    "uda": {"lambda_u": 1.0, "temperature": 0.4, "threshold": 0.8, "annealing": "off"},
    "mixmatch": {"alpha": 0.75, "temperature": 0.5, "lambda_u": 75.0, "ramp": 16_384 / 307_200},
    "remixmatch": {
        "alpha": 0.75,
        "temperature": 0.5,
        "weight_mixed": 1.5,
        "weight_strong": 0.5,
        "weight_rotation": 0.5,
        "ramp": 1 / 64,
        "class_mean_decay": 0.999,
    },
    "fixmatch": {"lambda_self": 1.0, "threshold": 0.95},
    "fixmatch_nl": {"lambda_self": 1.0, "threshold": 0.95},
    "fixmatch_rw": {"lambda_self": 1.0},
    "fixmatch_nl_rw": {"lambda_self": 1.0},
    "cls": LAMBDAS,
    "cls_no_nl": LAMBDAS,
    "cls_no_rw": {**LAMBDAS, "threshold": 0.95},
}


@dataclasses.dataclass(frozen=True)
class Momentum:
    """All that `Ensemble.forward_with_frozen_group` asks of a model."""

    bn_momentum: float = STATS_MOMENTUM

    def clone(self, **changes):
        return dataclasses.replace(self, **changes)


class CenteringEnsemble(Ensemble):
    """Linear networks whose passes subtract a share of their batch mean, as `oracles.forward`."""

    def forward(self, params, batch_stats, images, *, train, head="head", dropout_key=None):
        pixels = images.reshape(len(images), PIXELS)
        if dropout_key is not None:
            pixels = pixels * DROPOUT_MASK.astype(pixels.dtype)
        mean = batch_stats[:, None]
        if train:
            mean, momentum = pixels.mean(axis=0), self.model.bn_momentum
            batch_stats = momentum * batch_stats + (1 - momentum) * mean
        centered = jnp.broadcast_to(pixels - CENTERING * mean, (len(batch_stats), *pixels.shape))
        return jnp.einsum("nbp,npk->nbk", centered, params[head]), batch_stats

    def has_batch_statistics(self, batch_stats):
        return True

    def average_over_data(self, value):
        return value


# Name → how large logits are, and how far the run has got.
BATCHES = {
    "random": (2.5, 0.01),  # Within every ramp.
    "random, equal groups": (2.5, 0.5),  # After all of them.
    "nothing confident": (0.1, 0.3),
    "equal logits": (0.0, 0.0),
    "certain class": (1000.0, 0.7),  # All other probabilities are exactly 0.
    "everything confident": (12.0, 0.9),
}


def create_inputs(name: str, kind: str, **settings) -> Inputs:
    """A batch of a method. Pixels 0 to 3 are network 1's logits, 4 to 7 network 2's, but for noise.

    Only "equal groups" are like Google's; all others have sizes that 3 or 4 do not divide.
    """
    rng = np.random.default_rng(list(BATCHES).index(kind))
    scale, progress = BATCHES[kind]
    num_networks, num_views = SPECS[name]["num_networks"], len(SPECS[name]["views"])
    num_x, num_u = (6, 6) if "groups" in kind and name.endswith("mixmatch") else (4, 5)

    def draw_pixels(*shape):
        if kind in ("certain class", "everything confident"):
            return scale * np.concatenate(
                [np.eye(4)[rng.integers(0, 4, shape)], np.eye(5)[rng.integers(0, 4, shape)]],
                axis=-1,
            )
        return rng.normal(0, scale, (*shape, PIXELS))

    weights = 0.05 * rng.normal(size=(num_networks, PIXELS, K))
    for n in range(num_networks):
        weights[n, 4 * n : 4 * n + 4] += np.eye(4)
    num_rows = 20
    label = np.where(rng.uniform(size=(num_networks, num_rows)) < 0.4, -1, 0)
    label = np.where(label < 0, -1, rng.integers(0, K, label.shape))
    if kind == "nothing confident":
        label[:] = -1
    negative = (label < 0)[..., None] & (rng.uniform(size=(*label.shape, K)) < 0.4)
    states = {
        "ups": {"label": label, "negative": negative & (kind != "nothing confident")},
        "remixmatch": {
            "predicted": rng.dirichlet(np.ones(K), num_networks),
            "labeled": rng.dirichlet(np.ones(K), num_networks),
        },
    }
    if kind == "certain class":  # ≥, not >: the thresholds are reached exactly.
        reached = {"threshold", "tau"} & set(SETTINGS[name])
        settings = dict.fromkeys(reached, 1.0) | settings
    num_images = num_x + num_views * num_u
    return Inputs(
        x=draw_pixels(num_x),
        y=rng.integers(0, K, num_x),
        u=draw_pixels(num_views, num_u),
        weights=weights,
        rotation_weights=rng.normal(size=(num_networks, PIXELS, 4)),
        ema_weights=weights + 0.3 * rng.normal(size=weights.shape),
        stats=rng.normal(size=(num_networks, PIXELS)),
        draws=rng.uniform(0.02, 0.98, num_images),
        order=rng.permutation(num_images),
        u_index=rng.permutation(num_rows)[:num_u],
        state=states.get(name, ()),
        progress=progress,
        settings={**SETTINGS[name], **settings},
    )


def get_defaults(name: str) -> dict:
    return {key: hp.default for key, hp in METHODS[name].hyperparameters.items()}


def compute_output(name: str, texts: tuple[tuple[str, str], ...], inputs: Inputs, x, u):
    """(losses, output) of the real method; random draws are those of the inputs."""
    batch = Batch(
        x=x.reshape(-1, SIZE, SIZE, 1),
        y=inputs.y,
        u=u.reshape(*u.shape[:2], SIZE, SIZE, 1),
        u_index=inputs.u_index,
    )
    params = {"head": inputs.weights, "rotation": inputs.rotation_weights}
    context = Context(
        ensemble=CenteringEnsemble(Momentum()),
        hparams=get_defaults(name) | inputs.settings | dict(texts),
        ema_params={"head": inputs.ema_weights},
        method_state=inputs.state,
        key=jax.random.key(0),
        progress=inputs.progress,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "beta", lambda key, a, b, shape: draw_lambda(inputs.draws, a, b))
        patch.setattr(jax.random, "permutation", lambda key, n: inputs.order)
        output, stats = METHODS[name].compute_loss(params, inputs.stats, batch, context)
    return output.losses, (output, stats)


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute_all(name, texts, inputs, x, u):
    """The method's output, and the gradients of every network's loss by every pixel."""
    compute = functools.partial(compute_output, name, texts, inputs)
    _, (output, stats) = compute(x, u)
    gradients = jax.jacrev(lambda *pixels: compute(*pixels)[0], argnums=(0, 1))(x, u)
    return output, stats, gradients


jax.tree_util.register_dataclass(Inputs)


def assert_equals_oracle(name, inputs, expected, gradients, tolerance):
    settings = dict(inputs.settings)
    words = [key for key, value in settings.items() if isinstance(value, str)]
    texts = tuple((key, settings.pop(key)) for key in words)  # Cannot be traced.
    traced = dataclasses.replace(inputs, settings=settings)
    output, stats, (gradient_x, gradient_u) = compute_all(name, texts, traced, inputs.x, inputs.u)

    def assert_close(actual, wanted, what):
        wanted = np.asarray(wanted)
        # Shares of images are float32 means of booleans.
        rtol = max(tolerance, 1e-6) if actual.dtype == np.float32 else tolerance
        atol = rtol * max(1.0, np.abs(wanted).max(initial=0.0))
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol, err_msg=what)

    assert_close(output.losses, [network.loss.real for network in expected], "losses")
    assert_close(stats, [network.stats for network in expected], "batch_stats")
    assert set(output.monitors) == set(expected[0].parts)
    for part, value in output.monitors.items():
        if part == "monitors/mask_ratio" and inputs.progress == 0 and "_rw" in name:
            continue  # Equal logits: whether w = 0 is positive is a matter of rounding.
        assert_close(value, [np.real(network.parts[part]) for network in expected], part)
    if expected[0].pseudo_labels is None:
        assert output.pseudo_labels is None
    else:
        labels = [network.pseudo_labels for network in expected]
        np.testing.assert_array_equal(output.pseudo_labels, labels)
    states = [network.state for network in expected]
    assert jax.tree.structure(output.method_state) == jax.tree.structure(states[0])
    for key in states[0]:
        assert_close(output.method_state[key], [state[key] for state in states], key)
    assert_close(gradient_x, gradients["x"], "gradient by labeled images")
    assert_close(gradient_u, gradients["u"], "gradient by unlabeled images")


def assert_equals_oracle_in_both_precisions(name, inputs):
    expected, gradients = compute_expected(name, inputs), differentiate(name, inputs)
    with jax.enable_x64(True):
        assert_equals_oracle(name, inputs, expected, gradients, 1e-9)
    single = jax.tree.map(
        lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf,
        dataclasses.replace(inputs, settings={}, progress=np.float64(inputs.progress)),
    )
    single = dataclasses.replace(single, settings=inputs.settings)
    assert_equals_oracle(name, single, expected, gradients, 1e-5)


def test_every_method_has_an_oracle():
    assert set(METHODS) == {*SPECS, *RULES, "cls_plus"}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("name", SPECS)
def test_method_equals_its_oracle(name, kind):
    assert_equals_oracle_in_both_precisions(name, create_inputs(name, kind))


@pytest.mark.parametrize("progress", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("annealing", ["linear", "log", "exp"])
def test_annealed_uda_equals_its_oracle(annealing, progress):
    inputs = create_inputs("uda", "random", annealing=annealing)
    inputs = dataclasses.replace(inputs, progress=progress)
    assert_equals_oracle_in_both_precisions("uda", inputs)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("name", [*TABLE_2, "uda"])
def test_weak_images_beside_the_pass_equal_the_oracle(name, kind):
    """Also that they get no gradient: that of the joint pass reaches them through the mean."""
    inputs = create_inputs(name, kind, weak_pass="fast")
    assert_equals_oracle_in_both_precisions(name, inputs)


@pytest.mark.parametrize("name", SPECS)
def test_method_has_the_papers_settings(name):
    method, spec = METHODS[name], {"labeled_view": "weak", **SPECS[name]}
    assert method.num_networks == spec["num_networks"]
    assert method.mu == spec["mu"]
    assert method.unlabeled_views == spec["views"]
    assert method.labeled_view == spec["labeled_view"]
    defaults = get_defaults(name)
    assert defaults.pop("weak_pass", "joint") == "joint"
    assert defaults == SETTINGS[name]
