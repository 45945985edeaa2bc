"""From a dataset's name to the batch of any step.

TensorFlow is imported in this folder only, and only when something that needs it is chosen.
"""
