"""Whether an image is foreign: unlike all images of a folder, as those of another folder are.

A classifier names every image, and its confidence hardly tells that it has never seen anything
like it. So an image is compared with the folder's own. It is foreign if hardly any of these is so
far from the others: the rank among them is that of conformal prediction, so that of new images of
the same folder, a known share is called foreign by mistake, whatever the features are.

For instant classifiers of 300 photos of clothing and of 300 photos of trash, 289 of 300 photos of
the other folder are foreign, and 6 and 11 of 300 new ones of the same folder (docs/predict.md). The
features are those that the last layer takes. Whitened components, by which a NeighborHead
compares, call none of these foreign: they are fitted to the folder's few images, which they put far
from each other.

Shape suffixes: B new images, M images of the folder, C features.
"""

import io
import pathlib
from typing import NamedTuple

import numpy as np

from cls_jax.data.sampling import take_rows
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, read_bytes, write_atomically
from cls_jax.photos.features.marks import join_groups
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.inference.unknown import UnknownScore

FOLDER_IMAGES = "folder_images.npz"
# A foreign image is farther from the folder than this share of its own images. So at most 3% of the
# folder's new images are called foreign on average. Fewer than 33 images call none foreign.
FOREIGN = 0.97
# The score of all other images is lower than this, clear of the above in any precision.
_OTHERS_BELOW = 0.96
_MAX_IMAGES = 1_500  # 4 MB of features.
_MAX_BYTES = 2**28
_SAME = 1 - 1e-5  # Images of a larger cosine are copies, which say nothing about new images.


class FolderImages(NamedTuple):
    """What new images are compared with."""

    features: np.ndarray  # Of unit length, float16 [M, C].
    # Of each image to the most similar other one, which is no copy and of another source: cosines,
    # ascending, float32 [M].
    similarities: np.ndarray

    def compare(self, features_BC: np.ndarray) -> np.ndarray:
        """The share of the folder's images that are closer to the others, float32 [B].

        It is larger than `FOREIGN` for foreign images. Features are floating [B, C], of any length.
        """
        cosines = normalize_rows(features_BC) @ self.features.astype(np.float32).T
        num_images = len(self.similarities)
        ranks = np.searchsorted(self.similarities, cosines.max(axis=1), side="right")
        return ((num_images - ranks) / (num_images + 1)).astype(np.float32)

    def find_foreign(self, features_BC: np.ndarray) -> np.ndarray:
        """Which images are foreign, bool [B]."""
        return np.asarray(self.compare(features_BC) > FOREIGN)

    def write(self, path: pathlib.Path) -> None:
        """Writes it into a file. Raises an OSError if the system refuses."""
        buffer = io.BytesIO()
        np.savez(buffer, **self._asdict())
        write_atomically(path, buffer.getvalue())


def collect_images(
    features_BC: np.ndarray, sources_B: np.ndarray | None = None
) -> FolderImages | None:
    """At most 1,500 images of a folder, evenly spaced, given features floating [B, C].

    With several of `sources_B`, int, -1 where unknown, an image is compared with those of others:
    an image of a new source has none of its own in the folder, and is not foreign for that. None
    without two different images. Images whose features are zero count as unreadable.
    """
    rows = np.flatnonzero(np.asarray(features_BC).any(axis=1))
    rows = rows[take_rows(np.arange(len(rows)), _MAX_IMAGES)]
    features = normalize_rows(features_BC[rows])
    cosines = features @ features.T
    cosines[cosines > _SAME] = -1  # Itself, too.
    groups = np.arange(len(rows)) if sources_B is None else join_groups(sources_B[rows])
    if groups.any():
        cosines[groups[:, None] == groups] = -1
    similarities = np.sort(cosines.max(axis=1, initial=-1))
    if not (similarities > -1).any():
        return None
    return FolderImages(features.astype(np.float16), similarities)


def score_images(
    features_BC: np.ndarray, score: UnknownScore | None, images: FolderImages | None
) -> np.ndarray | None:
    """How likely images belong to no class, from 0 to 1, float32 [B]. None if nothing is known.

    Above `FOREIGN` it says that an image is foreign. Below, where the folder's images are known,
    `score` ranks those that resemble images of the folder, but none of its classes.
    """
    if images is None:
        return None if score is None else score.apply(features_BC)
    shares = images.compare(features_BC)
    others = shares if score is None else score.apply(features_BC)
    return np.where(shares > FOREIGN, shares, others * np.float32(_OTHERS_BELOW))


def read_folder_images(path: pathlib.Path, num_features: int) -> FolderImages | None:
    """Reads what `FolderImages.write` wrote. None if there is nothing.

    `num_features` is C. Raises a UserError if the file is damaged or fits another network.
    """
    if not path.exists():
        return None
    try:
        with np.load(io.BytesIO(read_bytes(path, _MAX_BYTES)), allow_pickle=False) as file:
            images = FolderImages(**{name: file[name] for name in FolderImages._fields})
        features, similarities = images
        if features.shape != (len(similarities), num_features) or not len(similarities):
            raise ValueError("its features are not those of the network")
        if similarities.ndim != 1 or not all(np.isfinite(a).all() for a in images):
            raise ValueError("a value is not a number")
        return images
    except PARSE_ERRORS as error:
        raise UserError(
            f"{path} has no images of the folder ({describe_error(error).rstrip('.')}): delete it. "
            "Predictions then do not say which images are unlike all of the run."
        ) from error
