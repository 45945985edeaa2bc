"""From a dataset's name to the batch of any step.

The only package that imports TensorFlow, always through `host_tensorflow`, and only if needed: for
the tf.data pipeline, a dataset of TFDS, or (through clu, which `runs` imports) TensorBoard.
"""
