"""TFDS, single files, folders of images and scikit-learn's digits as one Dataset type."""

import dataclasses
import pathlib
from typing import Any, Protocol

import numpy as np

from cls_jax.batch import DataShape
from cls_jax.data.archives import Split, is_single_file, read_single_file
from cls_jax.errors import UserError

NUM_TEST_DIGITS = 450
# Of the training images, for their mean and deviation.
_NUM_SAMPLED = 5000
_DECODING_BATCH = 1000
_DOWNLOAD_PAGES = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
}


class ImageSource(Protocol):
    """Images read by index: a NumPy array, a memory map, or a reader of files."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Returns uint8 [len(indices), H, W, C] for int indices [n] or a slice."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images and labels to train on and to be tested on.

    Attributes:
        name: as in the configuration.
        class_names: of the K classes, in the order of their labels.
        train_images: all training images, labelled or not.
        train_labels: int32 [n], their classes, -1 where unknown; what the label budget leaves out
            is only looked at by monitors.
        test_images: images that training never sees; there may be none.
        test_labels: int32 [m].
        image_shape: (H, W, C).
        mean: of every channel on the scale from 0 to 1, as configured or computed.
        std: likewise.
        fingerprint: a hash that other training images do not have, or "" where there is none.
        warnings: a sentence for everything a user should know of the data.
        skipped_files: name and reason of every file that could not be used.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: ImageSource
    train_labels: np.ndarray
    test_images: ImageSource
    test_labels: np.ndarray
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    fingerprint: str = ""
    warnings: tuple[str, ...] = ()
    skipped_files: tuple[tuple[str, str], ...] = ()

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def shape(self) -> DataShape:
        """The sizes that decide the shapes of a run."""
        return DataShape(self.image_shape, self.num_classes, len(self.train_images))


def load_dataset(config) -> Dataset:
    """Loads the dataset that `config.data` names.

    Raises:
        UserError: if there is none of that name, or it is neither prepared nor can be downloaded.
    """
    name = config.data.name
    if name not in LOADERS:
        raise UserError(f"Unknown dataset {name!r:.100}: choose one of {', '.join(LOADERS)}.")
    dataset = LOADERS[name](config.data)
    mean, std = tuple(config.data.mean), tuple(config.data.std)
    if not mean:
        mean, std = compute_mean_and_std(dataset.train_images)
    return dataclasses.replace(dataset, mean=mean, std=std)


def compute_mean_and_std(images: ImageSource) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel on the scale from 0 to 1.

    Of at most 5,000 images, evenly spaced: exact where there are no more, and always the same.
    """
    num_sampled = min(len(images), _NUM_SAMPLED)
    rows = np.linspace(0, len(images) - 1, num_sampled).round().astype(np.int64)
    counts = np.zeros(1)
    for part in np.array_split(rows, -(-num_sampled // 100)):
        channels = np.moveaxis(images[part], -1, 0).reshape(images[part[:1]].shape[-1], -1)
        counts = counts + np.stack([np.bincount(channel, minlength=256) for channel in channels])
    shares, levels = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255
    mean = shares @ levels
    variance = shares @ levels**2 - mean**2
    # Images of one colour: as if they differed by a level.
    std = np.sqrt(np.maximum(variance, levels[1] ** 2))
    return tuple(map(float, mean)), tuple(map(float, std))


def load_folder(data_config) -> Dataset:
    """A folder of images: see `cls_jax.data.folder`."""
    from cls_jax.data import folder

    return folder.load_folder(data_config)


def load_digits(data_config) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, scaled up; 450 of them, stratified, for the test.

    The scans are 8 x 8 with 17 grey levels. The test set is the same whatever the seed.
    """
    from PIL import Image
    from sklearn.datasets import load_digits as load_sklearn_digits
    from sklearn.model_selection import train_test_split

    scans = load_sklearn_digits()
    size = (data_config.image_size, data_config.image_size)
    images = np.stack(
        [
            np.asarray(Image.fromarray(scan).resize(size, Image.Resampling.BILINEAR))
            for scan in np.rint(scans.images * (255 / 16)).astype(np.uint8)
        ]
    )[..., None]
    labels = scans.target.astype(np.int32)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=NUM_TEST_DIGITS, stratify=labels, random_state=0
    )
    return Dataset(
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        image_shape=(*size, 1),
    )


def load_cifar(data_config) -> Dataset:
    """CIFAR from TFDS, or from the single file that `data_config.data_dir` names.

    Raises:
        UserError: if it can be had from neither, or has another image size.
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


def read_tfds(data_config) -> tuple[dict[str, Split], tuple[str, ...]]:
    """A TFDS dataset with features "image" and "label" and splits "train" and "test".

    Prepared on first use: looked for, and downloaded to, `data_config.data_dir`.

    Returns:
        Split name → images uint8 [n, H, W, C] and labels int32 [n]; and the class names.

    Raises:
        UserError: if it is neither prepared nor can be downloaded.
    """
    import tensorflow_datasets as tfds

    name = data_config.name
    data_dir = pathlib.Path(data_config.data_dir).expanduser() if data_config.data_dir else None
    builder = tfds.builder(name, data_dir=data_dir)
    try:
        if not builder.is_prepared():
            _check_reachable(_DOWNLOAD_PAGES[name])
        builder.download_and_prepare()
    except Exception as error:  # TFDS raises whatever its downloader and file system do.
        raise UserError(
            f"{name} is not prepared in {builder.data_dir} and could not be downloaded "
            f"({type(error).__name__}): connect to the internet once, or set "
            "--config.data.data_dir to a TFDS folder that holds it."
        ) from error
    splits = {split: _read_split(builder, split) for split in ("train", "test")}
    return splits, tuple(builder.info.features["label"].names)


def _check_reachable(url: str) -> None:
    """Asks once. TFDS itself retries for minutes where there is no network.

    Raises:
        requests.RequestException: if no server answers.
    """
    import requests

    requests.head(url, timeout=20, allow_redirects=True)


def _read_split(builder, split: str) -> Split:
    """Decodes a whole split into memory: uint8 [n, H, W, C] and int32 [n]."""
    import tensorflow_datasets as tfds

    # Files in order and one at a time: an image's index is the same on every machine.
    read_config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    split_data = builder.as_dataset(split=split, shuffle_files=False, read_config=read_config)
    num_examples = builder.info.splits[split].num_examples
    images = np.empty((num_examples, *builder.info.features["image"].shape), np.uint8)
    labels = np.empty(num_examples, np.int32)
    filled = 0
    for batch in tfds.as_numpy(split_data.batch(_DECODING_BATCH)):
        part = slice(filled, filled + len(batch["label"]))
        images[part], labels[part] = batch["image"], batch["label"]
        filled = part.stop
    return images, labels


LOADERS = {
    "cifar10": load_cifar,
    "cifar100": load_cifar,
    "digits": load_digits,
    "folder": load_folder,
}
