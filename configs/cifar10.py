"""CIFAR-10 (Krizhevsky, 2009) through TFDS. The paper's budgets: 40, 250 and 4000 labels."""

from cls_jax.config import create_config

# About half an hour for CLS on two idle CPU cores. Values that are not the paper's follow from the
# size of the network or the length of the run, or were searched for with seed 100
# (experiments/results/cifar10_two_cores.md).
SMALL = {
    "num_steps": 8000,
    "batch_size": 16,
    "mu": 4,
    "ema_decay": 0.995,  # Averages over about 200 of the steps.
    "log_every": 20,
    "eval_every": 500,
    "checkpoint_every": 500,
    "data.pipeline": "device",  # Leaves both cores to the networks, and needs no TensorFlow.
    "model.depth": 10,
    "model.width": 1,
    "model.bn_momentum": 0.99,
    "optimizer.weight_decay": 4e-3,  # Decay takes 1 / (learning rate · decay) = 8,000 steps.
}


def get_config(argument: str = "250"):
    """Returns the paper's configuration, or a small one.

    Args:
        argument: BUDGET[,METHOD], by default cls, for two CPU cores followed by ",small".
    """
    is_small = argument.endswith(",small")
    config = create_config(argument.removesuffix(",small"))
    config.data.name = "cifar10"
    config.data.mean = (0.4914, 0.4822, 0.4465)  # Authors, dataset/cifar.py.
    config.data.std = (0.2471, 0.2435, 0.2616)
    if is_small:
        config.update_from_flattened_dict(SMALL)
        if "statistics_decay" in config.method:  # Of the methods' running means.
            config.method.statistics_decay = 0.995
    return config
