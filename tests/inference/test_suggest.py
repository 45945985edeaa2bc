"""Suggested images have no label, and are of different kinds."""

import pathlib
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from cls_jax.cli import commands
from cls_jax.config import to_json
from cls_jax.config.from_folder import apply_settings, create_folder_config
from cls_jax.data.images.files import ImageBatch
from cls_jax.errors import UserError
from cls_jax.features.extract import PRETRAINED
from cls_jax.inference import suggest
from cls_jax.inference.suggest import Files, compute_pixel_features, suggest_files, suggest_from

COLORS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200)}


def save(path, color, seed, size=12):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 40, (size, size, 3))
    Image.fromarray((np.asarray(color) + noise).astype(np.uint8)).save(path)


def fill(folder, size=12):
    """Ten images of each color, none labeled, and a damaged one."""
    for name, color in COLORS.items():
        for i in range(10):
            save(folder / f"{name}{i}.png", color, seed=i, size=size)
    (folder / "broken.png").write_text("no image")


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    """As where the pretrained weights are not installed: a network takes seconds to compile."""
    monkeypatch.setattr(suggest, "is_installed", lambda init: False)


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "images")
    return tmp_path


def get_names(rows):
    return [pathlib.Path(row["file"]).name for row in rows]


def get_colors(rows):
    return {name[:-5] for name in get_names(rows)}


def test_features_of_pixels_tell_images_apart_and_have_unit_length():
    rng = np.random.default_rng(0)
    dark, light = (rng.integers(low, low + 60, (10, 4, 4, 3), np.uint8) for low in (0, 190))
    features = compute_pixel_features(np.concatenate([dark, light]))
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    similarity = features @ features.T
    assert similarity[:10, :10].min() > similarity[:10, 10:].max()


def test_a_folder_without_labels_gets_one_suggestion_of_each_kind(folder):
    save(folder / "test" / "a.png", (90, 90, 90), 0)  # Test images are not suggested.
    rows = suggest_files(folder, 3)
    assert get_colors(rows) == set(COLORS)
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert all(row["score"] > 0 for row in rows)
    assert len(suggest_files(folder, 100)) == 30


@pytest.mark.parametrize("size", [12, 40])
def test_the_pretrained_network_sees_photographs_only(tmp_path, monkeypatch, capsys, size):
    opened = []
    monkeypatch.setattr(suggest, "is_installed", lambda init: opened.append(size))
    fill(tmp_path, size)
    assert len(suggest_files(tmp_path, 2)) == 2
    assert opened == ([40] if size == 40 else [])
    assert ("[pretrained]" in capsys.readouterr().err) == bool(opened)


def test_labeled_images_are_not_suggested_and_their_kinds_come_last(folder):
    (folder / "labels.csv").write_text("file,label\nred1.png,warm\nblue1.png,cold\n")
    assert get_colors(suggest_files(folder, 1)) == {"green"}
    names = get_names(suggest_files(folder, 100))
    assert len(names) == 28  # 30 without the labeled ones. The damaged one is skipped.
    assert not {"red1.png", "blue1.png"} & set(names)


def test_what_the_labeling_page_would_not_ask_about_is_not_suggested(folder, capsys):
    """Test and validation images, and images with an answer."""
    for name in ("test/red/a.png", "Val/blue/b.png"):
        save(folder / name, (90, 90, 90), 0)
    assert len(suggest_files(folder, 100)) == 30
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


def test_class_folders_without_unlabeled_images_name_the_remedy(tmp_path):
    for name in COLORS:
        save(tmp_path / "labeled" / name / "1.png", COLORS[name], 0)
    with pytest.raises(UserError, match="counts as labeled by its folder: put those"):
        suggest_files(tmp_path, 3)
    save(tmp_path / "unlabeled" / "x.png", COLORS["red"], 1)
    (row,) = suggest_files(tmp_path, 3)
    assert row["file"] == str(tmp_path / "unlabeled" / "x.png")


class Networks:
    """Stands in for a run's networks on images of 128 pixels, 16 at a time."""

    def read_files(self, files):
        rng = np.random.default_rng(0)
        for i in range(0, len(files), 16):
            images = rng.integers(0, 256, (16, 128, 128, 3), dtype=np.uint8)
            yield ImageBatch(files[i : i + 16], [None] * 16, images)

    def compute_features(self, images):
        return images.reshape(16, -1)[:, :4].astype(np.float32)


def test_decoded_images_are_not_kept(folder):
    """All of them would take 31 MB."""
    files = Files([str(folder / "images/red0.png")] * 640, [])
    tracemalloc.start()
    try:
        assert len(suggest_from(files, 3, Networks())) == 3
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_an_instant_run_suggests_with_the_features_that_are_on_disk(folder, tmp_path, monkeypatch):
    config = create_folder_config(str(folder), "cls")
    settings = {"num_steps": 0, "model.init": PRETRAINED, "model.init_head": "graph"}
    apply_settings(config, settings | {"model.name": "efficientnet_lite0"})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(to_json(config))
    (tmp_path / "run" / "instant.npz").touch()  # It is not opened.
    monkeypatch.setattr(suggest, "load", None)
    assert get_colors(suggest_files(tmp_path / "run", 3)) == set(COLORS)


def test_photographs_are_compared_by_the_features_that_training_reads(tmp_path, monkeypatch):
    fill(tmp_path, size=40)

    def load_features(files):
        colors = [pathlib.Path(file).name[:-5] for file in files]
        return np.array([[name == color for name in COLORS] for color in colors], np.float32)

    monkeypatch.setattr(suggest, "is_installed", lambda init: init == PRETRAINED)
    monkeypatch.setattr(suggest, "load_features", load_features)
    assert get_colors(suggest_files(tmp_path, 3)) == set(COLORS)


def test_mistakes_name_the_remedy(trained_run, tmp_path):
    with pytest.raises(UserError, match="trained on digits, which has all its labels"):
        suggest_files(trained_run, 3)
    with pytest.raises(UserError, match=r"is not a folder\. Pass a folder of images"):
        suggest_files(tmp_path / "nothing", 3)
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(UserError, match="None of the unlabeled images can be read"):
        suggest_files(tmp_path, 3)


def test_copies_are_not_suggested(folder):
    for i in range(3):
        save(folder / f"unlabeled/new{i}.png", COLORS["red"], i + 100)
        (folder / f"unlabeled/copy{i}.png").write_bytes((folder / "images/blue0.png").read_bytes())
    labeled = [str(folder / "images/blue0.png")]
    unlabeled = sorted(str(path) for path in (folder / "unlabeled").iterdir())
    rows = suggest_from(Files([*unlabeled, unlabeled[-1]], labeled), 10)
    assert sorted(get_names(rows)) == ["new0.png", "new1.png", "new2.png"]
    with pytest.raises(UserError, match="Every unlabeled image is a copy of a labeled one"):
        suggest_from(Files(unlabeled[:2], labeled), 10)
