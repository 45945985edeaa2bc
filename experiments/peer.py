"""The authors' released PyTorch step, for `benchmark --peer PATH`.

Model and average are imported from a checkout of
https://github.com/YaoYao1995/Cross-Labeling-Supervision-for-Semi-Supervised-Learning; the step does
what the body of its training loop does, on one random batch again and again.
"""

import importlib
import pathlib
import sys
import time
import types

from cls_jax.errors import UserError
from experiments.step_variants import StepVariant, count_images

FORMS = ("released", "tuned")


def create_peer_variant(path: str, config, name: str) -> StepVariant:
    """Builds the step.

    Args:
        path: of the checkout.
        config: sizes and hyper-parameters of CLS.
        name: "released", float32 with the synchronisations of the released loop; or "tuned", the
            same model in bfloat16, channels last, compiled, and without them.

    Raises:
        UserError: if there is no such form or checkout, or no torch.
    """
    if name not in FORMS:
        raise UserError(f"There is no peer form {name!r}: choose from {', '.join(FORMS)}.")
    if not (pathlib.Path(path) / "models" / "wideresnet.py").is_file():
        raise UserError(f"{path} is no checkout of the authors' code: it has no models/wideresnet.")
    try:
        import torch
    except ImportError as error:
        raise UserError("--peer needs PyTorch: pip install torch.") from error
    sys.path.insert(0, path)
    try:
        wideresnet = importlib.import_module("models.wideresnet")
        ema = importlib.import_module("models.ema")
    finally:
        sys.path.remove(path)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = _create_step(torch, wideresnet, ema, config, device, tuned=name == "tuned")

    def advance(num_steps: int) -> float:
        started = time.perf_counter()
        for _ in range(num_steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return StepVariant(f"PyTorch {torch.__version__}, {name}", advance, count_images(config))


def _create_step(torch, wideresnet, ema, config, device: str, tuned: bool):
    """A function that takes one step of both networks."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True  # Sizes never change.
    num_classes, b, mu = 10, config.batch_size, config.mu
    depth, width = config.model.depth, config.model.width
    models = [wideresnet.build_wideresnet(depth, width, 0, num_classes) for _ in range(2)]
    models = [model.to(device).train() for model in models]
    optimizers = [_create_optimizer(torch, model, config) for model in models]
    average = ema.ModelEMA(types.SimpleNamespace(device=device), models[0], config.ema_decay)
    forwards = models
    if tuned:
        for model in models:
            model.to(memory_format=torch.channels_last)
        forwards = [torch.compile(model) for model in models]

    size, channels = config.data.image_size, len(config.data.mean)
    images = torch.randn(b * (1 + 2 * mu), channels, size, size, device=device)
    labels = torch.randint(0, num_classes, (b,), device=device)
    if tuned:
        images = images.to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=tuned):
            logits = [forward(_interleave(images, 2 * mu + 1)) for forward in forwards]
        outputs = [_interleave(each.float(), b) for each in logits]
        losses = _compute_losses(torch, outputs, labels, b, config.method)
        for i, (loss, optimizer) in enumerate(zip(losses, optimizers, strict=True)):
            if not tuned:
                loss.item()  # The released loop looks for NaN here.
            loss.backward()
            optimizer.step()
            if i == 0:
                average.update(models[0])
        for model in models:
            model.zero_grad()
        if not tuned:
            _measure_distances(models, average)

    return step


def _create_optimizer(torch, model, config):
    """SGD without weight decay on biases and BatchNorm."""
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["bias" in name or "bn" in name].append(parameter)
    optimizer = config.optimizer
    return torch.optim.SGD(
        [
            {"params": groups[False], "weight_decay": optimizer.weight_decay},
            {"params": groups[True], "weight_decay": 0.0},
        ],
        lr=optimizer.learning_rate,
        momentum=optimizer.momentum,
        nesterov=True,
    )


def _interleave(values, size: int):
    """The released order of a joint batch; with the other factor it is undone."""
    shape = values.shape
    return values.reshape(-1, size, *shape[1:]).transpose(0, 1).reshape(shape)


def _compute_losses(torch, outputs, labels, num_labeled: int, hparams):
    """Both networks' losses as the released loop writes them, NaN entropies included."""
    functional = torch.nn.functional
    parts = [(out[:num_labeled], *out[num_labeled:].chunk(2)) for out in outputs]
    artificial = []
    for _, weak, _ in parts:
        p = torch.softmax(weak.detach(), dim=-1)
        entropy = -(p * torch.log2(p)).sum(dim=-1)
        weight = 1.0 - entropy / torch.log2(torch.tensor(float(p.shape[-1])))
        mask = (weight >= hparams.tau).float()
        artificial.append((p.argmax(dim=-1), p.argmin(dim=-1), weight, weight * mask))
    losses = []
    for i, (labeled, _, strong) in enumerate(parts):
        negative = torch.clamp(1 - functional.softmax(strong, dim=1), 1e-7, 1.0)
        loss = functional.cross_entropy(labeled, labels)
        own, other = artificial[i], artificial[1 - i]
        for (label, complement, *_), weight, scale in (
            (own, own[2], hparams.lambda_self),
            (other, other[3], hparams.lambda_co),
        ):
            positive = functional.cross_entropy(strong, label, reduction="none")
            picked = negative.gather(1, complement[:, None])[:, 0]
            loss = loss + scale * ((positive * weight).mean() - (picked.log() * weight).mean())
        losses.append(loss)
    return losses


def _measure_distances(models, average) -> None:
    """The released monitors of Figure 4, which wait for the device twice a parameter."""
    for one, averaged, two in zip(
        models[0].parameters(), average.ema.parameters(), models[1].parameters(), strict=True
    ):
        (one - averaged).pow(2).sum().item()
        (one - two).pow(2).sum().item()
