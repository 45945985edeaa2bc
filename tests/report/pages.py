"""Reads a page as a browser does, strictly, and makes runs to draw without training."""

import html.parser
import pathlib

import numpy as np
import scipy.special

from cls_jax.data.types import Dataset
from cls_jax.report.data import Predictions, RunData
from tests.conftest import create_tiny_config

VOID = {"br", "img", "meta"}


class Page(html.parser.HTMLParser):
    """Elements as (name, attributes), text, and tables as rows of cells.

    Raises AssertionError where an element is not closed in its turn.
    """

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.tables, self.scripts = [], [], [], []
        self._open = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"
        self.text = "".join(self.texts)

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.elements.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append((dict(attrs).get("class", ""), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if "script" in self._open:
            self.scripts.append(data)
        elif "style" not in self._open:
            self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][1][-1][-1] += data

    def find(self, name, **attributes):
        """Attributes of the elements of a name that have all these values."""
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [a for tag, a in self.elements if tag == name and wanted.items() <= a.items()]

    def table(self, class_):
        """Rows of the one table of a class, its head among them."""
        (rows,) = [rows for name, rows in self.tables if class_ in name.split()]
        return rows


def create_run(
    num_classes=3,
    num_networks=2,
    num_test=40,
    class_names=None,
    rows=(),
    side=8,
    method="cls",
    **changes,
) -> RunData:
    """A run with random images and predictions."""
    rng = np.random.default_rng(0)
    names = tuple(class_names or (f"class {k}" for k in range(num_classes)))
    train_labels = np.tile(np.arange(len(names), dtype=np.int32), 4)
    test_labels = rng.integers(0, len(names), num_test).astype(np.int32)
    train_images, test_images = (
        rng.integers(0, 256, (len(labels), side, side, 3), dtype=np.uint8)
        for labels in (train_labels, test_labels)
    )
    images = train_images, train_labels, test_images, test_labels
    dataset = Dataset("drawn", names, *images, image_shape=(side, side, 3))
    labels = test_labels if num_test else np.full(len(train_labels), -1)
    p_NBK = scipy.special.softmax(3 * rng.normal(size=(num_networks, len(labels), len(names))), -1)
    contents = {
        "rows": list(rows),
        "class_names": names,
        "dataset": dataset,
        "labeled": np.arange(2 * len(names), dtype=np.int32),
        "predictions": Predictions(
            6, p_NBK.astype(np.float32), labels, np.arange(len(labels)), is_test=num_test > 0
        ),
    }
    config = create_tiny_config(f"20,{method}")
    return RunData(pathlib.Path("runs/drawn"), config, **contents | changes)
