"""The newer methods and CLS's switches in NumPy, float64, network by network and image by image.

Written from the papers' formulas and the released codes, not from the product: plain loops where a
loop is closest to the formula. One network each, except `cls`. Logits are [images, K]; what is
given as `state` is not changed.
"""

import numpy as np

EPSILON = 1e-6


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropies(logits, labels):
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -log_p[np.arange(len(labels)), labels]


def negative_cross_entropies(logits, labels):
    return -np.log(np.maximum(1 - softmax(logits)[np.arange(len(labels)), labels], 1e-7))


def norm(values):
    return values / values.sum(-1, keepdims=True)


def ema(old, new, decay):
    return decay * old + (1 - decay) * new


def histogram(labels, num_classes):
    return np.bincount(labels, minlength=num_classes) / len(labels)


def aligned(p, predicted, target):
    return norm(p * (target + EPSILON) / (predicted + EPSILON))


def freematch_rule(case, state, hparams):
    p, m = softmax(case.weak), hparams["statistics_decay"]
    c, labels = p.max(-1), p.argmax(-1)
    state = {
        "threshold": ema(state["threshold"], c.mean(), m),
        "predicted": ema(state["predicted"], p.mean(0), m),
        "histogram": ema(state["histogram"], histogram(labels, p.shape[-1]), m),
    }
    bar = state["threshold"] * state["predicted"] / state["predicted"].max()
    return labels, (c >= bar[labels]).astype(float), state


def fairness(p_strong, mask, predicted, running_histogram):
    """Σ q log(r + 1e-12) over the taught images; x / 0 counts 0, an empty mask gives 0."""
    taught = p_strong[mask > 0]
    if not len(taught):
        return 0.0
    num_classes = p_strong.shape[-1]
    h = histogram(taught.argmax(-1), num_classes)
    q, r = np.zeros(num_classes), np.zeros(num_classes)
    for k in range(num_classes):
        q[k] = predicted[k] / running_histogram[k] if running_histogram[k] else 0.0
        r[k] = taught[:, k].mean() / h[k] if h[k] else 0.0
    return np.sum(norm(q) * np.log(norm(r) + 1e-12))


def freematch(case, state, hparams, progress):
    labels, mask, state = freematch_rule(case, state, hparams)
    loss = supervised(case) + hparams["lambda_u"] * taught(case.strong[0], labels, mask)
    fair = fairness(softmax(case.strong[0]), mask, state["predicted"], state["histogram"])
    return loss + hparams["lambda_fairness"] * fair, labels, state


def supervised(case):
    return cross_entropies(case.x, case.y).mean()


def taught(logits, labels, weights):
    return np.mean(weights * cross_entropies(logits, labels))


def softmatch(case, state, hparams, progress):
    p, p_x, m = softmax(case.weak), softmax(case.x), hparams["statistics_decay"]
    predicted, target = ema(state["predicted"], p.mean(0), m), state["target"]
    if hparams["align_to"] == "predicted":
        target = ema(target, p_x.mean(0), m)
    c_hat = aligned(p, predicted, target).max(-1)
    c = c_hat if hparams["statistics"] == "aligned" else p.max(-1)
    mu, v = ema(state["mean"], c.mean(), m), ema(state["variance"], c.var(ddof=1), m)
    weights = np.array(
        [np.exp(-(min(x - mu, 0) ** 2) * hparams["sharpness"] ** 2 / (2 * v)) for x in c_hat]
    )
    labels = p.argmax(-1)
    loss = supervised(case) + hparams["lambda_u"] * taught(case.strong[0], labels, weights)
    return loss, labels, {"mean": mu, "variance": v, "predicted": predicted, "target": target}


