"""TensorFlow never sees an accelerator, whichever way it comes in."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Gives TensorFlow a GPU, and notes what it sees when it first starts up its devices.
FAKE_GPU = """
import gc, os, sys
import tensorflow as tf
from tensorflow.python.eager import context
devices = context.context()
devices._initialize_physical_devices()
gpu = context.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
devices._physical_devices.append(gpu)
devices._visible_device_list.append(gpu)
assert tf.config.get_visible_devices("GPU") == [gpu]
start = context.Context.ensure_initialized
def check_and_start(self):
    seen = [device.device_type for device in self._visible_device_list]
    assert seen == ["CPU"], f"TensorFlow starts with {seen}"
    start(self)
context.Context.ensure_initialized = check_and_start
gc.freeze()  # Otherwise an exiting fork scans, and so copies, all modules for a second.
"""
WAYS = {
    "augmentation": """
from cls_jax.data.augment import tf_augment
tf_augment.tf.zeros([2]) + 1
""",
    "tfds": """
import pathlib, tempfile
from cls_jax.data.sources import benchmarks
from configs.cifar10 import get_config
class Builder:
    data_dir = ""
    def is_prepared(self):
        tf.zeros([2]) + 1  # An operation.
        print("asked")
        sys.exit()
import tensorflow_datasets as tfds
tfds.builder = lambda *args, **kwargs: Builder()
benchmarks.read_tfds(get_config("40").data)
""",
}


def test_accelerators_are_hidden_before_the_first_operation():
    """Each way in a process that has imported TensorFlow, which takes seconds, and not used it."""
    pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_datasets")
    code = FAKE_GPU
    for name, way in WAYS.items():
        code += f"""
if (child := os.fork()) == 0:
    exec({way!r})
    sys.exit()
if os.waitpid(child, 0)[1]:
    sys.exit({name!r})
"""
    command = [sys.executable, "-c", code]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "asked\n"
