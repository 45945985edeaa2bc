"""Predictions of tags."""

import json
import types

import jax
import numpy as np
import pytest

from cls_jax.data.resize import CENTER_CROP
from cls_jax.models.ensemble import Ensemble
from cls_jax.photos.inference.classifier import Classifier
from cls_jax.photos.inference.networks import ImageFormat
from cls_jax.photos.inference.predict_files import predict_files, print_files
from cls_jax.photos.inference.unknown import UnknownScore
from tests.outcomes import read_table
from tests.photos.helpers import write_image

P_BT = np.float32([[0.9, 0.4, 0.8], [0.2, 0.1, 0.3], [0.9, 0.9, 0.6]])


def create_tagger(tmp_path, thresholds=(0.5, 0.5, 0.7), names=("boots", "coat", "hat")):
    """A classifier that gives each batch of images these probabilities."""
    networks = types.SimpleNamespace(
        name="none",
        ensemble=Ensemble(None),
        format=ImageFormat((4, 4, 3), CENTER_CROP, None),
        variables={},
        num_networks=1,
        batch_size=8,
        activation=jax.nn.sigmoid,
        predict_with_features=lambda images: (P_BT[None, : len(images)], np.eye(3, 5)),
    )
    score = UnknownScore(0, (1.0, 0, 0, 0, 0), (0.0, 1.0))
    return Classifier(
        tmp_path,
        networks,
        names,
        0,
        unknown=score,
        thresholds=np.float32(thresholds),
    )


def test_a_prediction_has_the_tags_that_reach_their_thresholds(tmp_path):
    found = create_tagger(tmp_path).predict(np.zeros((3, 4, 4, 3), np.uint8))
    assert found.tags == ({"boots", "hat"}, frozenset(), {"boots", "coat"})
    np.testing.assert_array_equal(found.probabilities, P_BT)
    assert found.class_names.tolist() == ["boots", "coat", "hat"]
    np.testing.assert_allclose(found.thresholds, [0.5, 0.5, 0.7])
    np.testing.assert_allclose(found.unknown, [1, 0, 0])


def test_a_table_has_a_column_for_each_tag_whatever_its_name(tmp_path):
    names = ("error", "file", "tag file")
    tagger = create_tagger(tmp_path, names=names)
    files = [str(write_image(tmp_path / f"{i}.png", np.zeros((4, 4, 3)))) for i in range(3)]
    output = tmp_path / "p.csv"
    for _ in range(2):  # A table of tags may be replaced.
        found, *_ = predict_files(tagger, [*files, "gone.png"], output)
    assert [label for (_, label, _), _ in found] == ["error;tag file", "", "error;file", None]
    rows = read_table(output)
    columns = ["file", "tags", "tag error", "tag tag file", "tag file", "unknown", "error"]
    assert list(rows[0]) == columns
    assert rows[0]["tags"] == "error;tag file"
    assert [float(rows[0][name]) for name in columns[2:5]] == pytest.approx([0.9, 0.4, 0.8])
    assert [row["tags"] for row in rows] == ["error;tag file", "", "error;file", ""]
    assert rows[3]["tag file"] == ""
    assert "no such file" in rows[3]["error"].lower()


def test_a_line_says_the_tags_or_the_likeliest_one(tmp_path, capsys):
    tagger = create_tagger(tmp_path)
    files = [str(write_image(tmp_path / f"{i}.png", np.zeros((4, 4, 3)))) for i in range(3)]
    print_files(tagger, files, as_json=False, all_columns=False)
    lines = [line.split("/")[-1] for line in capsys.readouterr().out.splitlines()]
    expected = "boots 0.90, hat 0.80", "no tag (hat 0.30)", "boots 0.90, coat 0.90"
    assert lines == [f"{i}.png: {text}" for i, text in enumerate(expected)]
    print_files(tagger, files[:1], as_json=True, all_columns=False)
    row = json.loads(capsys.readouterr().out)
    assert (row["tags"], row["error"]) == ("boots;hat", None)


def test_thresholds_decide_whether_an_interrupted_prediction_continues(tmp_path):
    one, other = (create_tagger(tmp_path, thresholds=(p, 0.5, 0.5)) for p in (0.5, 0.6))
    assert one.compute_fingerprint() != other.compute_fingerprint()
