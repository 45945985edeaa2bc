"""Images that belong to no class: of the folder's kind, or foreign to all of the folder.

**Unknown.** A score tells the distance of an image from everything with a label. Networks are as
confident about such images as about others: among photos, with four of ten
classes unknown, the instant classifier's confidence detects them hardly better than chance
(experiments/results/unknown_images.md). How far labels reach along the graph of similar images is
more informative. To score new images without the graph, a linear function of the networks'
features is fitted to separate the half of the unlabeled training images that labels reach least
from the other half. The score is the share of these images with a smaller value.

**Foreign.** A classifier's confidence hardly tells that it has never seen anything like an image,
as of another folder. So an image is compared with the folder's own. It is foreign if hardly any of
these is so far from the others: the rank among them is that of conformal prediction, so that of new
images of the same folder, a known share is called foreign by mistake, whatever the features are.
For instant classifiers of 300 photos of clothing and of 300 photos of trash, 289 of 300 photos of
the other folder are foreign, and 6 and 11 of 300 new ones of the same folder (docs/predict.md). The
features are those that the last layer takes. Whitened components, by which a NeighborHead
compares, call none of these foreign: they are fitted to the folder's few images, which they put far
from each other.

Shape suffixes: B images, C features of all networks, K classes, M images of the folder.
"""

import io
import pathlib
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cls_jax.data.sampling import take_rows
from cls_jax.errors import UserError
from cls_jax.io import PARSE_ERRORS, describe_error, is_number, read_bytes, write_atomically
from cls_jax.photos.features.graph import build_graph, solve
from cls_jax.photos.features.grouping import join_groups
from cls_jax.photos.features.heads import fit_head
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.inference.calibration import read_fitted

UNKNOWN, FOLDER_IMAGES = "unknown.json", "folder_images.npz"
_ALPHA = 0.9  # Shorter walks than those of label propagation.
_C = 0.0003
# Images of a larger cosine are the same but for rounding errors: copies, which say nothing about
# new images.
_SAME = 1 - 1e-5
# A foreign image is farther from the folder than this share of its own images. So at most 3% of the
# folder's new images are called foreign on average. Fewer than 33 images call none foreign.
_FOREIGN = 0.97
_MAX_IMAGES = 1_500  # 4 MB of features.
_MAX_BYTES = 2**28


class UnknownScore(NamedTuple):
    """The score of a step's checkpoint."""

    step: int
    kernel: tuple[float, ...]  # C weights of a linear function, larger for images of no class.
    # Quantiles of its values for the unlabeled training images, equally spaced.
    quantiles: tuple[float, ...]

    def apply(self, features_BC: np.ndarray) -> np.ndarray:
        """The share of the unlabeled training images that are closer to the labels, float32 [B]."""
        shares = np.linspace(0, 1, len(self.quantiles))
        values = features_BC @ np.asarray(self.kernel, np.float32)
        return np.interp(values, self.quantiles, shares).astype(np.float32)


def fit_unknown(
    features_BC: np.ndarray, labels_B: np.ndarray, num_classes: int, step: int = 0
) -> UnknownScore | None:
    """Fits the score of a step to the features float32 [B, C] of training images.

    Labels are int [B], -1 for unlabeled images. None without a labeled and two different unlabeled
    images.
    """
    rest, labeled = np.flatnonzero(labels_B < 0), np.flatnonzero(labels_B >= 0)
    if len(rest) < 2 or not len(labeled):
        return None
    unit_BC = normalize_rows(features_BC)
    if (unit_BC[rest] @ unit_BC[rest[0]]).min() > _SAME:
        return None
    reach = measure_reach(build_graph(features_BC), labels_B, num_classes)
    is_far = np.zeros(len(rest), int)
    is_far[np.argsort(reach[rest], kind="stable")[: len(rest) // 2]] = 1
    kernel = fit_head(features_BC[rest], is_far, 2, _C).kernel
    kernel = (kernel[:, 1] - kernel[:, 0]).astype(np.float32)
    quantiles = np.quantile(features_BC[rest] @ kernel, np.linspace(0, 1, 101))
    return UnknownScore(step, tuple(kernel.tolist()), tuple(quantiles.tolist()))


def measure_reach(graph: sparse.csr_matrix, labels_B: np.ndarray, num_classes: int) -> np.ndarray:
    """How well the labels of the nearest class reach each image, float64 [B].

    Labels, int [B] and -1 for unlabeled images, spread along a graph [B, B] as in
    `propagate_labels`. An image's reach by a class is the mean share that it gets of that class's
    labels. Memory grows with the number of labels times B.
    """
    labeled = np.flatnonzero(labels_B >= 0)
    one_hot = (labels_B[labeled, None] == np.arange(num_classes)).astype(float)
    sources = np.zeros((len(labels_B), len(labeled)))
    sources[labeled, np.arange(len(labeled))] = 1
    spread = solve(graph, sources, _ALPHA)
    spread /= spread.sum(axis=0)
    return np.max(spread @ one_hot / np.maximum(one_hot.sum(axis=0), 1), axis=1)


def read_unknown(
    workdir: pathlib.Path, step: int, num_features: int | None = None
) -> UnknownScore | None:
    """The score of the checkpoint of a step. None if there is none.

    `num_features` is C, the features of all networks, or None if the score will not be applied.
    Raises a UserError if the file is damaged or fits another number of features.
    """

    def parse(stored: dict) -> UnknownScore:
        """The score in a file. Raises a ValueError if it is damaged or does not fit."""
        values = {"far_share": None, **stored}  # Earlier versions had it.
        del values["far_share"]
        score = UnknownScore(**values)
        score = score._replace(kernel=tuple(score.kernel), quantiles=tuple(score.quantiles))
        numbers = (score.step, *score.kernel, *score.quantiles)
        if not score.kernel or not score.quantiles or not all(map(is_number, numbers)):
            raise ValueError("a value is not a number")
        if score.step == step and num_features not in (None, len(score.kernel)):
            raise ValueError(
                f"it weighs {len(score.kernel):,} features, and the networks have {num_features:,}"
            )
        return score

    return read_fitted(workdir / UNKNOWN, step, parse, "a score of unknown images")


class FolderImages(NamedTuple):
    """What new images are compared with."""

    features: np.ndarray  # Of unit length, float16 [M, C].
    # Of each image to the most similar other one, which is no copy and of another source: cosines,
    # ascending, float32 [M].
    similarities: np.ndarray

    def compare(self, features_BC: np.ndarray) -> np.ndarray:
        """The share of the folder's images that are closer to the others, float32 [B].

        Features are floating [B, C], of any length.
        """
        cosines = normalize_rows(features_BC) @ self.features.astype(np.float32).T
        num_images = len(self.similarities)
        ranks = np.searchsorted(self.similarities, cosines.max(axis=1), side="right")
        return ((num_images - ranks) / (num_images + 1)).astype(np.float32)

    def find_foreign(self, features_BC: np.ndarray) -> np.ndarray:
        """Which images are foreign, bool [B]."""
        return np.asarray(self.compare(features_BC) > _FOREIGN)

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
