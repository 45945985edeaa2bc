"""scikit-learn's digits, a dataset without a download."""

import numpy as np
from ml_collections import ConfigDict

from cls_jax.data.types import Dataset

NUM_TEST_DIGITS = 450


def load_digits(data_config: ConfigDict) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, scaled up. 450 of them, stratified, are for testing.

    The scans are 8 x 8 with 17 gray levels. The test set is the same whatever the seed.
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
