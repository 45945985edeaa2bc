"""A trained run as a function: of images, of files, and as a table with a row for each file."""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import types
import unittest.mock

import jax
import numpy as np
import pytest

import cls_jax
from cls_jax.data.resize import CENTER_CROP, ImageError
from cls_jax.errors import StoppedError, UserError
from cls_jax.models.ensemble import Ensemble
from cls_jax.photos.cli import commands
from cls_jax.photos.features.graph import compute_weight
from cls_jax.photos.folder.sort import set_unsure_apart, sort_files
from cls_jax.photos.inference.assessment import evaluate_folder
from cls_jax.photos.inference.calibration import Calibration, apply_calibration
from cls_jax.photos.inference.classifier import Classifier, describe_top
from cls_jax.photos.inference.networks import ImageFormat
from cls_jax.photos.inference.predict_files import predict_files, print_files
from cls_jax.photos.inference.run import create_run, load, open_run
from cls_jax.photos.inference.tables import (
    ALL_COLUMNS,
    PREDICTION_COLUMNS,
    SHORT_COLUMNS,
    WITHOUT_ERRORS,
    check_path,
    is_prediction_table,
    write_table,
)
from cls_jax.photos.inference.unknown import FolderImages
from cls_jax.runs.folder import read_result
from tests.conftest import create_tiny_config
from tests.outcomes import read_table
from tests.photos.helpers import write_image


@pytest.fixture(params=["csv", "parquet"])
def ending(request):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return request.param


def read_rows(path):
    """The rows of a table of either kind, with the types that it has."""
    if path.suffix == ".csv":
        return read_table(path)
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    assert {str(field.type) for field in table.schema} == {"string", "float", "bool"}
    return table.to_pylist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dataset):
    """The test set as files."""
    folder = tmp_path_factory.mktemp("images")
    for i, (image, label) in enumerate(zip(dataset.test.images, dataset.test.labels, strict=True)):
        write_image(folder / str(label) / f"{i:03d}.png", image[..., 0])
    return folder


def test_an_image_counts_the_same_alone_and_among_others(classifier, dataset, trained_run):
    images = dataset.test.images
    p_NBK, features = classifier.networks.predict_with_features(images)
    for rows in ([3], [5, 3, 9, 3, 1], []):  # Repeated images may be computed once.
        alone, _ = classifier.networks.predict_with_features(images[rows])
        np.testing.assert_allclose(alone, p_NBK[:, rows], rtol=1e-5)
        run = create_run(create_tiny_config(), trained_run)
        for _ in range(2):
            found = run.predict_with_features("test", np.array(rows, np.int64))
            np.testing.assert_allclose(found[0], p_NBK[:, rows], atol=1e-6)
            np.testing.assert_allclose(found[1], features[rows], atol=1e-6)
    for images in (np.zeros((1, 9, 8, 1), np.uint8), np.zeros((1, 8, 8, 1), np.float32)):
        with pytest.raises(ValueError, match="the classifier expects uint8"):
            classifier.networks.predict_with_features(images)


def test_the_fingerprint_is_the_same_in_every_process(classifier, monkeypatch):
    fingerprint = classifier.compute_fingerprint()
    # Python prints a set of strings in an order of the process.
    shared = frozenset({"stem", "stage1_block1", "stage2_block1"})
    ensemble = dataclasses.replace(classifier.networks.ensemble, shared=shared)
    monkeypatch.setattr(classifier.networks, "ensemble", ensemble)
    assert classifier.compute_fingerprint() == fingerprint


@pytest.fixture
def noise(tmp_path):
    """Paths of 20 images."""
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    return [
        str(write_image(tmp_path / "noise" / f"{i:02d}.png", pixels))
        for i, pixels in enumerate(images)
    ]


def test_command_agrees_with_evaluation(trained_run, folder, tmp_path, capsys):
    output = tmp_path / "new" / "predictions.csv"
    commands.predict(str(trained_run), [str(folder)], str(output))
    assert "450 images in" in capsys.readouterr().out
    rows, result = read_table(output), read_result(trained_run)
    for column in ("label", "network_1", "network_2"):
        right = [row[column] == pathlib.Path(row["file"]).parent.name for row in rows]
        name = f"test_accuracy_{column.replace('label', 'ensemble')}"
        assert 100 * np.mean(right) == pytest.approx(result[name])


