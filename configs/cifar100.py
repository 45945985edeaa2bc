"""CIFAR-100 (Krizhevsky, 2009) through TFDS. The paper's budgets: 400, 2500 and 10000 labels."""

from cls_jax.config import create_config

METHOD_SETTINGS = {"mixmatch": {"lambda_u": 150.0}}  # MixMatch, CIFAR-100.


def get_config(argument: str = "2500"):
    """Returns the paper's configuration; `argument` is BUDGET[,METHOD], by default cls."""
    config = create_config(argument, method_settings=METHOD_SETTINGS)
    config.data.name = "cifar100"
    config.data.mean = (0.5071, 0.4867, 0.4408)  # Authors, dataset/cifar.py.
    config.data.std = (0.2675, 0.2565, 0.2761)
    config.model.width = 8  # Paper: WRN-28-8, 23.40 M parameters.
    config.optimizer.weight_decay = 1e-3  # Paper; authors' README.
    return config
