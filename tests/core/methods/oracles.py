"""Every method's loss in plain NumPy and in double precision.

Written from the papers and from what their authors' code does, not from `cls_jax.methods`: an error
has to be made twice to go unnoticed. Images are rows of pixels, and a network is a matrix with a
stand-in for BatchNorm (`forward`), so that it matters which images pass together.

Everything is analytic, so pixels may be complex: with an imaginary part of 1e-30 on one pixel, the
losses' imaginary parts are their derivatives by it, without rounding (`differentiate`). The real
part of a prediction is then that prediction as a constant: `constant` is the stop-gradient.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

SIZE, K = 3, 4
PIXELS = SIZE * SIZE
CENTERING = 0.3  # Share of the batch mean that a pass subtracts: 1 in BatchNorm.
STATS_MOMENTUM = 0.9
INFERRED_LABELS = "graph"  # In a method's state.
DROPOUT_MASK = np.where(np.arange(PIXELS) % 5 == 1, 0.0, 1.25)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a step. N networks, B labeled images, U unlabeled ones under V views."""

    x: np.ndarray  # [B, PIXELS].
    y: np.ndarray  # int [B].
    u: np.ndarray  # [V, U, PIXELS].
    weights: np.ndarray  # [N, PIXELS, K].
    rotation_weights: np.ndarray  # [N, PIXELS, 4].
    ema_weights: np.ndarray  # [N, PIXELS, K].
    stats: np.ndarray  # [N, PIXELS], the running mean.
    draws: np.ndarray  # Uniform in (0, 1), one per image. See `draw_lambda`.
    order: np.ndarray  # Permutation of all images, which gives each its MixUp partner.
    boxes: np.ndarray  # bool [U, PIXELS], where CutMix shows the partner.
    u_index: np.ndarray  # int [U], rows of the tables of UPS and FlexMatch.
    state: Any  # The method's state.
    progress: float  # step / num_steps.
    settings: Mapping[str, Any]  # Hyperparameters.


class Expected(NamedTuple):
    """The expected results of one network: loss, monitors by name, and the rest."""

    loss: complex
    parts: dict[str, complex]
    stats: np.ndarray
    pseudo_labels: list[int] | None = None
    state: Any = ()


def draw_lambda(uniform, a, b):
    """Stands in for Beta(a, b) draws: any function of both parameters serves."""
    return uniform**a / (uniform**a + (1 - uniform) ** b)


# Building blocks.


def forward(weights, stats, pixels):
    """Logits of images that pass together, and the running mean after the pass."""
    mean = pixels.mean(axis=0)
    stats = STATS_MOMENTUM * stats + (1 - STATS_MOMENTUM) * constant(mean)
    return (pixels - CENTERING * mean) @ weights, stats


def constant(values):
    return np.real(values)


def log_softmax(logits):
    shifted = logits - constant(logits).max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(logits):
    return np.exp(log_softmax(logits))


def cross_entropies(logits, labels):
    return -log_softmax(logits)[range(len(logits)), labels]


def soft_cross_entropies(logits, targets):
    return -(targets * log_softmax(logits)).sum(axis=-1)


def negative_cross_entropies(logits, labels):
    rest = 1 - softmax(logits)[range(len(logits)), labels]
    return -np.log(np.where(constant(rest) > 1e-7, rest, 1e-7))


def certainty(p):
    """w = 1 - H(p) / log K, where 0 log 0 = 0."""
    entropy = -sum(q * np.log(q) for q in p if q > 0)
    return 1 - entropy / np.log(K)


def sharpen(p, temperature):
    return norm(p ** (1 / temperature))


def ramp(progress, length):
    return min(progress / length, 1.0)


def mean(values):
    return sum(values) / len(values)


EPSILON = 1e-6


def ema(old, new, decay):
    return decay * old + (1 - decay) * new


def norm(values):
    return values / values.sum(axis=-1, keepdims=True)


