"""The server of the labeling page.

The photos are private, but every web page that is open in the same browser can send requests to
127.0.0.1. Each request must therefore name the right host and carry the access token in a header,
and a change must come from the page itself. A cookie would not do: browsers send it to the servers
at all other ports of this machine. docs/labeling.md lists the rules.
"""

import asyncio
import base64
import contextlib
import functools
import hmac
import importlib.resources
import io
import json
import pathlib
import re
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import IO, Any, BinaryIO, NamedTuple

import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cls_jax.data.resize import ImageError
from cls_jax.errors import UserError
from cls_jax.io import describe_error, make_printable, parse_json
from cls_jax.photos.folder import exchange
from cls_jax.photos.images.decode import read_upright
from cls_jax.photos.labeling import grid, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.photos import add_photo, find_new
from cls_jax.photos.labeling.session import Change, ConflictError, Session, describe_gone
from cls_jax.photos.labeling.sheet import MEDIA_TYPE
from cls_jax.photos.labeling.trained import TrainedNetworks
from cls_jax.photos.labeling.training import FINE_TUNE, Training

HOST = "127.0.0.1"
# This machine by any of its names, and any port, since ssh may forward another one.
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
MAX_BODY_BYTES = 64 * 1024
MAX_GROUP_BYTES = 2**20  # Of answers about a group of photos.
MAX_PHOTO_BYTES = 2**26
_SPOOLED_BYTES = 2**20  # Larger bodies go to an unnamed file.
_MAX_PHOTO_BODIES = 4  # At once. Others wait.
_BODY_SECONDS = 120
_TABLE = "table"
# They read photos, or wait for the classifier: one of each at once. Others wait.
_LONG = ("scan", "try", "copies", "export", _TABLE)
PHOTO_VERBS = ("try", "add")  # Their body is a file.
_MAX_CHANGES = 200  # In one request.
_LONGEST_WINDOW = 64  # Characters in the ID of a window.
_SIDES = {"small": 320, "large": 1280}  # Pixels on the long side of a photo.
_IDLE_SECONDS = 5  # After an answer, a connection without another request is closed.
# With more, requests are refused: programs without the token can connect, too, and must not use up
# the file descriptors of this process. A window holds up to six, one of them for events.
_MAX_CONNECTIONS = 200
_EVENT_SECONDS = 0.5

_PAGE = importlib.resources.files("cls_jax.photos.labeling") / "page"
_MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REPORT_HEADERS = {
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'none'"
    )
}
_CLOSED = (
    "This tab may not show the photos. In the tab where you label, open Result and press Open "
    "another window, or open the address that cls-jax label printed, which contains your access "
    "token.\n"
)
_OTHER_PAGE = "Requests from other pages are refused.\n"


def create_app(
    session: Session, token: str, codes: Collection[str] = (), training: Training | None = None
) -> ASGIApp:
    """The web application for a session.

    The page is public. Everything else needs the `token` in the header X-Token, and each of `codes`
    can be exchanged for it once. `training` runs what the page trains.
    """
    training = training or Training(session.root, (), session.options, session.backbones)
    service = _Service(session, training)
    app = Starlette(
        routes=[
            Route("/", service.get_asset),
            Route("/page/{name}", service.get_asset),
            Route("/photos/{image:int}/{size}", service.get_photo),
            Route("/report/{code}", service.get_report),
            Route("/api/proposals.csv", service.get_proposals),
            Route("/api/proposals.xlsx", service.get_proposals),
            Route("/api/labels/{name}", service.get_labels),
            Route("/api/events", service.get_events),
            Route("/api/similar/{image:int}", service.get_similar),
            Route("/api/earlier/{place:int}", service.get_earlier),
            Route("/api/to_check/{percent:int}", service.get_check),
            Route("/api/{view}", service.get_view),
            Route("/api/{verb}", service.post, methods=["POST"]),
        ]
    )
    return guard(app, token, codes)


class _Mark(NamedTuple):
    images: list[int]
    label: str  # The class that they are not.


class _ClassText(NamedTuple):
    """A text for a class: its new name, its description or its key."""

    class_name: str
    text: str


