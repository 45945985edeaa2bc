"""CIFAR-10 and CIFAR-100: from TFDS or from an `.npz`."""

import pathlib

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.sources.npz import Split, is_single_file, read_single_file
from cls_jax.data.types import Dataset
from cls_jax.errors import UserError

_DOWNLOAD_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def load_cifar(data_config: ConfigDict) -> Dataset:
    """CIFAR from TFDS, or from the `.npz` that `data_config.data_dir` names.

    Raises:
        UserError: if neither of them has it, or its images have another size.
    """
    if is_single_file(data_config.data_dir):
        splits, class_names = read_single_file(data_config.data_dir)
    else:
        splits, class_names = read_tfds(data_config)
    (train_images, train_labels), (test_images, test_labels) = splits["train"], splits["test"]
    image_shape = train_images.shape[1:]
    if image_shape[:2] != (data_config.image_size, data_config.image_size):
        raise UserError(
            f"{data_config.name} has images of {image_shape[1]} x {image_shape[0]} pixels: "
            f"set --config.data.image_size={image_shape[0]}."
        )
    return Dataset(
        name=data_config.name,
        class_names=class_names,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        image_shape=image_shape,
    )


def read_tfds(data_config: ConfigDict) -> tuple[dict[str, Split], tuple[str, ...]]:
    """A TFDS dataset with features "image" and "label" and splits "train" and "test".

    Prepared on first use: looked for, and downloaded to, `data_config.data_dir`.

    Returns:
        Split name → images uint8 [n, H, W, C] and labels int32 [n], and the class names.

    Raises:
        UserError: if it is neither prepared nor can be downloaded.
    """
    # Imported here: an `.npz` needs neither.
    from cls_jax.data.host_tensorflow import hide_accelerators

    hide_accelerators()
    import requests
    import tensorflow_datasets as tfds

    name = data_config.name
    data_dir = pathlib.Path(data_config.data_dir).expanduser() if data_config.data_dir else None
    builder = tfds.builder(name, data_dir=data_dir)
    try:
        if not builder.is_prepared():
            # Asked once. TFDS itself retries for minutes where there is no network.
            requests.head(_DOWNLOAD_PAGE, timeout=20, allow_redirects=True)
        builder.download_and_prepare()
    except Exception as error:  # TFDS raises whatever its downloader and file system do.
        raise UserError(
            f"{name} is not prepared in {builder.data_dir} and could not be downloaded "
            f"({type(error).__name__}): connect to the internet once, or set "
            "--config.data.data_dir to a TFDS folder that holds it."
        ) from error
    # Files in order and one at a time: an image's index is the same on every machine.
    read_config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    splits = {}
    for split in ("train", "test"):
        rows = builder.as_dataset(
            split=split, batch_size=-1, shuffle_files=False, read_config=read_config
        )
        rows = tfds.as_numpy(rows)
        splits[split] = rows["image"], rows["label"].astype(np.int32)
    return splits, tuple(builder.info.features["label"].names)
