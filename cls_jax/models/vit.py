"""Vision transformers (Dosovitskiy et al., 2021; Oquab et al., 2023) with the layers of timm.

Shape suffixes: B images, H rows, W columns, C channels, T tokens, D width of a token.
"""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from cls_jax.models.layers import Architecture, apply_heads

_MLP_RATIO = 4
# Of all kernels and embeddings, as in timm and Dosovitskiy et al.'s code.
_init = nn.initializers.truncated_normal(0.02)


def _norm(dtype: Any, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(1e-6, dtype, use_fast_variance=False, name=name)


class Attention(nn.Module):
    """Multi-head self-attention.

    Attributes:
        num_heads: by which the tokens' width is divided.
    """

    num_heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """Returns `dtype` [B, T, D]."""
        batch, tokens, width = x_BTD.shape
        qkv = nn.Dense(3 * width, dtype=self.dtype, kernel_init=_init, name="qkv")(x_BTD)
        shape = (batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = jnp.moveaxis(qkv.reshape(shape), 2, 0)
        x_BTHD = jax.nn.dot_product_attention(q, k, v)  # Its softmax is float32.
        x_BTD = x_BTHD.reshape(batch, tokens, width)
        return nn.Dense(width, dtype=self.dtype, kernel_init=_init, name="proj")(x_BTD)


class Mlp(nn.Module):
    """Dense, GELU, dense.

    Attributes:
        dropout_rate: share of activations dropped in between.
    """

    dropout_rate: float
    dtype: Any

    @nn.compact
    def __call__(self, x_BTD: jax.Array, dropout: bool) -> jax.Array:
        """Returns `dtype` [B, T, D]."""
        width = x_BTD.shape[-1]
        y = nn.Dense(_MLP_RATIO * width, dtype=self.dtype, kernel_init=_init, name="fc1")(x_BTD)
        y = nn.gelu(y, approximate=False)
        y = nn.Dropout(self.dropout_rate, deterministic=not dropout)(y)
        return nn.Dense(width, dtype=self.dtype, kernel_init=_init, name="fc2")(y)


class LayerScale(nn.Module):
    """A factor per channel (Touvron et al., 2021).

    Attributes:
        initial: its value at the start.
    """

    initial: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x times the factors."""
        gamma = self.param("gamma", nn.initializers.constant(self.initial), x.shape[-1:])
        return x * gamma.astype(x.dtype)


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and in parallel to a shortcut ("pre-norm").

    Attributes:
        num_heads: of the attention.
        layer_scale: initial `LayerScale` of both; 0 for none.
        dropout_rate: of the MLP.
    """

    num_heads: int
    layer_scale: float
    dropout_rate: float
    dtype: Any

    @nn.compact
    def __call__(self, x_BTD: jax.Array, dropout: bool) -> jax.Array:
        """Returns `dtype` [B, T, D]."""

        def scale(y: jax.Array, name: str) -> jax.Array:
            return LayerScale(self.layer_scale, name=name)(y) if self.layer_scale else y

        y = _norm(self.dtype, "norm1")(x_BTD)
        x_BTD += scale(Attention(self.num_heads, self.dtype, name="attn")(y), "ls1")
        y = _norm(self.dtype, "norm2")(x_BTD)
        return x_BTD + scale(Mlp(self.dropout_rate, self.dtype, name="mlp")(y, dropout), "ls2")


class VisionTransformer(Architecture):
    """Patches, class token, position embeddings, blocks, LayerNorm, dense on the class token.

    It has no BatchNorm, and so nothing that depends on other images of the batch.

    Attributes:
        width: D.
        depth: number of blocks.
        num_heads: per block; D is 64 times as large in all published sizes.
        patch: side of a patch in pixels.
        layer_scale: see `Block`.
        num_registers: tokens without a meaning of their own (Darcet et al., 2024). With them, timm
            has no position embedding for the class token.
    """

    stem_names: ClassVar[tuple[str, ...]] = (
        "patch_embed",
        "cls_token",
        "reg_token",
        "pos_embed",
    )

    width: int = 192
    depth: int = 12
    num_heads: int = 3
    patch: int = 16
    layer_scale: float = 0.0
    num_registers: int = 0

    @nn.compact
    def __call__(
        self, x_BHWC: jax.Array, train: bool = False, dropout: bool = False, head: str = "head"
    ) -> jax.Array:
        """See `Architecture`."""
        patch = (self.patch, self.patch)
        embed = nn.Conv(
            self.width,
            patch,
            patch,
            "VALID",
            dtype=self.dtype,
            kernel_init=_init,
            name="patch_embed",
        )
        x_BTD = embed(x_BHWC).reshape(len(x_BHWC), -1, self.width)
        x_BTD = self._add_tokens(x_BTD)
        for i in range(self.depth):
            x_BTD = Block(
                self.num_heads,
                self.layer_scale,
                self.dropout_rate,
                self.dtype,
                name=f"block{i + 1}",
            )(x_BTD, dropout)
        x_BD = _norm(jnp.float32, "norm")(x_BTD[:, 0])
        return apply_heads(x_BD, (("head", self.num_classes), *self.extra_heads), head)

    def _add_tokens(self, x_BTD: jax.Array) -> jax.Array:
        """Puts class token and registers before the patches, and adds position embeddings."""
        has_class_position = self.num_registers == 0

        def create(name: str, tokens: int) -> jax.Array:
            return self.param(name, _init, (1, tokens, self.width)).astype(self.dtype)

        positions = create("pos_embed", x_BTD.shape[1] + has_class_position)
        tokens = [create("cls_token", 1)]
        if self.num_registers:
            tokens.append(create("reg_token", self.num_registers))
        tokens = [jnp.broadcast_to(t, (len(x_BTD), *t.shape[1:])) for t in tokens]
        if has_class_position:
            return jnp.concatenate([*tokens, x_BTD], axis=1) + positions
        return jnp.concatenate([*tokens, x_BTD + positions], axis=1)
