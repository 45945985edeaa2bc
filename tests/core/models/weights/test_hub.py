"""Downloads from a hub on this machine, and their error messages."""

import hashlib
import http.server
import threading

import jax
import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.models.weights import hub
from cls_jax.models.weights.backbones import BACKBONES, HUB, Download
from cls_jax.models.weights.layout import Weights
from cls_jax.models.weights.sources import (
    find_architecture,
    find_origin,
    read_hub,
    to_safetensors,
)

constants = pytest.importorskip("huggingface_hub.constants", reason="the extra pretrained")
COMMIT = "c" * 40
ARRAYS = {"a.weight": np.arange(6, dtype=np.float32)}
SETTINGS = b'{"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}}'
CARD = b"---\ntags:\n- timm\nlicense: other\nlicense_name: fair-nc\n---\n# A model\nlicense: mit\n"
FILES = {"model.safetensors": to_safetensors(Weights(ARRAYS)), "config.json": SETTINGS}
DIGEST = hashlib.sha256(FILES["model.safetensors"]).hexdigest()
# What each repository has, or how the hub refuses it: status, and its own name of the error.
REPOSITORIES = {
    "a/whole": FILES | {"README.md": CARD},
    "a/plain": {"model.safetensors": FILES["model.safetensors"]},
    "a/empty": {"config.json": SETTINGS},
    "a/damaged": FILES,
    "a/gated": (403, "GatedRepo"),
    "a/unknown": (404, "RepoNotFound"),
    "a/broken": (500, ""),
}


class Handler(http.server.BaseHTTPRequestHandler):
    """The part of the hub that a download needs."""

    asked: list[str]  # (method, path) of each request.

    def do_HEAD(self) -> None:
        parts = self.path.split("/")
        if len(parts) != 6:  # What the library says about itself.
            self.send_error(404)
            return
        self.asked.append(self.path)
        _, owner, name, _, revision, file = parts
        found, content = REPOSITORIES[f"{owner}/{name}"], b""
        headers = {"X-Repo-Commit": COMMIT if revision == "main" else revision}
        if not isinstance(found, tuple):
            found = found.get(file, (404, "EntryNotFound"))
        if isinstance(found, tuple):
            status, headers["X-Error-Code"] = found
            headers["X-Error-Message"] = "refused"
        else:
            status, headers["ETag"] = 200, f'"{hashlib.sha256(found).hexdigest()}"'
            content = found[:-1] + b"!" if name == "damaged" else found
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.do_HEAD()

    def log_message(self, *_) -> None:
        """Prints nothing."""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The paths asked for at a hub on this machine, with an empty cache."""
    Handler.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    point(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # Between attempts to connect.
    monkeypatch.setenv("TQDM_POSITION", "-1")  # A progress bar without a terminal.
    yield Handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


def point(monkeypatch, endpoint):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_weights_are_downloaded_once_and_used_without_a_connection(asked, monkeypatch, capsys):
    assert find_origin("hf:a/whole") == ("hf:a/whole", "", "")
    assert not asked  # Whether something is there is no reason to download it.
    weights = read_hub("a/whole")
    jax.tree.map(np.testing.assert_array_equal, weights.arrays, ARRAYS)
    assert weights.normalization == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert "model.safetensors" in capsys.readouterr().err  # The progress bar.
    read_hub("a/plain")  # Without settings and card.
    plain = hub.find_cached("a/plain", "model.safetensors")
    plain.with_name("file").write_bytes(plain.read_bytes())
    plain.with_name("file").replace(plain)  # As in a cache without links.
    count = len(asked)
    for is_offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        point(monkeypatch, "http://127.0.0.1:9")
        assert read_hub("a/whole").normalization == weights.normalization
        assert read_hub("a/plain").normalization is None
    assert len(asked) == count
    origin = find_origin("hf:a/whole")
    assert origin == ("hf:a/whole", "fair-nc", COMMIT)


def test_a_row_of_the_table_is_pinned_and_verified(asked, monkeypatch):
    pinned = "b" * 40
    row = BACKBONES[f"{HUB}timm/convnext_nano.in12k_ft_in1k"]
    good = row._replace(origin=Download(pinned, DIGEST))
    monkeypatch.setitem(BACKBONES, "hf:a/plain", good)
    assert read_hub("a/plain").normalization is None
    assert all(pinned in path for path in asked)
    assert find_origin("hf:a/plain") == ("hf:a/plain", "Apache-2.0", pinned)
    assert find_architecture("hf:a/plain") == "convnext_nano"
    other = good._replace(origin=Download(pinned, "0" * 64))
    monkeypatch.setitem(BACKBONES, "hf:a/plain", other)
    with pytest.raises(UserError, match="is damaged"):
        read_hub("a/plain")


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        ("a/damaged", f"/{DIGEST} is damaged .* delete it and run the command again"),
        ("a/gated", "accept them at http.*/a/gated, then log in with hf auth login"),
        ("a/unknown", "no public repository a/unknown: check the name"),
        ("no name", "no public repository no name: check the name"),
        ("a/empty", "a/empty has no model.safetensors: choose a repository"),
        ("a/broken", "cannot be reached: connect for the first use, or copy the folder models--a"),
        ("away", "cannot be reached: connect for the first use, or copy the folder models--a"),
        ("offline", "HF_HUB_OFFLINE forbids it: remove this variable"),
    ],
)
def test_failures_are_one_sentence_with_a_remedy(asked, monkeypatch, repository, message):
    if repository == "away":
        point(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", repository == "offline")
    name = repository if "/" in repository or " " in repository else "a/whole"
    for _ in range(2):  # The second time, too, a damaged file is not used.
        with pytest.raises(UserError, match=message):
            hub.fetch_weights(name)
