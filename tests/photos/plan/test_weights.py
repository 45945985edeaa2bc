"""What a plan says about pretrained weights: their licenses."""

import pytest

from cls_jax.photos.plan.describe import list_notices
from cls_jax.photos.plan.measure import gather_facts
from tests.photos.plan.test_rules import PRETRAINED, create_plan

constants = pytest.importorskip("huggingface_hub.constants", reason="the extra pretrained")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The snapshot of a repository `a/b` in a cache of the hub's layout."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    refs = tmp_path / "models--a--b" / "refs"
    refs.mkdir()
    (refs / "main").write_text("c" * 40)
    return snapshot


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ("license: cc-by-nc-4.0", "Weights: hf:a/b (license cc-by-nc-4.0, which forbids"),
        ("tags: []", "Weights: hf:a/b (license unknown: see https://huggingface.co/a/b)."),
        ("license: mit", None),
    ],
)
def test_weights_that_not_everybody_may_use_are_said(cache, card, sentence):
    (cache / "README.md").write_text(f"---\n{card}\n---\n# A model\n")
    settings = {"model.init": "hf:a/b", "model.name": "resnet18", "num_steps": 2}
    plan = create_plan(resources=PRETRAINED, **settings)
    found = [one for one in list_notices(plan, gather_facts(plan)) if one.startswith("Weights:")]
    assert len(found) == (sentence is not None)
    assert all(one.startswith(sentence) for one in found)
