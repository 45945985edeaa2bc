"""Frozen features of a folder's images, their neighbors, and labels that spread among neighbors."""
