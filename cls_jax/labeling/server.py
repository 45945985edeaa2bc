"""The server of the labeling page, and which requests it answers.

The photographs are private, but every web page that is open in the same browser can send requests
to 127.0.0.1. Each request must therefore name the right host and carry the cookie that only the
printed address sets, and a change must come from the page itself. docs/labeling.md lists the rules.
"""

import functools
import hmac
import importlib.resources
import io
import json
import pathlib
import socket
from collections.abc import Mapping
from typing import Any

import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from cls_jax.data.images.decode import ImageError, read_upright
from cls_jax.errors import UserError
from cls_jax.io import describe_error, make_printable
from cls_jax.labeling.answers import RefusedError
from cls_jax.labeling.session import Change, ConflictError, Session

HOST = "127.0.0.1"
MAX_BODY_BYTES = 64 * 1024
_MAX_CHANGES = 200  # In one request.
_LONGEST_WINDOW = 64  # Characters of a window's name.
_SIDES = {"small": 320, "large": 1280}  # Pixels on the long side of a photograph.

_PAGE = importlib.resources.files("cls_jax.labeling") / "page"
_MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_CLOSED = "Open the address that cls-jax label printed. It holds the key to this page.\n"


class _BadRequestError(Exception):
    """A body that is not what the page sends."""


def create_app(session: Session, token: str, port: int) -> ASGIApp:
    """The whole service for a session, at a port, with the secret of the printed address."""
    service = _Service(session)
    app = Starlette(
        routes=[
            Route("/", service.get_asset),
            Route("/page/{name}", service.get_asset),
            Route("/photographs/{image:int}/{size}", service.get_photograph),
            Route("/api/proposals.csv", service.get_proposals),
            Route("/api/{view}", service.get_view),
            Route("/api/{verb}", service.post, methods=["POST"]),
        ]
    )
    return Guard(app, token, port)


class _Service:
    """The answers to requests that `Guard` lets through."""

    def __init__(self, session: Session):
        self._session = session
        self._views = {
            "check": session.describe_check,
            "doubtful": session.describe_doubtful,
            "result": session.describe_result,
        }
        # A lookup by name: no path from a client reaches the disk.
        self._assets = {file.name: file.read_bytes() for file in _PAGE.iterdir() if file.is_file()}

    def get_asset(self, request: Request) -> Response:
        """A file of the page."""
        name = request.path_params.get("name", "index.html")
        media_type = _MEDIA_TYPES.get(name.rpartition(".")[2])
        if name not in self._assets or not media_type:
            return PlainTextResponse("There is no such page.\n", 404)
        return Response(self._assets[name], media_type=media_type)

    def get_photograph(self, request: Request) -> Response:
        """A photograph as JPEG."""
        size = request.path_params["size"]
        if size not in _SIDES:
            return PlainTextResponse("There is no such size.\n", 404)
        try:
            path = self._session.get_path(request.path_params["image"])
            return Response(encode_photograph(path, size), media_type="image/jpeg")
        except (RefusedError, ImageError) as error:
            return PlainTextResponse(f"{error}\n", 404)

    def get_view(self, request: Request) -> Response:
        """The session's state, or what a single view shows."""
        name = request.path_params["view"]
        if name in self._views:
            return JSONResponse(self._views[name]())
        if name != "state":
            return PlainTextResponse("There is no such view.\n", 404)
        try:
            self._session.follow_table()
        except UserError as error:
            return _explain(error, 422)
        return JSONResponse(self._session.describe(_get_window(request)))

    def get_proposals(self, request: Request) -> Response:
        """The proposals for all photographs, as a file to download."""
        return StreamingResponse(
            self._session.write_proposals(),
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="proposals.csv"'},
        )

    async def post(self, request: Request) -> Response:
        """Makes a change. The answer is the new state, or why it was refused."""
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return PlainTextResponse("The request is too large.\n", 413)
        except ClientDisconnect:
            return Response(status_code=400)  # Nobody reads it.
        return await run_in_threadpool(self._change, request, body)

    def _change(self, request: Request, body: bytes) -> Response:
        session, window = self._session, _get_window(request)
        answer: dict[str, Any] = {}
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            return _explain("The request is not JSON.", 400)
        if not isinstance(content, dict):
            return _explain("The request must be an object.", 400)
        try:
            match request.path_params["verb"]:
                case "decide":
                    session.decide(_parse_changes(content), window)
                case "undo":
                    answer = {"images": session.undo(window)}
                case "classes":
                    answer = {"label": session.add_class(_take(content, "name", str))}
                case "mark":
                    session.mark(_take_images(content))
                case _:
                    return PlainTextResponse("There is no such request.\n", 404)
        except _BadRequestError as error:
            return _explain(error, 400)
        except ConflictError as error:
            return _explain(error, 409, session.describe(window))
        except (RefusedError, UserError) as error:
            return _explain(error, 422)
        except OSError as error:
            return _explain(f"labels.csv cannot be written: {describe_error(error)}", 507)
        return JSONResponse({**session.describe(window), **answer})


