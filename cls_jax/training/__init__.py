"""Training: the state as one pytree, one compiled step, and the loop around it."""
