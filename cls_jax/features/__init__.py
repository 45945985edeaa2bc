"""Frozen features of a folder's images, the graph of neighbors, and label propagation."""
