"""Only the page itself gets an answer, and nothing that comes from a client is a path or markup."""

import io
import json
import os

import pytest
from PIL import Image
from starlette.testclient import TestClient

from cls_jax.data.sources.label_table import LABELS_CSV
from cls_jax.errors import UserError
from cls_jax.labeling import server
from tests.labeling.sessions import create_photographs, open_ready

PORT = 8123
TOKEN = "secret"
HERE = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def folder_name():
    return "photos"


@pytest.fixture
def folder(tmp_path, folder_name):
    return tmp_path / folder_name


@pytest.fixture
def app(folder):
    session = open_ready(folder, create_photographs(folder, 12), ["cat", "dog"])
    return server.create_app(session, TOKEN, PORT)


@pytest.fixture
def client(app):
    """A client that has opened the printed address."""
    client = TestClient(app, base_url=HERE, headers={"Origin": HERE})
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return client


def decide(client, image=0, label="cat", revision=0, **options):
    change = {"image": image, "decision": "label", "label": label, "revision": revision}
    return client.post("/api/decide", json={"changes": [change]}, **options)


def test_the_printed_address_opens_the_page_and_sets_a_strict_cookie(app):
    client = TestClient(app, base_url=HERE)
    answer = client.get(f"/?token={TOKEN}")
    assert "<main" in answer.text
    cookie = answer.headers["set-cookie"]
    assert cookie == f"cls_jax_label_{PORT}={TOKEN}; HttpOnly; SameSite=Strict; Path=/"
    assert client.get("/").status_code == 200
    assert "set-cookie" not in client.get("/").headers


@pytest.mark.parametrize(
    ("method", "code"), [("GET", 403), ("HEAD", 403), ("POST", 403), ("PUT", 405), ("OPTIONS", 405)]
)
def test_without_the_token_nothing_is_shown(app, method, code):
    for path in (
        *("/", "/?token=", "/?token=Secret", f"/?token={TOKEN}&token=x", "/?token=%ff"),
        *("/page/main.js", "/api/state", "/api/proposals.csv", "/photographs/0/large", "/nothing"),
    ):
        answer = TestClient(app, base_url=HERE).request(method, path)
        assert answer.status_code == code, path
        assert "printed" in answer.text or method != "GET"
    # The token itself opens the page only, and changes nothing.
    if method == "POST":
        assert TestClient(app, base_url=HERE).post(f"/?token={TOKEN}").status_code == 403


def test_every_answer_has_the_security_headers(client):
    paths = ["/", "/page/main.js", "/photographs/0/small", "/api/state", "/nothing", "/page/x"]
    answers = [client.get(path) for path in paths]
    answers += [client.get("/", headers={"Host": "evil.example"}), client.delete("/")]
    expected = {"referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
    expected |= {"cache-control": "no-store", "cross-origin-resource-policy": "same-origin"}
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert expected.items() <= dict(answer.headers).items()
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_needs_nothing_inline_and_nothing_from_outside(client):
    page = client.get("/").text
    assert "style=" not in page
    assert "<style" not in page
    assert page.count("<script") == page.count('<script type="module" src="/page/main.js">') == 1
    for name in ("main.js", "next.js", "chooser.js", "dom.js", "check.js", "style.css"):
        text = client.get(f"/page/{name}").text
        assert "innerHTML" not in text
        assert "://" not in text


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT}.evil.example"),
        *("127.0.0.1:1", "0.0.0.0", f"[::1]:{PORT}", ""),
    ],
)
def test_other_hosts_are_refused(client, host):
    assert client.get("/api/state", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Origin", ["http://evil.example", "null", "", "http://127.0.0.1:9999", f"{HERE}.evil"]),
        ("Origin", [f"https://127.0.0.1:{PORT}"]),
        ("Sec-Fetch-Site", ["cross-site", "same-site"]),
        ("Content-Type", ["text/plain", "application/x-www-form-urlencoded"]),
        ("Cookie", [f"cls_jax_label_{PORT}={TOKEN[:-1]}", f"cls_jax_label_1={TOKEN}"]),
        ("Cookie", [f"cls_jax_label_{PORT}=\u00e9".encode()]),
    ],
)
def test_changes_come_only_from_the_page(client, folder, name, values):
    for value in values:
        assert decide(client, headers={name: value}).status_code in (403, 415)
    assert not (folder / LABELS_CSV).exists()
    if name == "Sec-Fetch-Site":  # Other servers on this machine, for which there is the cookie.
        headers = {name: "same-site"}
        assert client.get("/photographs/0/large", headers=headers).status_code == 403