@functools.lru_cache(maxsize=128)
def encode_photograph(path: pathlib.Path, size: str) -> bytes:
    """A photograph as JPEG, "small" or "large", decoded within limits and encoded again.

    The browser never gets a byte of the original file. Malformed images and metadata, such as the
    place where a photograph was taken, stay in this process. Raises an ImageError if it cannot be
    read or is not an image.
    """
    buffer = io.BytesIO()
    Image.fromarray(read_upright(path, _SIDES[size])).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


class Guard(BaseHTTPMiddleware):
    """Lets only the page itself through, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, token: str, port: int):
        super().__init__(app)
        self._token = token
        self._hosts = (f"{HOST}:{port}", f"localhost:{port}")
        # All ports of a host share cookies, so each session needs its own name.
        self._cookie = f"cls_jax_label_{port}"

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Answers one request."""
        query = request.scope["query_string"]
        has_key = query.startswith(b"token=") and request.scope["path"] == "/"
        brings_token = has_key and self._is_token(query.removeprefix(b"token=").decode("latin-1"))
        refusal = self._refuse(request, brings_token)
        response = refusal or await call_next(request)
        response.headers.update(_HEADERS)
        if brings_token and not refusal:
            cookie = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            response.headers["Set-Cookie"] = cookie
        return response

    def _refuse(self, request: Request, brings_token: bool) -> Response | None:
        """The refusal of a request that the page did not send, or None."""
        headers = request.headers
        host = headers.get("host", "").lower()
        if headers.getlist("host") != [headers.get("host")] or host not in self._hosts:
            return PlainTextResponse("This host is not served here.\n", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("This method is not allowed.\n", 405)
        if brings_token:
            return None if request.method == "GET" else PlainTextResponse(_CLOSED, 403)
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return PlainTextResponse(_CLOSED, 403)
        # Pages of other servers on this machine are "same-site", so the browser sends the cookie.
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Requests from other pages are refused.\n", 403)
        if request.method == "POST":
            if headers.get("origin", "").lower() != f"http://{host}":
                return PlainTextResponse("Requests from other pages are refused.\n", 403)
            if headers.get("content-type", "").split(";")[0].strip() != "application/json":
                return PlainTextResponse("The request must be JSON.\n", 415)
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _explain(
    error: Exception | str, status: int, state: Mapping[str, Any] | None = None
) -> Response:
    """A refusal with its reason. Names in it that are not Unicode are escaped."""
    return JSONResponse({**(state or {}), "message": make_printable(str(error))}, status)


def _get_window(request: Request) -> str:
    return request.headers.get("x-window", "")[:_LONGEST_WINDOW]


def _take(content: Mapping[str, Any], key: str, kind: type) -> Any:
    value = content.get(key)
    if type(value) is not kind:  # JSON's true is an int for isinstance.
        raise _BadRequestError(f"{key} is missing or of another type.")
    return value


def _parse_changes(content: Mapping[str, Any]) -> list[Change]:
    changes = _take(content, "changes", list)
    if not 0 < len(changes) <= _MAX_CHANGES or not all(isinstance(c, dict) for c in changes):
        raise _BadRequestError(f"changes must be 1 to {_MAX_CHANGES} objects.")
    return [
        Change(
            _take(change, "image", int),
            _take(change, "decision", str),
            _take(change, "label", str),
            _take(change, "revision", int),
        )
        for change in changes
    ]


def _take_images(content: Mapping[str, Any]) -> list[int]:
    images = _take(content, "images", list)
    if len(images) > _MAX_CHANGES or not all(type(image) is int for image in images):
        raise _BadRequestError(f"images must be at most {_MAX_CHANGES} integers.")
    return images


def open_socket(port: int) -> socket.socket:
    """Binds a port of 127.0.0.1, or any free one if it is 0.

    Raises a UserError if the port is in use or not allowed.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"Port {port} cannot be used ({reason}): choose another one with --port, or leave it "
            "out for a free one."
        ) from error
    return listener


def create_server(app: ASGIApp) -> uvicorn.Server:
    """A server without access logs, which would contain the token."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            log_level="error",
            server_header=False,
            lifespan="off",
            ws="none",
            limit_concurrency=100,
            timeout_graceful_shutdown=1,
        )
    )
