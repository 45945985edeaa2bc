"""The product: classifiers for a folder of photos, on top of the paper's core.

Nothing outside of this package imports it, except for `cls_jax/__init__.py`, `cls_jax/__main__.py`
and `main.py`.
"""
