"""Every method's loss in plain NumPy, in double precision, image by image.

Written from the papers and from what their authors' code does, not from `cls_jax.methods`: an error
has to be made twice to go unnoticed. Images are rows of pixels, and a network is a matrix with a
stand-in for BatchNorm (`forward`), so that it matters which images pass together.

Everything is analytic, so pixels may be complex: with an imaginary part of 1e-30 on one pixel, the
losses' imaginary parts are their derivatives by it, without rounding (`differentiate`). The real
part of a prediction is then that prediction as a constant: `constant` is the stop-gradient.
"""

import dataclasses

import numpy as np

from tests.methods.oracle_parts import (
    CENTERING,
    DROPOUT_MASK,
    SIZE,
    Expected,
    Inputs,
    K,
    certainty,
    constant,
    cross_entropy,
    draw_lambda,
    forward,
    mean,
    negative_cross_entropy,
    ramp,
    sharpen,
    soft_cross_entropy,
    softmax,
)


def supervised(i: Inputs, n: int) -> Expected:
    logits, stats = forward(i.weights[n], i.stats[n], i.x)
    loss = mean([cross_entropy(z, y) for z, y in zip(logits, i.y, strict=True)])
    return Expected(loss, {"train/loss_supervised": loss}, stats)


def pseudo_label(i: Inputs, n: int) -> Expected:
    own = supervised(i, n)  # Labeled images pass alone, and they alone update the statistics.
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


def forward_jointly(i: Inputs, n: int):
    """Labeled images and all views in one pass: [logits of each group], statistics."""
    logits, stats = forward(i.weights[n], i.stats[n], np.concatenate([i.x, *i.u]))
    num_x, num_u = len(i.x), i.u.shape[1]
    views = [logits[num_x + v * num_u : num_x + (v + 1) * num_u] for v in range(len(i.u))]
    return [logits[:num_x], *views], stats


def forward_weak_apart(i: Inputs, n: int):
    """The same without weak images in the pass: they only subtract the mean of the others."""
    pixels = np.concatenate([i.x, i.u[1]])
    logits, stats = forward(i.weights[n], i.stats[n], pixels)
    weak = (i.u[0] - CENTERING * pixels.mean(axis=0)) @ i.weights[n]
    return [logits[: len(i.x)], weak, logits[len(i.x) :]], stats


def forward_groups(i: Inputs, n: int):
    return (forward_weak_apart if i.settings.get("weak_pass") == "fast" else forward_jointly)(i, n)


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
    """All images and targets [groups][B_i], mixed; each image keeps the larger share of itself."""
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
    """Logits of the mixed images in order, and the statistics after one chunk alone."""
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
    exchange, negative, reweight = TABLE_2[name]
    s = i.settings
    passes = [forward_groups(i, m) for m in range(len(i.weights))]
    (logits_x, weak, strong), stats = passes[n]
    own = constant(weak)
    other = constant(passes[1 - n][0][1]) if exchange else None

    def label_loss(z, teacher):
        # The least logit is the least probable class, also where several probabilities are 0.
        loss = cross_entropy(z, teacher.argmax())
        return loss + negative_cross_entropy(z, teacher.argmin()) if negative else loss

    losses_self, losses_co, masks, sent = [], [], [], []
    for a, z in enumerate(strong):
        p, w = softmax(own[a]), certainty(softmax(own[a]))
        weight = w if reweight else float(p.max() >= s["threshold"])
        masks.append(float(weight > 0))
        losses_self.append(weight * label_loss(z, own[a]))
        if exchange:
            sent.append(float(w >= s["tau"]))
            w = certainty(softmax(other[a]))
            weight = (w if reweight else 1.0) if w >= s["tau"] else 0.0
            losses_co.append(weight * label_loss(z, other[a]))
    loss_x = mean([cross_entropy(z, y) for z, y in zip(logits_x, i.y, strict=True)])
    loss = loss_x + s["lambda_self"] * mean(losses_self)
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_self": mean(losses_self),
        "monitors/confidence_weight": mean([certainty(softmax(z)) for z in own]),
    }
    if not exchange:
        parts["monitors/mask_ratio"] = mean(masks)
    else:
        loss += s["lambda_co"] * mean(losses_co)
        pairs = list(zip(own, other, strict=True))
        parts |= {
            "train/loss_co": mean(losses_co),
            "monitors/exchange_ratio": mean(sent),
            "monitors/pseudo_label_overlap": mean([p.argmax() == q.argmax() for p, q in pairs]),
            "monitors/complementary_label_overlap": mean(
                [p.argmin() == q.argmin() for p, q in pairs]
            ),
        }
    return Expected(loss, parts, stats, own.argmax(axis=-1))


BASELINES = {
    "supervised": supervised,
    "pseudo_label": pseudo_label,
    "ups": ups,
    "pi_model": pi_model,
    "mean_teacher": mean_teacher,
    "uda": uda,
    "mixmatch": mixmatch,
    "remixmatch": remixmatch,
}


def compute_expected(name: str, inputs: Inputs) -> list[Expected]:
    """What each network should get."""
    networks = range(len(inputs.weights))
    if name in BASELINES:
        return [BASELINES[name](inputs, n) for n in networks]
    return [table_2(name, inputs, n) for n in networks]


def differentiate(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
    """Derivatives of the losses by every pixel: "x" [N, B, PIXELS] and "u" [N, V, U, PIXELS]."""
    gradients = {}
    for field in ("x", "u"):
        pixels = getattr(inputs, field)
        gradient = np.zeros((len(inputs.weights), *pixels.shape))
        for index in np.ndindex(pixels.shape):
            moved = pixels.astype(complex)
            moved[index] += 1e-30j
            expected = compute_expected(name, dataclasses.replace(inputs, **{field: moved}))
            gradient[:, *index] = [np.imag(network.loss) / 1e-30 for network in expected]
        gradients[field] = gradient
    return gradients
