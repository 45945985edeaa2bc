"""`python -m cls_jax`: the command `cls-jax` where the package is not installed."""

from cls_jax.photos.cli.console import main

main()
