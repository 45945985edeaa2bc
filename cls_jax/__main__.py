"""`python -m cls_jax`: the command `cls-jax` where the package is not installed."""

from cls_jax.cli.console import main

main()
