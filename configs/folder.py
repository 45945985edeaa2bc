"""Your own images: a folder of labeled and unlabeled ones. See docs/own_images.md.

Sizes follow `data.image_size`, so for larger images that is the only value to change.
"""

from cls_jax.config import create_defaults
from cls_jax.methods import METHODS

_EVAL_PIXELS = 2**20  # In all images of an evaluation batch.


def get_config(argument: str = ""):
    """Returns the configuration; `argument` is PATH or PATH,METHOD.

    The text after the last comma belongs to the path unless it is the name of a method.
    """
    path, _, method = argument.rpartition(",")
    if method not in METHODS:
        path, method = argument, "cls"
    config = create_defaults(num_labels=0, method_name=method)
    config.num_steps = 20_000  # With few images, more steps only repeat them.
    config.batch_size = 32
    config.eval_every = 500
    config.checkpoint_every = 500
    config.data.name = "folder"
    config.data.data_dir = path
    config.data.image_size = 64
    image_size = config.data.get_ref("image_size")
    # 256 images of 64 pixels or 20 of 224: a few hundred MB either way.
    config.eval_batch_size = _EVAL_PIXELS // (image_size * image_size)
    config.data.shift = image_size // 8  # The authors' shares of the image size.
    config.data.cutout = image_size // 2
    config.data.mean = ()
    config.data.std = ()
    config.model.stem = "auto"
    return config
