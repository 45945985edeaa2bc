"""TensorFlow without accelerators: it reads and augments on the host. JAX has the accelerators.

TensorFlow takes nearly all memory of every GPU that it sees when it runs its first operation, and
from then on nothing can be hidden from it. Everything in this project that needs TensorFlow, TFDS
or clu therefore imports this module first.
"""

import tensorflow as tf

__all__ = ["tf"]

for kind in ("GPU", "TPU"):  # A RuntimeError if TensorFlow already runs and sees one.
    tf.config.set_visible_devices([], kind)