def align_logits(logits, predicted, target):
    """Logits whose softmax is p · target / predicted, normalized."""
    return logits + np.log((target + EPSILON) / (predicted + EPSILON))


def histogram(labels):
    return np.bincount(labels, minlength=K) / len(labels)


def balance(means):
    return {"monitors/class_balance": means.min() / means.max()}


# Methods: (inputs, index of the network) → Expected.


def supervised(i: Inputs, n: int) -> Expected:
    logits, stats = forward(i.weights[n], i.stats[n], i.x)
    loss = mean(cross_entropies(logits, i.y))
    return Expected(loss, {"train/loss_supervised": loss}, stats)


def pseudo_label(i: Inputs, n: int) -> Expected:
    own = supervised(i, n)  # Labeled images pass separately, and only they update statistics.
    logits, _ = forward(i.weights[n], i.stats[n], i.u[0])
    p = softmax(constant(logits))
    labels, masks = p.argmax(-1), p.max(-1) >= i.settings["threshold"]
    loss = mean(masks * cross_entropies(logits, labels))
    weight = i.settings["lambda_u"] * ramp(i.progress, i.settings["ramp"])
    parts = {**own.parts, "train/loss_self": loss, "monitors/mask_ratio": mean(masks)}
    return Expected(own.loss + weight * loss, parts, own.stats, labels)


def consistency(i: Inputs, n: int, teacher_weights) -> Expected:
    own = supervised(i, n)
    student, _ = forward(i.weights[n], i.stats[n], i.u[0])
    teacher, _ = forward(teacher_weights[n], i.stats[n], i.u[1])
    loss = np.mean((softmax(student) - softmax(constant(teacher))) ** 2)
    weight = i.settings["lambda_u"] * ramp(i.progress, i.settings["ramp"])
    parts = {**own.parts, "train/loss_consistency": loss}
    labels = constant(teacher).argmax(-1)
    return Expected(own.loss + weight * loss, parts, own.stats, labels)


def pi_model(i: Inputs, n: int) -> Expected:
    return consistency(i, n, i.weights)


def mean_teacher(i: Inputs, n: int) -> Expected:
    return consistency(i, n, i.ema_weights)


def forward_groups(i: Inputs, n: int, *mixed):
    """Labeled images, all views and mixes in one pass: [logits of each group], statistics.

    With `weak_pass=fast`, weak images are not in the pass: they only subtract the mean of the rest.
    """
    groups = [i.x, *i.u, *mixed]
    is_fast = i.settings["weak_pass"] == "fast"
    together = np.concatenate(groups[:1] + groups[2:] if is_fast else groups)
    _, stats = forward(i.weights[n], i.stats[n], together)
    mean = together.mean(axis=0)
    return [(pixels - CENTERING * mean) @ i.weights[n] for pixels in groups], stats


def add_balanced_head(own: Expected, i: Inputs, n: int) -> Expected:
    """ABC: a second head, whose weights are the EMA's here, on the features of a method."""
    (logits_x, weak, strong), _ = forward_groups(dataclasses.replace(i, weights=i.ema_weights), n)
    shares, p = i.state["shares"][n], softmax(constant(weak))
    labels = p.argmax(-1)
    is_kept = i.draws[: len(i.y)] < shares[i.y]
    is_taught = i.draws[: len(p)] < 1 - i.progress * (1 - shares[labels])
    is_taught &= p.max(-1) >= 0.95
    loss = mean(is_kept * cross_entropies(logits_x, i.y))
    loss += mean(is_taught * cross_entropies(strong, labels))
    parts = {**own.parts, "train/loss_balanced": loss}
    state = {**dict(own.state), "shares": shares}
    return own._replace(loss=own.loss + loss, parts=parts, state=state)


