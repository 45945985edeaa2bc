"""N networks of one architecture, stacked along the leading axis of one pytree.

Parameters and BatchNorm statistics carry an axis of N networks, so one checkpoint, one optimizer
state and one moving average hold them all. How the forward pass of several networks is lowered is
chosen here and nowhere else.

Shape suffixes: N networks (those on this device), B images, K classes.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

import flax.linen as nn
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from cls_jax.batch import PyTree
from cls_jax.models.layers import Architecture
from cls_jax.parallel import compilation


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Forward passes of stacked networks."""

    model: Architecture
    # Of float32 convolutions and products, see `jax.default_matmul_precision`.
    matmul_precision: str = "default"
    # Modules with the same parameters and statistics in all networks. Networks see the same images,
    # so the compiler computes these once for all networks unrolled on a device.
    shared: frozenset[str] = frozenset()

    def forward(
        self,
        params: PyTree,
        batch_stats: PyTree,
        images: jax.Array,
        *,
        train: bool,
        head: str = "head",
        dropout_key: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        """Applies every network to the same images, normalized float32 [B, H, W, C].

        If `train`, BatchNorm uses the statistics of these images. With a key there is dropout, also
        outside training. `head`: which of the model's outputs to return. Returns logits float32
        [N, B, K] and the statistics that BatchNorm has used.
        """

        def apply_one(params: PyTree, batch_stats: PyTree) -> tuple[jax.Array, PyTree]:
            """Applies one network, whose leaves have no axis of networks."""
            # Operations record the precision when they are traced, and their gradients inherit it.
            with jax.default_matmul_precision(self.matmul_precision):
                logits, updated = self.model.apply(
                    {"params": params, "batch_stats": batch_stats},
                    images,
                    train=train,
                    head=head,
                    dropout=dropout_key is not None,
                    rngs=None if dropout_key is None else {"dropout": dropout_key},
                    mutable=["batch_stats"],
                )
            return logits, updated.get("batch_stats", {})  # Not every architecture has BatchNorm.

        # A loop. A convolution vmapped over its kernel is a grouped one: on a CPU 13 times slower.
        num_networks = jax.tree.leaves(params)[0].shape[0]
        outputs = [
            apply_one(
                self._take_local_or_shared(params, i), self._take_local_or_shared(batch_stats, i)
            )
            for i in range(num_networks)
        ]
        logits, batch_stats = zip(*outputs, strict=True)
        return jnp.stack(logits), stack_networks(batch_stats)

    def _take_local_or_shared(self, tree: dict[str, PyTree], index: int) -> dict[str, PyTree]:
        """One network's slice. Shared modules come from the first network."""
        return {
            name: take_network(module, 0 if name in self.shared else index)
            for name, module in tree.items()
        }

    def forward_concatenated(
        self,
        params: PyTree,
        batch_stats: PyTree,
        groups: Sequence[jax.Array],
        head: str = "head",
        dropout_key: jax.Array | None = None,
    ) -> tuple[list[jax.Array], PyTree]:
        """One training pass over groups of images [B_i, H, W, C], with joint BatchNorm statistics.

        Otherwise as `forward`. Returns the logits of each group, float32 [N, B_i, K], and these
        statistics.
        """
        images = jnp.concatenate(groups)
        logits, batch_stats = self.forward(
            params, batch_stats, images, train=True, head=head, dropout_key=dropout_key
        )
        starts = np.cumsum([len(group) for group in groups[:-1]])
        return jnp.split(logits, starts, axis=1), batch_stats

    def forward_with_frozen_group(
        self,
        params: PyTree,
        batch_stats: PyTree,
        groups: Sequence[jax.Array],
        images: jax.Array,
        head: str = "head",
    ) -> tuple[list[jax.Array], jax.Array, PyTree]:
        """`forward_concatenated` over groups, and a pass of images [B, H, W, C] without gradients.

        The second pass takes the first one's batch statistics as they are: each image is normalized
        like those that are trained on. Returns the logits of each group, float32 [N, B_i, K], the
        logits of `images`, [N, B, K], and the first pass's statistics.
        """
        logits, batch_stats = self.forward_concatenated(params, batch_stats, groups, head)
        params, batch_stats = jax.lax.stop_gradient((params, batch_stats))
        logits_beside, _ = self.forward(params, batch_stats, images, train=False, head=head)
        return logits, logits_beside, batch_stats


def init_networks(
    model: nn.Module,
    key: jax.Array,
    num_networks: int,
    image_shape: Sequence[int],
    drawn: Collection[str] | None = None,
) -> tuple[PyTree, PyTree]:
    """Initializes N networks for images (H, W, C) from different keys.

    With `drawn`, only the named modules are random, and all other parameters are 0. This compiles
    much faster, and suffices if weights from a file replace them.

    Returns parameters and BatchNorm statistics, each leaf [N, ...].
    """

    # With all of LLVM's passes, a CPU would take three times as long to compile the generator, for
    # the same bits.
    @functools.partial(
        compilation.jit,
        runs=num_networks,
        compiler_options={"xla_backend_optimization_level": 1},
    )
    def init(key: jax.Array) -> PyTree:
        variables = model.init(key, jnp.zeros((1, *image_shape)))
        if drawn is None:
            return variables
        params = {
            name: module if name in drawn else jax.tree.map(jnp.zeros_like, module)
            for name, module in variables["params"].items()
        }
        return {**variables, "params": params}

    # One after the other, with the key as an argument: XLA compiles the generator once for all
    # networks, and cannot try to evaluate it as a constant while compiling.
    networks = [init(key) for key in jax.random.split(key, num_networks)]
    variables = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
    return variables["params"], variables.get("batch_stats", {})


def get_network_shapes(
    model: nn.Module, num_networks: int, image_shape: Sequence[int]
) -> tuple[PyTree, PyTree]:
    """What `init_networks` returns, as `jax.ShapeDtypeStruct` and without computing it."""
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, *image_shape))))
    variables = jax.tree.map(lambda leaf: leaf.update(shape=(num_networks, *leaf.shape)), variables)
    return variables["params"], variables.get("batch_stats", {})


