"""What may choose between the two classifiers of a run, by where its labels come from."""

import types

import numpy as np
import pytest

from cls_jax.config import with_values
from cls_jax.photos.inference.predictor import VALIDATION, choose_predictor, describe_choice
from cls_jax.photos.report.outcome import describe_predictor
from tests.conftest import load_config

CHECKS = [f"{i:02}.png,cat,check 0.1 0.9 cat,2026-01-01T00:00:{i:02}Z" for i in range(20)]
MIXED = ["file,label,decision,time", "00.png,dog,label,2026-01-01T00:01:00Z"]
PAGE = ["file,label,decision,time", "30.png,dog,label,2026-01-01T00:01:00Z", *CHECKS]
OTHER = ["file,label", *(f"{i:02}.png,{'cat' if i % 2 else 'dog'}" for i in range(40))]
STAYS = "Too few checked photos to tell which is better: the instant classifier stays."


def end_run(folder, rows, files=(), validation=0.0):
    """A finished run of which 80% of validation images are named right, and 40% before."""
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.png").write_bytes(b"")
    if rows is MIXED:
        for name in (f"train/{label}/{i}.png" for label in ("cat", "dog") for i in range(20)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    values = {
        "data.name": "folder",
        "data.data_dir": str(folder),
        "data.validation": validation,
        "model.init_head": "inferred",
        "num_steps": 400,
    }

    def name(share):
        is_right = np.arange(len(files)) < share * len(files)
        return {VALIDATION: (np.eye(2)[is_right.astype(int)][None], np.ones(len(files), int))}

    split = types.SimpleNamespace(files=tuple(files), sources=None)
    return types.SimpleNamespace(
        config=with_values(load_config("folder", "all"), values),
        result={"labels_weight_graph": 50.0},
        dataset=types.SimpleNamespace(held_out={VALIDATION: files}, validation=split),
        held_out=name(0.8),
        begun_with=types.SimpleNamespace(held_out=name(0.4)),
    )


CHECKED = [f"{i:02}.png" for i in range(20)]
ASKED = [f"{i:02}.png" for i in range(20, 40)]
OWN = [f"val/cat/{i}.png" for i in range(20)]


@pytest.mark.parametrize(
    ("rows", "files", "validation", "used", "images"),
    [
        (PAGE, [], 0.0, "instant", "random"),
        (PAGE, ASKED, 0.3, "instant", "random"),  # They were asked because they are hard.
        (PAGE, CHECKED, 0.3, "trained", "random"),
        (PAGE, OWN, 0.0, "trained", "validation"),
        (MIXED, ASKED, 0.3, "trained", "validation"),  # Most labels are of class folders.
        (OTHER, [], 0.0, "trained", None),
        (OTHER, ASKED, 0.3, "trained", "validation"),
    ],
)
def test_of_labels_from_the_page_only_random_ones_choose_the_classifier(
    tmp_path, rows, files, validation, used, images
):
    chosen = choose_predictor(end_run(tmp_path / "photos", rows, files, validation))
    assert (chosen["predictor"], chosen.get("predictor_images")) == (used, images)
    assert (describe_choice(chosen) == STAYS) == (used == "instant")
    assert ("Check 20 random photos" in describe_predictor(chosen)) == (used == "instant")
    if used == "trained" and files:
        assert (chosen["predictor_right_trained"], chosen["predictor_right_instant"]) == (16, 8)
