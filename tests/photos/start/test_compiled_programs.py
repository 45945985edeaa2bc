"""What an instant classifier compiles on an accelerator, with its report."""

import pytest

import cls_jax
from cls_jax.extras import is_installed
from tests.compiled import record_programs
from tests.photos.helpers import write_colors

MOST_PROGRAMS = 8


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_colors(tmp_path / "photos", labeled=4, unlabeled=4, test=4, size=40)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("pretrained"), reason="needs the pretrained networks")
def test_an_instant_classifier_compiles_few_programs(photos, monkeypatch):
    programs = record_programs(monkeypatch)
    cls_jax.train(photos, instant=True)
    assert len(programs) <= MOST_PROGRAMS, programs
    assert not any(program.is_tuned for program in programs), programs
    assert {"jit__forward", "jit__search_block", "jit_compute"} <= {p.name for p in programs}
    assert all(program.runs for program in programs if program.name == "jit_compute")
