"""A trained run as a function from images to classes."""

import pathlib
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from cls_jax.batch import normalize
from cls_jax.data.datasets import ImageSource
from cls_jax.mesh import DATA_AXIS, NETWORK_AXIS, put_on_mesh
from cls_jax.program import Program
from cls_jax.restore import restore_run
from cls_jax.run_folder import read_dataset_description
from cls_jax.train_state import TrainState


class Classifier:
    """The averaged networks of a run.

    Attributes:
        class_names: of the K classes.
        image_shape: (H, W, C) of the images it wants.
        num_networks: N.
        config: the run's configuration.
        step: after which step of training.
    """

    def __init__(
        self, program: Program, state: TrainState, class_names: tuple[str, ...], step: int
    ):
        """Takes a restored run; see `load`."""
        self.class_names = class_names
        self.image_shape = program.data_shape.image_shape
        self.num_networks = program.method.num_networks
        self.config = program.config
        self.step = step
        self._mesh, self._state = program.mesh, state
        self._predict = _create_predict(program)
        shards = self._mesh.shape[DATA_AXIS]
        self._batch_size = -(-self.config.eval_batch_size // shards) * shards

    def predict_probabilities(self, images: ImageSource) -> np.ndarray:
        """Probabilities of all classes by every network.

        Args:
            images: uint8 [n, H, W, C] of `image_shape`, an array or anything read by index.

        Returns:
            float32 [N, n, K]; their mean over N is what both networks say together.

        Raises:
            ValueError: if the images have another shape or type.
        """
        parts = [np.zeros((self.num_networks, 0, len(self.class_names)), np.float32)]
        for start in range(0, len(images), self._batch_size):
            part = np.asarray(images[start : start + self._batch_size])
            if part.shape[1:] != self.image_shape or part.dtype != np.uint8:
                raise ValueError(
                    f"Images are {part.dtype} {part.shape[1:]}, the classifier wants uint8 "
                    f"{self.image_shape}."
                )
            missing = self._batch_size - len(part)
            padded = np.pad(part, [(0, missing), (0, 0), (0, 0), (0, 0)])
            on_devices = put_on_mesh(padded, self._mesh, P(DATA_AXIS))
            output = jax.device_get(self._predict(self._state, on_devices))
            parts.append(output[:, : len(part)])
        return np.concatenate(parts, axis=1)


def load(workdir: str | pathlib.Path) -> Classifier:
    """Opens the newest checkpoint of a run.

    Raises:
        UserError: if the folder is not that of a run or holds no checkpoint yet.
    """
    workdir = pathlib.Path(workdir)
    program, state, step = restore_run(workdir)
    class_names, _ = read_dataset_description(workdir)
    return Classifier(program, state, class_names, step)


def _create_predict(program: Program) -> Callable[[TrainState, jax.Array], jax.Array]:
    """Compiles (state, uint8 [B, H, W, C]) → probabilities float32 [N, B, K]."""
    data, networks = program.config.data, program.networks

    def predict(state: TrainState, images: jax.Array) -> jax.Array:
        images = normalize(images, data.mean, data.std)
        logits, _ = networks.forward(state.ema_params, state.batch_stats, images, train=False)
        return jax.nn.softmax(logits)

    sharded = jax.shard_map(
        predict,
        mesh=program.mesh,
        in_specs=(program.state_specs, P(DATA_AXIS)),
        out_specs=P(NETWORK_AXIS, DATA_AXIS),
    )
    return jax.jit(sharded)
