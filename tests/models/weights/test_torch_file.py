"""PyTorch files, read without PyTorch and without executing what they name."""

import contextlib
import io
import pickle
import zipfile

import numpy as np
import pytest

from cls_jax.io import PARSE_ERRORS
from cls_jax.models.weights.torch_file import read_torch_file
from tests.models.make_fixtures import FIXTURES

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


class Attack:
    """Fails when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("It was unpickled.",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("wrap", ["zip", "legacy"])
def test_nothing_that_a_pickle_asks_for_is_done(protocol, wrap):
    content = pickle.dumps({"a": Attack()}, protocol)
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