def test_another_folder_is_evaluated(trained_run, folder, tmp_path, capsys):
    commands.evaluate(str(trained_run), str(folder))
    output = capsys.readouterr().out
    assert f"Accuracy on 450 labeled images in {folder}:" in output
    assert f"{read_result(trained_run)['test_accuracy']:6.2f}" in output
    # Beside training images, the test images of their classes count.
    for name in "01":
        write_image(tmp_path / "train" / name / "a.png", np.zeros((8, 8)))
    shutil.copytree(folder, tmp_path / "test")
    (tmp_path / "test" / "0" / "broken.png").write_text("no image")
    found = evaluate_folder(trained_run, str(tmp_path))
    assert found.num_images == sum(len(list((folder / name).iterdir())) for name in ("0", "1"))
    assert found.num_unreadable == 1
    shutil.rmtree(tmp_path / "test")
    for new, sentence in (
        ("zero", "does not have the class 'zero': rename or remove it in"),
        ("one", "the classes 'one', 'zero': rename or remove them in"),
    ):
        shutil.copytree(tmp_path / "train" / "0", tmp_path / "train" / new)
        with pytest.raises(UserError, match=sentence):
            evaluate_folder(trained_run, str(tmp_path))


def test_python_predicts_arrays_and_paths_alike(trained_run, folder, dataset):
    classifier = cls_jax.load(trained_run)
    files = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    by_path, by_array = classifier.predict(files), classifier.predict(dataset.test.images)
    for one, other in zip(by_path, by_array, strict=True):
        np.testing.assert_array_equal(one, other)
    assert isinstance(by_path, cls_jax.Prediction)
    assert by_path.label.shape == by_path.agree.shape == (450,)
    assert by_path.network_probabilities.shape == (2, 450, 10)
    least = by_path.class_names[by_path.probabilities.argmin(axis=1)]
    np.testing.assert_array_equal(by_path.complementary_label, least)
    np.testing.assert_array_equal(by_path.confidence, by_path.probabilities.max(axis=1))
    np.testing.assert_allclose(by_path.weight, compute_weight(by_path.probabilities), atol=1e-6)
    assert classifier.predict([]).probabilities.shape == (0, 10)
    with pytest.raises(ImageError, match=r"nothing\.png cannot be read: No such file"):
        classifier.predict([files[0], folder / "nothing.png"])


def test_a_run_predicts_as_it_was_opened(trained_run, dataset):
    run, images = open_run(trained_run, eval_batch_size=9, step=4), dataset.test.images
    found, newest = run.predict(images).probabilities, load(trained_run)
    assert 50 * run.classifier.networks.batch_size == newest.networks.batch_size
    expected = load(trained_run, step=4).predict(images).probabilities
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.abs(found - newest.predict(images).probabilities).max() > 1e-3


def test_odd_names_and_damaged_files_are_rows(classifier, noise, tmp_path, ending):
    names = ["broken.jpg", 'a,b".png', "zwei\nZeilen.png", "gone.png", "Größe 猫.png", " '.png"]
    files = [str(tmp_path / name) for name in (*names, os.fsdecode(b"\xff.png"))]
    readable = [files[i] for i in (1, 2, 4, 5)]
    for file, image in zip(readable, noise, strict=False):
        shutil.copy(image, file)
    (tmp_path / "broken.jpg").write_text("hello")
    output = tmp_path / f"predictions.{ending}"
    named = [(file, label) for (file, label, _), _ in predict_files(classifier, files, output)]
    rows = read_rows(output)
    assert named == [(files[i], row["label"] or None) for i, row in enumerate(rows)]
    assert [file for file, label in named if label] == readable
    assert [row["file"] for row in rows] == [*files[:6], f"{tmp_path}/\\udcff.png"]
    assert list(rows[0]) == list(PREDICTION_COLUMNS)
    assert [row["error"] for row in rows if row["error"]] == [
        "not an image of a known format",
        *2 * ["No such file or directory"],
    ]
    confidences = [float(row["confidence"]) for row in rows if row["label"]]
    np.testing.assert_allclose(confidences, classifier.predict(readable).confidence, atol=1e-5)
    assert not any(row["calibrated_confidence"] or row["abstain"] for row in rows)
    top = describe_top(np.asarray([0.1, 0.7, 0.2]), ["a", "b;c:d", "e\\f"])
    assert top == "b\\;c:d:0.7000;e\\\\f:0.2000;a:0.1000"