def add_inferred(own: Expected, i: Inputs, n: int) -> Expected:
    """Inferred labels, rows of an entry of the state, teach the strong views less and less."""
    strong = forward_groups(i, n)[0][2]
    labels = type(i.state[INFERRED_LABELS])(*(leaf[n] for leaf in i.state[INFERRED_LABELS]))
    pseudo, complementary, weights, _ = (leaf[i.u_index] for leaf in labels)
    losses = cross_entropies(strong, pseudo) + negative_cross_entropies(strong, complementary)
    loss = mean(weights * losses)
    parts = {**own.parts, "train/loss_inferred": loss}
    total = own.loss + i.settings["inferred"] * (1 - i.progress) * loss
    return own._replace(loss=total, parts=parts, state={**dict(own.state), INFERRED_LABELS: labels})


def cutmix(i: Inputs):
    """CutMix of weak views with the neighbor in the batch: images, own shares, partners."""
    partners = [min(a ^ 1, len(i.boxes) - 1) for a in range(len(i.boxes))]
    mixed = np.where(i.boxes, i.u[0][partners], i.u[0])
    shares = 1 - i.boxes.mean(axis=1, dtype=np.float32)  # A mean of booleans is float32.
    return mixed, shares.astype(float), partners


def cutmix_loss(i: Inputs, logits, labels, weights):
    """Each image is its share itself, the rest its partner."""
    _, shares, partners = cutmix(i)
    labels, weights = np.array(labels), np.array(weights)
    own = weights * cross_entropies(logits, labels)
    others = weights[partners] * cross_entropies(logits, labels[partners])
    return mean(shares * own + (1 - shares) * others)


def uda(i: Inputs, n: int) -> Expected:
    (logits_x, weak, strong), stats = forward_groups(i, n)
    threshold = {
        "off": np.inf,
        "linear": i.progress,
        "log": 1 - np.exp(-5 * i.progress),
        "exp": np.exp(5 * (i.progress - 1)),
    }[i.settings["annealing"]] * (1 - 1 / K) + 1 / K
    losses_x, weak = cross_entropies(logits_x, i.y), constant(weak)
    kept = losses_x[np.exp(-constant(losses_x)) <= threshold]
    loss_x = mean(kept) if len(kept) else 0.0
    masks = softmax(weak).max(-1) >= i.settings["threshold"]
    targets = softmax(weak / i.settings["temperature"])
    loss = mean(masks * soft_cross_entropies(strong, targets))
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_consistency": loss,
        "monitors/mask_ratio": mean(masks),
    }
    return Expected(loss_x + i.settings["lambda_u"] * loss, parts, stats, weak.argmax(-1))


def mix(i: Inputs, guesses):
    """All images and targets, mixed. Each image keeps the larger share of itself."""
    images = np.concatenate([i.x, *i.u])
    targets = np.concatenate([np.eye(K)[i.y], *[guesses] * len(i.u)])
    share = draw_lambda(i.draws, i.settings["alpha"], i.settings["alpha"])[:, None]
    share = np.maximum(share, 1 - share)
    return [share * rows + (1 - share) * rows[i.order] for rows in (images, targets)]


