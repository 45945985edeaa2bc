"""RandAugment and cutout: one table of operations, interpreted by TensorFlow and by JAX."""