def test_a_table_of_one_network_has_what_people_read(
    classifier, noise, tmp_path, monkeypatch, ending
):
    monkeypatch.setattr(classifier, "num_networks", 1)
    output = tmp_path / f"predictions.{ending}"
    p_BK = classifier.predict(noise).probabilities
    calibration = Calibration(classifier.step, temperature=3, uniform_share=0.2, num_images=100)
    for given, expected_BK in ((None, p_BK), (calibration, apply_calibration(p_BK, 3, 0.2))):
        monkeypatch.setattr(classifier, "calibration", given)
        confidences = [found[2] for found, _ in predict_files(classifier, noise, output)]
        rows = read_rows(output)
        assert list(rows[0]) == list(WITHOUT_ERRORS)
        for column, rank in (("", -1), ("second_", -2)):
            found = [float(row[f"{column}confidence"]) for row in rows]
            np.testing.assert_allclose(found, np.sort(expected_BK)[:, rank], atol=1e-5)
            names = [classifier.class_names[k] for k in np.argsort(p_BK)[:, rank]]
            assert [row[f"{column}label"] for row in rows] == names
        np.testing.assert_allclose(confidences, expected_BK.max(axis=1), atol=1e-5)
    # Each kind of table may replace the others.
    predict_files(classifier, [*noise, "gone.png"], output)
    rows = read_rows(output)
    assert list(rows[0]) == list(SHORT_COLUMNS)
    assert [row["file"] for row in rows if row["error"]] == ["gone.png"]
    assert not any(value for name, value in rows[-1].items() if name not in ("file", "error"))
    predict_files(classifier, noise, output, all_columns=True)
    row = read_rows(output)[0]
    assert list(row) == list(ALL_COLUMNS)
    np.testing.assert_allclose(float(row["confidence"]), p_BK[0].max(), atol=1e-5)
    np.testing.assert_allclose(float(row["calibrated_confidence"]), expected_BK[0].max(), atol=1e-5)
    predict_files(classifier, noise, output)
    if ending == "csv":  # Excel reads other names than ASCII only after this mark.
        assert output.read_bytes().startswith(b"\xef\xbb\xbffile,label,confidence,unknown,foreign,")


def test_interrupted_prediction_goes_on_where_it_stopped(
    classifier, noise, tmp_path, monkeypatch, capsys
):
    """Meanwhile no other prediction may write the same table."""
    monkeypatch.setattr(classifier.networks, "batch_size", 8)
    predict, sizes = classifier.predict, []

    def stop_at_the_third(images):
        sizes.append(len(images))
        if len(sizes) == 2:
            with pytest.raises(UserError, match=r"is writing .*choose another --output"):
                predict_files(classifier, noise[:2], tmp_path / "p.csv")
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return predict(images)

    monkeypatch.setattr(classifier, "predict", stop_at_the_third)
    with pytest.raises(StoppedError, match="with 16 of 20 images predicted: rerun the same"):
        predict_files(classifier, noise, tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    (journal,) = tmp_path.glob("p.csv.*")
    with journal.open("a") as file:
        file.write('{"file": "cut sho')
    # One is added, one changed and one removed meanwhile, and another run's rows are there.
    added = shutil.copy(noise[19], f"{tmp_path}/noise/0 new.png")
    shutil.copy(noise[18], noise[1])
    now = [added, *noise[:5], *noise[6:]]
    (tmp_path / f"p.csv.{'0' * 12}.partial").write_text("{}\n")
    capsys.readouterr()
    predict_files(classifier, now, tmp_path / "p.csv")
    assert "14 of 20 images were predicted before: continuing" in capsys.readouterr().err
    assert sizes == [8, 8, 4, 6]
    predict_files(classifier, now, tmp_path / "expected.csv")
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"noise", "p.csv", "expected.csv"}


def test_only_tables_of_predictions_are_overwritten(classifier, noise, tmp_path, ending):
    for name in ("p.txt", "p", "noise"):
        with pytest.raises(UserError, match="choose another --output"):
            check_path(tmp_path / name, is_prediction_table)
    with pytest.raises(UserError, match="choose another --output"):
        write_table(tmp_path / "noise/00.png/p.csv", PREDICTION_COLUMNS, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match=r"pip install '\.\[parquet\]', or choose"):
            check_path(tmp_path / "p.parquet", is_prediction_table)
    output = tmp_path / f"labels.{ending}"
    output.write_text("file,label\na.png,cat\n")
    with pytest.raises(UserError, match="or add --overwrite"):
        check_path(output, is_prediction_table)
    check_path(output, is_prediction_table, overwrite=True)
    predict_files(classifier, noise[:3], output)
    check_path(output, is_prediction_table)
    for columns, is_earlier in (
        ([name for name in WITHOUT_ERRORS if name != "foreign"], True),  # Of earlier versions.
        (["file", "tags", "cat", "dog", "unknown", "error"], True),
        (["file", "tags", "cat", "dog", "foreign", "error"], True),
        (["file", "tags", "cat", "dog", "error"], False),
        (["file", "label", "confidence"], False),
    ):
        assert is_prediction_table(columns) == is_earlier, columns
    content = output.read_bytes()

    def stop_after_one():
        yield {"file": "a"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_table(output, PREDICTION_COLUMNS, stop_after_one())
    assert output.read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"noise", output.name}