class _TrainingRequest(NamedTuple):
    """What to train, for `Training.start`."""

    kind: str
    minutes: float


class _Service:
    """The responses to requests that `guard` lets through."""

    def __init__(self, session: Session, training: Training):
        self._session = session
        self._training = training
        self._trained = TrainedNetworks(session, training.find_used_run)
        self._classifier = SessionClassifier(session, self._trained)
        self._reports: dict[str, pathlib.Path] = {}  # By code.
        self._photo_bodies = asyncio.Semaphore(_MAX_PHOTO_BODIES)
        self._long = {name: asyncio.Semaphore() for name in _LONG}
        self._views = {
            "check": lambda: views.describe_check(session),
            "photos": lambda: grid.describe_photos(session),
            "suspects": self._describe_suspects,
            "result": lambda: views.describe_result(session, self._classifier.estimate()),
            "classifier": self._classifier.describe,
            "runs": lambda: {"runs": training.describe_runs()},
        }
        # Looked up by name: no path from a client reaches the disk.
        self._assets = {file.name: file.read_bytes() for file in _PAGE.iterdir() if file.is_file()}

    def get_asset(self, request: Request) -> Response:
        """A file of the page."""
        name = request.path_params.get("name", "index.html")
        media_type = _MEDIA_TYPES.get(name.rpartition(".")[2])
        if name not in self._assets or not media_type:
            return PlainTextResponse("There is no such page.\n", 404)
        return Response(self._assets[name], media_type=media_type)

    def get_photo(self, request: Request) -> Response:
        """A photo as JPEG."""
        size = request.path_params["size"]
        if size not in _SIDES:
            return PlainTextResponse("There is no such size.\n", 404)
        image = request.path_params["image"]
        try:
            path = self._session.get_path(image)
        except RefusedError as error:
            return PlainTextResponse(f"{error}\n", 404)
        try:
            content = encode_photo(path, size, path.stat().st_mtime_ns)
        except (OSError, ImageError) as error:
            with contextlib.suppress(UserError):  # The folder is gone.
                self._session.leave_out_missing([image])
            return PlainTextResponse(f"This photo cannot be read: {describe_error(error)}.\n", 404)
        return Response(content, media_type="image/jpeg")

    def get_view(self, request: Request) -> Response:
        """The session's state, or the data of a single view."""
        name = request.path_params["view"]
        if name in self._views:
            return JSONResponse(self._views[name]())
        if name != "state":
            return PlainTextResponse("There is no such view.\n", 404)
        try:
            self._session.follow_table()
        except UserError as error:
            return _explain(error, 422)
        return JSONResponse(self._describe(request))

    def _describe_suspects(self) -> dict[str, Any]:
        is_fitting = self._classifier.describe()["is_fitting"]
        return views.describe_suspects(self._session) | {"is_fitting": is_fitting}

    def _describe(self, request: Request) -> dict[str, Any]:
        self._classifier.follow()
        self._trained.follow()
        is_running = self._training.is_running()
        described = views.describe(self._session, _get_window(request))
        classifier = self._classifier
        return described | {
            "is_training": is_running,
            "named_right": classifier.describe_shortly(),
            "named_by": classifier.describe_namer(),
        }

    def get_similar(self, request: Request) -> Response:
        """The photos most like another one."""
        try:
            return JSONResponse(grid.find_similar(self._session, request.path_params["image"]))
        except RefusedError as error:
            return _explain(error, 404)

    def get_earlier(self, request: Request) -> Response:
        """The photo with the last answer but so many, if there is one."""
        return JSONResponse(views.describe_earlier(self._session, request.path_params["place"]))

    async def get_events(self, request: Request) -> Response:
        """The training's progress as server-sent events: at once, and whenever it changes.

        They end with the training, since a browser opens few connections for all its windows.
        """

        async def follow() -> AsyncIterator[str]:
            last = ""
            is_running = True
            while is_running and not self._training.is_closing():
                is_running = self._training.is_running()
                text = json.dumps(await run_in_threadpool(self._training.describe))
                if text != last:
                    yield f"data: {text}\n\n"
                last = text
                if is_running:
                    await asyncio.sleep(_EVENT_SECONDS)

        return StreamingResponse(follow(), media_type="text/event-stream")

    def get_report(self, request: Request) -> Response:
        """A run's report, once for each code, in a sandbox that cannot reach this server."""
        path = self._reports.pop(request.path_params["code"], None)
        if path is None or not path.is_file():
            return PlainTextResponse("Open the report from the page.\n", 404)
        return Response(path.read_bytes(), media_type="text/html", headers=_REPORT_HEADERS)

    def get_check(self, request: Request) -> Response:
        """The photos to look at for some percentage of right ones."""
        percent = request.path_params["percent"]
        if percent > 100:
            return PlainTextResponse("There is no such percentage.\n", 404)
        is_fitting = self._classifier.describe()["is_fitting"]
        found = grid.describe_check(self._session, percent, self._classifier.estimate())
        return JSONResponse(found | {"is_fitting": is_fitting})

    async def get_labels(self, request: Request) -> Response:
        """The labels that were given, as a file for another program."""
        name = request.path_params["name"]
        if name not in exchange.FORMATS:
            return PlainTextResponse("There is no such format.\n", 404)
        try:
            async with self._long[_TABLE]:
                content = await run_in_threadpool(self._classifier.write_labels, name)
        except (RefusedError, UserError) as error:
            return _explain(error, 422)
        return Response(content, media_type="application/octet-stream")

    async def get_proposals(self, request: Request) -> Response:
        """The classes of all photos, as a file to download: a workbook, or else CSV."""
        try:
            below = grid.parse_percent(request.query_params.get("unsure_below", "0"))
        except ValueError:
            return _explain("unsure_below must be a percentage.", 400)
        async with self._long[_TABLE]:
            if request.url.path.endswith(".xlsx"):
                sheet = await run_in_threadpool(self._classifier.write_sheet, below / 100)
                return Response(sheet, media_type=MEDIA_TYPE)
            parts = await run_in_threadpool(list, self._classifier.write_table(below / 100))
        return Response(
            "".join(parts),
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="sorted.csv"'},
        )

    async def post(self, request: Request) -> Response:
        """Makes a change. The response is the new state, or why it was refused."""
        verb = request.path_params["verb"]
        is_photo = verb in PHOTO_VERBS
        limit = MAX_PHOTO_BYTES if is_photo else MAX_BODY_BYTES
        if verb == "decide_all":
            limit = MAX_GROUP_BYTES
        try:
            with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as body:
                # Answers never wait for slow photos.
                turn = self._photo_bodies if is_photo else contextlib.nullcontext()
                async with turn, asyncio.timeout(_BODY_SECONDS):
                    async for part in request.stream():
                        body.write(part)
                        if body.tell() > limit:
                            what = "photo" if is_photo else "request"
                            is_small = limit < 2**20
                            size = f"{limit // 2**10} KB" if is_small else f"{limit // 2**20} MB"
                            return _explain(f"The {what} is larger than {size}.", 413)
                body.seek(0)
                # Others wait here, where they need no thread: there are 40, for answers as well.
                async with self._long.get(verb) or contextlib.nullcontext():
                    return await run_in_threadpool(self._change, request, body)
        except TimeoutError:
            return _explain("The request took too long to arrive.", 408)
        except ClientDisconnect:
            return Response(status_code=400)  # The client is gone.

    def _change(self, request: Request, body: IO[bytes]) -> Response:
        session = self._session
        window = _get_window(request)
        verb = request.path_params["verb"]
        try:
            content = _parse(verb, body)
        except ValueError as error:
            return _explain(error, 400)
        changes: dict[str, Callable[[], dict[str, Any] | None]] = {
            "decide": lambda: self._decide(content, window),
            "decide_all": lambda: self._decide(content, window),
            "undo": lambda: {"images": self._undo(window)},
            "classes": lambda: {"label": session.add_class(content)},
            "rename": lambda: {
                "renamed": session.rename_class(window, content.class_name, content.text)
            },
            "describe": lambda: session.describe_class(window, content.class_name, content.text),
            "key": lambda: session.set_key(window, content.class_name, content.text),
            "example": lambda: session.set_example(window, content),
            "mark": lambda: session.mark(content.images, content.label),
            "sample": lambda: {"sample": session.draw_sample()},
            "scan": lambda: find_new(session),
            "try": lambda: self._classify(content),
            "find": lambda: views.find_image(session, content),
            "add": lambda: {"name": self._add(content)},
            "copies": lambda: self._classifier.copy_by_class(content / 100),
            "train": lambda: self._train(content),
            "stop": self._training.stop,
            "resume": self._training.resume,
            "report": lambda: self._open_report(content),
            "use": lambda: self._training.use(content),
            "delete": lambda: self._training.delete(content),
            "export": lambda: {"exported": self._training.export(content)},
        }
        if verb not in changes:
            return PlainTextResponse("There is no such request.\n", 404)
        try:
            answer = changes[verb]()
        except ConflictError as error:
            return _explain(error, 409, self._describe(request))
        except ImageError as error:
            return _explain(f"This photo cannot be read: {error}.", 422)
        except (RefusedError, UserError) as error:
            return _explain(error, 422)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            reason = error.strerror or type(error).__name__
            return _explain(f"This cannot be saved: {reason}{where}.", 507)
        if verb in ("try", "find"):  # They change nothing.
            return JSONResponse(answer)
        return JSONResponse(self._describe(request) | (answer or {}))

    def _decide(self, changes: list[Change], window: str) -> dict[str, Any]:
        """Records decisions. Returns what to say of photos that are gone."""
        gone = self._session.decide(changes, window)
        return {"left_out": make_printable(describe_gone(gone)) if gone else "", "gone": len(gone)}

    def _train(self, wanted: _TrainingRequest) -> None:
        version = self._session.labels_version
        self._training.start(wanted.kind, self._session.count(), wanted.minutes)
        if wanted.kind == FINE_TUNE:
            self._trained.forget(version)

    def _undo(self, window: str) -> list[dict[str, Any]]:
        """Undoes a step. Returns its first photos."""
        images = self._session.undo(window)
        return [views.describe_image(self._session, image) for image in images]

    def _classify(self, file: BinaryIO) -> dict[str, Any]:
        """Classifies a photo. The preview is for formats that browsers do not show, as TIFF."""
        found = self._classifier.classify(file)
        preview = base64.b64encode(_encode(file, "small")).decode()
        return found | {"preview": preview}

    def _add(self, file: BinaryIO) -> str:
        """Saves a photo in the folder, which must still be there. Returns its name."""
        self._session.follow_table()
        return add_photo(self._session.root, file)

    def _open_report(self, name: str) -> dict[str, str]:
        """A code for the report of a run, by default of the last one."""
        if (path := self._training.find_report(name)) is None:
            raise RefusedError("This run has no report: write one with cls-jax report.")
        code = secrets.token_urlsafe(24)
        self._reports[code] = path
        return {"report": f"/report/{code}"}


