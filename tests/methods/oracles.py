"""Every method's loss in plain NumPy, in double precision, image by image.

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
DROPOUT_MASK = np.where(np.arange(PIXELS) % 5 == 1, 0.0, 1.25)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a step is given. N networks, B labeled images, U unlabeled ones under V views."""

    x: np.ndarray  # [B, PIXELS].
    y: np.ndarray  # int [B].
    u: np.ndarray  # [V, U, PIXELS].
    weights: np.ndarray  # [N, PIXELS, K].
    rotation_weights: np.ndarray  # [N, PIXELS, 4].
    open_weights: np.ndarray  # [N, PIXELS, 3 K + 1], of IOMatch's two heads.
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
    """What one network should get: loss, monitors by name, and the rest."""

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
    shifted = logits - constant(logits).max()
    return shifted - np.log(np.exp(shifted).sum())


def softmax(logits):
    return np.exp(log_softmax(logits))


def cross_entropy(logits, label):
    return -log_softmax(logits)[label]


def soft_cross_entropy(logits, target):
    return -(target * log_softmax(logits)).sum()


def negative_cross_entropy(logits, label):
    rest = 1 - softmax(logits)[label]
    return -np.log(rest) if constant(rest) > 1e-7 else -np.log(1e-7)


def certainty(p):
    """w = 1 - H(p) / log K, where 0 log 0 = 0."""
    entropy = -sum(q * np.log(q) for q in p if q > 0)
    return 1 - entropy / np.log(K)


def sharpen(p, temperature):
    return p ** (1 / temperature) / (p ** (1 / temperature)).sum()


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


def softmax_rows(logits):
    return np.array([softmax(z) for z in logits])


def histogram(labels):
    return np.bincount(labels, minlength=K) / len(labels)


def balance(means):
    return {"monitors/class_balance": means.min() / means.max()}


# Methods: (inputs, index of the network) → Expected.


def supervised(i: Inputs, n: int) -> Expected:
    logits, stats = forward(i.weights[n], i.stats[n], i.x)
    loss = mean([cross_entropy(z, y) for z, y in zip(logits, i.y, strict=True)])
    return Expected(loss, {"train/loss_supervised": loss}, stats)


def pseudo_label(i: Inputs, n: int) -> Expected:
    own = supervised(i, n)  # Labeled images pass separately, and only they update statistics.
    logits, _ = forward(i.weights[n], i.stats[n], i.u[0])
    losses, masks, labels = [], [], []
    for z in logits:
        p = softmax(constant(z))
        labels.append(p.argmax())
        masks.append(float(p.max() >= i.settings["threshold"]))
        losses.append(masks[-1] * cross_entropy(z, labels[-1]))
    weight = i.settings["lambda_u"] * ramp(i.progress, i.settings["ramp"])
    parts = {**own.parts, "train/loss_self": mean(losses), "monitors/mask_ratio": mean(masks)}
    return Expected(own.loss + weight * mean(losses), parts, own.stats, labels)


def consistency(i: Inputs, n: int, teacher_weights) -> Expected:
    own = supervised(i, n)
    student, _ = forward(i.weights[n], i.stats[n], i.u[0])
    teacher, _ = forward(teacher_weights[n], i.stats[n], i.u[1])
    errors = [
        mean((softmax(s) - softmax(constant(t))) ** 2)
        for s, t in zip(student, teacher, strict=True)
    ]
    weight = i.settings["lambda_u"] * ramp(i.progress, i.settings["ramp"])
    parts = {**own.parts, "train/loss_consistency": mean(errors)}
    labels = [constant(t).argmax() for t in teacher]
    return Expected(own.loss + weight * mean(errors), parts, own.stats, labels)


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
    shares, losses_x, losses_u = i.state[1][n], [], []
    for z, y, u in zip(logits_x, i.y, i.draws, strict=False):
        losses_x.append(cross_entropy(z, y) if u < shares[y] else 0.0)
    for w, z, u in zip(constant(weak), strong, i.draws, strict=False):
        p = softmax(w)
        is_drawn = u < 1 - i.progress * (1 - shares[p.argmax()])
        losses_u.append(cross_entropy(z, p.argmax()) if p.max() >= 0.95 and is_drawn else 0.0)
    loss = mean(losses_x) + mean(losses_u)
    parts = {**own.parts, "train/loss_balanced": loss}
    return own._replace(loss=own.loss + loss, parts=parts, state=(own.state, shares))


def add_graph(own: Expected, i: Inputs, n: int) -> Expected:
    """Labels from a graph, rows of `i.state[1]`, teach the strong views less and less."""
    strong, losses = forward_groups(i, n)[0][2], []
    rows = (leaf[n][i.u_index] for leaf in i.state[1])
    for z, pseudo, complementary, weight, _ in zip(strong, *rows, strict=True):
        loss = cross_entropy(z, pseudo) + negative_cross_entropy(z, complementary)
        losses.append(weight * loss)
    loss = own.loss + i.settings["graph"] * (1 - i.progress) * mean(losses)
    parts = {**own.parts, "train/loss_graph": mean(losses)}
    labels = type(i.state[1])(*(leaf[n] for leaf in i.state[1]))
    return own._replace(loss=loss, parts=parts, state=(own.state, labels))


