"""MixMatch and ReMixMatch (Berthelot et al., 2019, 2020): guess labels, then mix all images.

Both predict the weak views before they mix, so they drive the networks themselves. First the two
losses, then their parts: MixUp (Zhang et al., 2018) in MixMatch's form, in which an image keeps at
least half of itself, and the interleaved forward. N networks, K classes, n groups of B_i images.

Each device mixes, interleaves and rotates within its shard of the batch, so the losses depend on
the number of devices. ReMixMatch's class means are moving averages as in TorchSSL, updated before
they are used. Google averages the predictions of the last 128 batches.
"""

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.batch import Batch, PyTree
from cls_jax.methods.alignment import align, init_uniform, update_mean
from cls_jax.methods.base import Context, LossOutput, Method, add_up, hyperparameter
from cls_jax.methods.losses import positive_cross_entropy, soft_cross_entropy
from cls_jax.models.ensemble import Ensemble

T = TypeVar("T")


def compute_mixmatch_loss(
    params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> tuple[LossOutput, PyTree]:
    """L = CE(mixed labeled) + λ_u · ramp · mean over images and classes of (p - target)².

    The guess is the sharpened mean of two weak views' probabilities, each view its own pass.
    BatchNorm's running statistics come from the first interleaved chunk of the mixed groups
    (Google's code). Signature: see `Method.drive`.
    """
    ensemble = context.ensemble
    hparams = context.hparams
    views = [ensemble.forward(params, batch_stats, view, train=True)[0] for view in batch.u]
    mean = jnp.mean(jax.nn.softmax(jnp.stack(views)), axis=0)
    guess = jax.lax.stop_gradient(sharpen(mean, hparams["temperature"]))
    truth = label_rows(batch.y, guess)
    images, (target_x, *targets_u) = mixup(
        context.key, [batch.x, *batch.u], [truth, guess, guess], hparams["alpha"]
    )
    (logits_x, *logits_u), batch_stats = forward_interleaved(
        ensemble, params, batch_stats, images, stats_from=0
    )
    loss_supervised = jnp.mean(soft_cross_entropy(logits_x, target_x), axis=-1)
    errors = jax.nn.softmax(jnp.stack(logits_u)) - jnp.stack(targets_u)
    loss_unlabeled = jnp.mean(jnp.square(errors), axis=(0, 2, 3))
    weight = hparams["lambda_u"] * context.ramp_up(hparams["ramp"])
    terms = {"consistency": (weight, loss_unlabeled)}
    return add_up(loss_supervised, terms, {}, jnp.argmax(guess, axis=-1)), batch_stats


def compute_remixmatch_loss(
    params: PyTree, batch_stats: PyTree, batch: Batch, context: Context
) -> tuple[LossOutput, PyTree]:
    """L = CE(mixed labeled) + ramp · (w_m CE(mixed) + w_s CE(strong)) + w_r CE(rotated).

    The guess for the weak view, aligned to the labels' class distribution and sharpened, is the
    target of all three views where they are mixed, and of the first strong view unmixed. A second
    head learns by which multiple of 90 degrees that view was rotated. Its loss has no ramp.
    BatchNorm's running statistics come from the last interleaved chunk of the mixed groups
    (Google's code). Signature: see `Method.drive`.
    """
    ensemble = context.ensemble
    hparams = context.hparams
    weak, strong, _ = batch.u

    def forward(images: jax.Array, head: str = "head") -> jax.Array:
        return ensemble.forward(params, batch_stats, images, train=True, head=head)[0]

    logits_weak = jax.lax.stop_gradient(forward(weak))
    truth = label_rows(batch.y, logits_weak)
    per_image = {"predicted": jax.nn.softmax(logits_weak), "labeled": truth}
    means = {
        name: update_mean(context, context.method_state[name], values)
        for name, values in per_image.items()
    }
    aligned = align(logits_weak, means["predicted"], means["labeled"])
    guess = sharpen(jax.nn.softmax(aligned), hparams["temperature"])
    images, (target_x, *targets_u) = mixup(
        context.key, [batch.x, *batch.u], [truth, guess, guess, guess], hparams["alpha"]
    )
    (logits_x, *logits_u), new_batch_stats = forward_interleaved(
        ensemble, params, batch_stats, images, stats_from=-1
    )
    loss_supervised = jnp.mean(soft_cross_entropy(logits_x, target_x), axis=-1)
    losses_mixed = soft_cross_entropy(jnp.stack(logits_u), jnp.stack(targets_u))
    loss_mixed = jnp.mean(losses_mixed, axis=(0, 2))
    loss_strong = jnp.mean(soft_cross_entropy(forward(strong), guess), axis=-1)
    rotated, turns = rotate_quarters(strong)
    logits_turns = forward(rotated, head="rotation")
    loss_rotation = jnp.mean(positive_cross_entropy(logits_turns, turns), axis=-1)

    ramp = context.ramp_up(hparams["ramp"])
    terms = {
        "consistency": (ramp * hparams["weight_mixed"], loss_mixed),
        "strong": (ramp * hparams["weight_strong"], loss_strong),
        "rotation": (hparams["weight_rotation"], loss_rotation),
    }
    return add_up(loss_supervised, terms, {}, jnp.argmax(guess, axis=-1), means), new_batch_stats


def rotate_quarters(images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rotates a quarter of the square images [B, H, H, C] by each of 0, 90, 180 and 270 degrees.

    The quarters are consecutive (Google's code): the stream has already shuffled the images.
    Returns the rotated images and their numbers of quarter turns, int32 [B].
    """
    parts = jnp.array_split(images, 4)
    rotated = [jnp.rot90(part, turns, axes=(1, 2)) for turns, part in enumerate(parts)]
    turns = np.repeat(np.arange(4, dtype=np.int32), [len(part) for part in parts])
    return jnp.concatenate(rotated), jnp.asarray(turns)


def mixup(
    key: jax.Array, images: Sequence[jax.Array], targets: Sequence[jax.Array], alpha: float
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Mixes all images of all groups with one another: λ' · image + (1 - λ') · partner.

    λ' = max(λ, 1 - λ) with λ ~ Beta(α, α) for each image (Google's MixMatch). On several devices
    the partner comes from this device's shard of the batch. A group, given and returned, is images
    float32 [B_i, H, W, C] and targets float32 [N, B_i, K], probabilities as each of N networks sees
    them.
    """
    ends = np.cumsum([len(group) for group in images])
    key_lambda, key_order = jax.random.split(key)
    share = jax.random.beta(key_lambda, alpha, alpha, (ends[-1],))
    share = jnp.maximum(share, 1 - share)
    order = jax.random.permutation(key_order, ends[-1])

    def mix(share: jax.Array, own: jax.Array, partners: jax.Array) -> jax.Array:
        return share * own + (1 - share) * partners

    own = jnp.concatenate(images)
    own_targets = jnp.concatenate(targets, axis=1)
    mixed = mix(share[:, None, None, None], own, own[order])
    mixed_targets = mix(share[:, None], own_targets, own_targets[:, order])
    return jnp.split(mixed, ends[:-1]), jnp.split(mixed_targets, ends[:-1], axis=1)


def label_rows(labels: jax.Array, guess: jax.Array) -> jax.Array:
    """True labels int [B] as every network's targets float32 [N, B, K], like a guess [N, U, K]."""
    truth = jax.nn.one_hot(labels, guess.shape[-1])
    return jnp.broadcast_to(truth, (len(guess), *truth.shape))


def sharpen(probabilities: jax.Array, temperature: float) -> jax.Array:
    """p^(1/T) / Σ p^(1/T) over the last axis. T < 1 makes labels more confident."""
    # In logarithms: a power of a small probability would underflow.
    return jax.nn.softmax(jnp.log(jnp.maximum(probabilities, 1e-30)) / temperature)


def forward_interleaved(
    ensemble: Ensemble,
    params: PyTree,
    batch_stats: PyTree,
    groups: Sequence[jax.Array],
    stats_from: int,
) -> tuple[list[jax.Array], PyTree]:
    """`Ensemble.forward` in training, one pass per interleaved chunk of the groups [B_i, H, W, C].

    The first group has the labeled images. Returns the logits of each group, float32 [N, B_i, K],
    and the BatchNorm statistics of the chunk `stats_from`.
    """
    sizes = [len(group) for group in groups]
    passes = [
        ensemble.forward(params, batch_stats, chunk, train=True)
        for chunk in interleave(groups, sizes)
    ]
    logits = interleave([logits for logits, _ in passes], sizes, axis=1, inverse=True)
    return logits, passes[stats_from][1]


def interleave(
    arrays: Sequence[jax.Array], sizes: Sequence[int], axis: int = 0, inverse: bool = False
) -> list[jax.Array]:
    """Exchanges slices between the first of n groups and all others (Google's `interleave`).

    Every group is cut into n slices along `axis`, where it has B_i rows, its entry in `sizes`.
    Slice i of the first group and slice i of group i change places. So the first chunk holds a
    slice of every group, and every other chunk holds a slice of the first group: with BatchNorm, no
    chunk's statistics come from only labeled or only unlabeled images. Google's groups have equal
    sizes. With `inverse`, arrays that were computed from chunks become groups again.
    """
    # As equal as possible, the longer ones last, as in Google's `interleave_offsets`.
    lengths = [[(size + i) // len(sizes) for i in range(len(sizes))] for size in sizes]
    if inverse:
        lengths = _swap_with_first(lengths)
    slices = [
        jnp.split(array, np.cumsum(row[:-1]), axis)
        for array, row in zip(arrays, lengths, strict=True)
    ]
    return [jnp.concatenate(chunk, axis) for chunk in _swap_with_first(slices)]


def _swap_with_first(rows: Sequence[Sequence[T]]) -> list[list[T]]:
    swapped = [list(row) for row in rows]
    for i in range(1, len(swapped)):
        swapped[0][i], swapped[i][i] = swapped[i][i], swapped[0][i]
    return swapped


_MIXING = {
    "alpha": hyperparameter(0.75, 1e-3, 100.0, "MixMatch"),
    "temperature": hyperparameter(0.5, 1e-2, 10.0, "MixMatch"),
}
METHODS = {
    "mixmatch": Method(
        drive=compute_mixmatch_loss,
        hyperparameters={
            **_MIXING,
            "lambda_u": hyperparameter(75.0, 0.0, 1e4, "MixMatch, CIFAR-10; 150 on CIFAR-100"),
            "ramp": hyperparameter(16_384 / 307_200, 1e-6, 1.0, "MixMatch: 16,384 steps"),
        },
        mu=1,
        unlabeled_views=("weak", "weak"),
    ),
    "remixmatch": Method(
        drive=compute_remixmatch_loss,
        hyperparameters={
            **_MIXING,
            "weight_mixed": hyperparameter(1.5, 0.0, 1e3, "ReMixMatch, --w_match"),
            "weight_strong": hyperparameter(0.5, 0.0, 1e3, "ReMixMatch, --w_kl"),
            "weight_rotation": hyperparameter(0.5, 0.0, 1e3, "ReMixMatch, --w_rot"),
            "ramp": hyperparameter(
                1 / 64, 1e-6, 1.0, "ReMixMatch: --warmup_kimg, share of the run"
            ),
            "class_mean_decay": hyperparameter(0.999, 0.0, 0.99999, "TorchSSL"),
        },
        mu=1,
        unlabeled_views=("weak", "strong", "strong"),
        # Running class means, float32 [K]: uniform at first.
        create_state=lambda _, spec: dict.fromkeys(("predicted", "labeled"), init_uniform(spec)),
        extra_heads=(("rotation", 4),),
    ),
}
