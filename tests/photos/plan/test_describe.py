"""What a plan says, written from values alone, and what a dry run finds out about images."""

import pathlib

import pytest
from PIL import Image

from cls_jax.models.weights.sources import Origin
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE
from cls_jax.photos.folder.dataset import summarize_folder
from cls_jax.photos.plan import rules
from cls_jax.photos.plan.describe import describe_dry_run, list_notices
from cls_jax.photos.plan.estimate import Measurement
from cls_jax.photos.plan.measure import Facts, gather_facts, propose_sources
from tests.outcomes import count_reads
from tests.photos.features.test_copies import change, create_photos
from tests.photos.helpers import cache_hub, place
from tests.photos.plan.test_rules import PRETRAINED, create_plan, create_summary

MEASURED = Measurement(
    compile_seconds=20.0,
    step_seconds=0.5,
    memory="a step needs 1.00 of 16.0 GiB",
    image_size=224,
    batch_size=8,
)


def describe(facts, **changes):
    """What a dry run says of a folder that does not exist."""
    summary = create_summary(root=pathlib.Path("nowhere"))
    plan = rules.fit(create_plan(summary, PRETRAINED, changes.pop("method", "fixmatch"), **changes))
    with count_reads() as reads:
        text = describe_dry_run(plan, facts)
    assert not reads
    return text


def test_a_dry_run_says_what_was_found_out():
    origins = (Origin(DEFAULT_BACKBONE, "Apache-2.0", ""),)
    text = describe(Facts(origins, is_begun=True, measured=MEASURED), num_steps=100)
    for line in (
        "Images:      40 labeled, 9,960 unlabeled and 0 test images; 2 classes with labels:",
        "Steps:       100 with 8 labeled and 32 unlabeled images each",
        "(license Apache-2.0)",
        "Run:         resumed in",
        "Memory:      a step needs 1.00 of 16.0 GiB",
        "Steps alone: about 70 seconds: 0.500 s per step",
    ):
        assert line in text
    places = [text.index(word) for word in ("Images:", "Run:", "Method:", "Steps:", "(license")]
    assert places == sorted(places)  # What is inside comes last.
    assert "Validation" not in text
    held_out = describe(Facts(held_out=(0, 2)))
    assert "Validation:  2 labels are held out: cat 0 of 20, dog 2 of 20\n" in held_out
    assert text.endswith("Dry run; nothing written.")


def test_what_was_not_looked_for_is_not_said_and_an_instant_classifier_has_no_steps():
    text = describe(Facts(), method=None)
    assert "Method:      instant classifier, on frozen features of" in text
    for word in ("Memory", "Steps", "Weights", "resumed"):
        assert word not in text


CHANGES = "mirrored", "turned", "resized", "cropped"


@pytest.mark.parametrize("end", ["_aug_1", "-1", " (1)", " copy"])
def test_copies_by_name_are_proposed_as_sources_if_they_look_alike(tmp_path, end):
    """Independent photos are called so, too: downloads of one name, and numbered ones."""
    photos, others = create_photos(8), create_photos(8, seed=1)
    for kind in ("copies", "independent"):
        for i, photo in enumerate(photos):
            second = change(photo, CHANGES[i // 2]) if kind == "copies" else others[i]
            for name, image in ((f"{i}.png", photo), (f"{i}{end}.png", second)):
                path = place(tmp_path / kind, f"{('cat', 'dog')[i % 2]}/photo{name}")
                Image.fromarray(image).save(path)
    sentence = propose_sources(summarize_folder(tmp_path / "copies"))
    assert f"'cat/photo0.png' and 'cat/photo0{end}.png' are those of copies: with" in sentence
    (tmp_path / f"copies/cat/photo0{end}.png").write_text("no image")
    assert propose_sources(summarize_folder(tmp_path / "copies")) == sentence
    assert propose_sources(summarize_folder(tmp_path / "independent")) == ""


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ("license: cc-by-nc-4.0", "Weights: hf:a/b (license cc-by-nc-4.0, which forbids"),
        ("tags: []", "Weights: hf:a/b (license unknown: see https://huggingface.co/a/b)."),
        (
            "license: fair-noncommercial-research-license",
            "Weights: hf:a/b (license fair-noncommercial-research-license, which forbids",
        ),
        ("license: mit", None),
    ],
)
def test_weights_that_not_everybody_may_use_are_said(tmp_path, monkeypatch, card, sentence):
    files = {"README.md": f"---\n{card}\n---\n# A model\n".encode()}
    cache_hub(monkeypatch, tmp_path, "hf:a/b", files)
    settings = {"model.init": "hf:a/b", "model.name": "resnet18", "num_steps": 2}
    plan = create_plan(resources=PRETRAINED, **settings)
    found = [one for one in list_notices(plan, gather_facts(plan)) if one.startswith("Weights:")]
    assert len(found) == (sentence is not None)
    assert all(one.startswith(sentence) for one in found)
