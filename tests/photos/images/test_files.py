"""What a listing of a folder has."""

import os
import re
import subprocess
import sys

LIST = "import sys; from cls_jax.photos.images.files import list_images; list_images(sys.argv[1])"


def test_names_that_python_cannot_read_are_explained(tmp_path):
    (tmp_path / "H\u00fcndchen").mkdir()
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", LIST, str(tmp_path)]
    found = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert re.search(rb"'H.*ndchen' cannot .* ascii .*PYTHONUTF8=1", found.stderr)
