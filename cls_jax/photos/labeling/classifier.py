"""The instant classifier of a labeling session, for its folder and photos from elsewhere.

It is fitted in its own thread, so that labeling never waits for it.

Shape suffixes: B photos of the folder, K classes.
"""

import functools
import itertools
import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import describe_error, make_printable, to_csv
from cls_jax.photos.features.accuracy import Estimate
from cls_jax.photos.features.backbones import DEFAULT_BACKBONES, Backbones
from cls_jax.photos.features.extract import read_backbone
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.features.network import FrozenFeatures, open_network
from cls_jax.photos.folder import exchange
from cls_jax.photos.folder.sort import UNSURE, set_unsure_apart, sort_files
from cls_jax.photos.images.decode import decode_image
from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.fitting import Fitted, fit
from cls_jax.photos.labeling.known import list_states
from cls_jax.photos.labeling.session import JAX_THREAD, Session
from cls_jax.photos.labeling.sheet import write_sheet
from cls_jax.photos.labeling.trained import TrainedNetworks
from cls_jax.photos.labeling.views import describe_image

_NUM_NEAREST = 3
_COLUMNS = ["file", "label", "source", "probability"]
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_get_network = functools.cache(read_backbone)


class SessionClassifier:
    """The classifier of the current labels. All methods may be called from any thread."""

    def __init__(self, session: Session, trained: TrainedNetworks | None = None):
        """`trained` networks name the photos instead where they are better."""
        self._session = session
        self._trained = trained or TrainedNetworks(session, lambda: None)
        self._trained.on_ready = self._publish
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._version = -1  # Of the answers that it is or will be fitted to.
        self._thread = threading.Thread()
        self._fitted: Fitted | None = None
        self._message = ""

    def follow(self) -> None:
        """Starts a new fit after some answers. Its probabilities become the proposals."""
        with self._lock:
            known = self._session.known
            if known.answers_version - max(self._version, 0) >= known.rules.num_answers:
                self._start()

    def _start(self) -> bool:
        """Starts a fit if answers have changed and none is in progress. Whether one is now."""
        is_busy = self._thread.is_alive()
        if self._session.known.answers_version != self._version and not is_busy:
            self._thread = threading.Thread(target=self._fit, name=JAX_THREAD, daemon=True)
            self._thread.start()
            is_busy = True
        return is_busy

    def describe(self) -> dict[str, Any]:
        """Its status and expected accuracy. Starts a new fit if answers have changed."""
        with self._lock:
            is_busy = self._start()
            message = self._message or self._trained.message
            described: dict[str, Any] = {"is_fitting": is_busy, "message": message}
            if (fitted := self.get()) is None:
                return described
            described |= {"labels": fitted.num_labels, "classes": len(fitted.class_names)}
            return described | {"accuracy": fitted.accuracy}

    def get(self) -> Fitted | None:
        """What names the photos now: the newest classifier, or trained networks in its place.

        None for neither yet.
        """
        return self._trained.improve(self._fitted)

    def estimate(self) -> Estimate | None:
        """The accuracy of what names the photos on those without an answer. None if unknown."""
        fitted = self.get()
        return fitted.estimate if fitted else None

    def _fit(self) -> None:
        fitted = None
        message = ""
        known = self._session.known
        self._version = known.answers_version
        try:
            fitted = fit(known)
        except RefusedError as error:
            message = str(error)
        except Exception as error:  # The page shows it, and labeling continues.
            message = f"Learning from your labels failed: {describe_error(error)}"
        with self._lock:
            self._fitted = fitted
            self._message = message
        self._publish()

    def _publish(self) -> None:
        """Gives the session what the better classifier says."""
        if (fitted := self.get()) is not None:
            self._session.adopt(fitted)

    def _wait(self) -> Fitted | None:
        """The classifier of the current labels, as `get`."""
        self.describe()
        self._thread.join()
        return self.get()

    def classify(self, file: BinaryIO) -> dict[str, Any]:
        """Classifies a photo: class, confidence, and the most similar labeled photos.

        Nothing is stored. Raises a RefusedError without a classifier, or as `read_photo`.
        """
        with self._turn:  # One at a time, to bound memory.
            if (fitted := self._wait()) is None:
                raise RefusedError(self._message)
            known = self._session.known
            found = read_photo(file, known.backbones)
            file.seek(0)
            said = known.rules.say(fitted.predict(file, found), fitted.class_names)
        labeled, descriptors = fitted.labeled
        similarities = descriptors @ normalize_rows(found.descriptors)[0]
        nearest = labeled[np.argsort(-similarities, kind="stable")[:_NUM_NEAREST]]
        return {
            "label": said.labels[0],
            "probability": round(float(said.confidences[0]), 4),
            "is_far": bool(fitted.images and fitted.images.find_foreign(found.pooled)[0]),
            "nearest": [describe_image(known, int(image)) for image in nearest],
        }

    def list_rows(self, unsure_below: float = 0.0) -> list[dict[str, Any]]:
        """All photos: file, label, source and probability.

        The source is a decision, "suggested", or "unsure" for a lower probability.
        """
        fitted = self._wait()
        labels, confidences = list[str](), np.zeros(0)
        known, rows = self._session.known, []
        if fitted:
            labels, confidences, _ = known.rules.say(fitted.probabilities, fitted.class_names)
        for i, name, state in list_states(known):
            row: dict[str, Any] = {"file": name, "label": state.label, "source": state.decision}
            if not state.decision and i < len(labels):
                source = UNSURE if confidences[i] < unsure_below else "suggested"
                probability = float(confidences[i])
                row |= {"label": labels[i], "source": source, "probability": probability}
            rows.append(row)
        return rows

    def write_table(self, unsure_below: float = 0.0) -> str:
        """The table of all photos as CSV for spreadsheets: without formulas.

        It begins with a byte-order mark, without which Excel takes names for Latin-1.
        """
        rows = [_COLUMNS]
        for row in self.list_rows(unsure_below):
            cells = [_to_text(row["file"], "./"), _to_text(row["label"], "'"), row["source"]]
            rows.append([*cells, f"{row['probability']:.4f}" if "probability" in row else ""])
        return f"\ufeff{to_csv(rows)}"

    def write_sheet(self, unsure_below: float = 0.0) -> bytes:
        """The same table as an Excel workbook. Files and classes are as they are."""
        rows: list[Sequence[str | float]] = [_COLUMNS]
        for row in self.list_rows(unsure_below):
            texts = [make_printable(str(row[key])) for key in ("file", "label", "source")]
            rows.append([*texts, row.get("probability", "")])
        return write_sheet(rows)

    def write_labels(self, name: str) -> bytes:
        """The labels that were given, for another program, in one of `exchange.WRITERS`.

        Raises a UserError if there is none, or as `exchange.write_labels`.
        """
        self._session.leave_out_missing()
        states = list_states(self._session.known)
        rows = sorted((file, state.labels) for _, file, state in states if state.label)
        if not rows:
            raise UserError("No photo has a label yet.")
        known = self._session.known
        return exchange.write_labels(known.root, rows, name, known.options.kind)

    def copy_by_class(self, unsure_below: float = 0.0) -> dict[str, Any]:
        """Copies all photos that have or are suggested a class into FOLDER-classes/<class>/.

        Those with a probability below the limit go to FOLDER-classes/unsure/. The folder is a new
        one beside the session's. Returns the number of "copies", how many of these are "unsure",
        and the path of their folder, the "place". Raises a RefusedError if no photo has a class or
        photos may have several, and a UserError if it cannot be written.
        """
        if self._session.known.options.tags:
            raise RefusedError("A photo with several tags has no folder: download the table.")
        self._session.leave_out_missing()
        root = self._session.known.root.resolve()
        rows = [row for row in self.list_rows(unsure_below) if row["label"]]
        if not rows:
            raise RefusedError("No photo has a class yet: label some first.")
        named = [(str(root / row["file"]), row["label"], row.get("probability")) for row in rows]
        target = find_free(root.with_name(f"{root.name}-classes"))
        sort_files(set_unsure_apart(named, unsure_below), target)
        num_unsure = sum(row["source"] == UNSURE for row in rows)
        folder = make_printable(str(target))
        return {"copies": len(rows), "unsure": num_unsure, "place": folder}


def read_photo(file: BinaryIO, backbones: Backbones = DEFAULT_BACKBONES) -> FrozenFeatures:
    """Features of a photo by the first network of a session, whose head classifies it.

    Raises an ImageError, or a UserError for unreadable weights.
    """
    network = _get_network(backbones.first)
    image = decode_image(file, network.image_shape, network.decoding)
    return open_network(network).extract(image[None], lambda *_: None)


def _to_text(cell: str, prefix: str) -> str:
    """A cell that no spreadsheet takes for a formula. See OWASP's CSV injection."""
    return f"{prefix}{cell}" if cell.startswith(_FORMULA_STARTS) else cell


def find_free(path: pathlib.Path) -> pathlib.Path:
    """The first of PATH, PATH-2, PATH-3 and so on that does not exist."""
    numbers = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    return next(free for free in itertools.chain([path], numbers) if not os.path.lexists(free))
