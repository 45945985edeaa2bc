"""Every method against its oracle: losses, monitors, statistics, state, labels and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import Batch
from cls_jax.methods import METHODS, Context, cutmix, get_mean_decay, move_means
from cls_jax.methods.balanced_head import METHOD_HEAD
from cls_jax.methods.losses import PseudoLabels
from cls_jax.methods.options import INFERRED_LABELS, apply_options
from cls_jax.models.ensemble import Ensemble
from cls_jax.models.layers import ALL_HEADS
from cls_jax.parallel import collectives
from tests.core.methods import oracles, oracles_fixmatch
from tests.core.methods.oracles import PIXELS, SIZE, Expected, Inputs, K

# Hyperparameters beside the defaults: every branch of every method occurs.
VARIANTS = [
    *(("uda", {"annealing": kind}) for kind in ("linear", "log", "exp")),
    *(
        pytest.param(name, {"weak_pass": "fast"}, marks=[] if name == "cls" else pytest.mark.slow)
        for name, method in METHODS.items()
        if "weak_pass" in method.hyperparameters
    ),
    ("softmatch", {"statistics": "aligned", "align_to": "predicted"}),
    ("adamatch", {"ramp": 0.5, "align_to": "labels", "confidence": 0.9}),
    ("flexmatch", {"warmup": "off"}),
    ("cls_plus", {"lambda_cutmix": 0.0}),
    *((name, {"inferred": 0.8}) for name in ("cls", "fixmatch")),
    *((name, {"balanced_head": True}) for name in ("cls", "fixmatch", "freematch")),
    ("cls", {"balanced_head": True, "weak_pass": "fast", "inferred": 0.8}),
]
# Name → how large logits are, and how far the run has got.
BATCHES = {
    "random": (2.5, 0.01),  # Within every ramp.
    "random, equal groups": (2.5, 0.5),  # After all of them.
    "nothing confident": (0.1, 0.3),
    "equal logits": (0.0, 0.0),
    "certain class": (1000.0, 0.7),  # All other probabilities are exactly 0.
    "everything confident": (12.0, 0.9),
}
NUM_ROWS = 20  # Training images.
STATS_SHARE = 1 - oracles.STATS_MOMENTUM
# They decide what is compiled, as words do.
STATIC = {"lambda_cutmix", "ramp", "inferred", "balanced_head"}


def get_oracle(name: str):
    """The method's function (inputs, index of the network) → `Expected`."""
    if name in oracles.TABLE_2:
        return functools.partial(oracles.table_2, name)
    return getattr(oracles_fixmatch, name, None) or getattr(oracles, name)


def compute_expected(name: str, inputs: Inputs) -> list[Expected]:
    """What each network should get."""
    options = {"inferred": oracles.add_inferred, "balanced_head": oracles.add_balanced_head}
    for option, add in options.items():
        if inputs.settings.get(option):  # What it adds is around the rest of the state.
            settings = {**inputs.settings, option: False}
            rest = dataclasses.replace(inputs, settings=settings)
            return [add(own, inputs, n) for n, own in enumerate(compute_expected(name, rest))]
    return [get_oracle(name)(inputs, n) for n in range(len(inputs.weights))]


