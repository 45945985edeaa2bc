"""Checksums of a checkpoint's arrays, whatever devices they were spread over."""

import hashlib
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

PyTree = Any


def fetch_to_host(state: PyTree) -> PyTree:
    """Copies a state's arrays whole into NumPy arrays, in every process; all must call this.

    Raises:
        jax.errors.JaxRuntimeError: if the computation that makes the state has failed.
    """
    if jax.process_count() > 1:  # Another process holds a part of every array.
        with jax.transfer_guard("allow"):  # The gathering itself does not count as explicit.
            return multihost_utils.process_allgather(state, tiled=True)
    # On a CPU `device_get` returns views of the buffers that the next step overwrites.
    return jax.tree.map(np.array, jax.device_get(state))


def hash_arrays(arrays: PyTree) -> dict[str, str]:
    """SHA-256 of every array's dtype, shape and bytes, in hexadecimal, by the array's path."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): _hash_array(leaf)
        for path, leaf in leaves
    }


def _hash_array(array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    digest.update(_to_words(array, np.uint8).data)
    return digest.hexdigest()


def sum_arrays(arrays: PyTree) -> list[int]:
    """The weaker checksum of format 2, only for checkpoints that already carry it.

    The sum of an array's words w_i times 2i + 1, modulo 2^32. It sees every single flipped bit, but
    not x and -x changing places: their words differ by 2^31, which times an even number is 0.
    """

    def sum_array(array: np.ndarray) -> int:
        words = _to_words(array, f"u{array.dtype.itemsize}").astype(np.uint32)
        factors = 2 * np.arange(words.size, dtype=np.uint32) + 1
        return int(np.sum(words * factors, dtype=np.uint32))

    return [sum_array(array) for array in jax.tree.leaves(arrays)]


def _to_words(array: np.ndarray, dtype: str | type) -> np.ndarray:
    # Flat first: a scalar has no axis to view differently.
    return np.ascontiguousarray(array).reshape(-1).view(dtype)
