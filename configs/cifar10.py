"""CIFAR-10 (Krizhevsky, 2009) through TFDS. The paper's budgets: 40, 250 and 4000 labels."""

from cls_jax.config import create_config, make_small


def get_config(argument: str = "250"):
    """Returns the paper's configuration, or a small one.

    Args:
        argument: BUDGET[,METHOD], by default cls, for two CPU cores followed by ",small".
    """
    config = create_config(argument.removesuffix(",small"))
    config.data.name = "cifar10"
    config.data.mean = (0.4914, 0.4822, 0.4465)  # Authors, dataset/cifar.py.
    config.data.std = (0.2471, 0.2435, 0.2616)
    if argument.endswith(",small"):
        make_small(config)
    return config
