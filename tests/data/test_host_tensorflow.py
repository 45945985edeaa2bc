"""TensorFlow never sees an accelerator, however it is imported."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Notes which devices are hidden when TensorFlow first starts them up.
NOTE = """
import sys, tensorflow as tf
from tensorflow.python.eager import context
hidden, start = [], context.Context.ensure_initialized
tf.config.set_visible_devices = lambda devices, kind: hidden.append((devices, kind))
def check_and_start(self):
    assert ([], "GPU") in hidden, hidden
    start(self)
context.Context.ensure_initialized = check_and_start
"""
AUGMENTATION = """
from cls_jax.data.augment import tf_augment
tf_augment.tf.zeros([2]) + 1
"""
TFDS = """
from cls_jax.data.sources import benchmarks
from configs.cifar10 import get_config
class Builder:
    data_dir = ""
    def is_prepared(self):
        tf.zeros([2]) + 1
        sys.exit()
import tensorflow_datasets as tfds
tfds.builder = lambda *args, **kwargs: Builder()
benchmarks.read_tfds(get_config("40").data)
sys.exit("not asked")
"""


@pytest.mark.parametrize("way", [AUGMENTATION, TFDS])
def test_accelerators_are_hidden_before_the_first_operation(way):
    for name in ("tensorflow", "tensorflow_datasets"):
        pytest.importorskip(name)
    command = [sys.executable, "-c", NOTE + way]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
