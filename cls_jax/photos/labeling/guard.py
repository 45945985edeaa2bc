"""Which requests the server of the labeling page answers.

The photos are private, but every web page that is open in the same browser can send requests to
127.0.0.1. Each request must therefore name the right host and carry the access token in a header,
and a change must come from the page itself. A cookie would not do: browsers send it to the servers
at all other ports of this machine. docs/labeling.md lists the rules.
"""

import hmac
import re
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cls_jax.photos.labeling.verbs import PHOTO_VERBS

# This machine by any of its names, and any port, since ssh may forward another one.
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
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
_CLOSED = (
    "This tab may not show the photos. In the tab where you label, open Result and press Open "
    "another window, or open the address that cls-jax label printed, which contains your access "
    "token.\n"
)
_OTHER_PAGE = "Requests from other pages are refused.\n"


class Guard:
    """Lets requests from the page through to an application, and adds security headers.

    Everything but the page needs the `token` in the header X-Token, and each of `codes` can be
    exchanged for it once.
    """

    def __init__(self, app: ASGIApp, token: str, codes: Collection[str] = ()):
        self._app = app
        self._token = token
        self._unused = set(codes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or lets it through."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS | dict(headers))
            await send(message)

        await (self._answer_early(Request(scope)) or self._app)(scope, receive, send_safely)

    def _answer_early(self, request: Request) -> Response | None:
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
        is_token = hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())
        if not (is_token or (opens and given in self._unused)):
            return PlainTextResponse(_CLOSED, 403)
        if (refusal := _refuse_others(request, host)) or not opens:
            return refusal
        self._unused.discard(given)
        return JSONResponse({"token": self._token})


def _refuse_others(request: Request, host: str) -> Response | None:
    """Refuses a request of another page, which may be open in the same browser."""
    headers = request.headers
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return PlainTextResponse(_OTHER_PAGE, 403)
    if request.method != "POST":
        return None
    if headers.get("origin", "").lower() != f"http://{host}":
        return PlainTextResponse(_OTHER_PAGE, 403)
    # A form on another page cannot send either type.
    kind = "octet-stream" if request.scope["path"].split("/")[-1] in PHOTO_VERBS else "json"
    if headers.get("content-type", "").split(";")[0].strip() != f"application/{kind}":
        return PlainTextResponse(f"The request must be application/{kind}.\n", 415)
    return None
