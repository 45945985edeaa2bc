"""The key that a wrong option on the command line probably means."""

import difflib

from cls_jax.config.keys import list_options

# What other programs call these keys.
_SYNONYMS = {
    "amp": "model.dtype",
    "arch": "model.name",
    "batch": "batch_size",
    "bs": "batch_size",
    "data": "data.data_dir",
    "ema": "ema_decay",
    "epochs": "num_steps",
    "iterations": "num_steps",
    "labels": "num_labels",
    "lr": "optimizer.learning_rate",
    "precision": "model.dtype",
    "pretrained": "model.init",
    "steps": "num_steps",
    "uratio": "mu",
    "warmup": "optimizer.warmup_steps",
    "wd": "optimizer.weight_decay",
}


def find_key(name: str) -> str | None:
    """The key for the last part of a wrong one, or for an option, such as "lr". None if unclear."""
    name = name.lower().replace("-", "_")
    by_leaf = {key.rpartition(".")[2]: key for key in reversed(list_options())} | _SYNONYMS
    close = difflib.get_close_matches(name, by_leaf, n=1, cutoff=0.8)
    return by_leaf[close[0]] if close else None