@functools.lru_cache(maxsize=128)
def encode_photo(path: pathlib.Path, size: str, time: int) -> bytes:
    """A photo as JPEG, "small" or "large", decoded within limits and encoded again.

    `time` is when the file was changed, for the cache.

    The browser never gets a byte of the original file. Malformed images and metadata, such as the
    location of a photo, stay in this process. Raises an ImageError if it cannot be
    read or is not an image.
    """
    return _encode(path, size)


def _encode(file: pathlib.Path | BinaryIO, size: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(read_upright(file, _SIDES[size])).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def guard(app: ASGIApp, token: str, codes: Collection[str] = ()) -> ASGIApp:
    """Lets requests from the page through, and adds security headers. See `create_app`."""
    unused = set(codes)

    def answer_early(request: Request) -> Response | None:
        """Refuses a request that the page did not send, or exchanges a code for the token."""
        headers = request.headers
        path = request.scope["path"]
        host = headers.get("host", "").lower()
        given = headers.get("x-token", "")
        if headers.getlist("host") != [headers.get("host")] or not _HOSTS.fullmatch(host):
            return PlainTextResponse("This host is not served.\n", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("This method is not allowed.\n", 405)
        if path == "/" or path.startswith(("/page/", "/report/")):
            return None
        opens = path == "/api/open" and request.method == "POST"
        is_token = hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
        if not (is_token or (opens and given in unused)):
            return PlainTextResponse(_CLOSED, 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse(_OTHER_PAGE, 403)
        if request.method == "POST":
            if headers.get("origin", "").lower() != f"http://{host}":
                return PlainTextResponse(_OTHER_PAGE, 403)
            # A form on another page cannot send either type.
            kind = "octet-stream" if path.split("/")[-1] in PHOTO_VERBS else "json"
            if headers.get("content-type", "").split(";")[0].strip() != f"application/{kind}":
                return PlainTextResponse(f"The request must be application/{kind}.\n", 415)
        if not opens:
            return None
        unused.discard(given)
        return JSONResponse({"token": token})

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS | dict(headers))
            await send(message)

        await (answer_early(Request(scope)) or app)(scope, receive, send_safely)

    return serve


def _explain(
    error: Exception | str, status: int, state: Mapping[str, Any] | None = None
) -> Response:
    """An error response with its reason. Names that are not Unicode are escaped."""
    return JSONResponse({**(state or {}), "message": make_printable(str(error))}, status)


def _get_window(request: Request) -> str:
    return request.headers.get("x-window", "")[:_LONGEST_WINDOW]


def _parse(verb: str, body: IO[bytes]) -> Any:
    """The arguments of a verb of `_Service.post`. Raises a ValueError if they are invalid."""
    if verb in PHOTO_VERBS:
        return body
    try:
        content = parse_json(body.read().decode("utf-8"))
    except ValueError as error:
        raise ValueError("The request is not JSON.") from error

    def take(values: Any, key: str, kind: type) -> Any:
        value = values.get(key) if isinstance(values, dict) else None
        if type(value) is not kind:  # For isinstance, JSON's true is an int.
            raise ValueError(f"{key} is missing or has the wrong type.")
        return value

    if verb == "copies":
        percent: Any = content.get("unsure_below", 0) if isinstance(content, dict) else None
        if type(percent) not in (int, float):
            raise ValueError("unsure_below must be a number.")
        return grid.parse_percent(str(percent))
    if verb == "decide_all":
        return grid.parse_changes(content)
    if verb == "report" and content == {}:
        return ""
    if verb in ("classes", "find", "use", "delete", "export", "report"):
        return take(content, "name", str)
    if verb == "example":
        return take(content, "image", int)
    if verb in ("rename", "describe", "key"):
        return _ClassText(take(content, "name", str), take(content, "text", str))
    if verb == "train":
        minutes: Any = content.get("minutes") if isinstance(content, dict) else None
        if type(minutes) not in (int, float):
            raise ValueError("Minutes must be a number.")
        return _TrainingRequest(take(content, "kind", str), minutes=minutes)
    if verb == "mark":
        images = take(content, "images", list)
        if len(images) > _MAX_CHANGES or not all(type(image) is int for image in images):
            raise ValueError(f"images must be at most {_MAX_CHANGES} integers.")
        return _Mark(images, take(content, "label", str))
    if verb != "decide":
        return None
    changes = take(content, "changes", list)
    if not 0 < len(changes) <= _MAX_CHANGES:
        raise ValueError(f"changes must be 1 to {_MAX_CHANGES} objects.")
    return [
        Change(
            image=take(one, "image", int),
            decision=take(one, "decision", str),
            label=take(one, "label", str),
            revision=take(one, "revision", int),
        )
        for one in changes
    ]


def open_socket(port: int) -> socket.socket:
    """Binds a port of 127.0.0.1, with 0 a free one. Raises a UserError if it cannot be used."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"Port {port} cannot be used ({reason}): choose another with --port, or omit it to "
            "use a free one."
        ) from error
    return listener


def create_server(app: ASGIApp) -> uvicorn.Server:
    """A server without access logs."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            access_log=False,
            log_config=None,  # Uvicorn's default would close all log handlers of this process.
            log_level="error",
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )
