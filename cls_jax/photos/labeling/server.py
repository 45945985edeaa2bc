"""The server of the labeling page.

`Guard` says which requests it answers, `views` what the page shows, and `verbs` what the
page may ask.
"""

import asyncio
import contextlib
import importlib.resources
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import IO, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cls_jax.data.resize import ImageError
from cls_jax.errors import UserError
from cls_jax.io import describe_error, make_printable
from cls_jax.photos.folder import exchange
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.changes import ConflictError
from cls_jax.photos.labeling.guard import Guard
from cls_jax.photos.labeling.known import get_path
from cls_jax.photos.labeling.next_step import describe_step
from cls_jax.photos.labeling.photos import SIDES, encode_photo
from cls_jax.photos.labeling.session import Session
from cls_jax.photos.labeling.sheet import MEDIA_TYPE
from cls_jax.photos.labeling.training import Training
from cls_jax.photos.labeling.verbs import VERBS, Parts, Verb, parse_percent

_SPOOLED_BYTES = 2**20  # Larger bodies go to an unnamed file.
_MAX_PHOTO_BODIES = 4  # At once. Others wait.
_BODY_SECONDS = 120
_TABLE = "table"
_LONGEST_WINDOW = 64  # Characters in the ID of a window.

_PAGE = importlib.resources.files("cls_jax.photos.labeling") / "page"
_MEDIA_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_REPORT_HEADERS = {
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:; font-src data:; frame-ancestors 'none'"
    )
}


def create_app(
    session: Session, token: str, codes: Collection[str] = (), training: Training | None = None
) -> ASGIApp:
    """The web application for a session.

    The page is public. Everything else needs the `token` in the header X-Token, and each of `codes`
    can be exchanged for it once. `training` runs what the page trains.
    """
    training = training or Training(
        session.known.root, (), session.known.options, session.known.backbones
    )
    service = _Service(Parts(session, training))
    zipped = [Middleware(GZipMiddleware)]  # The page may be far away, behind a tunnel.
    app = Starlette(
        routes=[
            Route("/", service.get_asset, middleware=zipped),
            Route("/page/{name}", service.get_asset, middleware=zipped),
            Route("/photos/{image:int}/{size}", service.get_photo),
            Route("/report/{code}", service.get_report),
            Route("/api/proposals.csv", service.get_proposals),
            Route("/api/proposals.xlsx", service.get_proposals),
            Route("/api/labels/{name}", service.get_labels),
            Route("/api/{view}/{number:int}", service.get_view, middleware=zipped),
            Route("/api/{view}", service.get_view, middleware=zipped),
            Route("/api/{verb}", service.post, methods=["POST"]),
        ],
        exception_handlers={
            RefusedError: lambda _, error: _explain(error, 404),
            UserError: lambda _, error: _explain(error, 422),
        },
    )
    return Guard(app, token, codes)


