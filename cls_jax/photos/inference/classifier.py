"""A trained run as a function from images to classes."""

import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict
from PIL import Image

from cls_jax.batch import normalize
from cls_jax.config import read_config, to_json
from cls_jax.data.types import ImageSource
from cls_jax.errors import UserError
from cls_jax.models.ensemble import Ensemble, take_network
from cls_jax.models.heat_maps import compute_heat_maps
from cls_jax.models.layers import FEATURES
from cls_jax.parallel.mesh import (
    DATA_AXIS,
    NETWORK_AXIS,
    create_mesh,
    get_process_shard,
    to_global_arrays,
)
from cls_jax.photos.features.graph import join_features
from cls_jax.photos.features.instant import InstantClassifier, read_instant
from cls_jax.photos.images.decode import ImageError, ImageLike, get_decode_options
from cls_jax.photos.images.files import ImageBatch, read_ahead
from cls_jax.photos.inference.calibration import Calibration, read_calibration
from cls_jax.photos.inference.prediction import Prediction, create_prediction
from cls_jax.photos.inference.unknown import UnknownScore, read_unknown
from cls_jax.runs.folder import (
    CONFIG,
    INSTANT_FILE,
    find_assessments,
    find_predictor,
    find_trained,
    is_instant,
    read_dataset_description,
)
from cls_jax.training.prepare import restore_run
from cls_jax.training.setup import TrainSetup, TrainState

_HEAT_MAPS_AT_ONCE = 16
# Larger batches are no faster, so more images use the program compiled for this many.
_ENOUGH_IMAGES = 1024
Forward = Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]


