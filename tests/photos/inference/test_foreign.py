"""Images that are unlike all images of a run's folder are found and reported."""

import io
import pathlib

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.options import AUTOMATIC
from cls_jax.photos.inference.predict_files import describe_foreign
from cls_jax.photos.inference.unknown import (
    FolderImages,
    collect_images,
    read_folder_images,
)
from cls_jax.photos.labeling.classes import Classes
from cls_jax.photos.labeling.fitting import fit
from cls_jax.photos.labeling.known import Known
from tests.outcomes import read_table
from tests.photos.helpers import write_images

C = 16


def draw(num_images, kinds, seed, noise=0.3):
    """Features float32 [B, C] of images of some kinds, of any length."""
    rng = np.random.default_rng(seed)
    centers = np.eye(C)[np.arange(num_images) % len(kinds) + kinds[0]]
    scales = rng.uniform(0.5, 2, (num_images, 1))
    return (scales * (centers + noise * rng.normal(size=(num_images, C)))).astype(np.float32)


@pytest.mark.parametrize("num_images", [50, 300])
@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_foreign_images_are_found_and_few_of_the_folder(num_images, noise):
    alarms, areas = [], []
    for seed in range(20):
        images = collect_images(draw(num_images, range(4), seed, noise))
        new = draw(300, range(4), 100 + seed, noise)
        foreign = draw(300, range(8, 12), 200 + seed, noise)
        scores = images.compare(np.concatenate([new, foreign]))
        areas.append(roc_auc_score(np.arange(600) >= 300, scores))
        alarms.append(images.find_foreign(new).mean())
    assert np.mean(areas) > 0.9
    assert np.mean(alarms) < 0.05


def test_copies_and_unreadable_images_say_nothing_about_new_ones():
    features = draw(100, range(4), 0)
    new = np.concatenate([draw(100, range(4), 1), draw(100, range(8, 12), 2)])
    expected = collect_images(features).find_foreign(new)
    assert 0 < expected.sum() < 120
    copied = np.concatenate([features, 2 * features, np.zeros((50, C))])
    np.testing.assert_array_equal(collect_images(copied).find_foreign(new), expected)
    assert not collect_images(features).compare(features).any()
    # Too few images to say it, or none that differ.
    assert not collect_images(features[:32]).find_foreign(new).any()
    assert collect_images(features[:33]).find_foreign(new).any()
    assert collect_images(np.ones((40, C))) is collect_images(np.zeros((3, C))) is None
    assert len(collect_images(draw(2_000, range(4), 0)).features) == 1_500


def test_images_of_new_sources_are_not_foreign_for_that():
    """Each source has a style of its own, which is most of what an image shows."""
    rng = np.random.default_rng(0)
    styles = rng.normal(size=(30, C))
    sources = np.repeat(np.arange(30), 20)
    features = (styles[sources] + 0.2 * rng.normal(size=(600, C)) + 1).astype(np.float32)
    known, new = features[:400], features[400:]
    plain = collect_images(known)
    by_source = collect_images(known, sources[:400])
    assert plain.find_foreign(new).mean() > 0.5
    assert by_source.find_foreign(new).mean() < 0.15
    assert by_source.find_foreign(-new).mean() > 0.9
    # A single source, or none that is known, changes nothing.
    for nothing in (np.zeros(400, int), np.full(400, -1)):
        np.testing.assert_array_equal(
            collect_images(known, nothing).similarities, plain.similarities
        )


def test_the_labeling_page_has_the_same_rule():
    features, none = draw(100, range(4), 0), np.zeros((100, 0))
    labels = np.where(np.arange(100) < 20, np.arange(100) % 4, -1)
    # Its descriptors, by which it shows similar photos, do not decide.
    frozen = FrozenFeatures(features, np.random.default_rng(0).normal(size=(100, C)), none)
    known = Known(
        pathlib.Path(),
        AUTOMATIC,
        DEFAULT_BACKBONES,
        sources={},
        pending=(),
        progress=(100, 100),
        files=tuple(f"{i:02}.png" for i in range(100)),
        classes=Classes(tuple("abcd")),
        relations=Relations(frozen),
        labels=labels,
    )
    images = fit(known).images
    for one, other in zip(images, collect_images(features), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_damaged_file_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "folder_images.npz"
    assert read_folder_images(path, C) is None
    images = collect_images(draw(100, range(4), 0))
    images.write(path)
    for one, other in zip(read_folder_images(path, C), images, strict=True):
        np.testing.assert_array_equal(one, other)
    content, buffer = path.read_bytes(), io.BytesIO()
    np.savez(buffer, features=images.features)
    odd = [
        images._replace(similarities=images.similarities[1:]),
        images._replace(features=images.features + np.nan),
        FolderImages(images.features[:0], images.similarities[:0]),
        images._replace(features=images.features.astype(str)),
    ]
    for damage in (b"", content[:-100], content[:300], buffer.getvalue(), *odd):
        if isinstance(damage, bytes):
            path.write_bytes(damage)
        else:
            damage.write(path)
        with pytest.raises(UserError, match=r"folder_images\.npz has no images .*: delete it\."):
            read_folder_images(path, C)
    images.write(path)
    with pytest.raises(UserError, match="not those of the network"):
        read_folder_images(path, C + 1)


def test_predict_says_that_a_folder_is_foreign(
    trained_run, classifier, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path, {"photos": 30}, (8, 8))
    monkeypatch.setattr(commands, "load", lambda *_, **__: classifier)
    before = classifier.compute_fingerprint()
    commands.predict(str(trained_run), ["photos"])
    assert "unlike" not in capsys.readouterr().err
    assert not read_table(tmp_path / "predictions.csv")[0]["foreign"]
    # Features of these networks are positive.
    away = -1 - np.random.default_rng(0).random((100, classifier.networks.num_features))
    monkeypatch.setattr(classifier, "folder_images", collect_images(away))
    assert classifier.compute_fingerprint() != before
    commands.predict(str(trained_run), ["photos"])
    said = capsys.readouterr().err
    assert "30 of 30 photos are unlike all photos of this run: is it the right folder, and" in said
    rows = read_table(tmp_path / "predictions.csv")
    assert {(row["unknown"], row["foreign"]) for row in rows} == {("", "True")}
    commands.predict(str(trained_run), ["photos/0.png"])
    output = capsys.readouterr()
    assert output.out.endswith(", unlike all photos of the run)\n")
    assert output.err.startswith("This photo is unlike all photos of this run: is it the right run")


@pytest.mark.parametrize(
    ("num_foreign", "num_read", "end"),
    [
        (0, 30, None),
        (0, 0, None),
        (2, 30, None),  # As many as of the run's own folder.
        (9, 100, None),
        (12, 100, "(column `foreign`)."),
        (1_500, 2_000, "is it the right folder, and the right run?"),
        (2, 2, "is it the right folder, and the right run?"),
        (1, 1, "is it the right run?"),
    ],
)
def test_more_foreign_images_than_by_mistake_are_worth_a_sentence(num_foreign, num_read, end):
    said = describe_foreign(num_foreign, num_read)
    assert said is None if end is None else said.endswith(end)