class _Service:
    """The responses to requests that `Guard` lets through."""

    def __init__(self, parts: Parts):
        self._parts = parts
        session, training = parts.session, parts.training
        self._photo_bodies = asyncio.Semaphore(_MAX_PHOTO_BODIES)
        self._long = {
            name: asyncio.Semaphore()
            for name in (_TABLE, *(name for name, verb in VERBS.items() if verb.waits))
        }
        # By the request, and a number if the view depends on one.
        self._views: dict[str, Callable[[Request, int], dict[str, Any]]] = {
            "state": self._describe_state,
            "check": lambda *_: views.describe_check(session),
            "photos": lambda *_: views.describe_photos(session),
            "suspects": self._describe_suspects,
            "result": lambda *_: views.describe_result(session, parts.classifier.estimate()),
            "runs": lambda *_: {"runs": training.runs.describe()},
            "training": lambda *_: training.describe(),
            "similar": lambda _, image: views.find_similar(session.known, image),
            "earlier": lambda _, place: views.describe_earlier(session.known, place),
            "step": self._describe_step,
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
        if size not in SIDES:
            return PlainTextResponse("There is no such size.\n", 404)
        image = request.path_params["image"]
        path = get_path(self._parts.session.known, image)
        try:
            content = encode_photo(path, size, path.stat().st_mtime_ns)
        except (OSError, ImageError) as error:
            with contextlib.suppress(UserError):  # The folder is gone.
                self._parts.session.leave_out_missing([image])
            return PlainTextResponse(f"This photo cannot be read: {describe_error(error)}.\n", 404)
        return Response(content, media_type="image/jpeg")

    def get_view(self, request: Request) -> Response:
        """The data of a view. One that depends on a number has nothing without it."""
        if (describe := self._views.get(request.path_params["view"])) is None:
            return PlainTextResponse("There is no such view.\n", 404)
        return JSONResponse(describe(request, request.path_params.get("number", -1)))

    def _describe_state(self, request: Request, _: int) -> dict[str, Any]:
        self._parts.session.follow_table()
        return self._describe(request)

    def _describe_suspects(self, *_: Any) -> dict[str, Any]:
        is_fitting = self._parts.classifier.describe()["is_fitting"]
        return views.describe_suspects(self._parts.session.known) | {"is_fitting": is_fitting}

    def _describe(self, request: Request) -> dict[str, Any]:
        session, classifier = self._parts.session, self._parts.classifier
        classifier.follow()
        self._parts.trained.follow()
        fitted = classifier.get()
        return {
            **views.describe(session, _get_window(request), _get_question(request)),
            "is_training": self._parts.training.is_running(),
            "named_right": fitted.accuracy_in_short if fitted else "",
            "named_by": fitted.namer if fitted else "",
        }

    def get_report(self, request: Request) -> Response:
        """A run's report, once for each code, in a sandbox that cannot reach this server."""
        path = self._parts.reports.pop(request.path_params["code"], None)
        if path is None or not path.is_file():
            return PlainTextResponse("Open the report from the page.\n", 404)
        return Response(path.read_bytes(), media_type="text/html", headers=_REPORT_HEADERS)

    def _describe_step(self, _: Request, percent: int) -> dict[str, Any]:
        """The next step for some percentage of right photos, and the classifier's status."""
        if not 0 <= percent <= 100:
            raise RefusedError("There is no such percentage.")
        classifier, asked = self._parts.classifier, self._parts.asked.get(percent, [])
        described = classifier.describe()
        return described | describe_step(self._parts.session, percent, classifier.estimate(), asked)

    async def get_labels(self, request: Request) -> Response:
        """The labels that were given, as a file for another program."""
        name = request.path_params["name"]
        if name not in exchange.WRITERS:
            return PlainTextResponse("There is no such format.\n", 404)
        async with self._long[_TABLE]:
            content = await run_in_threadpool(self._parts.classifier.write_labels, name)
        return Response(content, media_type="application/octet-stream")

    async def get_proposals(self, request: Request) -> Response:
        """The classes of all photos, as a file to download: a workbook, or else CSV."""
        try:
            below = parse_percent(request.query_params.get("unsure_below", "0"))
        except ValueError:
            return _explain("unsure_below must be a percentage.", 400)
        classifier, is_sheet = self._parts.classifier, request.url.path.endswith(".xlsx")
        write = classifier.write_sheet if is_sheet else classifier.write_table
        async with self._long[_TABLE]:
            content = await run_in_threadpool(write, below / 100)
        return Response(content, media_type=MEDIA_TYPE if is_sheet else "text/csv")

    async def post(self, request: Request) -> Response:
        """Makes a change. The response is the new state, or why it was refused."""
        name = request.path_params["verb"]
        if (verb := VERBS.get(name)) is None:
            return PlainTextResponse("There is no such request.\n", 404)
        try:
            with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as body:
                # Answers never wait for slow photos.
                turn = self._photo_bodies if verb.is_photo else contextlib.nullcontext()
                async with turn, asyncio.timeout(_BODY_SECONDS):
                    async for part in request.stream():
                        body.write(part)
                        if body.tell() > verb.limit:
                            return _explain(verb.describe_limit(), 413)
                body.seek(0)
                # Others wait here, where they need no thread: there are 40, for answers as well.
                async with self._long.get(name) or contextlib.nullcontext():
                    return await run_in_threadpool(self._change, verb, request, body)
        except TimeoutError:
            return _explain("The request took too long to arrive.", 408)
        except ClientDisconnect:
            return Response(status_code=400)  # The client is gone.

    def _change(self, verb: Verb, request: Request, body: IO[bytes]) -> Response:
        try:
            arguments = verb.read(body, request.query_params.get("name", ""))
        except ValueError as error:
            return _explain(error, 400)
        try:
            answer = verb.run(self._parts, arguments, _get_window(request)) or {}
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
        return JSONResponse(self._describe(request) | answer if verb.shows_state else answer)


def _explain(
    error: Exception | str, status: int, state: Mapping[str, Any] | None = None
) -> Response:
    """An error response with its reason. Names that are not Unicode are escaped."""
    return JSONResponse({**(state or {}), "message": make_printable(str(error))}, status)


def _get_window(request: Request) -> str:
    return request.headers.get("x-window", "")[:_LONGEST_WINDOW]


def _get_question(request: Request) -> int | None:
    """The photo that the window asks about."""
    number = request.headers.get("x-question", "")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None
