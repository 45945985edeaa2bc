"""Vision transformers (Dosovitskiy et al., 2021, and Oquab et al., 2023) with the layers of timm.

Shape suffixes: B images, H rows, W columns, C channels, T tokens, D width of a token.
"""

import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend.backend import get_backend
from jax.typing import DTypeLike

from cls_jax.batch import PyTree
from cls_jax.models.layers import Architecture, create_layer_norm, gelu, transformer_init

_MLP_RATIO = 4


def attend(q_BTHD: jax.Array, k_BTHD: jax.Array, v_BTHD: jax.Array) -> jax.Array:
    """Attention of H heads with a float32 softmax, fused by cuDNN where it can.

    cuDNN's kernel stores no probabilities [B, H, T, T] for the gradient. It needs 16-bit
    activations, an NVIDIA GPU, and its library while the program is traced. So a program traced
    elsewhere has XLA's attention for every platform, and one traced on a GPU has both, chosen by
    the platform that it is lowered for. Returns the inputs' dtype, [B, T, H, D / H].
    """
    is_half = q_BTHD.dtype in (jnp.bfloat16, jnp.float16)
    has_cudnn = "cuda" in get_backend().platform_version
    if not (is_half and q_BTHD.shape[-1] % 8 == 0 and has_cudnn):
        return jax.nn.dot_product_attention(q_BTHD, k_BTHD, v_BTHD)
    attended: jax.Array = jax.lax.platform_dependent(
        q_BTHD, k_BTHD, v_BTHD, cuda=_attend_by_cudnn, default=jax.nn.dot_product_attention
    )
    return attended


def _attend_by_cudnn(q_BTHD: jax.Array, k_BTHD: jax.Array, v_BTHD: jax.Array) -> jax.Array:
    batch, num_tokens = q_BTHD.shape[:2]
    if num_tokens % 2 == 0:
        return jax.nn.dot_product_attention(q_BTHD, k_BTHD, v_BTHD, implementation="cudnn")
    # Its gradient exists for an even number of tokens only, so a masked one is added.
    q_BTHD, k_BTHD, v_BTHD = (
        jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q_BTHD, k_BTHD, v_BTHD)
    )
    lengths = jnp.full(batch, num_tokens, jnp.int32)
    x_BTHD = jax.nn.dot_product_attention(
        q_BTHD,
        k_BTHD,
        v_BTHD,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )
    return x_BTHD[:, :num_tokens]


class Attention(nn.Module):
    """Multi-head self-attention."""

    num_heads: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """Returns `dtype` [B, T, D]."""
        batch, tokens, width = x_BTD.shape
        qkv = nn.Dense(3 * width, dtype=self.dtype, kernel_init=transformer_init, name="qkv")(x_BTD)
        shape = (batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = jnp.moveaxis(qkv.reshape(shape), 2, 0)
        x_BTD = attend(q, k, v).reshape(batch, tokens, width)
        return nn.Dense(width, dtype=self.dtype, kernel_init=transformer_init, name="proj")(x_BTD)


class Mlp(nn.Module):
    """Dense, GELU, dropout, dense."""

    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BTD: jax.Array, dropout: bool) -> jax.Array:
        """Returns `dtype` [B, T, D]."""
        width = x_BTD.shape[-1]
        y = nn.Dense(
            _MLP_RATIO * width, dtype=self.dtype, kernel_init=transformer_init, name="fc1"
        )(x_BTD)
        y = gelu(y)
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        return nn.Dense(width, dtype=self.dtype, kernel_init=transformer_init, name="fc2")(y)


class LayerScale(nn.Module):
    """A factor per channel, `initial` at the start (Touvron et al., 2021)."""

    initial: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x times the factors."""
        gamma = self.param("gamma", nn.initializers.constant(self.initial), x.shape[-1:])
        return x * gamma.astype(x.dtype)


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and in parallel to a shortcut ("pre-norm")."""

    num_heads: int
    layer_scale: float  # The initial `LayerScale` of both, or 0 for none.
    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BTD: jax.Array, dropout: bool) -> jax.Array:
        """Returns `dtype` [B, T, D]."""

        def scale(y: jax.Array, name: str) -> jax.Array:
            return LayerScale(self.layer_scale, name=name)(y) if self.layer_scale else y

        y = create_layer_norm(self.dtype, "norm1")(x_BTD)
        x_BTD += scale(Attention(self.num_heads, self.dtype, name="attn")(y), "ls1")
        y = create_layer_norm(self.dtype, "norm2")(x_BTD)
        return x_BTD + scale(Mlp(self.dropout_rate, self.dtype, name="mlp")(y, dropout), "ls2")


