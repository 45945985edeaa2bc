"""What tests of image files share."""

import pytest

from cls_jax.data import resize


@pytest.fixture(params=[False, True], ids=["whole", "in strips"])
def in_strips(request, monkeypatch):
    """Whether images of a few hundred pixels are decoded in strips, like images of millions."""
    if request.param:
        monkeypatch.setattr(resize, "LARGE_PIXELS", 500)
        monkeypatch.setattr(resize, "_STRIP_PIXELS", 500)
