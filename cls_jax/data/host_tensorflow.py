"""TensorFlow for the host alone: it reads and augments. The accelerators are JAX's.

TensorFlow takes nearly all memory of every GPU that it sees when it runs its first operation, and
from then on nothing can be hidden from it. Everything in this project that needs TensorFlow, TFDS
or clu therefore imports this module first.
"""

import tensorflow as tf

__all__ = ["hide_accelerators", "tf"]


def hide_accelerators() -> None:
    """Leaves TensorFlow the CPU only. May be called any number of times.

    Raises:
        RuntimeError: if TensorFlow already runs and sees an accelerator.
    """
    for kind in ("GPU", "TPU"):
        tf.config.set_visible_devices([], kind)


hide_accelerators()
