import pytest

from tests.photos.labeling.sessions import create_photos, open_ready


@pytest.fixture
def folder(tmp_path, request):
    return tmp_path / getattr(request, "param", "photos")


@pytest.fixture
def kinds(folder):
    return create_photos(folder, 30)


@pytest.fixture
def session(folder, kinds):
    return open_ready(folder, kinds, ["cat", "dog"])
