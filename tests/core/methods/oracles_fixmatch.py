"""FixMatch's variants in NumPy: targets from weak logits, without gradients, then its loss.

See `oracles.py`.
"""

import functools

import numpy as np

from tests.core.methods.oracles import (
    Expected,
    Inputs,
    K,
    align_logits,
    balance,
    constant,
    cross_entropies,
    cutmix,
    cutmix_loss,
    ema,
    forward_groups,
    histogram,
    mean,
    norm,
    soft_cross_entropies,
    softmax,
)


def freematch_targets(s, state, i, x, weak):
    p, m = softmax(weak), s["statistics_decay"]
    labels = p.argmax(-1)
    state = {
        "threshold": ema(state["threshold"], p.max(-1).mean(), m),
        "predicted": ema(state["predicted"], p.mean(0), m),
        "histogram": ema(state["histogram"], histogram(labels), m),
    }
    bars = state["threshold"] * state["predicted"] / state["predicted"].max()
    parts = {"monitors/threshold": state["threshold"], **balance(state["predicted"])}
    return labels, (p.max(-1) >= bars[labels]).astype(float), state, parts


def fairness(strong, weights, predicted, running_histogram):
    """Σ q log(r + 1e-12) over the images with a label. x / 0 counts as 0. No image gives 0."""
    p = softmax(strong[weights > 0])
    if not len(p):
        return 0.0
    h = histogram(constant(p).argmax(-1))
    q, r = np.zeros(K), np.zeros(K, p.dtype)
    for k in range(K):
        q[k] = predicted[k] / running_histogram[k] if running_histogram[k] else 0.0
        r[k] = mean(p)[k] / h[k] if h[k] else 0.0
    return np.sum(norm(q) * np.log(norm(r) + 1e-12))


def softmatch_targets(s, state, i, x, weak):
    p, m = softmax(weak), s["statistics_decay"]
    predicted, target = ema(state["predicted"], p.mean(0), m), state["target"]
    if s["align_to"] == "predicted":
        target = ema(target, softmax(x).mean(0), m)
    aligned = softmax(align_logits(weak, predicted, target)).max(-1)
    c = aligned if s["statistics"] == "aligned" else p.max(-1)
    mu, v = ema(state["mean"], c.mean(), m), ema(state["variance"], c.var(ddof=1), m)
    spread = 2 * max(v, 1e-12) / s["sharpness"] ** 2  # The floor is ours.
    weights = np.exp(-(np.minimum(aligned - mu, 0) ** 2) / spread)
    parts = {"monitors/threshold": mu, "monitors/confidence_weight": weights.mean()}
    state = {"mean": mu, "variance": v, "predicted": predicted, "target": target}
    return p.argmax(-1), weights, state, parts | balance(predicted)


def adamatch_targets(s, state, i, x, weak):
    p, p_x, m = softmax(weak), softmax(x), s["statistics_decay"]
    predicted = p.mean(0) if i.progress == 0 else ema(state["predicted"], p.mean(0), m)
    target = state["target"]
    if s["align_to"] == "predicted":
        target = ema(target, p_x.mean(0), m)
    hat = softmax(align_logits(weak, predicted, target))
    threshold = s["confidence"] * p_x.max(-1).mean()
    weights = (hat.max(-1) >= threshold).astype(float)
    if s["ramp"]:
        weights *= 0.5 - 0.5 * np.cos(min(np.pi, np.pi * i.progress / s["ramp"]))
    state = {"predicted": predicted, "target": target}
    return hat.argmax(-1), weights, state, {"monitors/threshold": threshold, **balance(predicted)}


def flexmatch_targets(s, state, i, x, weak):
    p, table = softmax(weak), np.array(state["label"])
    sigma = np.array([np.sum(table == k) for k in range(K)])
    largest = sigma.max()
    if s["warmup"] == "on":
        largest = max(largest, np.sum(table == -1) - state["outside"])
    beta = sigma / max(largest, 1)
    bars, labels, mask = s["tau"] * beta / (2 - beta), p.argmax(-1), np.zeros(len(p))
    for a, label in enumerate(labels):
        mask[a] = p[a].max() >= bars[label]
        if p[a].max() >= s["tau"]:
            table[i.u_index[a]] = label
    class_balance = beta.min() / max(beta.max(), 1e-6)
    parts = {"monitors/threshold": bars.mean(), "monitors/class_balance": class_balance}
    return labels, mask, {"label": table, "outside": state["outside"]}, parts


