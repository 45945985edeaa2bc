"""What tests of classifiers share."""

import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.photos.inference.run import load
from tests.conftest import create_tiny_config


@pytest.fixture(scope="session")
def dataset():
    """What the trained run was trained on."""
    return load_dataset(create_tiny_config())


@pytest.fixture(scope="session")
def classifier(trained_run):
    return load(trained_run)
