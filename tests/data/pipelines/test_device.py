"""The stream on the accelerator: the same images as tf.data's for the same draws."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from cls_jax.data.augment import jax_augment, tf_augment
from cls_jax.data.augment.randaugment import (
    OPS,
    UNIFORMS_PER_OP,
    OpKind,
    count_strong_uniforms,
    create_table,
    sample_ops,
)
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline, tfdata
from cls_jax.data.sampling import create_stream_spec
from cls_jax.methods import get_method
from cls_jax.training.loop import train
from cls_jax.training.program import create_program
from cls_jax.training.step import make_batch_fn
from tests.conftest import ROOT, create_tiny_config, train_interrupted

SHAPES = [(32, 32, 3), (16, 16, 1), (20, 28, 3)]


def create_images(shape, n=60):
    """Half noise, half smooth, some of low contrast and one constant."""
    rng = np.random.default_rng(0)
    height, width, channels = shape
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    smooth = 128 + 60 * np.sin(x / rng.uniform(3, 9, (n, 1, 1, 1)) + c) + 50 * np.cos(y / 7)
    is_smooth = rng.uniform(size=(n, 1, 1, 1)) < 0.5
    images = np.where(is_smooth, smooth, rng.integers(0, 256, (n, *shape)))
    images[:10] = 90 + images[:10] / 12
    images[0] = 77
    return images.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPS)
def test_operation_equals_the_tf_one_at_every_level(name, shape):
    """Blends and autocontrast within one grey level, all else exactly."""
    images = create_images(shape, n=38)
    table = create_table([name], *shape[:2])
    level = np.repeat(np.arange(10), 4)[2:].astype(np.int32)
    sign = (np.arange(len(level)) % 2).astype(np.int32)
    op = np.zeros_like(level)
    ours = jax_augment.apply_ops(jnp.asarray(images), op, level, sign, table)
    theirs = tf_augment.apply_ops(tf.constant(images), np.stack([op, level, sign], 1), table)
    difference = np.abs(np.asarray(ours, int) - np.asarray(theirs, int))
    is_arithmetic = OPS[name].kind in (
        OpKind.AUTOCONTRAST,
        OpKind.CONTRAST,
        OpKind.COLOR,
        OpKind.SHARPNESS,
    )
    assert difference.max() <= int(is_arithmetic)


@pytest.mark.parametrize("shape", SHAPES)
def test_weak_view_and_cutout_equal_the_tf_ones(shape):
    images = create_images(shape)
    uniforms = np.random.default_rng(1).uniform(size=(len(images), 3)).astype(np.float32)
    for flip, shift in ((True, 4), (False, 1), (True, 0)):
        np.testing.assert_array_equal(
            jax_augment.flip_and_shift(jnp.asarray(images), uniforms, flip, shift),
            tf_augment.flip_and_shift(tf.constant(images), uniforms, flip, shift),
        )
    np.testing.assert_array_equal(
        jax_augment.cutout(jnp.asarray(images), jnp.asarray(uniforms[:, :2]), 16),
        tf_augment.cutout(tf.constant(images), tf.constant(uniforms[:, :2]), 16),
    )


def test_strong_view_equals_the_tf_one():
    """With operations that are exact, so that no rounding can grow in a second one."""
    pool = ("identity", "brightness", "equalize", "posterize", "rotate", "shear_x", "solarize")
    images, table = create_images((32, 32, 3)), create_table(pool, 32, 32)
    uniforms = np.random.default_rng(1).uniform(size=(len(images), count_strong_uniforms(2)))
    uniforms = uniforms.astype(np.float32)
    options = {"flip": True, "shift": 4, "cut": 16}
    ours = jax_augment.strong_augment(jnp.asarray(images), jnp.asarray(uniforms), table, **options)
    theirs = tf_augment.strong_augment(tf.constant(images), tf.constant(uniforms), table, **options)
    np.testing.assert_array_equal(ours, theirs)


def test_operations_and_levels_are_drawn_with_the_same_frequencies():
    table = create_table(tuple(OPS), 32, 32)
    n = 200_000
    draws = {
        "jax": jax.random.uniform(jax.random.key(0), (n, UNIFORMS_PER_OP)),
        "tf": tf.random.stateless_uniform([n, UNIFORMS_PER_OP], [0, 0]).numpy(),
    }
    for name, uniforms in draws.items():
        op, level, sign = (np.asarray(draw).astype(int) for draw in sample_ops(uniforms, table))
        deviation = 5 * np.sqrt(n)
        assert np.abs(np.bincount(op, minlength=14) - n / 14).max() < deviation, name
        assert np.abs(np.bincount(level)[1:] - n / 2 / 9).max() < deviation, name
        assert abs(np.sum(level == 0) - n / 2) < deviation, name
        assert abs(np.sum(sign == 1) - n / 2) < deviation, name


def create_device_batch(mesh=(1, 1), step=0, argument="20", **changes):
    config = create_tiny_config(argument, data__pipeline="device", **changes)
    config.mesh.network, config.mesh.data = mesh
    dataset = load_dataset(config)
    indices = np.arange(len(dataset.train_images), dtype=np.int32)
    method = get_method(config.method.name)
    spec = create_stream_spec(
        config, method.labeled_view, method.unlabeled_views, indices[:20], indices
    )
    program = create_program(config, dataset.shape)
    state = program.init_state()
    state = state.replace(step=state.step + step)
    inputs, specs, create_batch = create_pipeline(spec, dataset, program.mesh, step, 10)
    batch = make_batch_fn(program, create_batch, specs)(state, next(inputs))
    return jax.device_get(batch), spec, dataset


@pytest.mark.parametrize("step", [0, 3])
def test_samples_are_those_of_the_tf_pipeline(step):
    batch, spec, dataset = create_device_batch(step=step)
    theirs = next(tfdata.create_stream(spec, dataset, step, step + 1))
    for name in ("y", "u_index", "u_truth"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(theirs, name))
    assert [value.shape for value in batch] == [value.shape for value in theirs]
    assert [value.dtype for value in batch] == [value.dtype for value in theirs]


def test_batch_does_not_depend_on_the_number_of_devices():
    expected, _, _ = create_device_batch((1, 1))
    for mesh in ((1, 4), (2, 2)):
        batch, _, _ = create_device_batch(mesh)
        jax.tree.map(np.testing.assert_array_equal, batch, expected)


def test_without_augmentation_batches_equal_the_tf_pipelines():
    nothing = {"data__shift": 0, "data__randaugment_ops": 0, "data__cutout": 0}
    batch, spec, dataset = create_device_batch(**nothing)
    theirs = next(tfdata.create_stream(spec, dataset, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, batch, theirs)


def test_supervised_needs_no_unlabelled_images():
    batch, _, _ = create_device_batch(argument="20,supervised")
    assert batch.u.size == batch.u_truth.size == 0


def test_resumed_run_equals_uninterrupted_run(tmp_path):
    config = create_tiny_config(data__pipeline="device")
    whole = train(config, tmp_path / "whole")
    train_interrupted(config, tmp_path / "halves", num_batches=3)
    halves = train(config, tmp_path / "halves")
    assert {**halves, "train_seconds": 0} == {**whole, "train_seconds": 0}


def test_trains_where_tensorflow_tfds_and_clu_are_not_installed(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "set.npz",
        train_images=rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8),
        train_labels=np.arange(40) % 10,
        test_images=rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8),
        test_labels=np.arange(10),
    )
    code = """
import runpy, sys
for name in ("tensorflow", "tensorflow_datasets", "clu", "clu.metric_writers"):
    sys.modules[name] = None  # Importing it raises ImportError.
sys.argv = ["main.py", *sys.argv[1:]]
runpy.run_path("main.py", run_name="__main__")
"""
    options = [
        "--config=configs/cifar10.py:10",
        "--config.data.pipeline=device",
        f"--config.data.data_dir={tmp_path / 'set.npz'}",
        f"--workdir={tmp_path / 'run'}",
        "--config.num_steps=2",
        "--config.batch_size=4",
        "--config.mu=1",
        "--config.model.depth=10",
        "--config.model.width=1",
        "--config.log_every=1",
    ]
    outcome = subprocess.run(
        [sys.executable, "-c", code, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 3
    assert not list((tmp_path / "run").glob("events*"))
