"""Features of image files: the same whatever the cache holds, each computed once."""

import dataclasses
import functools
import os
import sqlite3

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cls_jax.errors import UserError
from cls_jax.models import MODELS
from cls_jax.models.layers import ALL_FEATURES
from cls_jax.models.weights.layout import Weights, to_torch
from cls_jax.photos.features import extract
from cls_jax.photos.features import network as network_module
from cls_jax.photos.features.extract import extract_features
from cls_jax.photos.features.network import FrozenNetwork, OpenedNetwork, open_network
from cls_jax.photos.images import files as files_module
from cls_jax.photos.images.store import Store, get_cache_folder

SIZE = 16


@pytest.fixture(scope="module")
def variables(one_block):
    model = MODELS["wide_resnet"].create(num_classes=3)
    return jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, SIZE, SIZE, 3)))


_NUM_COMPUTED = []


@pytest.fixture
def network(variables, tmp_path, monkeypatch):
    """A Wide ResNet of one block with random weights, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(network_module, "_BATCH_SIZE", 2)
    open_network.cache_clear()
    monkeypatch.setattr(files_module, "_SETTLED_NS", 0)
    compute = OpenedNetwork.compute_rows

    def count(opened, images):
        _NUM_COMPUTED.append(len(images))
        return compute(opened, images)

    monkeypatch.setattr(OpenedNetwork, "compute_rows", count)
    weights = Weights(to_torch(variables, MODELS["wide_resnet"].layout))
    yield FrozenNetwork("wide_resnet", weights, SIZE)
    open_network.cache_clear()


@pytest.fixture
def files(tmp_path):
    """Ten images, the last one a copy of the first."""
    images = np.random.default_rng(0).integers(0, 256, (10, SIZE, SIZE, 3), dtype=np.uint8)
    images[9] = images[0]
    paths = [tmp_path / f"{i}.png" for i in range(10)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths


def _count(network, files):
    """How many images are computed, and all of their features side by side."""
    counts = [(0, 0)]
    _NUM_COMPUTED.clear()
    features = extract_features(files, network, lambda done, total: counts.append((done, total)))
    assert all(total == counts[-1][0] for _, total in counts[1:])
    return sum(_NUM_COMPUTED), np.hstack(features.arrays)


def test_features_are_those_of_the_network(network, files, variables):
    images = np.stack([np.asarray(Image.open(file)) for file in files])
    mean, std = MODELS["wide_resnet"].layout.normalization
    inputs = (images / 255 - np.array(mean)) / np.array(std)
    apply = functools.partial(
        MODELS["wide_resnet"].create(num_classes=3).apply,
        head=ALL_FEATURES,
        capture_intermediates=True,
        mutable=("intermediates",),
    )
    side_by_side, captured = jax.jit(apply)(variables, inputs.astype(np.float32))
    (block,) = captured["intermediates"]["stage1_block4"]["__call__"]  # The last of its only stage.
    moments = np.asarray(block).mean(axis=(1, 2)), np.asarray(block).std(axis=(1, 2))
    last = side_by_side[:, : -2 * block.shape[-1]]
    num_computed, features = _count(network, files)
    assert num_computed == 9  # Copies are computed once.
    np.testing.assert_allclose(features, np.hstack([last, *moments]), rtol=2e-3, atol=2e-3)
    in_memory = np.hstack(open_network(network).extract(images).arrays)
    np.testing.assert_allclose(in_memory, features, atol=2e-3)


def test_only_what_changed_is_computed(network, files, tmp_path, monkeypatch):
    _, first = _count(network, files)
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "_read_once", None)  # It reads nothing either.
        num_computed, second = _count(network, files[::-1])
    np.testing.assert_array_equal(second, first[::-1])
    moved = files[0].rename(tmp_path / "moved.png")
    assert num_computed == _count(network, [moved, *files[1:]])[0] == 0
    time = files[1].stat().st_mtime_ns
    files[1].write_bytes(files[2].read_bytes())
    os.utime(files[1], ns=(time, time))
    np.testing.assert_array_equal(_count(network, files[1:3])[1], first[[2, 2]])
    arrays = {name: 1.5 * array for name, array in network.weights.arrays.items()}
    num_computed, other = _count(dataclasses.replace(network, weights=Weights(arrays)), files[1:3])
    assert num_computed == 1
    assert not np.allclose(other, first[[2, 2]])


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("unreadable", [(0, 1), (3, 4), (0, 1, 2, 3, 4)])
def test_processes_get_the_same_features_whatever_their_shares_are(
    network, files, monkeypatch, unreadable, is_cached
):
    """Also where a share is empty, or has no image that can be read."""
    some = files[:5]
    for i in unreadable:
        some[i].write_bytes(b"not an image")
    if is_cached:
        extract_features(some, network)

    shares = [slice(0, 0), slice(0, 2), slice(2, 3), slice(3, 5)]
    local = [extract._extract_local(some[share], network, None, None) for share in shares]
    with monkeypatch.context() as patch:
        patch.setattr(extract, "gather_rows", lambda rows, num_rows: np.concatenate(local))
        found = extract_features(some, network)
    expected = _count(network, some)[1]
    np.testing.assert_array_equal(np.hstack(found.arrays), expected)
    assert [rows.shape for rows in found.arrays] == [(5, 64), (5, 64), (5, 128)]
    assert not expected[list(unreadable)].any()


def test_damaged_rows_are_computed_again(network, files):
    _, first = _count(network, files)
    some = "(SELECT id FROM blobs LIMIT 2)"
    with sqlite3.connect(Store(get_cache_folder())._path) as db:
        db.execute(f"UPDATE blobs SET blob = zeroblob(length(blob)) WHERE id IN {some}")
    db.close()
    for expected in (2, 0):
        num_computed, again = _count(network, files)
        assert num_computed == expected
        np.testing.assert_array_equal(again, first)


def test_neither_damaged_images_nor_a_full_cache_stop(network, files, tmp_path, monkeypatch):
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    some = [files[0], tmp_path / "broken.jpg", tmp_path / "missing.png"]
    _, features = _count(network, some)
    assert features[0].any()
    assert not features[1:].any()
    (tmp_path / "file").touch()  # No folder can be made below it.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    np.testing.assert_array_equal(_count(network, some)[1], features)
    with pytest.raises(UserError, match="ResNet-50"):
        extract_features(files, dataclasses.replace(network, name="resnet50"))


def test_features_that_are_not_numbers_are_an_error_that_names_the_images(
    network, files, monkeypatch
):
    arrays = {name: np.full_like(array, np.nan) for name, array in network.weights.arrays.items()}
    with pytest.raises(
        UserError,
        match=r"for 10 of 10 .* choose other weights with --config",
    ):
        extract_features(files, dataclasses.replace(network, weights=Weights(arrays)))
    compute = OpenedNetwork.compute_rows

    def spoil(opened, images):
        return np.where(images[:, :1, 0, 0] == spoiled, np.nan, compute(opened, images))

    spoiled = np.asarray(Image.open(files[3]))[0, 0, 0]
    monkeypatch.setattr(OpenedNetwork, "compute_rows", spoil)
    for _ in range(2):  # They are not kept for the next time.
        with pytest.raises(UserError, match=r"for 1 of 10 images, such as .*3\.png: remove"):
            extract_features(files, network)
    monkeypatch.setattr(OpenedNetwork, "compute_rows", compute)
    assert np.isfinite(_count(network, files)[1]).all()


def test_equal_networks_are_opened_once_and_others_anew(network):
    opened = open_network(network)
    weights = Weights({name: array.copy() for name, array in network.weights.arrays.items()})
    assert open_network(dataclasses.replace(network, weights=weights)) is opened
    name, array = next(iter(network.weights.arrays.items()))
    changed = Weights({**network.weights.arrays, name: array + 1})
    for other in ({"weights": changed}, {"channels": 1}, {"image_size": 2 * SIZE}):
        assert dataclasses.replace(network, **other) != network
    normalized = Weights(network.weights.arrays, ((0.5,) * 3, (0.5,) * 3))
    assert open_network(dataclasses.replace(network, weights=normalized)) is not opened


def test_the_time_of_an_image_is_that_of_full_batches_of_an_open_network(network, monkeypatch):
    """Neither opening nor compiling counts, nor do batches that are padded."""
    clock, sizes = [0.0], []

    def compute(opened, images):
        sizes.append(len(images))
        clock[0] += 1.0 if len(sizes) > 1 else 100.0

    monkeypatch.setattr(OpenedNetwork, "compute_rows", compute)
    monkeypatch.setattr(network_module.time, "perf_counter", lambda: clock[0])
    opened = open_network(network)
    assert opened.time() == 1.0 / opened.batch_size
    assert set(sizes) == {opened.batch_size}
