import pytest


@pytest.fixture
def folder(tmp_path, request):
    return tmp_path / getattr(request, "param", "photos")