def draw_directions(inputs: Inputs) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random directions of all pixels. One wrong derivative changes the slope along each."""
    rng = np.random.default_rng(0)
    return [
        tuple(rng.normal(size=pixels.shape) for pixels in (inputs.x, inputs.u)) for _ in range(3)
    ]


def differentiate(name: str, inputs: Inputs) -> np.ndarray:
    """Derivatives of the losses along the directions, [directions, N]."""
    slopes = []
    for toward_x, toward_u in draw_directions(inputs):
        x, u = inputs.x + 1e-30j * toward_x, inputs.u + 1e-30j * toward_u
        expected = compute_expected(name, dataclasses.replace(inputs, x=x, u=u))
        slopes.append([np.imag(network.loss) / 1e-30 for network in expected])
    return np.array(slopes)


@dataclasses.dataclass(frozen=True)
class Unfrozen:
    """All that a method asks of a model."""

    bn_frozen: bool = False


class CenteringEnsemble(Ensemble):
    """Linear networks whose passes subtract a share of their batch mean, as `oracles.forward`."""

    def forward(self, params, batch_stats, images, *, train, head="head", dropout_key=None):
        pixels = images.reshape(len(images), PIXELS)
        if dropout_key is not None:
            pixels = pixels * oracles.DROPOUT_MASK.astype(pixels.dtype)
        mean = batch_stats[:, None]
        if train:
            mean = pixels.mean(axis=0)
            batch_stats = jnp.broadcast_to(mean, batch_stats.shape)
        centered = pixels - oracles.CENTERING * mean
        centered = jnp.broadcast_to(centered, (len(batch_stats), *pixels.shape))
        kernel = jnp.concatenate([*params.values()], -1) if head == ALL_HEADS else params[head]
        return jnp.einsum("nbp,npk->nbk", centered, kernel), batch_stats


def create_state(name, kind, rng, num_networks):
    """A state as after many steps: the leaves that the method has, with arbitrary values."""
    label = rng.integers(-1, K, (num_networks, NUM_ROWS))
    negative = (label < 0)[..., None] & (rng.uniform(size=(*label.shape, K)) < 0.4)
    if kind == "nothing confident" and name == "ups":
        label[:], negative[:] = -1, False
    values = {
        "label": label,
        "negative": negative,
        "outside": np.full(num_networks, 3),
        "threshold": rng.uniform(0.3, 0.9, num_networks),
        "mean": rng.uniform(0.3, 0.9, num_networks),
        "variance": np.full(num_networks, 0.0 if kind == "equal logits" else 0.05),
    }
    for leaf in ("count_labeled", "count_unlabeled"):
        values[leaf] = rng.uniform(0, 50, (num_networks, K))
    # At the current epoch, which is 43, no epoch ends.
    values["epoch"] = np.full(num_networks, 43 if "groups" in kind else 3)
    for leaf in ("predicted", "target", "labeled", "histogram", "unlabeled", "all"):
        values[leaf] = rng.dirichlet(np.full(K, 5.0), num_networks)
    leaves = {
        "ups": ("label", "negative"),
        "remixmatch": ("predicted", "labeled"),
        "flexmatch": ("label", "outside"),
        "freematch": ("threshold", "predicted", "histogram"),
        "infomatch": ("threshold", "predicted", "histogram"),
        "softmatch": ("mean", "variance", "predicted", "target"),
        "adamatch": ("predicted", "target"),
        "cls_plus": ("predicted", "target"),
        "simpro": ("unlabeled", "all", "count_labeled", "count_unlabeled", "epoch"),
    }
    return {leaf: values[leaf] for leaf in leaves[name]} if name in leaves else ()


def create_inputs(name: str, kind: str, **settings) -> Inputs:
    """A batch of a method. Pixels 0 to 3 are network 1's logits, 4 to 7 network 2's, but for noise.

    Only "equal groups" are like Google's; all others have sizes that 3 or 4 do not divide.
    """
    rng = np.random.default_rng(list(BATCHES).index(kind))
    (scale, progress), method = BATCHES[kind], METHODS[name]
    num_networks, num_views = method.num_networks, len(method.unlabeled_views)
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
    defaults = {key: hp.default for key, hp in method.hyperparameters.items()}
    for key in defaults:
        if key.endswith("decay"):  # Means that move far in a step: when they move shows.
            defaults[key] = 0.0 if kind == "certain class" else 0.7
        if key in ("threshold", "tau") and kind == "certain class":
            defaults[key] = 1.0  # ≥, not >: the thresholds are reached exactly.
    num_images = num_x + num_views * num_u
    state = create_state(name, kind, rng, num_networks)
    added = {}
    if settings.get("balanced_head"):
        added["shares"] = rng.permuted(np.tile([1.0, 0.7, 0.4, 0.1], (num_networks, 1)), axis=1)
    if settings.get("inferred"):
        shape = (2, num_networks, NUM_ROWS)
        labels = rng.integers(0, K, shape).astype(np.int32)
        added[INFERRED_LABELS] = PseudoLabels(*labels, *rng.uniform(0, 2, shape))
    state = {**dict(state), **added} if added else state
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
        boxes=rng.uniform(size=(num_u, PIXELS)) < 0.4,
        u_index=rng.permutation(NUM_ROWS)[:num_u],
        state=state,
        progress=progress,
        settings=defaults | settings,
    )


def compute_output(name: str, static: tuple[tuple[str, object], ...], inputs: Inputs, x, u):
    """(losses, output and statistics) of the real method. Random draws are those of the inputs."""
    batch = Batch(
        x=x.reshape(-1, SIZE, SIZE, 1),
        y=inputs.y,
        u=u.reshape(*u.shape[:2], SIZE, SIZE, 1),
        u_index=inputs.u_index,
    )
    hparams = inputs.settings | dict(static)
    params = {"head": inputs.weights, "rotation": inputs.rotation_weights}
    if hparams.get("balanced_head"):
        params = {"head": inputs.ema_weights, METHOD_HEAD: inputs.weights}
    context = Context(
        ensemble=CenteringEnsemble(Unfrozen()),
        hparams=hparams,
        ema_params={"head": inputs.ema_weights},
        method_state=inputs.state,
        key=jax.random.key(0),
        progress=inputs.progress,
        mean_share=1 - get_mean_decay(hparams),
    )
    boxes = inputs.boxes.reshape(-1, SIZE, SIZE)
    with pytest.MonkeyPatch.context() as patch:
        draw = oracles.draw_lambda
        patch.setattr(jax.random, "beta", lambda key, a, b, shape: draw(inputs.draws, a, b))
        patch.setattr(jax.random, "permutation", lambda key, n: inputs.order)
        for name_ in ("average_over_data", "sum_over_data", "gather_over_data"):
            patch.setattr(collectives, name_, lambda value: value)
        patch.setattr(collectives, "draw_uniform", lambda key, n: inputs.draws[:n])
        swap = functools.partial(jnp.roll, shift=1, axis=0)
        patch.setattr(collectives, "exchange", functools.partial(jax.tree.map, swap))
        patch.setattr(cutmix, "sample_boxes", lambda *_: boxes)
        output, stats = apply_options(METHODS[name], hparams, K).forward_and_loss(
            params, inputs.stats, batch, context
        )
    return output.losses, (output, move_means(inputs.stats, stats, STATS_SHARE))


@functools.partial(jax.jit, static_argnums=(0, 1))
def compute_all(name, static, inputs, x, u):
    """The method's output, and the gradients of every network's loss by every pixel."""
    compute = functools.partial(compute_output, name, static, inputs)
    losses, pull_back, (output, stats) = jax.vjp(compute, x, u, has_aux=True)
    gradients = jax.vmap(pull_back)(jnp.eye(len(losses), dtype=losses.dtype))
    return output, stats, gradients


jax.tree_util.register_dataclass(Inputs)


def assert_equals_oracle(name, inputs, expected, slopes, tolerance):
    settings = dict(inputs.settings)
    words = [key for key, value in settings.items() if isinstance(value, str)]
    static = tuple((key, settings.pop(key)) for key in [*words, *STATIC & settings.keys()])
    traced = dataclasses.replace(inputs, settings=settings)
    output, stats, gradients = compute_all(name, static, traced, inputs.x, inputs.u)

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
    jax.tree.map(
        lambda leaf, *wanted: assert_close(leaf, wanted, "state"), output.method_state, *states
    )
    along = [
        [np.sum(x * toward_x) + np.sum(u * toward_u) for x, u in zip(*gradients, strict=True)]
        for toward_x, toward_u in draw_directions(inputs)
    ]
    assert_close(np.array(along, gradients[0].dtype), slopes, "gradients by all pixels")


def assert_equals_oracle_in_double_precision(name, inputs):
    expected, slopes = compute_expected(name, inputs), differentiate(name, inputs)
    with jax.enable_x64(True):
        assert_equals_oracle(name, inputs, expected, slopes, 1e-9)
    return expected, slopes


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("name", METHODS)
def test_method_equals_its_oracle(name, kind):
    """Labels, state and, with `weak_pass=fast`, weak views get no gradient: the oracle has none."""
    inputs = create_inputs(name, kind)
    expected, slopes = assert_equals_oracle_in_double_precision(name, inputs)
    single = jax.tree.map(
        lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf,
        dataclasses.replace(inputs, settings={}, progress=np.float64(inputs.progress)),
    )
    single = dataclasses.replace(single, settings=inputs.settings)
    assert_equals_oracle(name, single, expected, slopes, 1e-5)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_variant_of_a_method_equals_its_oracle(name, settings, kind):
    assert_equals_oracle_in_double_precision(name, create_inputs(name, kind, **settings))


def test_batches_label_some_images_and_not_others():
    """Else the comparisons above would compare little."""
    for name, monitor in (("cls_plus", "exchange_ratio"), ("freematch", "mask_ratio")):
        shares = [
            np.real(network.parts[f"monitors/{monitor}"])
            for kind in BATCHES
            for network in compute_expected(name, create_inputs(name, kind))
        ]
        assert any(0 < share < 1 for share in shares), name


def test_flexmatch_counts_an_image_once_that_a_batch_holds_twice():
    """Where one epoch ends and the next begins. The label with the higher index is stored."""
    inputs = create_inputs("flexmatch", "everything confident")
    inputs = dataclasses.replace(inputs, u_index=np.zeros(5, int))
    compute = jax.jit(functools.partial(compute_output, "flexmatch", (), inputs))
    output = compute(inputs.x, inputs.u)
    table, labels = output[1][0].method_state["label"][0], output[1][0].pseudo_labels[0]
    assert table[0] == max(labels)
    np.testing.assert_array_equal(table[1:], inputs.state["label"][0, 1:])
