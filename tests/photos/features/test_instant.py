"""Linear heads on frozen features, and runs that end with them."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import cls_jax
from cls_jax.config import create_defaults, with_values
from cls_jax.data.types import Selection
from cls_jax.errors import UserError
from cls_jax.extras import is_installed
from cls_jax.models.ensemble import Ensemble
from cls_jax.models.neighbor_head import NeighborHead
from cls_jax.models.weights.layout import from_torch
from cls_jax.photos import api
from cls_jax.photos.cli import commands, console
from cls_jax.photos.features.heads import fit_head
from cls_jax.photos.features.infer import hold_out_labels, infer
from cls_jax.photos.features.instant import find_known, read_instant, write_instant
from cls_jax.photos.features.neighbors import find_neighbors, fit_whitening
from cls_jax.photos.features.network import FrozenFeatures, open_network
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.folder.instant_config import is_instant, read_instant_config
from cls_jax.photos.inference import assessment
from cls_jax.photos.inference.assessment import evaluate_run
from cls_jax.photos.inference.export import export_run
from cls_jax.photos.inference.run import create_run
from cls_jax.photos.inference.suggest import suggest_files
from cls_jax.photos.report.outcome import describe_labelers
from cls_jax.photos.report.page import write_report
from cls_jax.photos.start import hold_out
from cls_jax.photos.start.frozen import find_native_size
from cls_jax.runs.folder import write_result
from cls_jax.training.prepare import restore_run
from tests.compiled import record_programs
from tests.conftest import one_of
from tests.outcomes import count_calls, count_reads, read_table
from tests.photos.helpers import write_colors, write_weights

K = 3
SIZE = 16


def _make_features(num_images, num_classes=K, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(num_images) % num_classes
    centers = np.random.default_rng(9).standard_normal((num_classes, 12))
    return 5 + centers[labels] + 0.7 * rng.standard_normal((num_images, 12)), labels


@pytest.mark.parametrize("num_classes", [2, K])
def test_inferred_labels_teach_a_better_head_than_one_label_per_class(num_classes):
    features, truth = _make_features(300, num_classes)
    test_features, test_truth = _make_features(300, num_classes, seed=1)
    labels = np.where(np.arange(300) < num_classes, truth, -1)
    center = features.mean(axis=0)
    features, test_features = features - center, test_features - center
    inferred = infer(Relations(_freeze(features)), labels, num_classes)
    np.testing.assert_array_equal(inferred.labels[:num_classes], truth[:num_classes])
    np.testing.assert_array_equal(inferred.weights[:num_classes], 1)
    instant = fit_head(features, inferred.labels, num_classes, 0.01, inferred.sample_weights)
    probe = fit_head(features[:num_classes], truth[:num_classes], num_classes, 0.01)
    accuracy, baseline = (np.mean(h.predict(test_features) == test_truth) for h in (instant, probe))
    assert accuracy > max(baseline, 0.85)


@pytest.mark.parametrize("most", [10_000, 40])
def test_new_images_get_the_classes_of_similar_known_ones(monkeypatch, most):
    monkeypatch.setattr("cls_jax.photos.features.relations._MAX_PLACED", most)
    monkeypatch.setattr("cls_jax.photos.features.instant._ROWS_AT_ONCE", 32)
    features, truth = _make_features(300)
    new, new_truth = _make_features(50, seed=1)
    p_BK = np.where(np.arange(K) == truth[:, None], 0.8, 0.2 / (K - 1))
    known = find_known(Relations(_freeze(features, np.tanh(features))), p_BK)
    assert len(known.known) == min(most, 300)
    both = np.concatenate([new, np.tanh(new)], axis=1)
    log_p_BK = known.compute_log_probabilities(both.astype(np.float32))
    assert np.mean(log_p_BK.argmax(axis=1) == new_truth) > 0.8
    # As by the head of the exported network.
    head = NeighborHead(*known.shape, K)
    on_device = head.apply({"params": known._asdict()}, both.astype(np.float32))
    np.testing.assert_allclose(log_p_BK, on_device, rtol=1e-6, atol=2e-6)
    # Equal to the sums in float64.
    components = both @ known.kernel.astype(float) + known.bias
    components /= np.linalg.norm(components, axis=1, keepdims=True)
    weights = np.exp(12 * components @ known.known.astype(float).T)
    expected = weights @ known.probabilities.astype(float) / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(log_p_BK), expected, rtol=1e-3)


def _freeze(last, stages=None):
    return FrozenFeatures(last, last, last[:, :0] if stages is None else stages)


def test_held_out_labels_are_predicted_without_them():
    features, truth = _make_features(300)
    features -= features.mean(axis=0)
    labels = np.where(np.arange(300) < 30, truth, -1)

    def measure():
        p_BK = hold_out_labels(Relations(_freeze(features)), labels, K).probabilities
        return np.mean((p_BK.argmax(axis=1) == labels)[:30])

    assert measure() > 0.8
    # Every fifth label is wrong: the others contradict it.
    order = np.argsort(labels[:30], kind="stable")
    labels[order[::5]] = (labels[order[::5]] + 1) % K
    assert measure() < 0.85
    few = np.where(np.arange(300) < K, truth, -1)
    names = infer(Relations(_freeze(features)), few, K).figures.keys()
    counts = {"near_copies", "near_copy_groups", "classes", "classes_with_one_label"}
    confidences = {"confidence", "confidence_deviation", "images"}
    assert names == {"weight_graph", "weight_stages", *counts, *confidences}
    # Copies of the labeled images say nothing more.
    copied, doubled = np.vstack([features, features[:K]]), np.append(few, truth[:K])
    assert infer(Relations(_freeze(copied)), doubled, K).figures.keys() == names


@pytest.mark.parametrize("is_deep", [False, True])
def test_the_depth_that_separates_the_labels_gets_more_weight(is_deep):
    rng = np.random.default_rng(3)
    good, truth = _make_features(300)
    good, noise = good - good.mean(axis=0), rng.standard_normal(good.shape)
    features = _freeze(noise, good) if is_deep else _freeze(good, noise)
    labels = np.where(np.arange(300) < 60, truth, -1)
    inferred = infer(Relations(features), labels, K)
    assert np.mean(inferred.labels == truth) > 0.9
    assert (inferred.figures["weight_stages"] > 40) == is_deep  # 33 before any label.
    assert (inferred.labeler_weights.graph_ratios[1] > 0.3) == is_deep  # 0.2.
    assert min(map(np.min, inferred.labeler_weights)) >= 0
    # Without a class with two labels, the prior decides.
    alone = infer(Relations(features), np.where(np.arange(300) < K, truth, -1), K)
    np.testing.assert_allclose(alone.labeler_weights.graph_ratios, [1, 0.2])


def test_whitening_keeps_a_direction_that_strong_ones_hide():
    """Ten features carry the class, a hundred copies of each of four others hide it."""
    rng, truth = np.random.default_rng(4), np.arange(400) % 2
    signal = 2 * truth[:, None] + rng.standard_normal((400, 10))
    noise = np.repeat(rng.standard_normal((400, 4)), 100, axis=1)
    hidden = np.concatenate([signal, noise + 0.1 * rng.standard_normal(noise.shape)], axis=1)
    # Equal to the full transformation by NumPy's singular values, up to signs.
    scaled = (hidden - hidden.mean(axis=0)) / hidden.std(axis=0)
    left, singular, _ = np.linalg.svd(scaled, full_matrices=False)
    values = singular[:256]
    expected = left[:, :256] * values / np.sqrt(values**2 / 400 + 10)
    white = fit_whitening(hidden)(hidden)
    np.testing.assert_allclose(np.abs(white[:, ::-1]), np.abs(expected), atol=2e-2)
    near = [truth[find_neighbors(x, 10)[0]] == truth[:, None] for x in (white, hidden)]
    assert near[0].mean() > near[1].mean() + 0.1
    # Constant features, and fewer images than features.
    alike = np.ones((5, 40), np.float32)
    assert np.isfinite(fit_whitening(alike)(alike)).all()


@pytest.mark.parametrize("num_columns", [1, 2, 5])
@pytest.mark.parametrize(
    "labels", [[0, 0, 0, 1], [0, 1, -1, -1], [0, 0, 2, 2], [1, 1, 1, 1], [0] * 7 + [1] * 7]
)
def test_any_labels_and_features_give_probabilities(labels, num_columns, monkeypatch):
    """Also with one label in one class, a class without labels, a single class, no other image."""
    features, _ = _make_features(14)
    few = features[:, :num_columns]
    assert np.isfinite(fit_whitening(few)(few)).all()
    relations = Relations(_freeze(features, few))
    labels_B = np.full(14, -1)
    labels_B[: len(labels)] = labels
    for most in (1_000, 3):
        for name in ("_MAX_HELD_OUT", "_MAX_PROBED"):
            monkeypatch.setattr(f"cls_jax.photos.features.infer.{name}", most)
        q_BK = hold_out_labels(relations, labels_B, K).probabilities
        np.testing.assert_allclose(q_BK.sum(axis=1), 1, rtol=1e-5)
        inferred = infer(relations, labels_B, K)
        np.testing.assert_allclose(inferred.probabilities.sum(axis=1), 1, rtol=1e-5)
        labeled = labels_B >= 0
        np.testing.assert_array_equal(inferred.labels[labeled], labels_B[labeled])
        assert describe_labelers({f"labels_{k}": v for k, v in inferred.figures.items()})
    alone = infer(relations, np.minimum(labels_B, 0), 1)
    np.testing.assert_array_equal(alone.weights, 1)


def test_of_many_classes_with_few_labels_each_the_labels_still_choose_the_weights():
    """Over 1,000 labels, where most classes have one label in the fifth that is held out."""
    features, truth = _make_features(1_260, 252)
    noise = np.random.default_rng(3).standard_normal(features.shape)
    features -= features.mean(axis=0)
    inferred = infer(Relations(FrozenFeatures(features, noise, noise[:, :0])), truth, 252)
    assert inferred.figures["weight_graph"] < 20  # 42 before any label.


@pytest.fixture(scope="module")
def train(one_block, tmp_path_factory):
    """A function that trains a tiny network with random weights on plain colors."""
    root = tmp_path_factory.mktemp("instant")
    write_colors(root / "images", labeled=2, unlabeled=8, test=4, size=SIZE)
    weights = write_weights(root / "model.safetensors", SIZE)

    tiny = {"model__depth": 10, "model__width": 2, "data__image_size": SIZE}
    tiny |= {"data__randaugment_ops": 0, "data__pipeline": "device", "optimizer__frozen_stages": 0}
    tiny |= {"mesh__network": 1, "mesh__data": 1}

    def train(name, init=weights, images=root / "images", with_report=False, **settings):
        settings |= {"model__init": str(init)} if init else {}
        with pytest.MonkeyPatch.context() as patch:
            if not with_report:  # It takes seconds.
                patch.setattr(api, "draw_report", lambda run: None)
            return cls_jax.train(images, root / name, **tiny, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "jax2onnx", None)  # Seconds for each export.
        yield train


@pytest.fixture(scope="module")
def run_and_counts(train):
    """An instant run with its report, and what was called and read meanwhile."""
    open_network.cache_clear()
    with count_calls(read_instant, from_torch) as counts, count_reads() as reads:
        run = train("run", instant=True, with_report=True)
    return run, counts, reads


@pytest.fixture(scope="module")
def run(run_and_counts):
    return run_and_counts[0]


def test_instant_run_is_a_run_like_any_other_with_one_network_that_sees_all_features(run, tmp_path):
    assert (run.result["step"], run.result["method"]) == (0, "instant")
    page = write_report(run.workdir).read_text()
    assert "instant classifier · finished" in page
    assert "Notes" not in page
    assert evaluate_run(run.workdir).accuracies["test/accuracy"] == 100
    export_run(run.workdir, tmp_path / "export")
    assert len(suggest_files(run.workdir, 2)) == 2
    assert run.result["test_accuracy"] == run.result["test_accuracy_instant"] == 100
    assert run.result["test_accuracy_probe"] is not None
    files = sorted((run.workdir.parent / "images" / "test").rglob("*.png"))
    assert (run.predict(files).label == [file.parent.name for file in files]).all()
    classifier = cls_jax.load(run)
    [kernel] = np.asarray(classifier.networks.variables["params"]["head"]["kernel"])
    assert (kernel != 0).any(axis=-1).all()
    assert len(classifier.folder_images.features) == 30  # New images are compared with these.
    rows = read_table(run.workdir / "pseudo_labels.csv")
    assert len(rows) == 24
    assert all(row["file"].startswith(f"unlabeled/{row['label']}") for row in rows)
    assert all(0 < float(row["weight"]) <= 1 for row in rows)


def test_near_copies_among_test_images_that_the_run_has_not_seen_are_looked_for(
    run, tmp_path, monkeypatch, capsys
):
    """Those of earlier versions, and test images that were added since."""
    place = "cls_jax.photos.inference.assessment.compare_with_training"
    monkeypatch.setattr(place, lambda run, paths: np.arange(len(paths)) < 2)
    earlier = shutil.copytree(run.workdir, tmp_path / "earlier")
    for images, says_it in ((run.result["test_images"], False), (None, True), (3, True)):
        write_result(earlier, run.result | {"test_images": images})
        commands.evaluate_workdir(earlier)
        said = capsys.readouterr().out
        assert ("\n2 of 12 images are near-copies of training images" in said) == says_it
        assert ("100.00%  without near-copies" in said) == says_it


def test_instant_classifier_of_features_on_disk_is_that_of_the_images(run, monkeypatch):
    opened = create_run(read_instant_config(run.workdir), run.workdir)
    rows, images = np.array([3, 0, 11]), opened.dataset.train.images
    expected = opened.classifier.networks.predict_with_features(Selection(images, rows))
    monkeypatch.setattr(Ensemble, "forward", None)  # The network is not needed again.
    for one, other in zip(opened.predict_with_features("train", rows), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)
    path, damaged = run.workdir / "instant.npz", run.workdir.parent / "damaged.npz"
    instant = read_instant(path)
    assert instant.stage_kernel.shape == (2 * 64, K)
    assert instant.neighbors.shape == (len(opened.dataset.train), 192)
    earlier = instant._replace(stage_kernel=None, neighbors=None)
    write_instant(damaged, earlier)  # As earlier versions did.
    assert read_instant(damaged).stage_kernel is read_instant(damaged).neighbors is None
    with pytest.raises(ValueError, match="do not fit"):
        instant._replace(stage_kernel=instant.stage_kernel[1:]).create_model()
    fewer = instant.neighbors._replace(bias=instant.neighbors.bias[1:])
    with pytest.raises(ValueError, match="do not fit"):
        instant._replace(neighbors=fewer).create_model()
    for content in (b"", path.read_bytes()[:-100], path.read_bytes()[:1000]):
        damaged.write_bytes(content)
        with pytest.raises(UserError, match=r"damaged\.npz is not an instant .*train it again\.$"):
            read_instant(damaged)


# Images 0 and 1 of each class are labeled, and the number is the source.
SOURCES = {"data__source_pattern": r"(\d)\.png$"}
STEPS = {"num_steps": 2, "batch_size": 2, "mu": 2, "method__inferred": 1.0} | SOURCES


@pytest.fixture(scope="module")
def trained(train):
    return train("trained", **STEPS)


def test_trained_networks_and_the_instant_classifier_are_both_at_hand(trained, train, tmp_path):
    run = create_run(trained.config, shutil.copytree(trained.workdir, tmp_path / "run"))
    assert (run.result["test_accuracy_instant"], run.result["predictor"]) == (100, "instant")
    kernels = np.asarray(cls_jax.load(run).networks.variables["params"]["head"]["kernel"])
    assert (kernels != 0).any(axis=-1).all()  # Fitted again. They began with half of the features.
    fingerprints = set()
    for predictor, step, num_networks in (("trained", 2, 2), ("instant", 0, 1)):
        write_result(run.workdir, run.result | {"predictor": predictor})
        classifier = cls_jax.load(run)
        assert (classifier.step, classifier.num_networks) == (step, num_networks)
        fingerprints.add(classifier.compute_fingerprint())
        assert evaluate_run(run.workdir).step == step
        page = write_report(run.workdir).read_text()
        assert ("The instant classifier classifies" in page) == (predictor == "instant")
        assert ("Network 1 classifies every test image" in page) == (predictor == "trained")
        assert ("instant classifier, which is used" in page) == (predictor == "instant")
    assert len(fingerprints) == 2
    assert cls_jax.load(run.workdir / "instant").num_networks == 1
    assert evaluate_run(run.workdir / "instant").accuracies["test/accuracy"] == 100
    assert cls_jax.load(run, trained=True).num_networks == 2
    # Each of the two has its own assessment.
    for name, step in (("unknown.json", 2), ("instant/unknown.json", 0)):
        assert json.loads((run.workdir / name).read_text())["step"] == step
    # Resumed, it has nothing to do and prints the same.
    assert train("trained", **STEPS).result == run.result


def test_labels_that_were_held_out_for_a_training_in_vain_come_back(
    run, train, tmp_path, monkeypatch
):
    """Random photos have compared both, and the instant classifier then learns them, too.

    Labels that are given meanwhile are for the next training.
    """
    images = shutil.copytree(run.workdir.parent / "images", tmp_path / "images")
    new = images / "labeled" / "blue" / "a.png"
    alone = train("all_labels", images=images, instant=True, **SOURCES)

    def choose(run):
        Image.new("RGB", (SIZE, SIZE), "blue").save(new)
        return {"predictor": "instant", "predictor_images": "random"}

    monkeypatch.setattr(assessment, "choose_predictor", choose)
    monkeypatch.setattr(hold_out, "_group_labeled", lambda config, dataset: None)
    settings = STEPS | {"images": images, "data__validation": 0.5, "with_report": True}
    run = train("in_vain", **settings)
    new.unlink()
    assert len(run.dataset.validation) == 3
    assert run.result["num_labels"] == 6
    again = run.predictor
    assert again.workdir == run.workdir / "instant"
    jax.tree.map(
        np.testing.assert_array_equal,
        *(read_instant(one.workdir / "instant.npz").head for one in (again, alone)),
    )
    of_labels = [
        {k: v for k, v in one.result.items() if k.startswith("labels_")} for one in (run, alone)
    ]
    assert of_labels[0] == of_labels[1]
    assert train("in_vain", **settings).result == run.result


def test_other_test_labels_change_no_part_of_a_run(trained, train, tmp_path):
    """Neither its networks nor the choice of predictor, only its figures."""
    images, other = trained.workdir.parent / "images", tmp_path / "images"
    shutil.copytree(images, other)
    for name, next_name in (("red", "green"), ("green", "blue"), ("blue", "red")):
        shutil.rmtree(other / "test" / name)
        shutil.copytree(images / "test" / next_name, other / "test" / name)
    runs = trained, train("permuted", images=other, **STEPS)
    assert runs[1].result["test_accuracy_instant"] == 0
    results = [
        {k: v for k, v in run.result.items() if not k.startswith(("test_", "per_class", "train_s"))}
        for run in runs
    ]
    assert results[0] == results[1]
    for name in ("pseudo_labels.csv", "unknown.json"):
        first, second = ((run.workdir / name).read_text() for run in runs)
        assert first == second
    assert not list(runs[1].workdir.glob("calibration.json"))
    jax.tree.map(np.testing.assert_array_equal, *(restore_run(run.workdir)[1] for run in runs))
    heads = (read_instant(run.workdir / "instant/instant.npz").head for run in runs)
    jax.tree.map(np.testing.assert_array_equal, *heads)


def test_an_instant_run_with_its_report_is_read_once_and_opens_its_network_once(run_and_counts):
    run, counts, reads = run_and_counts
    assert (run.workdir / "report.html").exists()
    assert counts == {"read_instant": 1, "from_torch": 1}
    assert (reads["config.json"], reads["result.json"]) == (0, 2)


@pytest.mark.parametrize("verb", one_of("predict", "evaluate", "report", "export"))
def test_a_command_reads_a_run_once(verb, run, trained, tmp_path):
    """A training chooses its instant classifier, which is a run of its own in the same folder."""
    for opened, num_runs in ((run, 1), (trained, 2)):
        words = {
            "predict": [*map(str, (run.workdir.parent / "images/test").rglob("red0.png"))],
            "export": [str(tmp_path / opened.workdir.name)],
        }.get(verb, [])
        arguments = console.parse_arguments([verb, str(opened.workdir), *words])
        with count_calls(read_instant) as counts, count_reads() as reads:
            console.run(arguments)
        assert counts["read_instant"] == 1
        assert reads["config.json"] == num_runs
        assert reads["result.json"] <= 2


def test_a_result_says_what_is_known_of_sources(train, run, trained):
    found = train("sources", instant=True, **SOURCES).result
    assert found["labels_sources"] == 2
    assert found["labels_accuracy_new_sources"] is None  # Too early.
    assert not {name for name in run.result if "source" in name}
    assert found.keys() - run.result.keys() == {
        "labels_sources",
        "labels_classes_with_one_source",
        "labels_accuracy_new_sources",
        "labels_accuracy_new_sources_low",
        "labels_accuracy_new_sources_high",
    }
    assert trained.result["labels_sources"] == 2
    with pytest.raises(UserError, match="fits no name"):
        train("none", instant=True, data__source_pattern="(x)")


def test_near_copies_validate_together_and_a_run_keeps_its_validation_images(train, monkeypatch):
    sizes = []

    def group(groups):
        def find(relations, labels_B):
            sizes.append(len(labels_B))
            return np.array(groups)

        monkeypatch.setattr(hold_out, "Relations", type("Found", (Relations,), {"group": find}))

    group([0, 0, 1, 2, 3, 3])  # Two images each of blue, green and red.
    run = train("validated", instant=True, data__validation=0.5)
    held = run.dataset.validation.files
    assert len(held) == 1
    assert "green" in held[0]
    assert sizes == [6]  # The labeled ones.
    group([0, 1, 2, 2, 3, 4])  # On another machine, features differ.
    for workdir in (run.workdir, run.workdir / "new"):
        dataset = create_run(run.config, workdir).dataset
        assert (dataset.validation.files == held) == (workdir == run.workdir)
    description = run.workdir / "dataset.json"
    stored = json.loads(description.read_text())
    for damaged in ([-1], [1, 0], ["a"], [10**6]):
        description.write_text(json.dumps(stored | {"held_out": damaged}))
        with pytest.raises(UserError, match="does not describe the run's dataset"):
            _ = create_run(run.config, run.workdir).dataset


def test_instant_run_starts_from_the_networks_of_another_run(train, run):
    first = train("from a run", init=run.workdir, instant=True)
    assert first.result["test_accuracy"] == 100
    kernels = [read_instant(r.workdir / "instant.npz").head.kernel for r in (run, first)]
    np.testing.assert_allclose(*kernels, atol=1e-3)


@pytest.mark.slow
def test_a_run_starts_from_the_network_of_an_instant_classifier(train, run):
    begun = train("from an instant one", init=None, start_from=run, **STEPS)
    assert begun.config.model.init == str(run.workdir)
    assert begun.result["step"] == STEPS["num_steps"]


def test_a_folder_with_another_run_is_refused(train, run, trained):
    for folder, settings, reason in (
        (trained, {}, "already has a trained run"),
        (run, {"seed": 1}, r"with other settings \(seed"),
    ):
        with pytest.raises(UserError, match=f"{reason}.*choose another"):
            train(folder.workdir.name, instant=True, **settings)


def test_configurations_of_other_programs_are_no_instant_classifiers(run, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit", "hidden_size": 192}')
    assert [is_instant(folder) for folder in (run.workdir, tmp_path)] == [True, False]
    with pytest.raises(UserError, match="This version of cls_jax cannot read"):
        cls_jax.load(tmp_path)
    with pytest.raises(UserError, match="This version of cls_jax cannot read"):
        find_native_size(with_values(create_defaults(20, "cls"), {"model.init": str(tmp_path)}))


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("pretrained"), reason="needs the pretrained networks")
def test_few_programs_are_compiled_for_an_accelerator(tmp_path, monkeypatch):
    """By default, with the report."""
    images = write_colors(tmp_path / "images", labeled=4, unlabeled=4, test=4, size=40)
    programs = record_programs(monkeypatch)
    cls_jax.train(images, tmp_path / "run", instant=True)
    assert len(programs) <= 7, programs
    assert not any(program.is_tuned for program in programs), programs
    assert {"jit__forward", "jit__search_block", "jit_compute"} <= {p.name for p in programs}
    assert all(program.runs for program in programs if program.name == "jit_compute")
