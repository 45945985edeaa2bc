"""The quickstart notebook runs from start to end and ends in pictures."""

import re

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"
SMALLER = {
    "num_steps=200": "num_steps=12, eval_every=12, checkpoint_every=12, batch_size=10, mu=2, "
    "data__randaugment_ops=0, model__depth=10, model__width=1",
    "zip(digits.images, digits.target, strict=True)": "zip(digits.images[:450], digits.target)",
}
# As conftest.py does in its own process.
ONE_BLOCK = """
from cls_jax.models import wide_resnet
wide_resnet._STAGES = ((32, 2),)
"""


def test_quickstart_trains_and_ends_in_pictures(tmp_path, monkeypatch):
    """In a kernel of its own, as a user runs it, but with fewer images, steps and layers."""
    nbclient = pytest.importorskip("nbclient", reason="make test installs it")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = NOTEBOOK.read_text("utf-8")
    for passage, smaller in SMALLER.items():
        assert text.count(passage) == 1
        text = text.replace(passage, smaller)
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # It is stored without them.
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ONE_BLOCK))
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert float(re.search(r"Test accuracy: ([\d.]+) %", printed)[1]) > 20
    assert "image/png" in cells[-1].outputs[-1].data
