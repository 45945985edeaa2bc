"""Tables in which several people have voted: by shares for each class, or a row for each person."""

import numpy as np
import pytest

from cls_jax.errors import UserError
from tests.photos.helpers import make_folder, read_layout

NAMES = [f"{i}.png" for i in range(6)]


def read(root, lines, **options):
    """Labels by file, "" without one, and what the plan says."""
    layout = read_layout(make_folder(root, NAMES, {"labels.csv": "\n".join(lines)}), **options)
    return {file.name: label for file, label in layout.train}, layout


def test_the_class_with_the_clearly_largest_share_counts(tmp_path):
    shares = [
        (0.67, 0.33, 0),
        (1, 0, 0),
        (0.1, 0.9, 0),
        (0.2, 0.2, 0.6),
        (0.5, 0.4, 0.1),
        (0, 1, 0),
    ]
    rows = [",".join(map(str, (name, *row))) for name, row in zip(NAMES, shares, strict=True)]
    found, layout = read(tmp_path, ["image,hat,shoes,skirt", *rows])
    labels = ["hat", "hat", "shoes", "skirt", "", "shoes"]
    assert found == dict(zip(NAMES, labels, strict=True))
    assert "3 columns of shares, of which the largest counts" in layout.table
    (sentence,) = (warning for warning in layout.warnings if "shares" in warning)
    assert sentence.startswith("The shares in labels.csv differ about 1 image, such as '4.png'")
    assert sentence.endswith("counts, and 1 without one are unlabeled.")


def test_numbers_that_are_no_shares_are_asked_about(tmp_path):
    rows = [f"{name},{0.1 * i:.1f},{0.2:.1f}" for i, name in enumerate(NAMES)]
    with pytest.raises(UserError, match="may have the classes in 'hat', 'shoes': pass --label"):
        read(tmp_path, ["image,hat,shoes", *rows])
    rows = [
        f"{name},{0.5 if i % 2 else 0.1},{0.5 if i % 2 else 0.9}" for i, name in enumerate(NAMES)
    ]
    _, layout = read(tmp_path, ["image,hat,shoes", *rows], label_column="hat")
    assert any("are numbers, such as '0.1'" in warning for warning in layout.warnings)


@pytest.mark.parametrize("header", ["annotator", "worker_id", "Created by"])
def test_of_several_people_the_majority_counts(tmp_path, header):
    votes = {name: ["hat", "hat", "hat"] for name in NAMES[:3]}
    votes |= {"3.png": ["shoes", "hat", "shoes"], "4.png": ["Shoes", "shoes"]}
    votes |= {"5.png": ["hat", "shoes"]}
    rows = [
        f"{name},person{i},{label}" for name, each in votes.items() for i, label in enumerate(each)
    ]
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    found, layout = read(tmp_path, [f"image,{header},label", *shuffled])
    labels = ["hat", "hat", "hat", "shoes", "shoes", ""]
    assert {name: label.lower() for name, label in found.items()} == dict(
        zip(NAMES, labels, strict=True)
    )
    assert any(
        warning.startswith("The people in labels.csv differ about 2 images, such as '3.png'")
        for warning in layout.warnings
    )
    assert not any("the last one counts" in warning for warning in layout.warnings)
