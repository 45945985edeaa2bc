"""MixMatch and ReMixMatch: mixing, sharpening, alignment, rotations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cls_jax.methods import mixmatch, remixmatch
from cls_jax.methods.mixup import mixup, sample_lambda, sharpen
from tests.methods.stubs import (
    SIZE,
    K,
    U,
    compute_output,
    create_batch,
    create_context,
    create_params,
    cross_entropy,
    predict,
)

PARAMS = create_params()


@pytest.mark.parametrize("alpha", [0.1, 0.75, 5.0])
def test_every_image_keeps_at_least_half_of_itself(alpha):
    share = sample_lambda(jax.random.key(0), 2000, alpha)
    assert share.min() >= 0.5
    assert share.max() <= 1.0
    assert share.std() > 0.05


def test_images_and_targets_are_mixed_alike_across_groups():
    """With one-hot images the mixture can be read off."""
    images = jnp.eye(12).reshape(12, 3, 4, 1)
    targets = jnp.eye(12)[None]
    groups = [(images[:4], targets[:, :4]), (images[4:], targets[:, 4:])]
    mixed = mixup(jax.random.key(3), groups, 0.75)
    assert [len(group[0]) for group in mixed] == [4, 8]
    for (image, target), start in zip(mixed, (0, 4), strict=True):
        np.testing.assert_allclose(image.reshape(len(image), 12), target[0], atol=1e-6)
        np.testing.assert_allclose(target.sum(-1), 1, atol=1e-6)
        own = target[0][np.arange(len(image)), start + np.arange(len(image))]
        assert own.min() >= 0.5
    crossing = np.asarray(mixed[0][1][0][:, 4:]).sum()
    assert crossing > 0  # Labelled images meet unlabelled ones.


def test_sharpening_is_the_power_and_survives_zero():
    p = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    expected = p**2 / (p**2).sum(-1, keepdims=True)
    np.testing.assert_allclose(sharpen(jnp.asarray(p), 0.5), expected, atol=1e-6)


def test_mixmatch_loss_equals_numpy_on_the_mixed_images():
    batch, context = create_batch(2), create_context("mixmatch")
    p = (predict(PARAMS, batch.u[0]) + predict(PARAMS, batch.u[1])) / 2
    guess = p**2 / (p**2).sum(-1, keepdims=True)
    truth = np.eye(K)[np.asarray(batch.y)]
    groups = [(batch.x, jnp.asarray(truth)[None])]
    groups += [(view, jnp.asarray(guess, jnp.float32)[None]) for view in batch.u]
    (x, target_x), *mixed = mixup(context.key, groups, 0.75)
    expected = np.mean(-np.sum(np.asarray(target_x[0]) * np.log(predict(PARAMS, x)), axis=-1))
    for u, target in mixed:
        expected += 75 * np.mean((predict(PARAMS, u) - np.asarray(target[0])) ** 2) / 2
    output = compute_output("mixmatch", PARAMS, batch, context)
    np.testing.assert_allclose(output.losses, [expected], rtol=1e-3)
    assert mixmatch.METHODS["mixmatch"].unlabeled_views == ("weak", "weak")


def test_no_gradient_flows_through_mixmatchs_guess():
    """The gradient is that of a loss whose mixed targets are constants."""
    batch, context = create_batch(2), create_context("mixmatch")
    views = [predict(PARAMS, view) for view in batch.u]
    guess = sharpen(jnp.asarray(sum(views) / 2, jnp.float32), 0.5)[None]
    truth = jax.nn.one_hot(batch.y, K)[None]
    groups = [(batch.x, truth), *((view, guess) for view in batch.u)]
    (x, target_x), *mixed = mixup(context.key, groups, 0.75)

    def loss_of_constants(params):
        def log_p(images):
            return jax.nn.log_softmax(context.ensemble.forward(params, 0, images, train=True)[0])

        loss = -jnp.mean(jnp.sum(target_x * log_p(x), axis=-1))
        errors = [jnp.mean(jnp.square(jnp.exp(log_p(u)) - target)) for u, target in mixed]
        return loss + 75 * sum(errors) / 2

    expected = jax.grad(loss_of_constants)(PARAMS)
    ours = jax.grad(lambda p: compute_output("mixmatch", p, batch, context).losses.sum())(PARAMS)
    np.testing.assert_allclose(ours["head"], expected["head"], rtol=1e-3, atol=1e-4)


def test_class_means_move_with_their_decay():
    batch, context = create_batch(3), create_context("remixmatch", class_mean_decay=0.9)
    state = compute_output("remixmatch", PARAMS, batch, context).method_state
    weak = predict(PARAMS, batch.u[0]).mean(0)
    np.testing.assert_allclose(state["predicted"][0], 0.9 / K + 0.1 * weak, rtol=1e-4)
    labels = np.bincount(np.asarray(batch.y), minlength=K) / len(batch.y)
    np.testing.assert_allclose(state["labeled"][0], 0.9 / K + 0.1 * labels, rtol=1e-4)


def test_rotations_are_quarter_turns_that_match_their_labels():
    images = jnp.arange(U * SIZE * SIZE, dtype=jnp.float32).reshape(U, SIZE, SIZE, 1)
    rotated, turns = remixmatch.rotate_randomly(jax.random.key(0), images)
    assert set(np.asarray(turns)) == {0, 1, 2, 3}
    for image, original, k in zip(rotated, images, turns, strict=True):
        np.testing.assert_array_equal(image, np.rot90(original, int(k)))


def test_rotation_head_learns():
    batch, context = create_batch(3), create_context("remixmatch")
    params = PARAMS

    def loss(rotation):
        output = compute_output("remixmatch", {**params, "rotation": rotation}, batch, context)
        return output.monitors["train/loss_rotation"].sum()

    rotation, first = params["rotation"], loss(params["rotation"])
    for _ in range(60):
        rotation = rotation - 0.5 * jax.grad(loss)(rotation)
    assert loss(rotation) < 0.3 * first


def test_remixmatch_adds_its_four_terms_with_their_weights():
    batch = create_batch(3)
    context = create_context("remixmatch")
    monitors = compute_output("remixmatch", PARAMS, batch, context).monitors
    total = (
        monitors["train/loss_supervised"]
        + 1.5 * monitors["train/loss_consistency"]
        + 0.5 * monitors["train/loss_strong"]
        + 0.5 * monitors["train/loss_rotation"]
    )
    output = compute_output("remixmatch", PARAMS, batch, context)
    np.testing.assert_allclose(output.losses, total, rtol=1e-5)
    rotated, turns = remixmatch.rotate_randomly(jax.random.split(context.key)[1], batch.u[1])
    expected = cross_entropy(predict(PARAMS, rotated, "rotation"), np.asarray(turns)).mean()
    np.testing.assert_allclose(monitors["train/loss_rotation"], [expected], rtol=1e-4)