def interleave_rows(sizes):
    """Google's `layers.interleave` on row numbers: n groups of rows → n chunks of rows."""
    slices, start = [], 0
    for size in sizes:
        lengths = [size // len(sizes)] * len(sizes)
        for x in range(size - sum(lengths)):
            lengths[-x - 1] += 1
        group = []
        for length in lengths:
            group.append(list(range(start, start + length)))
            start += length
        slices.append(group)
    for g in range(1, len(sizes)):
        slices[0][g], slices[g][g] = slices[g][g], slices[0][g]
    return [[row for rows in group for row in rows] for group in slices]


def forward_mixed(i: Inputs, n: int, images, stats_chunk: int):
    """Logits of the mixed images in order, and the statistics after only one chunk."""
    chunks = interleave_rows([len(i.x)] + [i.u.shape[1]] * len(i.u))
    passes = [forward(i.weights[n], i.stats[n], images[rows]) for rows in chunks]
    logits = np.concatenate([chunk for chunk, _ in passes])
    return logits[np.argsort(np.concatenate(chunks))], passes[stats_chunk][1]


def mixmatch(i: Inputs, n: int) -> Expected:
    a, b = (constant(forward(i.weights[n], i.stats[n], view)[0]) for view in i.u)
    guesses = sharpen((softmax(a) + softmax(b)) / 2, i.settings["temperature"])
    images, targets = mix(i, guesses)
    logits, stats = forward_mixed(i, n, images, stats_chunk=0)
    num_x = len(i.x)
    loss_x = mean(soft_cross_entropies(logits[:num_x], targets[:num_x]))
    loss_u = np.mean((softmax(logits[num_x:]) - targets[num_x:]) ** 2)
    weight = i.settings["lambda_u"] * ramp(i.progress, i.settings["ramp"])
    parts = {"train/loss_supervised": loss_x, "train/loss_consistency": loss_u}
    return Expected(loss_x + weight * loss_u, parts, stats, guesses.argmax(-1))


def remixmatch(i: Inputs, n: int) -> Expected:
    s = i.settings
    weak = softmax(constant(forward(i.weights[n], i.stats[n], i.u[0])[0]))
    decay = s["class_mean_decay"]  # An EMA of class means, as TorchSSL has it.
    state = {
        "predicted": decay * i.state["predicted"][n] + (1 - decay) * mean(weak),
        "labeled": decay * i.state["labeled"][n] + (1 - decay) * histogram(i.y),
    }
    aligned = weak * (state["labeled"] + 1e-6) / (state["predicted"] + 1e-6)
    guesses = sharpen(norm(aligned), s["temperature"])
    images, targets = mix(i, guesses)
    logits, stats = forward_mixed(i, n, images, stats_chunk=3)
    losses = soft_cross_entropies(logits, targets)
    loss_x, loss_mixed = mean(losses[: len(i.x)]), mean(losses[len(i.x) :])
    strong, _ = forward(i.weights[n], i.stats[n], i.u[1])
    loss_strong = mean(soft_cross_entropies(strong, guesses))
    angles = [k for k in range(4) for _ in range((i.u.shape[1] + 3 - k) // 4)]
    rotated = [
        np.rot90(image.reshape(SIZE, SIZE), k).ravel()
        for image, k in zip(i.u[1], angles, strict=True)
    ]
    turned, _ = forward(i.rotation_weights[n], i.stats[n], np.stack(rotated))
    loss_rotation = mean(cross_entropies(turned, angles))

    weight = ramp(i.progress, s["ramp"])
    loss = loss_x + weight * (s["weight_mixed"] * loss_mixed + s["weight_strong"] * loss_strong)
    loss += s["weight_rotation"] * loss_rotation
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_consistency": loss_mixed,
        "train/loss_strong": loss_strong,
        "train/loss_rotation": loss_rotation,
    }
    return Expected(loss, parts, stats, guesses.argmax(-1), state)


def ups(i: Inputs, n: int) -> Expected:
    pixels = np.concatenate([i.x, i.u[0]]) * DROPOUT_MASK
    logits, stats = forward(i.weights[n], i.stats[n], pixels)
    logits_x, logits_u = logits[: len(i.x)], logits[len(i.x) :]
    losses_x = cross_entropies(logits_x, i.y)
    positive, negative, num_selected = list(losses_x), [], 0
    for z, row in zip(logits_u, i.u_index, strict=True):
        label, classes = i.state["label"][n][row], np.flatnonzero(i.state["negative"][n][row])
        if label >= 0:
            positive.extend(cross_entropies([z], [label]))
            num_selected += 1
        if len(classes):
            negative.append(mean(negative_cross_entropies([z] * len(classes), classes)))
    loss_negative = mean(negative) if negative else 0.0
    parts = {
        "train/loss_supervised": mean(losses_x),
        "train/loss_positive": mean(positive),
        "train/loss_negative": loss_negative,
        "monitors/mask_ratio": num_selected / len(logits_u),
    }
    labels = constant(logits_u).argmax(-1)
    state = {key: table[n] for key, table in i.state.items()}
    return Expected(mean(positive) + loss_negative, parts, stats, labels, state)


# Row of Table 2 → (two networks, complementary labels, weights).
TABLE_2 = {
    "fixmatch": (False, False, False),
    "fixmatch_nl": (False, True, False),
    "fixmatch_rw": (False, False, True),
    "fixmatch_nl_rw": (False, True, True),
    "cls_no_nl": (True, False, True),
    "cls_no_rw": (True, True, False),
    "cls": (True, True, True),
}


def table_2(name: str, i: Inputs, n: int) -> Expected:
    passes = [forward_groups(i, m) for m in range(len(i.weights))]
    weak = [constant(logits[1]) for logits, _ in passes]
    expected, _ = cross_label(TABLE_2[name], i, n, *passes[n], weak)
    return expected


def cross_label(row, i: Inputs, n: int, logits, stats, weak):
    """The loss of a row of Table 2 for labels from `weak` [N][U, K], and (label, weight) of each.

    Own labels first, then those received. Complementary labels are the least logits, also where
    several probabilities are 0.
    """
    exchange, negative, reweight = row
    s, own, other, received = i.settings, weak[n], weak[1 - n] if exchange else weak[n], []

    def label_loss(teacher, weights):
        losses = cross_entropies(logits[2], teacher.argmax(-1))
        if negative:
            losses = losses + negative_cross_entropies(logits[2], teacher.argmin(-1))
        return mean(weights * losses)

    p = softmax(own)
    w, w_other = (np.array([certainty(p) for p in softmax(z)]) for z in (own, other))
    own_weights = w if reweight else (p.max(-1) >= s["threshold"]).astype(float)
    loss_x = mean(cross_entropies(logits[0], i.y))
    loss_self = label_loss(own, own_weights)
    loss = loss_x + s["lambda_self"] * loss_self
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_self": loss_self,
        "monitors/confidence_weight": mean(w),
    }
    if exchange:
        received = (w_other >= s["tau"]) * (w_other if reweight else 1.0)
        loss_co = label_loss(other, received)
        loss += s["lambda_co"] * loss_co
        parts |= {
            "train/loss_co": loss_co,
            "monitors/exchange_ratio": mean(w >= s["tau"]),
            "monitors/pseudo_label_overlap": mean(own.argmax(-1) == other.argmax(-1)),
            "monitors/complementary_label_overlap": mean(own.argmin(-1) == other.argmin(-1)),
        }
    else:
        parts["monitors/mask_ratio"] = mean(own_weights > 0)
    labels = own.argmax(axis=-1)
    taught = [(labels, own_weights), (other.argmax(axis=-1), received)]
    return Expected(loss, parts, stats, labels), taught


def cls_plus(i: Inputs, n: int) -> Expected:
    s, networks = i.settings, range(len(i.weights))
    mixes = [cutmix(i)[0]] if s["lambda_cutmix"] else []
    passes = [forward_groups(i, m, *mixes) for m in networks]
    weak = [constant(logits[1]) for logits, _ in passes]
    means = [
        ema(i.state["predicted"][m], mean(softmax(weak[m])), s["statistics_decay"])
        for m in networks
    ]
    hat = [align_logits(weak[m], mean(means), i.state["target"][m]) for m in networks]
    expected, taught = cross_label(TABLE_2["cls"], i, n, *passes[n], hat)
    parts, loss = expected.parts, expected.loss
    parts["monitors/class_balance"] = means[n].min() / means[n].max()
    if mixes:
        logits = passes[n][0][3]
        parts["train/loss_cutmix"] = sum(cutmix_loss(i, logits, *labels) for labels in taught)
        loss += s["lambda_cutmix"] * parts["train/loss_cutmix"]
    state = {"predicted": means[n], "target": i.state["target"][n]}
    return expected._replace(loss=loss, parts=parts, state=state)
