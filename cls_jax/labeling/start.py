"""Opens a folder for labeling: its images, the session, the server and the browser."""

import contextlib
import pathlib
import secrets
import sys
import threading
import webbrowser
from collections.abc import Sequence

import numpy as np

from cls_jax.data.images.files import list_images
from cls_jax.data.sources.folder import sample_headers
from cls_jax.data.sources.folder_layout import find_table, label_by_folder, list_labelable
from cls_jax.data.sources.label_table import LABELS_CSV, read_label_table
from cls_jax.errors import UserError
from cls_jax.features.extract import load_features
from cls_jax.io import make_printable
from cls_jax.labeling import server
from cls_jax.labeling.answers import Answers, check_writable
from cls_jax.labeling.session import Features, Progress, Session


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
    token = secrets.token_urlsafe(24)
    port = listener.getsockname()[1]
    address = f"http://{server.HOST}:{port}/?token={token}"
    app = server.create_app(session, token, port)

    def load() -> None:
        try:
            session.load(lambda on_progress: _load_features(session, on_progress))
        except UserError as error:  # The page shows it as well.
            print(error, file=sys.stderr)

    threading.Thread(target=load, daemon=True).start()
    listener.listen()  # The browser may be faster than the server.
    print(f"Label {make_printable(folder)} in the browser: {address}")
    print("Every answer is saved at once. Stop with Ctrl-C.", flush=True)
    if opens_browser:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        server.create_server(app).run(sockets=[listener])
    state = session.describe()
    print(f"\n{state['counts']['labeled']:,} images are labeled. Next: {state['command']}")


def open_session(root: pathlib.Path, class_names: Sequence[str] = ()) -> Session:
    """A session on a folder, before its features are computed. Says if folders label all of it.

    Raises:
        UserError: If there is no image, or labels.csv cannot be read or written.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: name one with images.")
    listing = list_images(root)
    table = find_table(listing)
    rows = read_label_table(root / table) if table else []
    splits, folder_labels = label_by_folder(listing, rows)
    files = list_labelable(listing, splits)
    if not files:
        raise UserError(f"There is no image in {root}: name a folder with images.")
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
    _, channels = sample_headers(paths)
    if channels not in (1, 3):
        raise UserError(
            f"These images have {channels} channels, and the page compares images by a network for "
            "photographs: label them by class folders or in labels.csv, see docs/own_images.md."
        )
    features_BC = load_features(paths, on_progress=on_progress)
    readable = np.flatnonzero(features_BC.any(axis=1))
    return Features(readable, features_BC[readable])
