"""The compiled step and the evaluation: on 1, 2 and 4 devices, and against plain computations."""

import contextlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.batch import normalize
from cls_jax.config import flatten, with_values
from cls_jax.errors import UserError
from cls_jax.methods import METHODS, choose_decay
from cls_jax.models.ensemble import take_network
from cls_jax.parallel.mesh import BATCH_SPECS, to_shardings
from cls_jax.training import step as step_lib
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.loop import run_training
from cls_jax.training.schedule import create_schedule
from cls_jax.training.setup import create_train_setup
from cls_jax.training.step import compute_distances, to_scalars
from tests.conftest import DATASET_SPEC, create_raw_batch, create_tiny_config, one_of
from tests.core.methods.tiny_model import use_tiny_model
from tests.outcomes import assert_close


class Step:
    """A compiled step of a configuration, with its initial state."""

    def __init__(self, config):
        self.config, self.setup = config, create_train_setup(config, DATASET_SPEC)
        self._state = self.setup.init_state()
        self.schedule = self.setup.put_schedule()
        batch = self.put(create_raw_batch(config))
        train_step = step_lib.create_train_step(self.setup)
        self.lowered = train_step.lower(self._state, batch, self.schedule)
        self.compiled = self.lowered.compile()
        self.text = self.compiled.as_text()

    def initial_state(self):
        """A copy: the step donates what it is given."""
        return jax.tree.map(jnp.copy, self._state)

    def put(self, raw_batch):
        return jax.device_put(raw_batch, to_shardings(self.setup.mesh, BATCH_SPECS))

    def run(self, num_steps=2, state=None, schedule=None):
        state = self.initial_state() if state is None else jax.tree.map(jnp.copy, state)
        history = []
        for i in range(num_steps):
            batch = self.put(create_raw_batch(self.config, seed=i))
            state, monitors = self.compiled(state, batch, schedule or self.schedule)
            history.append(to_scalars(monitors))
        return state, history


@pytest.fixture(scope="module")
def step():
    # With a threshold that untrained networks reach for some images.
    return Step(create_tiny_config(method__tau=0.035))


