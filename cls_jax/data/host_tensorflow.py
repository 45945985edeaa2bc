"""Hides accelerators from TensorFlow, which only reads and augments on the host.

TensorFlow's first operation takes nearly all memory of every visible GPU, and GPUs cannot be hidden
after that. All code that needs TensorFlow, TFDS or clu therefore imports this module first.
"""

import tensorflow as tf

__all__ = ["tf"]

for kind in ("GPU", "TPU"):  # A RuntimeError if TensorFlow already runs and sees one.
    tf.config.set_visible_devices([], kind)
