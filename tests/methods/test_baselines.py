"""The baselines' losses against NumPy, and the public mistakes that each is known for."""

import ast
import pathlib

import jax
import numpy as np
import pytest

from cls_jax import methods
from cls_jax.config import create_config, validate_config
from cls_jax.errors import UserError
from cls_jax.methods import METHODS
from tests.methods.stubs import (
    B,
    U,
    compute_output,
    create_batch,
    create_context,
    create_params,
    cross_entropy,
    predict,
)

PARAMS = create_params()


def supervised_loss(params, batch):
    return cross_entropy(predict(params, batch.x), np.asarray(batch.y)).mean()


def gradient_of(name, params, batch, context):
    return jax.grad(lambda p: compute_output(name, p, batch, context).losses.sum())(params)


def test_supervised_is_the_cross_entropy_of_the_labelled_images():
    batch = create_batch(0)
    output = compute_output("supervised", PARAMS, batch)
    np.testing.assert_allclose(output.losses, [supervised_loss(PARAMS, batch)], rtol=1e-5)
    assert METHODS["supervised"].labeled_view == "strong"


@pytest.mark.parametrize(("progress", "ramp"), [(0.0, 0.0), (0.2, 0.5), (0.4, 1.0), (0.9, 1.0)])
def test_pseudo_label_ramps_up_what_confident_images_teach(progress, ramp):
    batch = create_batch(1)
    p = predict(PARAMS, batch.u[0])
    own = np.mean((p.max(-1) >= 0.6) * cross_entropy(p, p.argmax(-1)))
    assert own > 0
    output = compute_output(
        "pseudo_label", PARAMS, batch, create_context("pseudo_label", progress, threshold=0.6)
    )
    expected = supervised_loss(PARAMS, batch) + ramp * own
    np.testing.assert_allclose(output.losses, [expected], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "num_views"),
    [("pseudo_label", 1), ("pi_model", 2), ("mean_teacher", 2), ("mixmatch", 2), ("remixmatch", 3)],
)
def test_unlabelled_passes_leave_batch_norm_statistics_alone(name, num_views):
    """The statistics count updates: only the (mixed) labelled pass counts."""
    context = create_context(name, ema_params=PARAMS)
    output = compute_output(name, PARAMS, create_batch(num_views), context)
    assert output.batch_stats == 1


def test_pi_model_is_the_squared_difference_of_two_views():
    batch = create_batch(2)
    a, b = (predict(PARAMS, view) for view in batch.u)
    expected = supervised_loss(PARAMS, batch) + 10 * np.mean((a - b) ** 2)
    output = compute_output("pi_model", PARAMS, batch)
    np.testing.assert_allclose(output.losses, [expected], rtol=1e-4)


def test_mean_teachers_target_is_the_averages_output_not_its_own():
    batch, teacher = create_batch(2), create_params(seed=1)
    same_view = batch._replace(u=batch.u.at[1].set(batch.u[0]))
    context = create_context("mean_teacher", ema_params=teacher)
    a, b = predict(PARAMS, same_view.u[0]), predict(teacher, same_view.u[1])
    expected = supervised_loss(PARAMS, batch) + 50 * np.mean((a - b) ** 2)
    output = compute_output("mean_teacher", PARAMS, same_view, context)
    np.testing.assert_allclose(output.losses, [expected], rtol=1e-4)


def test_mean_teachers_consistency_moves_the_student_and_not_the_teacher():
    batch, teacher = create_batch(2), create_params(seed=1)

    def consistency(student, teacher):
        context = create_context("mean_teacher", ema_params=teacher)
        output = compute_output("mean_teacher", student, batch, context)
        return output.monitors["train/loss_consistency"].sum()

    student_gradient, teacher_gradient = jax.grad(consistency, argnums=(0, 1))(PARAMS, teacher)
    assert np.abs(student_gradient["head"]).max() > 1e-3
    np.testing.assert_array_equal(teacher_gradient["head"], 0)


def test_pi_models_second_view_gets_no_gradient():
    batch = create_batch(2)

    def consistency(u):
        output = compute_output("pi_model", PARAMS, batch._replace(u=u))
        return output.monitors["train/loss_consistency"].sum()

    gradient = jax.grad(consistency)(batch.u)
    assert np.any(gradient[0] != 0)
    np.testing.assert_array_equal(gradient[1], 0)


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_udas_target_is_sharpened_by_its_temperature_and_masked_before(temperature):
    batch = create_batch(2)
    weak, strong = (predict(PARAMS, view) for view in batch.u)
    sharp = weak ** (1 / temperature)
    sharp /= sharp.sum(-1, keepdims=True)
    mask = weak.max(-1) >= 0.7
    assert 0 < mask.sum() < U
    consistency = np.mean(mask * -np.sum(sharp * np.log(strong), axis=-1))
    context = create_context("uda", temperature=temperature, threshold=0.7)
    output = compute_output("uda", PARAMS, batch, context)
    expected = supervised_loss(PARAMS, batch) + consistency
    np.testing.assert_allclose(output.losses, [expected], rtol=1e-4)


@pytest.mark.parametrize("annealing", ["linear", "log", "exp"])
def test_udas_annealing_leaves_out_what_is_known_too_well(annealing):
    batch, progress = create_batch(2), 0.5
    params = create_params(scale=2.0)
    # Of these labels the network knows some and not others.
    p = predict(params, batch.x)
    batch = batch._replace(y=np.where(np.arange(B) < 3, p.argmax(-1), p.argmin(-1)))
    alpha = {"linear": 0.5, "log": 1 - np.exp(-2.5), "exp": np.exp(-2.5)}[annealing]
    threshold = alpha * (1 - 1 / 5) + 1 / 5
    losses = cross_entropy(predict(params, batch.x), np.asarray(batch.y))
    kept = np.exp(-losses) <= threshold
    assert 0 < kept.sum() < B
    context = create_context("uda", progress, annealing=annealing)
    output = compute_output("uda", params, batch, context)
    np.testing.assert_allclose(
        output.monitors["train/loss_supervised"], [losses[kept].mean()], rtol=1e-4
    )


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameter_out_of_range_names_the_range(name):
    for key, hyperparameter in METHODS[name].hyperparameters.items():
        config = create_config(f"40,{name}")
        validate_config(config)
        if hyperparameter.choices:
            config.method[key] = "sometimes"
        else:
            config.method[key] = type(hyperparameter.default)(hyperparameter.low - 1)
        with pytest.raises(UserError, match=f"method.{key}=.* choose"):
            validate_config(config)


def test_no_methods_code_knows_anothers():
    folder = pathlib.Path(methods.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "METHODS = {" in path.read_text()}
    for path in (folder / f"{name}.py" for name in files - {"__init__"}):
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
        }
        assert not imported & {f"cls_jax.methods.{other}" for other in files}, path
        assert len(path.read_text().splitlines()) <= 120, path


def test_names_of_methods_stand_only_in_their_folder():
    root = pathlib.Path(methods.__file__).parent.parent
    others = [path for path in root.rglob("*.py") if path.parent.name != "methods"]
    others += [root.parent / "main.py", *(root.parent / "configs").glob("*.py")]
    for path in others:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                constants = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                assert not set(METHODS) & set(map(str, constants)), path
