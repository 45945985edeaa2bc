"""Folders of small photos whose classes are known, and sessions on them."""

import contextlib
import os
import pathlib
import threading

import numpy as np
from PIL import Image

from cls_jax.photos.features.network import FrozenFeatures
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.images.files import list_images
from cls_jax.photos.labeling import server, start, views
from cls_jax.photos.labeling.changes import Change
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Features, list_paths
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.labeling.session import Session
from cls_jax.photos.labeling.trained import TrainedNetworks
from tests.processes import PATIENCE_S

CLASSES = ("cat", "dog", "owl")
_COLORS = ((200, 60, 40), (40, 160, 80), (50, 80, 200))
_SIZES = ((24, 16), (16, 48), (24, 24))


def create_photos(root: pathlib.Path, num_images: int, names=None) -> list[int]:
    """Writes photos of three kinds. Returns the kind of each, in the order of their names."""
    kinds = [i % len(CLASSES) for i in range(num_images)]
    names = sorted(names or [f"IMG_{i:04}.png" for i in range(num_images)])
    root.mkdir(exist_ok=True)
    first: dict[int, pathlib.Path] = {}
    for name, kind in zip(names, kinds, strict=True):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind in first:
            os.link(first[kind], path)
        else:
            Image.new("RGB", _SIZES[kind], _COLORS[kind]).save(path, "PNG")
            first[kind] = path
    return kinds


def create_features(kinds, num_features: int = 32) -> np.ndarray:
    """Three groups with some spread. Rows have Euclidean norm 1."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(len(CLASSES), num_features))
    features = centers[list(kinds)] + 0.5 * rng.normal(size=(len(kinds), num_features))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


def describe_some(readable, features) -> Features:
    """Features of the readable files, by index."""
    return Features(np.array(readable), FrozenFeatures(features, features, features[:, :0]))


def open_ready(root: pathlib.Path, kinds, class_names=(), features=None, **options) -> Session:
    """A session with options of `open_session` that is ready, by default with `create_features`."""
    features = create_features(kinds) if features is None else features
    session = open_session(root, class_names, **options)
    session.load(lambda report: describe_some(range(len(kinds)), features))
    return session


def decide(session: Session, image: int, label: str, window: str = "w", decision: str = "label"):
    """Decides about a photo as a page that shows the current state."""
    if label:
        label = session.add_class(label)
    revision = views.describe_image(session.known, image)["revision"]
    session.decide([Change(image, decision, label, revision)], window)


def decide_all(session: Session, labels, window: str = "w", start: int = 0) -> Session:
    """Gives the photos from `start` on these labels. Returns the session."""
    for image, label in enumerate(labels, start):
        decide(session, image, label, window)
    return session


def change(plan, *given, window: str = "w"):
    """A step that changes the classes of a session."""
    return lambda session: session.change(window, plan, *given)


def fit(session: Session, trained: TrainedNetworks | None = None) -> SessionClassifier:
    """The classifier of a session, which has learned all answers."""
    classifier = SessionClassifier(session, trained)
    classifier._wait()
    return classifier


def list_classes(session: Session) -> list[str]:
    return [row["name"] for row in views.describe(session)["classes"]]


def list_check(session: Session) -> dict[str, list[int]]:
    """Class → the photos that are shown to confirm that they have it."""
    rows = views.describe_check(session)["rows"]
    return {row["label"]: [image["image"] for image in row["images"]] for row in rows}


def read_states(session):
    """Name → decision and label of everything that has an answer."""
    images = [views.describe_image(session.known, i) for i in range(len(list_paths(session.known)))]
    return {
        image["name"]: (image["decision"], image["label"]) for image in images if image["decision"]
    }


def read_training(folder):
    """What training makes of a folder: file → label, and the whole layout."""
    layout = read_catalog(folder, list_images(folder)).train()
    return {file.name: label for file, label in layout.train}, layout


@contextlib.contextmanager
def serve(session: Session, training=None):
    """Serves a session with the secrets "token" and "code" from a thread. Gives the port."""
    with start.open_socket(0) as listener:
        port = listener.getsockname()[1]
        running = start.create_server(server.create_app(session, "token", ["code"], training))
        running.config.timeout_graceful_shutdown = PATIENCE_S  # For pending answers.
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        listener.listen()  # The browser may be faster than the thread.
        thread.start()
        try:
            yield port
        finally:
            running.should_exit = True
            thread.join()
