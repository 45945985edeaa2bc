"""Your own images: a folder of labelled and unlabelled ones. See docs/own_images.md.

Sizes follow `data.image_size`, so that is all to change for larger images.
"""

from cls_jax.config import create_defaults
from cls_jax.methods import METHODS

_EVAL_PIXELS = 2**20  # Of the images that are evaluated together.


def get_config(argument: str = ""):
    """Returns the configuration; `argument` is PATH or PATH,METHOD.

    What stands after the last comma belongs to the path unless it is the name of a method.
    """
    path, _, method = argument.rpartition(",")
    if method not in METHODS:
        path, method = argument, "cls"
    config = create_defaults(num_labels=0, method_name=method)
    config.num_steps = 20_000  # On few images more steps only repeat them.
    config.batch_size = 32
    config.eval_every = 500
    config.checkpoint_every = 500
    config.data.name = "folder"
    config.data.data_dir = path
    config.data.image_size = 64
    image_size = config.data.get_ref("image_size")
    # 256 images of 64 pixels, 20 of 224: a few hundred MB whatever their size.
    config.eval_batch_size = _EVAL_PIXELS // (image_size * image_size)
    config.data.shift = image_size // 8  # The shares of an image that the authors use.
    config.data.cutout = image_size // 2
    config.data.mean = ()
    config.data.std = ()
    config.model.stem = "auto"
    return config
