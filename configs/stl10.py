"""STL-10 (Coates et al., 2011) through TFDS: 5,000 labeled and 100,000 unlabeled images.

The unlabeled images also show other classes. Usual budgets: 40, 1000 and all.
"""

from cls_jax.config import create_config

METHOD_SETTINGS = {"mixmatch": {"lambda_u": 50.0}}  # MixMatch, STL-10.
_SIZE = 96


def get_config(argument: str = "1000"):
    """Returns the paper's settings for CIFAR-10; `argument` is BUDGET[,METHOD], by default cls.

    A step takes nine times as long as on CIFAR-10, in proportion to the pixels.
    """
    config = create_config(argument, METHOD_SETTINGS)
    config.data.name = "stl10"
    config.data.mean = config.data.std = ()  # Of the training images.
    config.data.image_size, config.data.shift, config.data.cutout = _SIZE, _SIZE // 8, _SIZE // 2
    config.eval_batch_size = 100
    return config