def fixmatch_variant(make_targets, i: Inputs, n: int) -> Expected:
    (logits_x, weak, strong), stats = forward_groups(i, n)
    expected, labels, weights = start_variant(make_targets, i, n, logits_x, weak, stats)
    loss_self = mean(weights * cross_entropies(strong, labels))
    loss = expected.loss + i.settings["lambda_u"] * loss_self
    parts = {**expected.parts, "train/loss_self": loss_self}
    if make_targets is freematch_targets:
        state = expected.state
        fair = fairness(strong, weights, state["predicted"], state["histogram"])
        loss += i.settings["lambda_fairness"] * fair
        parts["train/loss_fairness"] = fair
    return expected._replace(loss=loss, parts=parts)


def start_variant(make_targets, i: Inputs, n: int, logits_x, weak, stats):
    """The supervised loss with everything else that follows from the targets, and the targets."""
    state = {leaf: value[n] for leaf, value in i.state.items()}
    labels, weights, state, parts = make_targets(
        i.settings, state, i, constant(logits_x), constant(weak)
    )
    loss_x = mean(cross_entropies(logits_x, i.y))
    parts["monitors/mask_ratio"] = mean(weights > 0)
    parts["train/loss_supervised"] = loss_x
    return Expected(loss_x, parts, stats, labels, state), labels, weights


freematch = functools.partial(fixmatch_variant, freematch_targets)
softmatch = functools.partial(fixmatch_variant, softmatch_targets)
adamatch = functools.partial(fixmatch_variant, adamatch_targets)
flexmatch = functools.partial(fixmatch_variant, flexmatch_targets)


def standardized(logits):
    center = logits - logits.mean()
    variance = (center**2).sum() / (K - 1)
    return center / np.sqrt(variance + 1e-6)  # The summand is ours.


def infomatch(i: Inputs, n: int) -> Expected:
    """In the form of the authors' code: all of the unlabeled loss twice, its weights halved."""
    mixed, _, _ = cutmix(i)
    (logits_x, weak, first, second, logits_mix), stats = forward_groups(i, n, mixed)
    expected, labels, weights = start_variant(freematch_targets, i, n, logits_x, weak, stats)

    strong, other = (mean(weights * cross_entropies(z, labels)) for z in (first, second))
    pairs = zip(map(standardized, first), map(standardized, second), strict=True)
    distance = mean([((a - b) ** 2).mean() for a, b in pairs])
    loss_mix = cutmix_loss(i, logits_mix, labels, weights)
    unlabeled = loss_mix / 2 + strong / 4 + other / 4 + 0.001 * distance
    parts = expected.parts | {
        "train/loss_self": (strong + other) / 2,
        "train/loss_cutmix": loss_mix,
        "train/loss_consistency": distance,
    }
    return expected._replace(loss=expected.loss + 2 * unlabeled, parts=parts)


def simpro(i: Inputs, n: int) -> Expected:
    s, state = i.settings, {leaf: np.array(value[n]) for leaf, value in i.state.items()}
    epoch = int(i.progress / s["epoch"] + 1e-4)
    if epoch != state["epoch"]:
        counts = [state["count_unlabeled"], state["count_unlabeled"] + state["count_labeled"]]
        estimates = [counts[0] / (counts[0].sum() + 1), counts[1] / counts[1].sum()]
        for leaf, estimate in zip(("unlabeled", "all"), estimates, strict=True):
            state[leaf] = ema(state[leaf], estimate, s["epoch_decay"])
        state |= {"count_unlabeled": np.zeros(K), "count_labeled": np.zeros(K), "epoch": epoch}
    (logits_x, weak, strong), stats = forward_groups(i, n)
    shift = np.log(state["all"] ** s["tau"] + 1e-12)
    guesses = softmax(constant(weak) + np.log(state["unlabeled"] ** s["tau"] + 1e-12))
    masks = guesses.max(-1) >= s["threshold"]
    loss_x = mean(cross_entropies(logits_x + shift, i.y))
    loss_self = mean(masks * soft_cross_entropies(strong + shift, guesses))
    state["count_labeled"] = state["count_labeled"] + np.bincount(i.y, minlength=K)
    state["count_unlabeled"] = state["count_unlabeled"] + masks @ guesses
    parts = {
        "train/loss_supervised": loss_x,
        "train/loss_self": loss_self,
        "monitors/mask_ratio": mean(masks),
        **balance(state["unlabeled"]),
    }
    total = loss_x + s["lambda_u"] * loss_self
    return Expected(total, parts, stats, guesses.argmax(-1), state)
