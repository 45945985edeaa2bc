"""Frozen features of a folder's images, and labels and heads from them."""