def adamatch(case, state, hparams, progress):
    p, p_x, m = softmax(case.weak), softmax(case.x), hparams["statistics_decay"]
    predicted = p.mean(0) if progress == 0 else ema(state["predicted"], p.mean(0), m)
    target = state["target"]
    if hparams["align_to"] == "predicted":
        target = ema(target, p_x.mean(0), m)
    p_hat = aligned(p, predicted, target)
    labels = p_hat.argmax(-1)
    weights = (p_hat.max(-1) >= hparams["confidence"] * p_x.max(-1).mean()).astype(float)
    if hparams["ramp"]:
        weights *= 0.5 - 0.5 * np.cos(min(np.pi, np.pi * progress / hparams["ramp"]))
    loss = supervised(case) + hparams["lambda_u"] * taught(case.strong[0], labels, weights)
    return loss, labels, {"predicted": predicted, "target": target}


def flexmatch(case, state, hparams, progress):
    p, table = softmax(case.weak), state["label"]
    sigma = np.array([np.sum(table == k) for k in range(p.shape[-1])])
    largest = sigma.max()
    if hparams["warmup"] == "on":
        largest = max(largest, np.sum(table == -1) - state["outside"])
    beta = sigma / max(largest, 1)
    labels, mask, table = p.argmax(-1), np.zeros(len(p)), table.copy()
    for i, label in enumerate(labels):
        mask[i] = p[i].max() >= hparams["tau"] * beta[label] / (2 - beta[label])
        if p[i].max() >= hparams["tau"]:
            table[case.index[i]] = label
    loss = supervised(case) + hparams["lambda_u"] * taught(case.strong[0], labels, mask)
    return loss, labels, {"label": table, "outside": state["outside"]}


def mixed(case, labels, weights):
    """CutMix's loss: each image is `share` itself, the rest its partner."""
    total = 0.0
    for i, (share, j) in enumerate(zip(case.share, case.partner, strict=True)):
        own, other = cross_entropies(case.mix[[i, i]], labels[[i, j]])
        total += share * weights[i] * own + (1 - share) * weights[j] * other
    return total / len(labels)


def standardized(logits):
    deviation = np.sqrt(logits.var(-1, ddof=1, keepdims=True) + 1e-6)  # The summand is ours.
    return (logits - logits.mean(-1, keepdims=True)) / deviation


def infomatch(case, state, hparams, progress):
    """In the form of the authors' code: all of the unlabeled loss twice."""
    labels, mask, state = freematch_rule(case, state, hparams)
    first, second = case.strong
    unlabeled = (
        mixed(case, labels, mask) / 2
        + taught(first, labels, mask) / 4
        + taught(second, labels, mask) / 4
        + 0.001 * np.mean((standardized(first) - standardized(second)) ** 2)
    )
    return supervised(case) + 2 * unlabeled, labels, state


def cls_plus(cases, states, hparams):
    """Both networks: lists of two cases and two states → two losses, labels, states."""
    hat, weight, new_states = [], [], []
    for case, state in zip(cases, states, strict=True):
        p = softmax(case.weak).mean(0)
        predicted = ema(state["predicted"], p, hparams["statistics_decay"])
        new_states.append({**state, "predicted": predicted})
    joint = (new_states[0]["predicted"] + new_states[1]["predicted"]) / 2
    for case, state in zip(cases, new_states, strict=True):
        p = aligned(softmax(case.weak), joint, state["target"])
        entropy = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)
        hat.append(p)
        weight.append(np.clip(1 - entropy / np.log(p.shape[-1]), 0, 1))
    losses = [cls_plus_loss(b, cases[b], hat, weight, hparams) for b in range(2)]
    return losses, [p.argmax(-1) for p in hat], new_states


def cls_plus_loss(b, case, hat, weight, hparams):
    received = np.where(weight[1 - b] >= hparams["tau"], weight[1 - b], 0)

    def labeling(p, w):
        strong = case.strong[0]
        positive = cross_entropies(strong, p.argmax(-1))
        return np.mean(w * (positive + negative_cross_entropies(strong, p.argmin(-1))))

    loss = supervised(case) + hparams["lambda_self"] * labeling(hat[b], weight[b])
    loss += hparams["lambda_co"] * labeling(hat[1 - b], received)
    if hparams["lambda_cutmix"]:
        mixes = mixed(case, hat[b].argmax(-1), weight[b])
        mixes += mixed(case, hat[1 - b].argmax(-1), received)
        loss += hparams["lambda_cutmix"] * mixes
    return loss
