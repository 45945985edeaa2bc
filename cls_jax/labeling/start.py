"""Opens a folder for labeling: its images, the session, the server and the browser."""

import contextlib
import os
import pathlib
import secrets
import signal
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Sequence

import numpy as np

from cls_jax.data.images.files import list_images
from cls_jax.data.sources.folder_layout import find_table, label_by_folder, list_labelable
from cls_jax.data.sources.label_table import LABELS_CSV, read_label_table
from cls_jax.errors import StoppedError, UserError
from cls_jax.features.extract import load_features
from cls_jax.io import make_printable
from cls_jax.labeling import server
from cls_jax.labeling.answers import Answers, check_writable
from cls_jax.labeling.session import Features, Progress, Session

_STOP_SECONDS = 3.0  # Enough for a batch of features, not for compiling their network.


def label_folder(
    folder: str, class_names: Sequence[str] = (), port: int = 0, *, opens_browser: bool = True
) -> None:
    """Serves the page until the process is interrupted, and opens it in a browser.

    `class_names` are offered from the start. Port 0 stands for any free one.

    Raises:
        UserError: If there is no image, labels.csv cannot be read or the port is in use.
    """
    session = open_session(pathlib.Path(folder).expanduser(), class_names)
    listener = server.open_socket(port)
    token, code = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    port = listener.getsockname()[1]
    address = f"http://{server.HOST}:{port}/#"  # Browsers do not send what follows the #.
    app = server.create_app(session, token, port, [code])
    is_stopping = threading.Event()

    def load_features(on_progress: Progress) -> Features:
        def report(done: int, total: int) -> None:
            if is_stopping.is_set():
                raise StoppedError("Stopped.", signal.SIGINT)
            on_progress(done, total)

        return _load_features(session, report)

    def load() -> None:
        try:
            session.load(load_features)
        except UserError as error:  # The page shows it as well.
            print(error, file=sys.stderr)
        except StoppedError:
            pass

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    listener.listen()  # The browser may be faster than the server.
    print(f"Label {make_printable(folder)} in the browser: {address}{token}")
    print("Answers are saved immediately. Press Ctrl-C to stop.", flush=True)
    with contextlib.suppress(KeyboardInterrupt), _write_redirect(address + code) as page:
        if opens_browser:
            # In a thread: it returns only after the page was left if the browser is a text browser.
            threading.Thread(target=webbrowser.open, args=[page.as_uri()], daemon=True).start()
        server.create_server(app).run(sockets=[listener])
    is_stopping.set()
    with contextlib.suppress(KeyboardInterrupt):
        loading.join(_STOP_SECONDS)
    state = session.describe()
    print(
        f"\n{state['counts']['labeled']:,} images are labeled. Next: {state['command']}", flush=True
    )
    if loading.is_alive():
        os._exit(0)  # It compiles, and Python aborts if a thread is in JAX at an orderly exit.


@contextlib.contextmanager
def _write_redirect(address: str) -> Iterator[pathlib.Path]:
    """A page that only this user can read and that leads to an address.

    The address itself would be in the list of processes, as an argument of the browser.
    """
    # Browsers that were installed as snaps see no file elsewhere.
    place = pathlib.Path.home() if pathlib.Path("/snap/bin").is_dir() else None
    descriptor, name = tempfile.mkstemp(".html", "cls-jax-label-", place)
    try:
        with open(descriptor, "w") as file:
            file.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={address}">')
        yield pathlib.Path(name)
    finally:
        os.unlink(name)


def open_session(root: pathlib.Path, class_names: Sequence[str] = ()) -> Session:
    """A session on a folder, before its features are computed. Says if folders label all of it.

    Raises:
        UserError: If there is no image, or labels.csv cannot be read or written.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder. Pass a folder of images.")
    listing = list_images(root)
    table = find_table(listing)
    rows = read_label_table(root / table) if table else []
    splits, folder_labels = label_by_folder(listing, rows)
    files = list_labelable(listing, splits)
    if not files:
        raise UserError(f"There is no image in {root}: pass a folder of images.")
    check_writable(root / (table or LABELS_CSV))
    names = [file.name for file in listing.files]
    answers = Answers(root / (table or LABELS_CSV), names, folder_labels, class_names)
    if folder_labels.keys() >= set(files):
        print(
            f"Every image is labeled by its folder, such as {make_printable(files[0])!r}: move "
            f"those without a label to {root / 'unlabeled'}."
        )
    return Session(root, files, answers)


def _load_features(session: Session, on_progress: Progress) -> Features:
    paths = session.list_paths()
    features_BC = load_features(paths, on_progress=on_progress)
    readable = np.flatnonzero(features_BC.any(axis=1))
    return Features(readable, features_BC[readable])
