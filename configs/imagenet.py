"""ImageNet (Russakovsky et al., 2015) through TFDS, with 1% or 10% of its labels.

The labeled images are the standard subsets of SimCLR, TFDS's imagenet2012_subset. Sizes are for 32
devices of 80 GB, see docs/speed_and_scale.md. We have not run them.
"""

from cls_jax.config import create_defaults
from cls_jax.errors import UserError

SUBSETS = {"1%": "imagenet2012_subset/1pct", "10%": "imagenet2012_subset/10pct"}
NETWORKS = ("resnet50", "vit_small")
_NUM_STEPS, _SIZE = 100_000, 224  # 140 epochs.


def get_config(argument: str = "1%"):
    """Returns the configuration; `argument` is SHARE[,METHOD][,NETWORK].

    For example "1%", "1%,fixmatch" or "10%,cls,vit_small". The default method is cls, the
    default network resnet50.
    """
    share, *rest = argument.split(",")
    network = rest.pop() if rest and rest[-1] in NETWORKS else NETWORKS[0]
    if share not in SUBSETS or len(rest) > 1:
        raise UserError(
            f"Cannot read {argument!r:.200} after the config's colon: write 1% or 10%, optionally "
            "a method and resnet50 or vit_small, as in 1%,cls,vit_small."
        )
    config = create_defaults(0, rest[0] if rest else "cls", dataset="imagenet2012")
    config.num_steps, config.batch_size = _NUM_STEPS, 256
    config.eval_every = config.checkpoint_every = 2_000
    config.eval_batch_size = 128
    config.ema_decay = 0.9995
    config.data.labeled_subset = SUBSETS[share]
    config.data.image_size, config.data.shift, config.data.cutout = _SIZE, _SIZE // 8, _SIZE // 2
    config.data.mean = (0.485, 0.456, 0.406)
    config.data.std = (0.229, 0.224, 0.225)
    config.model.name, config.model.dtype, config.model.stem = network, "bfloat16", "imagenet"
    if network == "vit_small":
        config.optimizer.name, config.optimizer.learning_rate = "adamw", 5e-4
        config.optimizer.weight_decay = 0.05
        config.optimizer.warmup_steps = 5_000
    return config
