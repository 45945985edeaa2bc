"""Features of image files: the same whatever the cache holds, each computed once."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cls_jax.errors import UserError
from cls_jax.features import extract
from cls_jax.features.extract import (
    FrozenNetwork,
    extract_features,
    load_features,
    read_features,
)
from cls_jax.features.neighbors import normalize_rows
from cls_jax.features.store import Store
from cls_jax.models import MODELS
from cls_jax.models.layers import DESCRIPTORS
from cls_jax.models.weights.layout import Weights, to_torch

SIZE = 16


@pytest.fixture(scope="module")
def variables(one_block):
    model = MODELS["wide_resnet"].create(num_classes=3)
    return jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, SIZE, SIZE, 3)))


_COMPILED, _COMPILE = {}, extract._compile


def _compile_once(network):
    """`_compile`, which takes seconds."""
    key = (network.name, extract._hash_network(network))
    if key not in _COMPILED:
        _COMPILED[key] = _COMPILE(network)
    return _COMPILED[key]


@pytest.fixture
def network(variables, tmp_path, monkeypatch):
    """A Wide ResNet of one block with random weights, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(extract, "_BATCH_SIZE", 2)
    monkeypatch.setattr(extract, "_compile", _compile_once)
    weights = Weights(to_torch(variables, MODELS["wide_resnet"].layout))
    return FrozenNetwork("wide_resnet", weights, SIZE)


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
    """How many images are computed, and their features, pooled ones beside descriptors."""
    counts = [(0, 0)]
    features = extract_features(files, network, lambda done, total: counts.append((done, total)))
    assert all(total == counts[-1][0] for _, total in counts[1:])
    return counts[-1][0], np.hstack(features)


def test_features_are_those_of_the_network(network, files, variables, monkeypatch):
    images = np.stack([np.asarray(Image.open(file)) for file in files])
    mean, std = MODELS["wide_resnet"].layout.normalization
    model = MODELS["wide_resnet"].create(num_classes=3)
    inputs = (images / 255 - np.array(mean)) / np.array(std)
    apply = jax.jit(model.apply, static_argnames="head")
    expected = apply(variables, inputs.astype(np.float32), head=DESCRIPTORS)
    num_computed, features = _count(network, files)
    assert num_computed == 9  # Copies are computed once.
    np.testing.assert_allclose(features, expected, rtol=2e-3, atol=2e-3)
    in_memory = np.hstack(extract.compute_features(images, network))
    np.testing.assert_allclose(in_memory, features, atol=2e-3)
    # They are also those of images that have been decoded before.
    monkeypatch.setenv("XDG_CACHE_HOME", str(files[0].parent / "other"))
    again = extract_features(files, network, images=images)
    np.testing.assert_array_equal(np.hstack(again), features)


def test_second_call_reads_and_computes_nothing_unless_an_image_or_the_weights_changed(
    network, files, tmp_path, monkeypatch
):
    _, first = _count(network, files)
    with monkeypatch.context() as patch:
        patch.setattr(extract, "_compile", None)
        patch.setattr(extract, "_hash_content", None)
        num_computed, second = _count(network, files[::-1])
    assert num_computed == 0
    np.testing.assert_array_equal(second, first[::-1])
    moved = files[0].rename(tmp_path / "moved.png")
    num_computed, second = _count(network, [moved, *files[1:]])
    assert num_computed == 0
    np.testing.assert_array_equal(second, first)
    time = files[1].stat().st_mtime_ns
    files[1].write_bytes(files[2].read_bytes())
    os.utime(files[1], ns=(time, time))
    np.testing.assert_array_equal(_count(network, files[1:3])[1], first[[2, 2]])
    arrays = {name: 1.5 * array for name, array in network.weights.arrays.items()}
    num_computed, other = _count(network._replace(weights=Weights(arrays)), files[1:3])
    assert num_computed == 1
    assert not np.allclose(other, first[[2, 2]])


def test_damaged_and_cut_rows_are_computed_again(network, files):
    _, first = _count(network, files)
    (path,) = (extract.get_cache_folder()).glob("wide_resnet-????????????????????????????????")
    content = path.read_bytes()
    damaged = content[:-1] + bytes([content[-1] ^ 1])  # In the last row.
    for damage, expected in ((damaged, 1), (content[:-100], 1), (b"\xff" * 1000, 9)):
        path.write_bytes(damage)
        num_computed, again = _count(network, files)
        assert num_computed == expected
        np.testing.assert_array_equal(again, first)
        assert _count(network, files)[0] == 0


def test_unreadable_image_has_zeros(network, files, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not an image")
    _, features = _count(network, [files[0], broken, tmp_path / "missing.png"])
    assert features[0].any()
    assert not features[1:].any()
    assert read_features(files[:1], network) is not None
    assert read_features([files[0], broken], network) is None
    assert read_features([files[0], tmp_path / "missing.png"], network) is None


def test_cache_that_cannot_be_read_or_written_stops_nobody(network, files, tmp_path, monkeypatch):
    _, expected = _count(network, files)
    (tmp_path / "file").touch()  # No folder can be made below it.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    np.testing.assert_array_equal(_count(network, files)[1], expected)


def test_loaded_features_are_descriptors_of_norm_1(network, files, monkeypatch):
    monkeypatch.setattr(extract, "open_network", lambda: network)
    features = load_features(files, lambda done, total: None)
    assert features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    descriptors = extract_features(files, network).descriptors
    np.testing.assert_allclose(features, normalize_rows(descriptors))


def test_weights_of_another_architecture_are_refused(network, files):
    with pytest.raises(UserError, match="ResNet-50"):
        extract_features(files, network._replace(name="resnet50"))


def test_gray_images_are_enlarged_to_color():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1)
    enlarged = extract._enlarge(image, 16, 3)
    assert enlarged.shape == (1, 16, 16, 3)
    reference = Image.fromarray(image[0, ..., 0]).resize((16, 16), Image.Resampling.BICUBIC)
    assert np.abs(enlarged[0, ..., 0].astype(int) - np.asarray(reference)).max() <= 2


def test_later_row_of_a_key_replaces_the_earlier_one(tmp_path):
    store = Store(tmp_path / "store", np.float16)
    keys = np.arange(32, dtype=np.uint8).reshape(2, 16)
    is_known, rows = store.read(keys)
    assert not is_known.any()
    assert rows.shape == (2, 0)
    for value in (1, 2):
        store.append(keys[:1], np.full((1, 3), value))
    is_known, rows = store.read(keys)
    np.testing.assert_array_equal(is_known, [True, False])
    np.testing.assert_array_equal(rows, [[2, 2, 2], [0, 0, 0]])
