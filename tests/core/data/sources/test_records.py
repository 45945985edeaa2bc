"""ImageNet as TFDS prepares it in ArrayRecord, on a small dataset of the same features."""

import concurrent.futures

import numpy as np
import pytest

from cls_jax.data.datasets import load_dataset
from cls_jax.data.sources import records
from cls_jax.errors import UserError
from cls_jax.runs.metrics import read_metrics
from cls_jax.training.loop import run_training
from tests.conftest import load_config

NAMES = ("cat", "dog", "owl")


def prepare(folder, name, train_rows, file_format="array_record", **options):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(names=NAMES),
        "file_name": tfds.features.Text(),
    }
    rng = np.random.default_rng(1)
    test_rows = [create_row(rng, f"va_{i}.JPEG", i % 3) for i in range(12)]
    tfds.dataset_builders.store_as_tfds_dataset(
        **{"name": name, "data_dir": folder, "file_format": file_format, **options},
        features=tfds.features.FeaturesDict(features),
        split_datasets={
            split: [(row["file_name"], row) for row in rows]
            for split, rows in (("train", train_rows), ("validation", test_rows))
        },
    )


def create_row(rng, name, label):
    """An image of one color by its number, which JPEG keeps, of sizes as they come."""
    height, width = rng.integers(20, 60, 2)
    color = np.array([80 * label + 20, 5 * int("0" + name[3:-5]), 100])
    image = np.broadcast_to(color, (height, width, 3)).astype(np.uint8)
    return {"image": image, "label": label, "file_name": name}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("tfds"), np.random.default_rng(0)
    rows = [create_row(rng, f"n{i % 3}_{i}.JPEG", i % 3) for i in range(45)]
    prepare(folder, "imagenet2012", rows, version="5.1.0")
    prepare(folder, "imagenet2012_subset", rows[:9], version="5.0.0", config="1pct")
    return folder, rows


@pytest.fixture
def config(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = load_config("imagenet", "1%")
    config.data.data_dir, config.data.image_size = str(prepared[0]), 16
    config.data.shift, config.data.cutout = 2, 8
    return config


def test_images_of_the_subset_are_the_labeled_ones(prepared, config, monkeypatch):
    dataset = load_dataset(config)
    assert (dataset.class_names, dataset.image_shape) == (NAMES, (16, 16, 3))
    by_color = {tuple(row["image"][0, 0]): i for i, row in enumerate(prepared[1])}
    images = dataset.train.images[:]
    colors = np.array(list(by_color))
    nearest = np.abs(images[:, 8, 8, None].astype(int) - colors).sum(axis=-1).argmin(axis=1)
    rows = [by_color[tuple(colors[i])] for i in nearest]
    assert sorted(rows) == list(range(45))
    expected = [i % 3 if i < 9 else -1 for i in rows]
    np.testing.assert_array_equal(dataset.train.labels, expected)
    assert len(dataset.test.images) == 12
    np.testing.assert_array_equal(np.bincount(dataset.test.labels), [4, 4, 4])
    # In any order, by several threads.
    order = np.random.default_rng(0).permutation(45)
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        parts = list(executor.map(dataset.train.images.__getitem__, np.split(order, 9)))
    np.testing.assert_array_equal(np.concatenate(parts), images[order])

    # Labels and names are read once, and a text file can name the subset.
    monkeypatch.setattr(records, "_CHUNK", None)
    names = config.copy_and_resolve_references()
    text = prepared[0] / "subset.txt"
    text.write_text("".join(f"{row['file_name']}\n" for row in prepared[1][:9]))
    names.data.labeled_subset = str(text)
    again = load_dataset(names)
    np.testing.assert_array_equal(again.train.labels, expected)
    assert again.fingerprint == dataset.fingerprint
    names.data.labeled_subset = ""
    np.testing.assert_array_equal(load_dataset(names).train.labels, np.array(rows) % 3)


@pytest.mark.usefixtures("tiny_model")
def test_a_run_on_one_percent_trains(config, tmp_path):
    config.num_steps, config.batch_size, config.mu, config.eval_batch_size = 2, 4, 2, 8
    config.log_every, config.data.randaugment_ops, config.mesh.data = 1, 0, 2
    config.model.name = "wide_resnet"
    result, _ = run_training(config, tmp_path / "run")
    assert (result["step"], result["num_labels"]) == (2, 9)
    assert "test/accuracy" in read_metrics(tmp_path / "run")[-1]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data_dir", "nowhere", "not prepared in ArrayRecord"),
        ("labeled_subset", "nowhere.txt", "cannot be read"),
        ("labeled_subset", "imagenet2012_subset/10pct", "not prepared in ArrayRecord"),
        ("labeled_subset", "/names.txt", "names no image of"),
        ("data_dir", "other", r"it is in tfrecord\): run tfds build imagenet2012"),
    ],
)
def test_what_is_not_prepared_is_named_with_the_remedy(config, tmp_path, key, value, message):
    (tmp_path / "names.txt").write_text("other.JPEG\n")
    if value == "other":
        rows = [create_row(np.random.default_rng(0), "n0_1.JPEG", 0)]
        prepare(tmp_path / "other", "imagenet2012", rows, "tfrecord", version="5.1.0")
    config.data[key] = f"{tmp_path}/{value}" if key == "data_dir" or value[0] == "/" else value
    with pytest.raises(UserError, match=message):
        load_dataset(config)
    with pytest.raises(UserError, match="write 1% or 10%"):
        load_config("imagenet", "5%")