class Classifier:
    """The EMA networks of a run, or the frozen network of its instant classifier.

    Attributes:
        config: The configuration, with numbers as mean and deviation.
        ensemble: The architecture.
        networks: "params" and "batch_stats" of all networks, stacked.
        instant: The frozen network and its head, if this is the instant classifier. Otherwise
            None.
        class_names: The names of the K classes.
        image_shape: The shape (H, W, C) of the images.
        num_networks: N.
        batch_size: The number of images per forward pass.
        step: The training step of the checkpoint.
        calibration: The calibration of this checkpoint, or None.
        unknown: The score of this checkpoint for images that belong to no class, or None.
    """

    def __init__(
        self,
        config: ConfigDict,
        ensemble: Ensemble,
        mesh: Mesh,
        networks: dict[str, Any],
        image_shape: tuple[int, int, int],
        class_names: tuple[str, ...],
        step: int,
        instant: InstantClassifier | None = None,
    ):
        """Wraps what `load` has read."""
        self.config, self.ensemble, self.networks = config, ensemble, networks
        self.instant = instant
        self.class_names, self.step, self.image_shape = class_names, step, image_shape
        self.num_networks, num_features, _ = networks["params"]["head"]["kernel"].shape
        self.num_features = self.num_networks * num_features
        self.calibration: Calibration | None = None
        self.unknown: UnknownScore | None = None
        self._mesh, self._forward = mesh, self._compile(mesh)
        self.batch_size = self.config.eval_batch_size * mesh.shape[DATA_AXIS]
        self._compiled_size = 0

    def predict(self, images: ImageSource | ImageLike | Iterable[ImageLike]) -> Prediction:
        """Predicts the classes of images with confidences.

        `images` are uint8 [n, H, W, C] of `image_shape`, or any number of image files, PIL images
        and arrays uint8 [h, w] or [h, w, c] of any size, or a single one, or a generator of them.
        Raises an ImageError if a file cannot be read as an image, and a ValueError if the images
        have another shape or type.
        """
        given: Any = images
        kind = getattr(getattr(images, "dtype", None), "kind", "")
        is_one = isinstance(images, np.ndarray) and kind == "u" and images.ndim < 4
        if is_one or isinstance(images, str | os.PathLike | Image.Image):
            given = [images]
        is_listed = isinstance(given, list | tuple) or not hasattr(given, "__getitem__")
        # An array or a column of names.
        sources = self._decode(given) if is_listed or kind in ("O", "U") else [given]
        parts = [self._predict_images(source) for source in sources]
        p_NBK = np.concatenate([p for p, _ in parts], axis=1)
        unknown = np.concatenate([score for _, score in parts]) if self.unknown else None
        return create_prediction(p_NBK, self.class_names, self.calibration, unknown)

    def _decode(self, images: Any) -> Iterator[np.ndarray]:
        """Images batch by batch, after an empty batch."""
        yield np.zeros((0, *self.image_shape), np.uint8)
        numbers = itertools.count(1)
        for batch in self.read_files(images):
            for file, error, number in zip(batch.files, batch.errors, numbers, strict=False):
                if error is not None:
                    name = file if isinstance(file, str | os.PathLike) else f"Image {number}"
                    raise ImageError(f"{name} cannot be read: {error}.")
            yield batch.images

    def _predict_images(self, images: ImageSource) -> tuple[np.ndarray, Any]:
        """Probabilities float32 [N, n, K], and scores for belonging to no class, float32 [n]."""
        if self.unknown is None:
            return self.predict_probabilities(images), None
        p_NBK, f_BC = self.compute_both(images)
        return p_NBK, self.unknown.apply(f_BC)

    def read_files(self, files: Iterable[ImageLike]) -> Generator[ImageBatch, None, None]:
        """Decodes images as the run decoded its own, in batches of `batch_size`."""
        options = get_decode_options(self.config.data)
        return read_ahead(files, self.image_shape, self.batch_size, options)

    def compute_fingerprint(self) -> str:
        """A hash of everything that decides a prediction: weights, configuration, calibration."""
        networks = jax.device_get((self.networks["params"], self.networks["batch_stats"]))
        digest = hashlib.sha256(f"{to_json(self.config)}{self.class_names}".encode())
        digest.update(repr((self.calibration, self.unknown)).encode())
        for leaf in jax.tree.leaves(networks):
            digest.update(np.ascontiguousarray(leaf).data)
        return digest.hexdigest()

    def predict_probabilities(self, images: ImageSource) -> np.ndarray:
        """Probabilities of all classes by every network, float32 [N, n, K].

        The mean over N is the ensemble's. `images` are uint8 [n, H, W, C] of `image_shape`, an
        array or anything read by index. Raises a ValueError if they have another shape or type.
        """
        return self._collect(images, 0)[0]

    def compute_features(self, images: ImageSource) -> np.ndarray:
        """The inputs of the networks' last layers, scaled to unit length for each network.

        Takes and raises the same as `predict_probabilities`. Returns float32 [n, N C].
        """
        return join_features(self._collect(images, 1)[0])

    def compute_both(self, images: ImageSource) -> tuple[np.ndarray, np.ndarray]:
        """The results of `predict_probabilities` and `compute_features`, in one pass."""
        p_NBK, f_NBC = self._collect(images, 0, 1)
        return p_NBK, join_features(f_NBC)

    def _collect(self, images: ImageSource, *wanted: int) -> list[np.ndarray]:
        """The wanted outputs of `_forward`, by index, for all images, each [N, n, …]."""
        sizes = (len(self.class_names), self.num_features // self.num_networks)
        parts = [[np.zeros((self.num_networks, 0, sizes[i]), np.float32) for i in wanted]]
        size = self._choose_padded_size(len(images))
        own = get_process_shard(self._mesh).take(size)  # Each process reads a part.
        for start in range(0, len(images), size):
            part = np.asarray(images[start + own.start : start + own.stop])
            if part.shape[1:] != self.image_shape or part.dtype != np.uint8:
                raise ValueError(
                    f"The images are {part.dtype} {part.shape[1:]}, but the classifier expects "
                    f"uint8 {self.image_shape}."
                )
            missing = own.stop - own.start - len(part)
            padded = np.pad(part, [(0, missing), *[(0, 0)] * (part.ndim - 1)])
            shape = (size, *self.image_shape)
            on_mesh = to_global_arrays(padded, self._mesh, P(DATA_AXIS), shape)
            outputs = self._forward(self.networks, on_mesh)
            arrays = jax.device_get([outputs[i] for i in wanted])
            parts.append([array[:, : len(images) - start] for array in arrays])
        return [np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)]

    def compute_heat_maps(self, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Where network 1 sees evidence for a class, float32 [n, h, w] from 0 to 1.

        `images` are uint8 [n, H, W, C] of `image_shape`, at least one, and `classes`, int [n],
        positions in `class_names`. See `models.heat_maps.compute_heat_maps`.
        """
        model, variables = self.ensemble.model, take_network(jax.device_get(self.networks), 0)

        @jax.jit  # The weights are an argument: the same program serves all runs.
        def compute(variables: Any, images: jax.Array, classes: jax.Array) -> jax.Array:
            return compute_heat_maps(model, variables, self.normalize(images), classes)

        size, parts = min(len(images), _HEAT_MAPS_AT_ONCE), []
        for start in range(0, len(images), size):
            # The last batch overlaps the one before, so that one program serves all.
            first = min(start, len(images) - size)
            part = slice(first, first + size)
            maps = compute(variables, images[part], classes[part])
            parts.append(np.asarray(maps)[start - first :])
        return np.concatenate(parts)

    def normalize(self, images: jax.Array) -> jax.Array:
        """Normalizes uint8 [..., C] with the mean and deviation of the training images."""
        return normalize(images, self.config.data.mean, self.config.data.std)

    def _compile(self, mesh: Mesh) -> Forward:
        """Compiles (networks, images uint8 [B, H, W, C]) → probabilities and the heads' inputs.

        These are float32 [N, B, K] and [N, B, C], and stay on the devices. In one program, XLA
        merges what the two passes have in common.
        """

        def forward(networks: Any, images: jax.Array) -> tuple[jax.Array, jax.Array]:
            trees, images = (networks["params"], networks["batch_stats"]), self.normalize(images)
            logits, _ = self.ensemble.forward(*trees, images, train=False)
            features, _ = self.ensemble.forward(*trees, images, train=False, head=FEATURES)
            return jax.nn.softmax(logits), features

        sharded = jax.shard_map(
            forward,
            mesh=mesh,
            in_specs=(P(NETWORK_AXIS), P(DATA_AXIS)),
            out_specs=P(NETWORK_AXIS, DATA_AXIS),
        )
        # Replicated in every process.
        return jax.jit(sharded, out_shardings=NamedSharding(mesh, P()))

    def _choose_padded_size(self, num_images: int) -> int:
        """The padded batch size: few sizes to compile, and no full batch for a single image."""
        if num_images > self._compiled_size and self._compiled_size < _ENOUGH_IMAGES:
            shards, power_of_two = self._mesh.shape[DATA_AXIS], 1 << (num_images - 1).bit_length()
            self._compiled_size = min(-(-power_of_two // shards) * shards, self.batch_size)
        return max(self._compiled_size, 1)


def load(
    run: str | os.PathLike,
    trained: bool = False,
    end: tuple[TrainSetup, TrainState, int] | None = None,
) -> Classifier:
    """Opens a run's classifier: its newest checkpoint, or its instant classifier.

    `run` is its folder, or what `cls_jax.train` returned, or RUN/instant. If `trained`, the
    checkpoint is opened in any case, which a run without steps does not have. `end` are setup,
    state and step of the checkpoint, if this process has just written it. Raises a UserError if
    there is no run, no checkpoint yet, or a damaged file.
    """
    path = pathlib.Path(run).expanduser()
    if not is_instant(path):
        path = find_trained(path) if trained else find_predictor(path)
    workdir = path.parent if is_instant(path) else path
    if is_instant(path):
        classifier = _open_instant(workdir)
    else:
        setup, state, step = end or restore_run(workdir)
        class_names, spec = read_dataset_description(workdir)
        networks = {"params": state.ema_params, "batch_stats": state.batch_stats}
        parts = (setup.config, setup.ensemble, setup.mesh, networks)
        classifier = Classifier(*parts, spec.image_shape, class_names, step)
    folder = find_assessments(workdir, path)
    classifier.unknown = read_unknown(folder, classifier.step, classifier.num_features)
    classifier.calibration = read_calibration(folder, classifier.step)
    return classifier


def _open_instant(workdir: pathlib.Path) -> Classifier:
    instant = read_instant(workdir / INSTANT_FILE)
    network, (class_names, _) = instant.network, read_dataset_description(workdir)
    assert network is not None, "read from a file"
    if instant.head.kernel.shape[1] != len(class_names):
        raise UserError(f"{workdir} has an instant classifier for other classes. Train it again.")
    model, variables = instant.create_model()
    config = read_config(workdir / CONFIG)
    config.data.image_size, config.model.dtype = network.image_size, "float32"
    config.data.mean, config.data.std = network.weights.normalization or ((), ())
    if "stem" in dict(network.settings):
        config.model.stem = dict(network.settings)["stem"]
    mesh = create_mesh(1, [jax.device_count()])
    ensemble = Ensemble(model, matmul_precision=config.model.matmul_precision)
    stacked = jax.tree.map(lambda leaf: leaf[None], {"batch_stats": {}, **variables})
    networks = to_global_arrays(stacked, mesh, jax.tree.map(lambda _: P(NETWORK_AXIS), stacked))
    shape = network.image_shape
    return Classifier(config, ensemble, mesh, networks, shape, class_names, 0, instant)