def test_photographs_are_encoded_again_without_metadata(client, folder):
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    exif[0x0112] = 6  # Turned by a quarter.
    (folder / "IMG_0003.png").unlink()
    Image.new("RGB", (3000, 1000), "red").save(folder / "IMG_0003.png", "JPEG", exif=exif)
    answer = client.get("/photographs/3/large")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"taken at home" not in answer.content
    image = Image.open(io.BytesIO(answer.content))
    assert (image.format, image.size) == ("JPEG", (427, 1280))
    assert Image.open(io.BytesIO(client.get("/photographs/3/small").content)).size == (107, 320)
    (folder / "IMG_0005.png").unlink()  # Missing, not a failure.
    assert client.get("/photographs/5/large").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/photographs/12/large", "/photographs/-1/large", f"/photographs/{10**20}/large"),
        *("/photographs/0/huge", "/photographs/0", "/photographs/IMG_0000.png/large"),
        *("/photographs/..%2f..%2fetc%2fpasswd/large", "/page/..%2f..%2f__init__.py"),
        *("/page/../session.py", "/page/index", "/labels.csv", "/api/unknown"),
    ],
)
def test_paths_lead_nowhere(client, path):
    assert client.get(path).status_code in (404, 405)


def write_change(**values):
    change = {"image": 0, "decision": "none", "label": "", "revision": 0} | values
    return json.dumps({"changes": [change]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b"\xff", b"[" * 60_000, b'{"changes": []}', b'{"changes": [[]]}'),
        *(b'{"changes": {"image": 0}}', write_change(image=True), write_change(image=0.5)),
        *(write_change(image=10**30), write_change(label=None), write_change(revision="0")),
    ],
)
def test_bodies_that_the_page_does_not_send_are_refused(client, folder, body):
    answer = client.post("/api/decide", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["message"]
    assert not (folder / LABELS_CSV).exists()


def test_large_bodies_are_not_read(client):
    body = b"{" + b" " * server.MAX_BODY_BYTES
    answer = client.post("/api/decide", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_a_whole_conversation(client):
    state = decide(client).json()
    assert state["counts"]["labeled"] == 1
    assert client.post("/api/classes", json={"name": "<b>owl"}).json()["label"] == "<b>owl"
    assert decide(client, 1, "<b>owl").json()["classes"][2] == {"name": "<b>owl", "count": 1}
    stale = decide(client, 1, "dog")
    assert stale.status_code == 409
    assert "another window" in stale.json()["message"]
    assert client.post("/api/undo", json={}).json()["counts"]["labeled"] == 1
    assert client.post("/api/mark", json={"images": [7]}).json()["next"][0]["image"] == 7
    assert client.post("/api/mark", json={"images": [True]}).status_code == 400
    assert client.get("/api/check").json()["rows"]
    assert client.get("/api/doubtful").json()["images"] == []
    assert client.get("/api/result").json()["tried"] == 0
    table = client.get("/api/proposals.csv")
    assert "attachment" in table.headers["content-disposition"]
    assert len(table.text.splitlines()) == 13


def test_a_refusing_disk_becomes_a_message(client, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", refuse)
    answer = decide(client)
    assert answer.status_code == 507
    assert "No space left" in answer.json()["message"]


@pytest.mark.parametrize("folder_name", [os.fsdecode(b"photos \xff")])
def test_a_folder_whose_name_is_not_unicode_can_be_labeled(client, folder):
    assert decide(client).json()["folder"] == "photos ?"
    (folder / LABELS_CSV).write_text("no table")
    assert "cannot be read" in client.get("/api/state").json()["message"]


def test_only_this_machine_can_connect_and_a_port_in_use_is_a_user_error():
    with server.open_socket(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        listener.listen()
        for unusable in (port, 123_456):
            with pytest.raises(UserError, match="--port"):
                server.open_socket(unusable)