class VisionTransformer(Architecture):
    """Patches, class token, position embeddings, blocks, LayerNorm, dense on the class token.

    Without BatchNorm, nothing depends on other images of the batch.
    """

    stem_names: ClassVar[tuple[str, ...]] = ("patch_embed", "cls_token", "reg_token", "pos_embed")

    width: int = 192  # D.
    depth: int = 12  # Number of blocks.
    num_heads: int = 3  # Per block. D is 64 times as large in all published sizes.
    patch: int = 16  # Side of a patch in pixels.
    layer_scale: float = 0.0  # See `Block`.
    # Register tokens (Darcet et al., 2024). With them, timm has no position embedding for the class
    # token.
    num_registers: int = 0

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        patch = (self.patch, self.patch)
        x_BHWD = nn.Conv(
            self.width,
            kernel_size=patch,
            strides=patch,
            padding="VALID",
            dtype=self.dtype,
            kernel_init=transformer_init,
            name="patch_embed",
        )(x_BHWC)
        x_BTD = self._add_tokens(x_BHWD.reshape(x_BHWD.shape[0], -1, self.width))
        x_BTD, stages = self._apply_blocks(x_BTD, dropout, is_looped=self.remat and train)
        x_BD = create_layer_norm(jnp.float32, "norm")(x_BTD[:, 0])
        return self.apply_heads(x_BD, head, stages)

    def _apply_blocks(
        self, x_BTD: jax.Array, dropout: bool, is_looped: bool
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Applies the blocks, unrolled or, to need less memory for the gradient, in a loop.

        Returns the last output, and those after each quarter of the blocks unless in a loop.
        The loop keeps the inputs of the blocks and recomputes everything within them.
        `jax.checkpoint` alone is not enough: XLA for CPUs drops its barriers and schedules the
        recomputation of all blocks before the first gradient.
        """
        create_block = functools.partial(
            Block,
            num_heads=self.num_heads,
            layer_scale=self.layer_scale,
            dropout_rate=self.dropout_rate,
            dtype=self.dtype,
        )
        names = [f"block{i + 1}" for i in range(self.depth)]
        if self.is_initializing() or not is_looped:
            outputs = []
            for name in names:
                x_BTD = create_block(name=name)(x_BTD, dropout)
                outputs.append(x_BTD)
            quarters = {-(-self.depth * part // 4) for part in range(1, 5)}
            return x_BTD, [outputs[end - 1] for end in sorted(quarters)]
        params = self.variables["params"]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(params[name] for name in names))
        keys = jax.random.split(self.make_rng("dropout"), self.depth) if dropout else None
        block = create_block(parent=None)

        @functools.partial(jax.checkpoint, prevent_cse=False)  # The loop already prevents it.
        def apply_block(
            x_BTD: jax.Array, inputs: tuple[PyTree, jax.Array | None]
        ) -> tuple[jax.Array, None]:
            params, key = inputs
            rngs = None if key is None else {"dropout": key}
            output = block.apply({"params": params}, x_BTD, dropout, rngs=rngs)
            assert isinstance(output, jax.Array)
            return output, None

        return jax.lax.scan(apply_block, x_BTD, (stacked, keys))[0], []

    def _add_tokens(self, x_BTD: jax.Array) -> jax.Array:
        """Prepends class token and registers, and adds position embeddings."""
        has_class_position = self.num_registers == 0

        def create(name: str, tokens: int) -> jax.Array:
            return self.param(name, transformer_init, (1, tokens, self.width)).astype(self.dtype)

        positions = create("pos_embed", x_BTD.shape[1] + has_class_position)
        tokens = [create("cls_token", 1)]
        if self.num_registers:
            tokens.append(create("reg_token", self.num_registers))
        tokens = [jnp.broadcast_to(t, (x_BTD.shape[0], *t.shape[1:])) for t in tokens]
        if has_class_position:
            return jnp.concatenate([*tokens, x_BTD], axis=1) + positions
        return jnp.concatenate([*tokens, x_BTD + positions], axis=1)
