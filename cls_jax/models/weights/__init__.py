"""Pretrained weights: files, the names in them, and where they come from."""