def test_golden_monitors_after_one_step(step):
    """If you did not mean to change what CLS computes, this failure is a bug.

    If you did, run the test and put the new numbers here.
    """
    _, (monitors,) = step.run(num_steps=1)
    golden = {
        "train/loss": 2.671375,
        "train/loss_supervised": 2.456216,
        "train/loss_self": 0.07229343,
        "train/loss_co": 0.07057151,
        "train/gradient_norm": 1.532838,
        "monitors/confidence_weight": 0.03714725,
        "monitors/exchange_ratio": 0.625,
        "monitors/pseudo_label_overlap": 0.0625,
        "monitors/complementary_label_overlap": 0.0625,
        "monitors/pseudo_label_accuracy": 0.0625,
    }
    assert set(monitors) == set(golden)
    for name, value in golden.items():
        np.testing.assert_allclose(monitors[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def test_four_devices_compute_what_one_does_and_gather_nothing(step):
    """Networks exchange labels point to point. Gradients and statistics are all-reduced."""
    spread = Step(create_tiny_config(mesh__network=2, mesh__data=2, method__tau=0.035))
    (state, history), (expected_state, expected_history) = spread.run(), step.run()
    assert_close(history, expected_history, rtol=1e-3, atol=1e-5)
    for name in ("params", "batch_stats", "ema_params", "opt_state"):
        expected = getattr(expected_state, name)
        assert_close(getattr(state, name), expected, rtol=1e-3, atol=1e-4)
    for leaf in jax.tree.leaves((state.params, state.opt_state, state.ema_params)):
        if leaf.ndim:  # Every device holds only its networks.
            assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {1}
    collectives = re.findall(r"= (.*) (all-\w+|collective-permute|reduce-scatter)\(", spread.text)
    assert {operation for _, operation in collectives} == {"all-reduce", "collective-permute"}
    # Gradients are put into one array once, and travel in one message. Nothing else that travels
    # has the shape of a kernel.
    num_parameters = sum(leaf[0].size for leaf in jax.tree.leaves(state.params))
    rows = rf"stablehlo\.concatenate.*-> tensor<(?:1x)?{num_parameters}xf32>"
    assert len(re.findall(rows, spread.lowered.as_text())) == 1
    assert sum(f"f32[1,{num_parameters}]" in message for message, _ in collectives) == 1
    assert not any(re.search(r"f32\[(\d+,)?3,3,", message) for message, _ in collectives)


def test_average_moves_by_one_minus_decay_and_distances_are_those_of_figure_4(step):
    before = step.initial_state().params
    after, _ = step.run(num_steps=1)
    assert int(after.step) == 1  # Keys, progress and batches follow from it.
    expected = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new, before, after.params)
    assert_close(after.ema_params, expected, atol=1e-6)
    still, _ = step.run(num_steps=1, schedule=step.schedule._replace(warmup_steps=jnp.float32(9)))
    jax.tree.map(np.testing.assert_array_equal, still.ema_params, still.params)

    def norm(first, second):
        squares = jax.tree.map(lambda a, b: np.sum(np.square(a - b)), first, second)
        return np.sqrt(sum(jax.tree.leaves(squares)))

    params, average = take_network(after.params, 0), take_network(after.ema_params, 0)
    distances = compute_distances(after)
    for name, other in (("ema", average), ("networks", take_network(after.params, 1))):
        np.testing.assert_allclose(
            distances[f"monitors/distance_{name}"], norm(params, other), rtol=1e-4
        )


def test_pseudo_label_accuracy_counts_only_images_of_known_class(step):
    def accuracy(u_truth):
        batch = create_raw_batch(step.config)._replace(u_truth=np.asarray(u_truth, np.int32))
        _, monitors = step.compiled(step.initial_state(), step.put(batch), step.schedule)
        return to_scalars(monitors)["monitors/pseudo_label_accuracy"]

    assert np.isnan(accuracy(np.full(16, -1)))
    # Only the first image is known: each network is right for exactly one of the ten classes.
    assert sum(accuracy([k, *[-1] * 15]) for k in range(10)) == 1.0


def test_accumulated_parts_give_the_step_of_the_whole_batch():
    """Where no BatchNorm mixes images: here its statistics are frozen."""
    ends = []
    for mesh_data, parts in ((1, 1), (2, 4)):
        config = create_tiny_config("20,fixmatch", mesh__data=mesh_data, accumulate_steps=parts)
        config.model.bn_frozen, config.method.threshold = True, 0.1
        ends.append(Step(config).run(num_steps=1))
    (expected_state, expected), (state, metrics) = ends
    assert_close(metrics, expected, rtol=1e-4)
    assert_close(state.params, expected_state.params, rtol=1e-4, atol=1e-6)
    assert set(compute_distances(state)) == {"monitors/distance_ema"}  # Of a single network.


@pytest.mark.parametrize(
    "method",
    one_of("adamatch", "freematch", "softmatch"),
)
def test_equal_parts_move_running_means_as_far_as_the_whole_batch(method):
    """Those of BatchNorm and of the method."""
    ends = []
    for parts in (1, 4):
        config = create_tiny_config(f"20,{method}", accumulate_steps=parts)
        config.model.bn_momentum = config.method.statistics_decay = 0.9
        with use_tiny_model():
            step = Step(config)
        batch = create_raw_batch(config)
        repeated = batch._replace(x=np.tile(batch.x[:2], (4, 1, 1, 1)), y=np.tile(batch.y[:2], 4))
        repeated = repeated._replace(u=np.tile(batch.u[:, :4], (1, 4, 1, 1, 1)))
        end, _ = step.compiled(step.initial_state(), step.put(repeated), step.schedule)
        end.method_state.pop("variance", None)  # Unbiased, so it depends on the number of images.
        ends.append((end.batch_stats, end.method_state))
    assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_a_step_that_does_not_fit_is_named_before_it_runs():
    small = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 2**30})
    sizes = {f"{name}_size_in_bytes": 2**28 for name in ("argument", "output", "alias")}
    for temporary, message in ((2**29, None), (2**30, r"needs 1\.2 GiB of memory on each .* 1\.0")):
        analysis = types.SimpleNamespace(**sizes, temp_size_in_bytes=temporary)
        step = types.SimpleNamespace(memory_analysis=lambda analysis=analysis: analysis)
        with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
            step_lib.check_memory(step, small, "a step", "use more devices")
    # Unknown memory does not stop training.
    unknown = types.SimpleNamespace(memory_analysis=lambda: None)
    assert "does not report" in step_lib.check_memory(unknown, small, "a step", "")


