"""What a listing of a folder has."""

import os
import subprocess
import sys

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.images.files import list_images

LIST = "import sys; from cls_jax.photos.images.files import list_images; list_images(sys.argv[1])"


def test_names_that_python_cannot_read_are_explained(tmp_path, monkeypatch):
    (tmp_path / "H\u00fcndchen").mkdir()
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with pytest.raises(UserError, match=r"'Hündchen' cannot .* ascii .*PYTHONUTF8=1"):
        list_images(tmp_path)
    monkeypatch.undo()
    (tmp_path / "H\u00fcndchen" / "1.png").touch()
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    for variables, sentence in (({"PYTHONUTF8": "0"}, "PYTHONUTF8=1"), ({"PYTHONUTF8": "1"}, "")):
        command = [sys.executable, "-c", LIST, str(tmp_path)]
        found = subprocess.run(
            command, env=environment | variables, capture_output=True, check=False
        )
        assert sentence in found.stderr.decode("utf-8", "replace")
        assert (found.returncode == 0) == (not sentence)
