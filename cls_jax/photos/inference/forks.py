"""Whether this process can compute: one that was forked after JAX had started cannot."""

import os
import sys

from cls_jax.errors import UserError

_lacks_threads = False  # Whether this process was forked after JAX had started.


def _note_fork() -> None:
    """Remembers in a forked process that JAX's threads stayed behind, if there were any."""
    global _lacks_threads
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX itself says nowhere else.
    if bridge is not None and bridge.backends_are_initialized():
        _lacks_threads = True


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_note_fork)


def refuse_forked_child() -> None:
    """Raises a UserError in a process that was forked after JAX had started.

    A fork has none of the threads with which JAX computes, and would wait for them forever.
    """
    if _lacks_threads:
        raise UserError(
            "This process was forked from one in which JAX had started, so it cannot compute: "
            "start workers with 'spawn', as multiprocessing.get_context('spawn') does, or load the "
            "classifier in each worker and not before (cls-jax help predict)."
        )
