"""What all tests of the product share."""

import pytest

from cls_jax.photos.images import decode


@pytest.fixture(scope="session", autouse=True)
def known_formats():
    """The formats that can be read are found once, before a test hides a package."""
    decode._get_formats()