NUM_IMAGES = 70


@pytest.fixture(scope="module")
def test_set():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM_IMAGES, 8, 8, 1), dtype=np.uint8)
    # Unequal classes, of which the last two have no image.
    return images, np.minimum(rng.integers(0, 10, NUM_IMAGES), 7).astype(np.int32)


def predict_plainly(setup, params, batch_stats, images):
    """Probabilities [N, B, K], network by network."""
    networks = jax.device_get({"params": params, "batch_stats": batch_stats})
    x = normalize(images, setup.config.data.mean, setup.config.data.std)
    apply = jax.jit(setup.ensemble.model.apply)
    return np.stack([jax.nn.softmax(apply(take_network(networks, i), x)) for i in range(2)])


def test_an_evaluation_that_does_not_fit_is_refused_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(step_lib, "get_device_memory", lambda device: 2**10)
    with pytest.raises(UserError, match=r"Evaluating 450 images .* an eval_batch_size below 450"):
        run_training(create_tiny_config(), tmp_path / "run")


@pytest.mark.parametrize(("mesh", "batch_size"), [((1, 1), NUM_IMAGES), ((2, 2), 32)])
def test_every_image_counts_once_whatever_the_batch_size(test_set, mesh, batch_size):
    images, labels = test_set
    config = create_tiny_config(eval_batch_size=batch_size)
    config.mesh.network, config.mesh.data = mesh
    setup = create_train_setup(config, DATASET_SPEC)
    state = setup.init_state()
    # Averages are the other network's parameters, so that confusing them shows.
    averages = jax.tree.map(lambda leaf: leaf[::-1], state.params)
    # For a black image, such as padding, network 1 predicts the padding's label.
    black = predict_plainly(setup, averages, state.batch_stats, 0 * images[:1])[0].argmax()
    averages["head"] = jax.tree.map(lambda leaf: np.roll(leaf, -black, axis=-1), averages["head"])
    state = state.replace(ema_params=averages)
    averaged, live = (
        predict_plainly(setup, params, state.batch_stats, images)
        for params in (state.ema_params, state.params)
    )
    is_correct = averaged[0].argmax(-1) == labels
    balanced = np.mean([is_correct[labels == k].mean() for k in np.unique(labels)])
    shares = {
        "accuracy": is_correct.mean(),
        "balanced_accuracy": balanced,
        "accuracy_ensemble": np.mean(averaged.mean(0).argmax(-1) == labels),
    }
    for i in range(2):
        shares[f"accuracy_network_{i + 1}"] = np.mean(averaged[i].argmax(-1) == labels)
        shares[f"accuracy_live_network_{i + 1}"] = np.mean(live[i].argmax(-1) == labels)
    accuracies = create_evaluate(setup)(state, images, labels)
    assert create_evaluate(setup)(state, images, labels, lambda: True) == {}  # Given up.
    assert accuracies == pytest.approx({f"test/{k}": 100 * v for k, v in shares.items()})
    assert shares["accuracy"] not in (shares["accuracy_live_network_1"], balanced)


DECAYS = {"ema_decay", "model.bn_momentum", "method.statistics_decay", "method.class_mean_decay"}


def create_config(method, num_steps, warmup_steps, **changes):
    """A run of so many steps, whose running means last as long as it is good for it."""
    config = create_tiny_config(f"20,{method}", num_steps=num_steps, **changes)
    config.optimizer.warmup_steps = warmup_steps
    decays = DECAYS & flatten(config.to_dict()).keys()
    return with_values(config, dict.fromkeys(decays, choose_decay(num_steps)))


def lower_step(config, channels=1):
    """The text of a run's step before it is compiled."""
    num_views = len(METHODS[config.method.name].unlabeled_views)
    batch = create_raw_batch(config, num_views, channels=channels)
    setup = create_train_setup(config, DATASET_SPEC._replace(image_shape=batch.x.shape[1:]))
    step = step_lib.create_train_step(setup)
    return step.lower(setup.state_shapes, batch, create_schedule(config)).as_text()


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
    with use_tiny_model():
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
