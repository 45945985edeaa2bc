"""Your own images: a folder of labeled and unlabeled ones. See docs/own_images.md.

`cls-jax train FOLDER` also fits sizes and lengths to the folder and to the machine.
"""

from cls_jax.methods import METHODS
from cls_jax.photos.plan.rules import create_folder_config


def get_config(argument: str = ""):
    """Returns the configuration; `argument` is PATH[,METHOD], by default cls.

    The text after the last comma belongs to the path unless it is the name of a method.
    """
    path, _, method = argument.rpartition(",")
    return create_folder_config(*((path, method) if method in METHODS else (argument, "cls")))