def cutmix(i: Inputs):
    """CutMix of weak views with the neighbor in the batch: images, own shares, partners."""
    partners = [min(a ^ 1, len(i.boxes) - 1) for a in range(len(i.boxes))]
    mixed = np.where(i.boxes, i.u[0][partners], i.u[0])
    shares = 1 - i.boxes.mean(axis=1, dtype=np.float32)  # A mean of booleans is float32.
    return mixed, shares.astype(float), partners


def cutmix_loss(i: Inputs, logits, labels, weights):
    """Each image is its share itself, the rest its partner."""
    _, shares, partners = cutmix(i)
    losses = []
    for a, b in enumerate(partners):
        own = shares[a] * weights[a] * cross_entropy(logits[a], labels[a])
        losses.append(own + (1 - shares[a]) * weights[b] * cross_entropy(logits[a], labels[b]))
    return mean(losses)


def uda(i: Inputs, n: int) -> Expected:
    (logits_x, weak, strong), stats = forward_groups(i, n)
    kept = []
    for z, y in zip(logits_x, i.y, strict=True):
        threshold = {
            "off": 1.0,
            "linear": i.progress,
            "log": 1 - np.exp(-5 * i.progress),
            "exp": np.exp(5 * (i.progress - 1)),
        }[i.settings["annealing"]] * (1 - 1 / K) + 1 / K
        if i.settings["annealing"] == "off" or softmax(constant(z))[y] <= threshold:
            kept.append(cross_entropy(z, y))
    loss_x = mean(kept) if kept else 0.0
    losses, masks = [], []
    for w, s in zip(constant(weak), strong, strict=True):
        masks.append(float(softmax(w).max() >= i.settings["threshold"]))
        losses.append(masks[-1] * soft_cross_entropy(s, softmax(w / i.settings["temperature"])))
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_consistency": mean(losses),
        "monitors/mask_ratio": mean(masks),
    }
    labels = [w.argmax() for w in constant(weak)]
    return Expected(loss_x + i.settings["lambda_u"] * mean(losses), parts, stats, labels)


def one_hot(label):
    return np.eye(K)[label]


def mix(i: Inputs, targets):
    """All images and targets [groups][B_i], mixed. Each image keeps the larger share of itself."""
    images = np.concatenate([i.x, *i.u])
    flat = [target for group in targets for target in group]
    mixed_images, mixed_targets = [], []
    for a, b in enumerate(i.order):
        share = draw_lambda(i.draws[a], i.settings["alpha"], i.settings["alpha"])
        share = max(share, 1 - share)
        mixed_images.append(share * images[a] + (1 - share) * images[b])
        mixed_targets.append(share * flat[a] + (1 - share) * flat[b])
    return mixed_images, mixed_targets


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
    logits, stats = [None] * len(images), None
    for c, rows in enumerate(chunks):
        chunk_logits, chunk_stats = forward(
            i.weights[n], i.stats[n], np.stack([images[row] for row in rows])
        )
        for row, z in zip(rows, chunk_logits, strict=True):
            logits[row] = z
        if c == stats_chunk:
            stats = chunk_stats
    return logits, stats


def mixmatch(i: Inputs, n: int) -> Expected:
    a, b = (constant(forward(i.weights[n], i.stats[n], view)[0]) for view in i.u)
    guesses = [
        sharpen((softmax(p) + softmax(q)) / 2, i.settings["temperature"])
        for p, q in zip(a, b, strict=True)
    ]
    images, targets = mix(i, [[one_hot(y) for y in i.y], guesses, guesses])
    logits, stats = forward_mixed(i, n, images, stats_chunk=0)
    num_x = len(i.x)
    loss_x = mean([soft_cross_entropy(logits[a], targets[a]) for a in range(num_x)])
    loss_u = mean([mean((softmax(logits[a]) - targets[a]) ** 2) for a in range(num_x, len(images))])
    weight = i.settings["lambda_u"] * ramp(i.progress, i.settings["ramp"])
    parts = {"train/loss_supervised": loss_x, "train/loss_consistency": loss_u}
    labels = [guess.argmax() for guess in guesses]
    return Expected(loss_x + weight * loss_u, parts, stats, labels)


