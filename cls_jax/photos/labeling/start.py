"""Opens a folder for labeling: its images, the session, the server and the browser.

Only programs of this machine may connect.
"""

import contextlib
import os
import pathlib
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from cls_jax.errors import StoppedError, UserError
from cls_jax.io import make_printable
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES, Backbones
from cls_jax.photos.features.network import Progress
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.labeling import photos, server, views
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.known import Features, list_paths
from cls_jax.photos.labeling.session import JAX_THREAD
from cls_jax.photos.labeling.training import Training

_HOST = "127.0.0.1"
_IDLE_SECONDS = 5  # After an answer, a connection without another request is closed.
# With more, requests are refused: programs without the token can connect, too, and must not use up
# the file descriptors of this process. A window holds up to six.
_MAX_CONNECTIONS = 200
_TEXT_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")
_STOP_SECONDS = 3.0  # Enough for a batch of features, not for compiling their network.


def label_folder(
    folder: str,
    class_names: Sequence[str] = (),
    port: int = 0,
    *,
    opens_browser: bool = True,
    options: FolderOptions = AUTOMATIC,
    backbones: Backbones = DEFAULT_BACKBONES,
) -> None:
    """Serves the page until the process is interrupted, and opens it in a browser.

    `class_names` are offered from the start. Port 0 picks a free port. Raises a UserError if there
    is no image, labels.csv cannot be read, the port is in use, or `open_session` does.
    """
    root = pathlib.Path(folder).expanduser()
    session = photos.open_session(root, class_names, options, backbones)
    listener = open_socket(port)
    token, code = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    port = listener.getsockname()[1]
    address = f"http://{_HOST}:{port}/#"  # Browsers do not send what follows the #.
    training = Training(session.known.root, options=options, backbones=backbones)
    running = create_server(server.create_app(session, token, [code], training))
    is_stopping = threading.Event()

    def load_features(on_progress: Progress) -> Features:
        def report(done: int, total: int) -> None:
            if is_stopping.is_set():
                raise StoppedError("Stopped.", signal.SIGINT)
            on_progress(done, total)

        return photos.load_all(list_paths(session.known), report, backbones)

    def load() -> None:
        try:
            session.load(load_features)
        except UserError as error:  # The page shows it as well.
            print(error, file=sys.stderr)
        except StoppedError:
            pass

    threading.Thread(target=load, name=JAX_THREAD, daemon=True).start()
    listener.listen()  # The browser may be faster than the server.
    print(f"Label {make_printable(folder)} in the browser: {address}{token}")
    print("Answers are saved immediately. Press Ctrl-C to stop.", flush=True)
    with contextlib.suppress(KeyboardInterrupt), _write_redirect(address + code) as page:
        if opens_browser and (browser := _find_browser(port)):
            # In a thread: some browsers return only once the page is closed.
            threading.Thread(target=browser.open, args=[page.as_uri()], daemon=True).start()
        running.run(sockets=[listener])
    is_stopping.set()
    busy = [thread for thread in threading.enumerate() if thread.name == JAX_THREAD]
    with contextlib.suppress(KeyboardInterrupt):
        for thread in busy:
            thread.join(_STOP_SECONDS)
    continues = _end(training)
    state = views.describe(session)
    following = "" if continues else f" Next: {state['command']}"
    print(f"\n{state['counts']['labeled']:,} photos are labeled.{following}", flush=True)
    if any(thread.is_alive() for thread in busy):
        os._exit(0)  # Python aborts if a thread is still in JAX at an orderly exit.


def open_socket(port: int) -> socket.socket:
    """Binds a port of 127.0.0.1, with 0 a free one. Raises a UserError if it cannot be used."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
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


def _find_browser(port: int) -> webbrowser.BaseBrowser | None:
    """The default browser. If there is none with JavaScript, prints what to do instead."""
    try:
        browser = webbrowser.get()
        name = os.path.basename(getattr(browser, "name", ""))
        if name not in _TEXT_BROWSERS:
            return browser
        reason = f"{name} cannot show the page, which needs JavaScript"
    except webbrowser.Error:
        reason = "This machine has no browser"
    tunnel = f"ssh -L {port}:localhost:{port} HOST"
    print(f"{reason}: open the address elsewhere, through {tunnel}.", flush=True)
    return None


def _end(training: Training) -> bool:
    """Asks whether to stop a training in progress. Returns whether it continues.

    Without an answer it is stopped, and so is one without a folder, which no later session would
    see.
    """
    if not training.is_running():
        return False
    state = training.describe()
    answer = "y"
    if sys.stdin.isatty() and state["has_folder"]:
        with contextlib.suppress(KeyboardInterrupt, EOFError):
            answer = input(f"\nTraining is in progress in {state['run']}. Stop it? [Y/n] ")
    if answer.strip().lower() in ("n", "no"):
        print("Training continues.", end="")
        return True
    with contextlib.suppress(RefusedError):  # It has just ended.
        training.stop(finishes=False)
    print("\nStopping the training…", end="", flush=True)
    with contextlib.suppress(KeyboardInterrupt):  # It saves without this process.
        training.wait()
    state = training.describe()
    how = f" {state['command']}" if state["message"].endswith(":") else ""
    print(f" {state['message']}{how}", end="")
    return False


@contextlib.contextmanager
def _write_redirect(address: str) -> Iterator[pathlib.Path]:
    """A page that only this user can read, and that redirects to an address.

    As an argument of the browser, the address itself would be visible in the list of processes.
    """
    # Browsers installed as snaps cannot read files elsewhere.
    place = pathlib.Path.home() if pathlib.Path("/snap/bin").is_dir() else None
    descriptor, name = tempfile.mkstemp(".html", "cls-jax-label-", place)
    try:
        with open(descriptor, "w") as file:
            file.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={address}">')
        yield pathlib.Path(name)
    finally:
        os.unlink(name)
