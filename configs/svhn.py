"""SVHN (Netzer et al., 2011) through TFDS. Usual budgets: 40, 250 and 1000.

Its 531,131 extra images are left out.
"""

from cls_jax.config import create_config, make_small

METHOD_SETTINGS = {"mixmatch": {"lambda_u": 250.0}}  # MixMatch, SVHN.


def get_config(argument: str = "250"):
    """Returns the paper's settings for CIFAR-10, or small ones.

    Args:
        argument: BUDGET[,METHOD], by default cls, for two CPU cores followed by ",small".
    """
    config = create_config(argument.removesuffix(",small"), METHOD_SETTINGS)
    config.data.name = "svhn"
    config.data.mean = config.data.std = ()  # Of the training images.
    config.data.flip = False  # FixMatch. A mirrored digit is none.
    if argument.endswith(",small"):
        make_small(config)
    return config