def remixmatch(i: Inputs, n: int) -> Expected:
    s = i.settings
    weak = [softmax(z) for z in constant(forward(i.weights[n], i.stats[n], i.u[0])[0])]
    decay = s["class_mean_decay"]  # An EMA of class means, as TorchSSL has it.
    state = {
        "predicted": decay * i.state["predicted"][n] + (1 - decay) * mean(weak),
        "labeled": decay * i.state["labeled"][n] + (1 - decay) * mean([one_hot(y) for y in i.y]),
    }
    guesses = []
    for p in weak:
        aligned = p * (state["labeled"] + 1e-6) / (state["predicted"] + 1e-6)
        guesses.append(sharpen(aligned / aligned.sum(), s["temperature"]))

    images, targets = mix(i, [[one_hot(y) for y in i.y], guesses, guesses, guesses])
    logits, stats = forward_mixed(i, n, images, stats_chunk=3)
    losses = [soft_cross_entropy(z, t) for z, t in zip(logits, targets, strict=True)]
    loss_x, loss_mixed = mean(losses[: len(i.x)]), mean(losses[len(i.x) :])
    strong, _ = forward(i.weights[n], i.stats[n], i.u[1])
    loss_strong = mean([soft_cross_entropy(z, g) for z, g in zip(strong, guesses, strict=True)])
    angles = [k for k in range(4) for _ in range((i.u.shape[1] + 3 - k) // 4)]
    rotated = [
        np.rot90(image.reshape(SIZE, SIZE), k).ravel()
        for image, k in zip(i.u[1], angles, strict=True)
    ]
    turned, _ = forward(i.rotation_weights[n], i.stats[n], np.stack(rotated))
    loss_rotation = mean([cross_entropy(z, k) for z, k in zip(turned, angles, strict=True)])

    weight = ramp(i.progress, s["ramp"])
    loss = loss_x + weight * (s["weight_mixed"] * loss_mixed + s["weight_strong"] * loss_strong)
    loss += s["weight_rotation"] * loss_rotation
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_consistency": loss_mixed,
        "train/loss_strong": loss_strong,
        "train/loss_rotation": loss_rotation,
    }
    return Expected(loss, parts, stats, [guess.argmax() for guess in guesses], state)


def ups(i: Inputs, n: int) -> Expected:
    pixels = np.concatenate([i.x, i.u[0]]) * DROPOUT_MASK
    logits, stats = forward(i.weights[n], i.stats[n], pixels)
    logits_x, logits_u = logits[: len(i.x)], logits[len(i.x) :]
    losses_x = [cross_entropy(z, y) for z, y in zip(logits_x, i.y, strict=True)]
    positive, negative, num_selected = list(losses_x), [], 0
    for z, row in zip(logits_u, i.u_index, strict=True):
        label, classes = i.state["label"][n][row], np.flatnonzero(i.state["negative"][n][row])
        if label >= 0:
            positive.append(cross_entropy(z, label))
            num_selected += 1
        if len(classes):
            negative.append(mean([negative_cross_entropy(z, k) for k in classes]))
    loss_negative = mean(negative) if negative else 0.0
    parts = {
        "train/loss_supervised": mean(losses_x),
        "train/loss_positive": mean(positive),
        "train/loss_negative": loss_negative,
        "monitors/mask_ratio": num_selected / len(logits_u),
    }
    labels = [constant(z).argmax() for z in logits_u]
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
    s, own, other = i.settings, weak[n], weak[1 - n] if exchange else weak[n]

    def label_loss(z, teacher):
        loss = cross_entropy(z, teacher.argmax())
        return loss + negative_cross_entropy(z, teacher.argmin()) if negative else loss

    own_weights, received, sent = [], [], []
    for p, q in zip(map(softmax, own), map(softmax, other), strict=True):
        w = certainty(p)
        own_weights.append(w if reweight else float(p.max() >= s["threshold"]))
        if exchange:
            sent.append(float(w >= s["tau"]))
            w = certainty(q)
            received.append((w if reweight else 1.0) if w >= s["tau"] else 0.0)
    strong = logits[2]
    loss_x = mean([cross_entropy(z, y) for z, y in zip(logits[0], i.y, strict=True)])
    losses = [w * label_loss(z, p) for w, z, p in zip(own_weights, strong, own, strict=True)]
    loss_self = mean(losses)
    loss = loss_x + s["lambda_self"] * loss_self
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_self": loss_self,
        "monitors/confidence_weight": mean([certainty(softmax(z)) for z in own]),
    }
    if exchange:
        losses = [w * label_loss(z, q) for w, z, q in zip(received, strong, other, strict=True)]
        loss += s["lambda_co"] * mean(losses)
        parts |= {
            "train/loss_co": mean(losses),
            "monitors/exchange_ratio": mean(sent),
            "monitors/pseudo_label_overlap": mean(own.argmax(-1) == other.argmax(-1)),
            "monitors/complementary_label_overlap": mean(own.argmin(-1) == other.argmin(-1)),
        }
    else:
        parts["monitors/mask_ratio"] = mean([float(w > 0) for w in own_weights])
    labels = own.argmax(axis=-1)
    taught = [(labels, own_weights), (other.argmax(axis=-1), received)]
    return Expected(loss, parts, stats, labels), taught


def cls_plus(i: Inputs, n: int) -> Expected:
    s, networks = i.settings, range(len(i.weights))
    mixes = [cutmix(i)[0]] if s["lambda_cutmix"] else []
    passes = [forward_groups(i, m, *mixes) for m in networks]
    weak = [constant(logits[1]) for logits, _ in passes]
    means = [
        ema(i.state["predicted"][m], mean([softmax(z) for z in weak[m]]), s["statistics_decay"])
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
