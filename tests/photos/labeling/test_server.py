"""Only the page gets answers, and nothing from a client is used as a path or markup."""

import base64
import codecs
import contextlib
import csv
import hashlib
import io
import json
import os
import pathlib
import re
import socket
import stat
import struct
import sys
import threading
import time
import types
import unittest.mock
import urllib.error
import urllib.parse
import urllib.request
import webbrowser
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from cls_jax.errors import UserError
from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.images.decode import decode_image
from cls_jax.photos.labeling import classifier, photos, server, start, training, verbs
from tests.photos.labeling.sessions import create_features, create_photos, open_ready, serve
from tests.processes import PATIENCE_S

PORT = 8123
TOKEN, CODE = "secret", "once"
HERE = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def app(folder):
    session = open_ready(folder, create_photos(folder, 12), ["cat", "dog"])
    return server.create_app(session, TOKEN, [CODE])


def create_client(app):
    """A client that sends what the page sends."""
    return TestClient(app, base_url=HERE, headers={"Origin": HERE, "X-Token": TOKEN})


@pytest.fixture
def client(app):
    return create_client(app)


@pytest.fixture
def port(folder):
    with serve(open_ready(folder, create_photos(folder, 12), ["cat", "dog"])) as port:
        yield port


def ask(port, verb="state", content=None, token="token"):
    """What a server answers."""
    headers = {
        "Origin": f"http://127.0.0.1:{port}",
        "X-Token": token,
        **get_headers(is_photo=False),
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{verb}", content, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


@contextlib.contextmanager
def connect(port, count):
    """Opens connections to a server."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", port)
        yield [stack.enter_context(socket.create_connection(address, 30)) for _ in range(count)]


def post_photo(client, verb):
    return client.post(f"/api/{verb}", content=PHOTO, headers=get_headers(is_photo=True))


def write_request(port, line, kind, length, body):
    return (
        f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Token: token\r\n"
        f"Origin: http://127.0.0.1:{port}\r\nContent-Type: application/{kind}\r\n"
        f"Content-Length: {length}\r\n\r\n{body}"
    ).encode()


def get_headers(is_photo):
    return {"Content-Type": f"application/{'octet-stream' if is_photo else 'json'}"}


def decide(client, image=0, label="cat", revision=0, **options):
    changes = [[image, revision, "label", label]]
    return client.post("/api/decide", json={"changes": changes}, **options)


def test_the_token_never_becomes_a_cookie_and_a_code_is_exchanged_for_it_once(app):
    """Servers at other ports of this machine get all of its cookies."""
    client = TestClient(app, base_url=HERE, headers={"Origin": HERE})
    for given, codes in ((CODE, (200, 403)), (TOKEN, (200, 200)), ("other", (403, 403))):
        for code in codes:
            answer = client.post("/api/open", json={}, headers={"X-Token": given})
            assert answer.status_code == code
            assert code == 403 or answer.json() == {"token": TOKEN}
            assert "set-cookie" not in answer.headers
    assert client.get("/api/state", headers={"X-Token": CODE}).status_code == 403
    assert client.get("/api/open", headers={"X-Token": TOKEN}).status_code == 404


@pytest.mark.parametrize(
    ("method", "code"), [("GET", 403), ("HEAD", 403), ("POST", 403), ("PUT", 405), ("OPTIONS", 405)]
)
def test_without_the_token_nothing_is_shown_but_the_page(app, method, code):
    paths = ("state", "open", "proposals.csv", "labels/coco", f"state?token={TOKEN}")
    for headers in (
        *({}, {"X-Token": ""}, {"X-Token": "Secret"}, {"X-Token": b"\xff"}),
        {"Cookie": f"X-Token={TOKEN}; token={TOKEN}; cls_jax_label_{PORT}={TOKEN}"},
    ):
        client = TestClient(app, base_url=HERE, headers=headers)
        for path in (*(f"/api/{path}" for path in paths), "/photos/0/large", "/nothing"):
            answer = client.request(method, path)
            assert answer.status_code == code, path
            assert "contains your access token" in answer.text or method != "GET"
        assert client.get("/").status_code == client.get("/page/main.js").status_code == 200
    assert "IMG_" not in client.get("/").text


def test_the_page_is_sent_compressed_to_whoever_takes_it(client):
    names = [f"page/{file.name}" for file in server._PAGE.iterdir()]
    sizes = [int(client.get(f"/{name}").headers["content-length"]) for name in names]
    assert sum(sizes) <= 64_000
    plain = client.get("/page/main.js", headers={"Accept-Encoding": "identity"})
    assert plain.text == client.get("/page/main.js").text
    assert int(plain.headers["content-length"]) == len(plain.content)


def test_every_answer_has_the_security_headers(client):
    paths = ["/", "/page/main.js", "/photos/0/small", "/api/state", "/nothing", "/page/x"]
    refused = client.get("/", headers={"Host": "evil.example"}), client.delete("/")
    expected = {
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
    }
    for answer in (*map(client.get, paths), *refused):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert [part for part in policy.split("; ") if "blob:" in part] == ["img-src 'self' blob:"]
        assert expected.items() <= dict(answer.headers).items()
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_needs_nothing_inline_and_nothing_from_outside(client):
    page = client.get("/").text
    assert not re.search("style=|<style", page)
    assert page.count("<script") == page.count('<script type="module" src="/page/main.js">') == 1
    for name in ("main.js", "next.js", "chooser.js", "dom.js", "check.js", "style.css"):
        assert not re.search("innerHTML|://", client.get(f"/page/{name}").text), name


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", f"evil.example:{PORT}", f"127.0.0.1:{PORT}.evil.example", ""),
        *("0.0.0.0", f"127.0.0.1:{PORT}0000", "127.0.0.1:", "localhost.evil.example", "[::1]]:80"),
    ],
)
def test_other_hosts_are_refused(client, host):
    assert client.get("/api/state", headers={"Host": host}).status_code == 421


WITH_OWN_TESTS = {"decide", "undo", "classes"}  # Of what they refuse.
WITHOUT_VALUES = {"sample", "scan", "plan"}  # Or with minutes, which any body may have.


@pytest.mark.parametrize("name", verbs.VERBS)
def test_a_body_that_is_too_large_is_refused_by_a_sentence(client, name):
    is_photo, limit = verbs.VERBS[name].is_photo, verbs.VERBS[name].limit
    content = b"x" * (limit + 1)
    answer = client.post(f"/api/{name}", content=content, headers=get_headers(is_photo))
    what = "photo" if is_photo else "request"
    size = {2**26: "64 MB", 2**22: "4 MB", 2**16: "64 KB"}[limit]
    assert answer.status_code == 413
    assert answer.json() == {"message": f"The {what} is larger than {size}."}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Host", ["evil.example"]),
        ("Origin", ["http://evil.example", "null", "", "http://127.0.0.1:9999", f"{HERE}.evil"]),
        ("Origin", [f"https://127.0.0.1:{PORT}"]),
        ("Sec-Fetch-Site", ["cross-site", "same-site"]),
        ("Content-Type", ["text/plain", "application/x-www-form-urlencoded"]),
        ("X-Token", [TOKEN[:-1], f"{TOKEN} ", CODE, "", "\u00e9".encode()]),
    ],
)
def test_changes_come_only_from_the_page(client, folder, name, values):
    before = sorted(folder.iterdir())
    for value in values:
        for verb in verbs.VERBS:
            headers = get_headers(verbs.VERBS[verb].is_photo) | {name: value}
            answer = client.post(f"/api/{verb}", content=PHOTO, headers=headers)
            assert answer.status_code in (403, 415, 421), verb
    assert sorted(folder.iterdir()) == before
    if name == "Sec-Fetch-Site":  # Other servers on this machine.
        headers = {name: "same-site"}
        assert client.get("/photos/0/large", headers=headers).status_code == 403


def test_photos_are_encoded_again_without_metadata(client, folder):
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    exif[0x0112] = 6  # Turned by a quarter.
    (folder / "IMG_0003.png").unlink()
    Image.new("RGB", (3000, 1000), "red").save(folder / "IMG_0003.png", "JPEG", exif=exif)
    answer = client.get("/photos/3/large")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"taken at home" not in answer.content
    image = Image.open(io.BytesIO(answer.content))
    assert (image.format, image.size) == ("JPEG", (427, 1280))
    assert Image.open(io.BytesIO(client.get("/photos/3/small").content)).size == (107, 320)
    (folder / "IMG_0005.png").unlink()  # Missing, not a failure.
    assert client.get("/photos/5/large").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/photos/12/large", "/photos/-1/large", f"/photos/{10**20}/large"),
        *("/photos/0/huge", "/photos/0", "/photos/IMG_0000.png/large"),
        *("/photos/..%2f..%2fetc%2fpasswd/large", "/page/..%2f..%2f__init__.py"),
        *("/page/../session.py", "/page/index", "/labels.csv", "/api/unknown"),
        *("/api/similar/12", "/api/similar/-1", "/report/x"),
    ],
)
def test_paths_lead_nowhere(client, path):
    assert client.get(path).status_code in (404, 405)


NONE = [0, 0, "none", ""]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b"\xff", b"[" * 60_000, b'{"changes": []}', b'{"changes": [[]]}'),
        *(
            json.dumps({"changes": changes}).encode()
            for changes in (
                *({"image": 0}, [NONE[:3]], [[True, *NONE[1:]]], [[0.5, *NONE[1:]]]),
                *([[10**30, *NONE[1:]]], [[*NONE[:3], None]], [[0, "0", "none", ""]], [NONE] * 2),
                *([[12, *NONE[1:]]], [[-1, *NONE[1:]]], [NONE] * (verbs.MAX_CHANGES + 1)),
                *([[0, 0, "label", "x"]], [[0, 0, "label", ""]], [[0, 0, "none", "cat"]]),
                [[0, 0, "undo", ""]],
            )
        ),
    ],
)
def test_answers_that_the_page_does_not_send_are_refused(client, folder, body):
    answer = client.post("/api/decide", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["message"]
    assert not (folder / LABELS_CSV).exists()


def test_an_answer_that_comes_second_is_refused_with_the_new_state(client):
    decide(client)
    stale = decide(client, label="dog")
    assert (stale.status_code, stale.json()["counts"]["labeled"]) == (409, 1)
    assert "in the meantime" in stale.json()["message"]


def test_slow_photos_delay_no_answer(port):
    with connect(port, 5) as connections:
        for slow in connections:
            slow.sendall(write_request(port, "POST /api/try", "octet-stream", 9, "slow"))
        answer = ask(port, "decide", json.dumps({"changes": [NONE]}).encode())
        assert answer["counts"]["none"] == 1


@pytest.mark.parametrize(
    ("request_line", "place", "name"),
    [
        ("POST /api/scan", verbs, "find_new"),
        ("POST /api/try", classifier.SessionClassifier, "classify"),
        ("POST /api/copies", classifier.SessionClassifier, "copy_by_class"),
        ("GET /api/proposals.csv", classifier.SessionClassifier, "write_table"),
    ],
)
def test_requests_that_take_long_delay_no_answer(port, monkeypatch, request_line, place, name):
    """More of them than the server has threads."""
    has_ended = threading.Event()

    def wait(*_):
        waited = str(has_ended.wait(PATIENCE_S))
        return waited if name == "write_table" else {"waited": waited}

    monkeypatch.setattr(place, name, wait)
    monkeypatch.setattr(verbs, "encode_file", lambda *_: b"")
    kind = "octet-stream" if request_line.endswith("try") else "json"
    with connect(port, 50) as connections:
        for slow in connections:
            slow.sendall(write_request(port, request_line, kind, 19, '{"unsure_below": 0}'))
        try:
            assert ask(port)["phase"] == "ready"
        finally:
            has_ended.set()
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_a_refusing_disk_becomes_a_message(client, monkeypatch):
    refuse = unittest.mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("os.write", refuse)
    answer = decide(client)
    assert answer.status_code == 507
    assert "No space left" in answer.json()["message"]


def test_a_training_that_fails_says_why(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", "raise SystemExit('Starting\\nError: No space left.')"]
    monkeypatch.setattr(training, "_write_arguments", lambda words: command)
    decide(client)
    decide(client, 1, "dog")
    assert client.post("/api/train", json={"kind": "instant", "minutes": 1}).status_code == 200
    while (state := client.get("/api/training").json())["phase"] == "running":
        time.sleep(0.1)
    assert (state["phase"], state["message"]) == ("failed", "No space left.")
    assert client.get("/api/state").json()["is_training"] is False


@pytest.mark.parametrize("folder", [os.fsdecode(b"photos \xff")], indirect=True)
def test_a_folder_whose_name_is_not_unicode_can_be_labeled(client, folder):
    assert decide(client).json()["folder"] == "photos ?"
    (folder / LABELS_CSV).write_bytes(b"no table \xff")
    assert "cannot be read" in client.get("/api/state").json()["message"]


def test_only_this_machine_can_connect_and_a_port_in_use_is_a_user_error():
    with start.open_socket(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        listener.listen()
        for unusable in (port, 123_456):
            with pytest.raises(UserError, match="--port"):
                start.open_socket(unusable)


def test_with_too_many_connections_requests_are_refused_until_others_close(monkeypatch, request):
    monkeypatch.setattr(start, "_MAX_CONNECTIONS", 4)
    port = request.getfixturevalue("port")
    with connect(port, 4), pytest.raises(urllib.error.HTTPError, match="503"):
        ask(port)
    assert ask(port)["phase"] == "ready"


def test_the_browser_gets_no_secret_as_argument(folder, monkeypatch, capsys):
    """A text browser keeps `webbrowser.open` until the user leaves it."""
    create_photos(folder, 6)
    running, answers, ended = [], [], []
    create_server = start.create_server

    def create_known_server(app):
        running.append(create_server(app))
        return running[0]

    def open_like_a_text_browser(address):
        try:
            path = pathlib.Path(address.removeprefix("file://"))
            ((port, code),) = re.findall(r"url=http://[^/]+:(\d+)/#([^\"]+)", path.read_text())
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            answers.append((address, path, code, ask(port, "open", b"{}", code)["token"]))
        finally:
            running[0].should_exit = True

    def compute_for_ever(paths, on_progress, backbones):
        try:
            while True:
                on_progress(0, 6)
                time.sleep(0.01)
        finally:
            ended.append(True)

    monkeypatch.setattr(start, "create_server", create_known_server)
    browser = types.SimpleNamespace(name="browser", open=open_like_a_text_browser)
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    monkeypatch.setattr(photos, "load_all", compute_for_ever)
    start.label_folder(str(folder))
    ((address, path, code, token),) = answers
    assert not any(secret in address for secret in (code, token))
    assert f"/#{token}\n" in capsys.readouterr().out
    assert not path.exists()
    assert ended  # Otherwise Python would abort while the thread computes.


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            webbrowser.GenericBrowser("/usr/bin/w3m"),
            "w3m cannot show the page, which needs JavaScript",
        ),
        (webbrowser.Error("could not locate runnable browser"), "This machine has no"),
    ],
)
def test_without_a_browser_for_the_page_one_sentence_says_so(monkeypatch, capsys, found, reason):
    monkeypatch.setattr(webbrowser, "get", unittest.mock.Mock(side_effect=[found]))
    assert start._find_browser(8000) is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(reason)
    assert "ssh -L 8000:localhost:8000" in line


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1:65535", "[::1]:9000", "LOCALHOST"])
def test_the_port_may_be_forwarded(app, host):
    headers = {"Host": host, "Origin": f"http://{host.lower()}", "X-Token": TOKEN}
    client = TestClient(app, base_url=HERE, headers=headers)
    assert decide(client).status_code == 200
    assert decide(client, headers={"Origin": "http://localhost:9001"}).status_code == 403


PHOTO = io.BytesIO()
Image.new("RGB", (40, 30), "teal").save(PHOTO, "PNG")
PHOTO = PHOTO.getvalue()
BOMB = PHOTO[:16] + struct.pack(">II", 60_000, 60_000) + PHOTO[24:]
BOMB = BOMB[:29] + struct.pack(">I", zlib.crc32(BOMB[12:29])) + BOMB[33:]
BODIES = [b"", b"GIF89a", b"\xff\xd8\xff" * 50, b"<svg/>", b"PK\3\4", BOMB, PHOTO[:60], PHOTO]
WRONG_JSON = [
    *(b"{}", b"[]", b"null", b'{"name": 1, "text": []}', b'{"image": true}', b"\xff", b""),
    *(b'{"name": "fish", "text": "x"}', b'{"image": -1}', b'{"kind": "x", "minutes": 1}'),
    *(b'{"images": [99], "label": "cat"}', b'{"images": [true], "label": "cat"}'),
    *(b'{"unsure_below": -1}', b'{"unsure_below": 101}', b'{"unsure_below": "1"}'),
    *(b'{"unsure_below": true}', b'{"unsure_below": null}', b'{"percent": 101}'),
    *(b'{"kind": "trained", "minutes": NaN}', b'{"kind": "trained", "minutes": -1e999}'),
]


def recognize(file, backbones):
    """Features without a network."""
    mean = decode_image(file, (8, 8, 3)).mean(dtype=np.float32)
    features = create_features([0]) + mean / 1000
    return FrozenFeatures(features, features, features[:, :0])


@pytest.mark.parametrize("verb", sorted(verbs.VERBS.keys() - WITH_OWN_TESTS - WITHOUT_VALUES))
def test_nothing_but_photos_and_sensible_changes_gets_through(labeled, folder, verb):
    labeled.get("/api/proposals.csv")  # Waits for the classifier, whose accuracy the state has.
    before = labeled.get("/api/state").json(), sorted(os.listdir(folder))
    is_photo = verbs.VERBS[verb].is_photo
    headers = get_headers(is_photo)
    for body in BODIES if is_photo else WRONG_JSON:
        answer = labeled.post(f"/api/{verb}?name=../x.png", content=body, headers=headers)
        assert answer.status_code == 200 or "codec" not in answer.text
        assert answer.status_code == 200 if body is PHOTO else answer.status_code in (400, 422)
        assert answer.status_code != 422 or answer.json()["message"].endswith((".", ":"))
    added = [f"added-{hashlib.sha256(PHOTO).hexdigest()[:16]}.png"] if verb == "add" else []
    assert sorted(os.listdir(folder)) == sorted([*before[1], *added])
    assert all((folder / name).read_bytes() == PHOTO for name in added)
    after = labeled.get("/api/state").json()
    assert after == before[0] or (added and after["counts"] == before[0]["counts"])


@pytest.mark.parametrize(
    ("wanted", "is_kept"),
    [
        *(("plane.jpg", True), ("Ein Bild (2).PNG", True)),
        *(
            (name, False)
            for name in ("IMG_0000.png", "a/b.png", "..\\b.png", ".b.png", "=b.png", "")
        ),
    ],
)
def test_an_added_photo_keeps_a_free_name_and_an_undo_takes_no_answer_for_it(
    labeled, folder, wanted, is_kept
):
    before = labeled.get("/api/state").json()["counts"]
    own = f"added-{hashlib.sha256(PHOTO).hexdigest()[:16]}"
    expected = f"{wanted.rpartition('.')[0] if is_kept else own}.png"
    for _ in range(2):  # The same photo is not added twice.
        answer = post_photo(labeled, f"add?{urllib.parse.urlencode({'name': wanted})}")
        assert answer.json()["name"] == expected
        assert (folder / expected).read_bytes() == PHOTO
    for _ in range(2):
        undone = labeled.post("/api/undo", json={})
        assert (undone.status_code, expected in undone.json()["message"]) == (422, True)
    assert labeled.get("/api/state").json()["counts"] == before
    assert labeled.post("/api/undo", json={}).json()["counts"]["labeled"] == 5


@pytest.fixture
def labeled(client, monkeypatch):
    monkeypatch.setattr(classifier, "read_photo", recognize)
    for image in range(6):
        decide(client, image, ["cat", "dog"][image % 3 == 0])
    return client


def test_a_photo_is_classified_and_not_kept(labeled, folder, monkeypatch):
    before = sorted(os.listdir(folder))
    monkeypatch.setattr("cls_jax.photos.inference.unknown._FOREIGN", 0.9)  # Of twelve photos.
    answer = post_photo(labeled, "try").json()
    assert (answer["label"], answer["is_far"]) == ("dog", False)  # Kind 0.
    assert [near["label"] for near in answer["nearest"]][:2] == ["dog", "dog"]
    assert sorted(os.listdir(folder)) == before
    preview = Image.open(io.BytesIO(base64.b64decode(answer["preview"])))
    assert (preview.format, preview.size) == ("JPEG", (40, 30))
    described = labeled.get("/api/step/95").json()
    assert (described["labels"], described["classes"]) == (6, 2)
    assert described["accuracy"].endswith("right by the instant classifier (93 to 100%).")
    # What the last layer takes says that a photo is unlike all of the folder.
    found = recognize(io.BytesIO(PHOTO), None)
    away = found._replace(pooled=-found.pooled)
    monkeypatch.setattr(classifier, "read_photo", lambda *_: away)
    assert post_photo(labeled, "try").json()["is_far"]


def test_photos_below_a_limit_are_unsure_in_the_table_and_in_the_folders(labeled, folder):
    def read(below):
        answer = labeled.get(f"/api/proposals.csv?unsure_below={below}")
        assert answer.content.startswith(codecs.BOM_UTF8)  # For Excel.
        return list(csv.DictReader(io.StringIO(answer.text[1:])))

    shares = {row["file"]: float(row["probability"]) for row in read(0) if row["probability"]}
    below = 50 * (min(shares.values()) + max(shares.values()))
    rows = read(below)
    unsure = {row["file"] for row in rows if row["source"] == "unsure"}
    assert unsure == {file for file, share in shares.items() if 100 * share < below}
    assert 0 < len(unsure) < len(shares) == 6
    # A second copy never touches the first one.
    for number, limit, apart in (("", below, unsure), ("-2", 0, set())):
        copies = labeled.post("/api/copies", json={"unsure_below": limit}).json()
        target = folder.with_name(f"{folder.name}-classes{number}")
        expected = {"copies": 12, "unsure": len(apart), "place": str(target)}
        assert expected.items() <= copies.items()
        copied = {path.name: path.parent.name for path in target.rglob("*.png")}
        places = {row["file"]: "unsure" if row["file"] in apart else row["label"] for row in rows}
        assert copied == places
    for given in ("-1", "101", "nan", "x"):
        assert labeled.get(f"/api/proposals.csv?unsure_below={given}").status_code == 400
    labeled.post("/api/rename", json={"name": "cat", "text": "Unsure"})
    refused = labeled.post("/api/copies", json={"unsure_below": below})
    assert (refused.status_code, "rename the class" in refused.json()["message"]) == (422, True)
    assert labeled.post("/api/copies", json={"unsure_below": 0}).json()["unsure"] == 0


def read_sheet(content):
    """The cells of a workbook's first sheet: numbers as such."""
    main = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
        sheet = ElementTree.fromstring(archive.read("xl/sheet.xml"))
    return [
        [
            float(cell.find(f"{main}v").text) if cell.get("t") is None else "".join(cell.itertext())
            for cell in row
        ]
        for row in sheet.iter(f"{main}row")
    ]


def test_no_cell_is_a_formula_and_the_workbook_says_the_same_with_names_as_they_are(folder):
    starts = ["=HYPERLINK(1)", "+1", "-1", "@a", "b", *[""] * 5]
    names = [*(f"{start}{i}.png" for i, start in enumerate(starts)), "ö & <b>.png", "cr\rlf.png"]
    session = open_ready(folder, create_photos(folder, 12, names), ["+cat", "dog"])
    client = create_client(server.create_app(session, TOKEN))
    for image in range(4):
        decide(client, image, ["+cat", "dog"][image % 2])
    text = client.get("/api/proposals.csv?unsure_below=75").text[1:]
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    assert not any(cell.startswith(tuple("=+-@")) for row in table for cell in row.values())
    found = FileIndex(names, folder).match(row["file"] for row in table).files
    assert {match.name for match in found.values()} == set(names)
    answer = client.get("/api/proposals.xlsx?unsure_below=75")
    head, *rows = read_sheet(answer.content)
    assert head == ["file", "label", "source", "probability"]
    assert [row[2] for row in rows] == [row["source"] for row in table]
    assert {row[0].replace("\\r", "\r") for row in rows} == set(names)
    assert {row[1] for row in rows} == {"+cat", "dog"}
    for row, same in zip(rows, table, strict=True):
        assert (f"{row[3]:.4f}" if row[3] != "" else "") == same["probability"]


def test_without_labels_nothing_is_written_copied_or_classified(client):
    for refused, why in (
        (client.get("/api/labels/coco"), "No photo has a label yet."),
        (client.post("/api/copies", json={"unsure_below": 0}), "No photo has a class yet"),
        (post_photo(client, "try"), "Label photos of two classes first"),
    ):
        assert (refused.status_code, refused.json()["message"].startswith(why)) == (422, True)
    decide(client)
    (image,) = client.get("/api/labels/coco").json()["images"]
    assert image["file_name"] == "IMG_0000.png"
    assert client.get("/api/labels/yolo").status_code == 404


def look(client, percent):
    """The photos to look at, once the classifier has learned all answers."""
    client.get("/api/proposals.csv")
    return client.post("/api/look", json={"percent": percent}).json()["images"]


def test_which_photos_to_look_at_follows_the_goal_and_is_a_promise(client):
    assert "two classes" in client.get("/api/step/95").json()["sentence"]
    for image, label in enumerate(("cat", "dog", "dog")):
        decide(client, image, label)
    client.get("/api/proposals.csv")
    assert "Too early" in client.get("/api/step/95").json()["sentence"]
    decide(client, 4, "cat")
    none, some, asked = (look(client, percent) for percent in (0, 90, 100))
    assert (len(none), len(asked)) == (0, 8)
    assert some == asked[: len(some)]
    for place, image in enumerate(asked):
        assert client.get("/api/step/100").json()["look"] == len(asked) - place
        decide(client, image, "cat")
        assert look(client, 100) == asked[place + 1 :]
    assert client.get("/api/step/100").json()["kind"] == "use"
    assert client.get("/api/step/101").status_code == 404