def take_network(tree: PyTree, index: int) -> PyTree:
    """One network's slice of a stacked pytree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stack_networks(trees: Sequence[PyTree]) -> PyTree:
    """Stacks networks into leaves [N, ...] of one dtype, as `flatten_before_update` does."""
    rows, unravel = zip(*map(jax.flatten_util.ravel_pytree, trees), strict=True)
    return jax.vmap(unravel[0])(jax.lax.optimization_barrier(jnp.stack(rows)))


def flatten_before_update(
    tree: PyTree, combine: Callable[[jax.Array], jax.Array] | None = None
) -> tuple[PyTree, jax.Array]:
    """Puts a stacked pytree of one dtype into one array before anything is computed from it.

    Otherwise XLA fuses the update of a leaf with the operation that made its gradient (for a
    kernel, a transposition), cannot update the state in place, and copies: on a GPU two or three
    kernels per leaf, which take longer to start than to run. This way a handful update all leaves.

    `combine` is applied to the array, for example to sum it over devices in one message. Returns
    the values as a tree, and the array, [N, number of scalars per network].
    """
    _, unravel = jax.flatten_util.ravel_pytree(take_network(tree, 0))
    rows = ravel_per_network(tree)
    rows = jax.lax.optimization_barrier(rows if combine is None else combine(rows))
    return jax.vmap(unravel)(rows), rows


def ravel_per_network(tree: PyTree) -> jax.Array:
    """All parameters of each network in one row, [N, number of parameters], of a stacked tree."""
    return jax.vmap(lambda network: jax.flatten_util.ravel_pytree(network)[0])(tree)
