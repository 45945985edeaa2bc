"""Programs on a machine without TensorFlow."""

import json
import subprocess
import sys

import pytest
from PIL import Image

from tests.conftest import ROOT
from tests.processes import TINY


@pytest.mark.slow
def test_trains_reports_and_predicts_without_tensorflow_tfds_and_clu(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    code = """
import runpy, sys
for name in ("tensorflow", "tensorflow_datasets", "clu", "clu.metric_writers"):
    sys.modules[name] = None  # Importing it raises ImportError.
from cls_jax.models import wide_resnet
wide_resnet._STAGES = ((32, 2),)  # As conftest.py does in its own process.
folder, *sys.argv = sys.argv[1:]
try:
    runpy.run_path("main.py", run_name="__main__")
except SystemExit as end:
    assert not end.code
from cls_jax.photos.cli import commands
commands.predict(f"{folder}/run", [f"{folder}/image.png"], f"{folder}/p.csv")
"""
    options = ["--config=configs/digits.py:20,supervised", f"--workdir={tmp_path}/run", *TINY]
    options += ["--config.data.pipeline=device", "--config.num_steps=2", "--config.model.depth=10"]
    outcome = subprocess.run(
        [sys.executable, "-c", code, tmp_path, "main.py", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads((tmp_path / "run/result.json").read_text())["step"] == 2
    assert not list((tmp_path / "run").glob("events*"))
    report = (tmp_path / "run/report.html").read_text()
    assert all(f'<section id="{name}"' in report for name in ("classes", "views"))
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
