"""Heat maps: Grad-CAM for convolutional networks, attention rollout for ViTs.

Both intercept the outputs of layers, so the architectures need no code for them.

Shape suffixes: B images, H rows, W columns, C channels, T tokens, N heads of attention.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.batch import PyTree
from cls_jax.models.convolutions import traced_for
from cls_jax.models.layers import Architecture
from cls_jax.models.vit import VisionTransformer

# Maps of the last layer have 3 x 3 positions at 96 pixels, and 7 x 7 at 224. If that is too coarse,
# an earlier layer is used.
_MIN_POSITIONS = 6


def compute_heat_maps(
    model: Architecture, variables: PyTree, images: jax.Array, classes: jax.Array
) -> jax.Array:
    """Shows which parts of images made a network predict a class.

    The images are float32 [B, H, W, C], normalized, and the `variables` belong to one network. Maps
    show the evidence for the classes, int [B]. Attention rollout does not depend on classes.
    Returns float32 [B, h, w], not negative, for h x w positions of a layer or patches. The largest
    value of each map is 1, or 0 without any evidence for the class.
    """
    if isinstance(model, VisionTransformer):
        maps = roll_out_attention(model, variables, images)
    else:
        layer, shape = choose_layer(model, variables, images)
        maps = compute_grad_cam(model, variables, images, classes, layer, shape)
    largest = jnp.max(maps, axis=(1, 2), keepdims=True)
    return maps / jnp.where(largest > 0, largest, 1)


def choose_layer(
    model: Architecture, variables: PyTree, images: jax.Array
) -> tuple[str, tuple[int, ...]]:
    """The last block or layer of the model with at least 6 x 6 positions, or else with the most.

    With the shape of its output, [B, h, w, C]. Only direct children of the model count: within a
    block, some layers are off the main path.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def look(name: str, output: jax.Array) -> jax.Array:
        if output.ndim == 4 and "/" not in name:
            shapes.pop(name, None)  # Ordered by the last call.
            shapes[name] = output.shape
        return output

    with traced_for("shapes"):  # Of the same shapes, and traced faster.
        jax.eval_shape(lambda images: _apply(model, variables, images, look), images)
    sides = {name: min(height, width) for name, (_, height, width, _) in shapes.items()}
    wanted = min(_MIN_POSITIONS, max(sides.values()))
    layer = next(name for name in reversed(sides) if sides[name] >= wanted)
    return layer, shapes[layer]


def compute_grad_cam(
    model: Architecture,
    variables: PyTree,
    images: jax.Array,
    classes: jax.Array,
    layer: str,
    shape: tuple[int, ...],
) -> jax.Array:
    """Grad-CAM (Selvaraju et al., ICCV 2017): relu(Σ_c α_c A_c).

    A are the outputs of a layer, of this shape [B, h, w, C], and α_c is the mean over all positions
    of the gradient of the class's logit with respect to A_c. Otherwise as `compute_heat_maps`.
    Returns float32 [B, h, w].
    """
    activations: list[jax.Array] = []

    def compute_logits(added: jax.Array) -> tuple[jax.Array, jax.Array]:
        def add(name: str, output: jax.Array) -> jax.Array:
            if name != layer:
                return output
            activations[:] = [output]
            return output + added.astype(output.dtype)

        logits = _apply(model, variables, images, add)
        chosen = jnp.take_along_axis(logits, classes[:, None], axis=1)
        # An image's logits depend on no other image, so one gradient serves all.
        return jnp.sum(chosen), activations.pop().astype(jnp.float32)

    gradient_BHWC, a_BHWC = jax.grad(compute_logits, has_aux=True)(jnp.zeros(shape))
    weights_BC = jnp.mean(gradient_BHWC, axis=(1, 2))
    return jax.nn.relu(jnp.einsum("bhwc,bc->bhw", a_BHWC, weights_BC))


def roll_out_attention(model: VisionTransformer, variables: PyTree, images: jax.Array) -> jax.Array:
    """Attention rollout (Abnar and Zuidema, ACL 2020): from the class token to the patches.

    Each block mixes tokens by (A + I) / 2, where A is the mean attention of its heads and I the
    shortcut. The product over the blocks is the contribution of each patch to the class token.
    Otherwise as `compute_heat_maps`. Returns float32 [B, H / patch, W / patch].
    """
    projections: list[jax.Array] = []  # Per block, [B, T, 3 D].

    def look(name: str, output: jax.Array) -> jax.Array:
        if name.endswith("attn/qkv"):
            projections.append(output)
        return output

    _apply(model, variables, images, look)
    batch, num_tokens, _ = projections[0].shape
    rollout_BTT = jnp.eye(num_tokens)
    for qkv in projections:
        q, k, _ = jnp.moveaxis(qkv.reshape(batch, num_tokens, 3, model.num_heads, -1), 2, 0)
        scores = jnp.einsum("btnd,bsnd->bnts", q, k).astype(jnp.float32) / np.sqrt(q.shape[-1])
        a_BTT = jnp.mean(jax.nn.softmax(scores), axis=1)
        rollout_BTT = (a_BTT + jnp.eye(num_tokens)) / 2 @ rollout_BTT
    patches_BT = rollout_BTT[:, 0, 1 + model.num_registers :]
    rows, columns = (side // model.patch for side in images.shape[1:3])
    return patches_BT.reshape(batch, rows, columns)


def _apply(
    model: Architecture,
    variables: PyTree,
    images: jax.Array,
    visit: Callable[[str, jax.Array], jax.Array],
) -> jax.Array:
    """The logits [B, K], where `visit` may replace the output of each layer, given its name."""

    def intercept(
        call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
    ) -> Any:
        output = call(*args, **kwargs)
        name = "/".join(context.module.path)
        return visit(name, output) if name and context.method_name == "__call__" else output

    with nn.intercept_methods(intercept):
        logits = model.apply(variables, images, train=False)
    assert isinstance(logits, jax.Array)
    return logits
