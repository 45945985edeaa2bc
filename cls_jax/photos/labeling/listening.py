"""The socket of the labeling page, and who may connect to it: programs of this machine."""

import socket

import uvicorn
from starlette.types import ASGIApp

from cls_jax.errors import UserError

HOST = "127.0.0.1"
_IDLE_SECONDS = 5  # After an answer, a connection without another request is closed.
# With more, requests are refused: programs without the token can connect, too, and must not use up
# the file descriptors of this process. A window holds up to six.
_MAX_CONNECTIONS = 200


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