def test_single_files_are_printed(trained_run, classifier, noise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.jpg").write_text("hello")
    files = [noise[3], "broken.jpg"]
    commands.predict(str(trained_run), files)
    labels, confidences, *_ = classifier.predict(files[:1])
    assert capsys.readouterr().out.splitlines() == [
        f"{noise[3]}: {labels[0]} ({confidences[0]:.2f})",
        "broken.jpg: not an image of a known format",
    ]
    for images, count in ((files, 2), ([str(tmp_path)], 21)):  # With --json, also folders are.
        commands.predict(str(trained_run), images, as_json=True)
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(rows) == count
        assert all(list(row) == list(PREDICTION_COLUMNS) for row in rows)
    assert not (tmp_path / "predictions.csv").exists()
    # A list of files is like a folder.
    names = [noise[3], "no such.png", noise[0]]
    pathlib.Path("lists").mkdir()
    pathlib.Path("lists/some.txt").write_text("\ufeff" + "\r\n".join([*names, ""]))
    pathlib.Path("lists/beside.txt").write_text("../noise/01.png\n")
    commands.predict(str(trained_run), ["lists/some.txt", "lists/beside.txt"])
    rows = read_table(pathlib.Path("predictions.csv"))
    assert [row["file"] for row in rows] == [*names, "lists/../noise/01.png"]
    assert [bool(row["label"]) for row in rows] == [True, False, True, True]
    pathlib.Path("lists/some.txt").write_text("\n")
    with pytest.raises(UserError, match="names no file: write the path of an image into each"):
        commands.predict(str(trained_run), ["lists/some.txt"])
    for options, message in (
        ({}, "None of these images could be read"),
        ({"output": "p.csv"}, "None of these images could be read"),
        ({"output": "p.csv", "as_json": True}, "Remove --output"),
        ({"has_tags": True}, r"have one class each: remove --tags\.$"),
    ):
        with pytest.raises(UserError, match=message):
            commands.predict(str(trained_run), ["broken.jpg"], **options)


def test_sorted_files(trained_run, classifier, noise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {pathlib.Path(path).name: pathlib.Path(path).read_bytes() for path in noise}
    (tmp_path / "noise" / "broken.png").write_text("hello")
    commands.predict(str(trained_run), ["noise"], sort_into="new/sorted")
    labels, confidences, *_ = classifier.predict(noise)
    root = tmp_path / "new" / "sorted"
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    assert {*found} == {f"{label}/{name}" for name, label in zip(contents, labels, strict=True)}
    for paths in (found.values(), map(pathlib.Path, noise)):
        assert {path.name: path.read_bytes() for path in paths} == contents
    for options, remedy in (  # Before it predicts.
        ({"sort_into": "new/sorted"}, "choose a new folder for --sort-into"),
        ({"unsure_below": 0.5}, "add --sort-into DIR"),
        ({"unsure_below": 60, "sort_into": "other"}, "from 0 to 1, not 60"),
    ):
        with pytest.raises(UserError, match=remedy):
            commands.predict("no run", ["noise"], **options)
    limit = float(np.median(confidences))
    commands.predict(str(trained_run), ["noise"], sort_into="apart", unsure_below=limit)
    unsure = {name for name, p in zip(contents, confidences, strict=True) if p < limit}
    assert {path.name for path in (tmp_path / "apart" / "unsure").iterdir()} == unsure
    shutil.rmtree("apart")
    with pytest.raises(UserError, match="a class is called Unsure: rename the class"):
        set_unsure_apart([("a.png", "Unsure", None), ("b.png", "cat", 0.4)], 0.5)
    # Files of the same name, classes that are no names of folders, and a file that is missing.
    files = [tmp_path / name for name in ("1/a.png", "1/a-2.png", "2/a.png", "3/A.png")]
    for file, image in zip(files, noise, strict=False):
        file.parent.mkdir(exist_ok=True)
        shutil.copy(image, file)
    odd = ["../../x", "..", ".", "a/b", "c\\d", "e:", "f. ", "50%", "\x07", "猫"]
    rows = [*((str(file), "x") for file in files), *((noise[0], label) for label in odd)]
    sort_files([*rows, (noise[1], None)], tmp_path / "odd")
    found = [path for path in (tmp_path / "odd").rglob("*") if path.is_file()]
    assert len(found) == len(rows)
    assert {path.parent.parent for path in found} == {tmp_path / "odd"}
    same = {path.read_bytes() for path in found if path.parent.name == "x"}
    assert same == {file.read_bytes() for file in files}
    with pytest.raises(UserError, match="choose another folder for --sort-into"):
        sort_files([rows[0], (str(tmp_path / "gone.png"), "x")], tmp_path / "other")
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {*"123", "noise", "new", "odd"}


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
    photos = FolderImages(np.eye(5, dtype=np.float16)[:2], np.full(99, 0.9, np.float32))
    return Classifier(
        tmp_path,
        networks,
        names,
        0,
        folder_images=photos,
        thresholds=np.float32(thresholds),
    )


@pytest.fixture
def photos(tmp_path):
    """Paths of as many photos as there are probabilities."""
    return [str(write_image(tmp_path / f"{i}.png", np.zeros((4, 4, 3)))) for i in range(3)]


def test_a_prediction_has_the_tags_that_reach_their_thresholds(tmp_path):
    found = create_tagger(tmp_path).predict(np.zeros((3, 4, 4, 3), np.uint8))
    assert found.tags == ({"boots", "hat"}, frozenset(), {"boots", "coat"})
    np.testing.assert_array_equal(found.probabilities, P_BT)
    assert found.class_names.tolist() == ["boots", "coat", "hat"]
    np.testing.assert_allclose(found.thresholds, [0.5, 0.5, 0.7])
    assert found.foreign.tolist() == [False, False, True]


def test_a_table_has_a_column_for_each_tag_whatever_its_name(photos, tmp_path):
    tagger = create_tagger(tmp_path, names=("error", "file", "tag file"))
    output = tmp_path / "p.csv"
    for _ in range(2):  # A table of tags may be replaced.
        found = predict_files(tagger, [*photos, "gone.png"], output)
    assert [label for (_, label, _), _ in found] == ["error;tag file", "", "error;file", None]
    rows = read_table(output)
    columns = ["file", "tags", "tag error", "tag tag file", "tag file", "foreign", "error"]
    assert list(rows[0]) == columns
    assert [float(rows[0][name]) for name in columns[2:5]] == pytest.approx([0.9, 0.4, 0.8])
    assert [row["tags"] for row in rows] == ["error;tag file", "", "error;file", ""]
    assert rows[3]["tag file"] == ""
    assert "no such file" in rows[3]["error"].lower()


def test_tags_of_any_name_are_kept_when_a_prediction_is_interrupted(photos, tmp_path, monkeypatch):
    tagger = create_tagger(tmp_path, names=("confidence", "key", "row"))
    monkeypatch.setattr(tagger.networks, "batch_size", 1)
    first = tagger.predict(np.zeros((1, 4, 4, 3), np.uint8))
    with monkeypatch.context() as patch:
        predict = unittest.mock.Mock(side_effect=[first, KeyboardInterrupt])
        patch.setattr(tagger, "predict", predict)
        with pytest.raises(StoppedError, match="with 1 of 3 images predicted"):
            predict_files(tagger, photos, tmp_path / "p.csv")
    found = predict_files(tagger, photos, tmp_path / "p.csv")
    assert [label[1:] for label, _ in found] == [("confidence;row", None)] * 3


def test_a_line_says_the_tags_or_the_likeliest_one(photos, tmp_path, capsys):
    tagger = create_tagger(tmp_path)
    print_files(tagger, photos, as_json=False, all_columns=False)
    assert [line.split("/")[-1] for line in capsys.readouterr().out.splitlines()] == [
        "0.png: boots 0.90, hat 0.80",
        "1.png: no tag (hat 0.30)",
        "2.png: boots 0.90, coat 0.90 (unlike all photos of the run)",
    ]
    print_files(tagger, photos[:1], as_json=True, all_columns=False)
    row = json.loads(capsys.readouterr().out)
    assert (row["tags"], row["error"]) == ("boots;hat", None)


def test_thresholds_decide_whether_an_interrupted_prediction_continues(tmp_path):
    one, other = (create_tagger(tmp_path, thresholds=(p, 0.5, 0.5)) for p in (0.5, 0.6))
    assert one.compute_fingerprint() != other.compute_fingerprint()
