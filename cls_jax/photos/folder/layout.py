"""The parts of a folder that is trained on: their files and classes, also as bytes."""

import dataclasses
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cls_jax.photos.folder.reading import NO_CLASS_NAME
from cls_jax.photos.folder.sources import NUM_NAMES, Sources, propose_by_folders, propose_pattern
from cls_jax.photos.images.files import ImageFile, ImageFiles, SkippedFile

PARTS = ("train", "validation", "test")
Row = tuple[ImageFile, str]  # A file and its class.


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Sequence[Row]):
    """Some files of a folder with their classes, at 12 bytes per file."""

    files: ImageFiles
    places: np.ndarray  # int64 [n], their indices.
    labels: np.ndarray  # int32 [n], -1 for unlabeled ones.
    class_names: tuple[str, ...]

    @property
    def _names(self) -> tuple[str, ...]:
        return *self.class_names, NO_CLASS_NAME  # The last one for -1.

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self.files[self.places[index]], self._names[self.labels[index]]

    def __iter__(self) -> Iterator[Row]:
        return zip(
            self.files.take(self.places), map(self._names.__getitem__, self.labels), strict=True
        )


class Layout(NamedTuple):
    """The parts of a folder that is trained on."""

    class_names: tuple[str, ...]  # Sorted.
    train: Rows  # Labeled before unlabeled, sorted by name within each.
    validation: Rows  # All labeled.
    test: Rows  # All labeled.
    skipped: list[SkippedFile]  # All other files, with the reason.
    warnings: list[str]  # One sentence each.
    table: str = ""  # A sentence about the columns of labels.csv, "" without one.
    # What the training images come from. None where nothing says it.
    sources: Sources | None = None

    @property
    def proposal(self) -> str:
        """A sentence about unknown sources that folders or names of images may carry, or ""."""
        if self.sources is not None:
            return ""
        train = self.train
        is_labeled = train.labels >= 0
        of_labeled = [file.name for file in train.files.take(train.places[is_labeled])]
        first = [file.name for file, _ in itertools.islice(train, NUM_NAMES)]
        return (
            propose_by_folders(of_labeled, train.labels[is_labeled]) or propose_pattern(first) or ""
        )


def pack_layout(layout: Layout) -> bytes:
    """A layout as bytes, for other processes: columns, and the rest as JSON."""
    buffer = io.BytesIO()
    files, sources = layout.train.files, layout.sources
    parts = zip(PARTS, (layout.train, layout.validation, layout.test), strict=True)
    columns: Any = {part: np.stack([rows.places, rows.labels]) for part, rows in parts}
    if sources:
        columns["sources"] = sources.numbers
    origin = sources.origin if sources else ""
    rest = layout.class_names, layout.skipped, layout.warnings, layout.table, origin
    np.savez(
        buffer,
        text=np.frombuffer(files.text, np.uint8),
        numbers=np.frombuffer(files.numbers, np.int64),
        rest=np.array(json.dumps(rest)),
        **columns,
    )
    return buffer.getvalue()


def unpack_layout(content: bytes) -> Layout:
    """The layout that `pack_layout` has packed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        names, skipped, warnings, table, origin = json.loads(str(stored["rest"]))
        files = ImageFiles((), stored["text"].tobytes(), stored["numbers"].tobytes())
        parts: Any = {
            part: Rows(files, stored[part][0], stored[part][1].astype(np.int32), tuple(names))
            for part in PARTS
        }
        sources = Sources(stored["sources"], origin) if origin else None
    return Layout(
        tuple(names),
        **parts,
        skipped=list(map(tuple, skipped)),
        warnings=warnings,
        table=table,
        sources=sources,
    )
