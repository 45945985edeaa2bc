"""Your own arrays, in an `.npz`. See docs/own_arrays.md."""

import os

from cls_jax.config import create_config, make_small
from cls_jax.data.sources.benchmarks import NPZ, read_image_size
from cls_jax.errors import UserError


def get_config(argument: str = ""):
    """Returns the paper's settings for CIFAR-10, fitted to the size of the images, or small ones.

    Images are not mirrored unless `data.flip` is set.

    Args:
        argument: FILE,BUDGET[,METHOD], by default cls, for two CPU cores followed by ",small".
    """
    parts = argument.removesuffix(",small").split(",")
    is_budget = [part.isdecimal() or part == "all" for part in parts]
    num_last = 1 if is_budget[-1] else 2  # The path may have commas.
    path = os.path.expanduser(",".join(parts[:-num_last]))
    if not path:
        raise UserError(
            f"Cannot read {argument!r:.200} after the config's colon: write an .npz, the number of "
            "labels or all, and optionally a method, as in FILE.npz,40 or FILE.npz,40,fixmatch."
        )
    config = create_config(",".join(parts[-num_last:]))
    size = read_image_size(path)
    config.data.name, config.data.data_dir = NPZ, path
    config.data.mean = config.data.std = ()  # Of the training images.
    config.data.image_size, config.data.shift, config.data.cutout = size, size // 8, size // 2
    config.data.flip = False
    if argument.endswith(",small"):
        make_small(config)
    return config
