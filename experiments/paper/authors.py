"""The step of the authors' released PyTorch code, for `experiments.benchmarks.step` and `.parity`.

Model and EMA are imported from a checkout of
https://github.com/YaoYao1995/Cross-Labeling-Supervision-for-Semi-Supervised-Learning; the step
repeats the body of its training loop.
"""

import importlib
import pathlib
import sys
import time
import types

from cls_jax.errors import UserError
from experiments.benchmarks.variants import StepVariant, count_images

VARIANTS = ("released", "tuned")
NUM_CLASSES = 10


def import_torch():
    """Imports PyTorch.

    Raises:
        UserError: If it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UserError("--peer needs PyTorch: pip install torch.") from error


def create_peer_variant(path: str, config, name: str) -> StepVariant:
    """Builds the step on one random batch, to be timed.

    Args:
        path: A checkout of the authors' code.
        config: Sizes and hyperparameters of CLS.
        name: "released", float32 with the device synchronizations of the released loop; or "tuned",
            the same model in bfloat16, channels last, compiled, and without synchronizations.

    Raises:
        UserError: If there is no such variant or checkout, or no PyTorch.
    """
    if name not in VARIANTS:
        raise UserError(f"Unknown peer variant {name!r}: choose from {', '.join(VARIANTS)}.")
    torch = import_torch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    peer = Peer(path, config, device, tuned=name == "tuned")
    size, channels = config.data.image_size, len(config.data.mean)
    num_images = config.batch_size * (1 + 2 * config.mu)
    images = torch.randn(num_images, channels, size, size, device=device)
    labels = torch.randint(0, NUM_CLASSES, (config.batch_size,), device=device)
    if name == "tuned":
        images = images.to(memory_format=torch.channels_last)

    def advance(num_steps: int) -> float:
        started = time.perf_counter()
        for _ in range(num_steps):
            peer.step(images, labels)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return StepVariant(f"PyTorch {torch.__version__}, {name}", advance, count_images(config))


class Peer:
    """Both networks of the authors' code, with their optimizers and the EMA of the first."""

    def __init__(self, path: str, config, device: str, tuned: bool = False):
        """Builds everything from seed 0.

        Raises:
            UserError: If `path` is not a checkout of the authors' code or PyTorch is missing.
        """
        self._torch, self._config, self._tuned, self._device = import_torch(), config, tuned, device
        wideresnet, ema = _import_authors_modules(path)
        torch = self._torch
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True  # Sizes never change.
        depth, width = config.model.depth, config.model.width
        models = [wideresnet.build_wideresnet(depth, width, 0, NUM_CLASSES) for _ in range(2)]
        self.models = [model.to(device).train() for model in models]
        self._optimizers = [_create_optimizer(torch, model, config) for model in self.models]
        target = types.SimpleNamespace(device=device)
        self._average = ema.ModelEMA(target, self.models[0], config.ema_decay)
        self.ema = self._average.ema
        self._forwards = self.models
        if tuned:
            for model in self.models:
                model.to(memory_format=torch.channels_last)
            self._forwards = [torch.compile(model) for model in self.models]

    def step(self, images, labels, learning_rate: float | None = None):
        """Takes one step of both networks and returns their losses.

        Args:
            images: [B (1 + 2 mu), C, H, W]: labeled, weak, strong.
            labels: int64 [B].
            learning_rate: The step's learning rate, by default the configuration's.
        """
        torch, config = self._torch, self._config
        b, mu = config.batch_size, config.mu
        with torch.autocast(self._device, torch.bfloat16, enabled=self._tuned):
            logits = [forward(_interleave(images, 2 * mu + 1)) for forward in self._forwards]
        outputs = [_interleave(each.float() if self._tuned else each, b) for each in logits]
        losses = _compute_losses(torch, outputs, labels, b, config.method)
        for i, (loss, optimizer) in enumerate(zip(losses, self._optimizers, strict=True)):
            if not self._tuned:
                loss.item()  # The released loop checks for NaN here.
            loss.backward()
            for group in optimizer.param_groups if learning_rate is not None else ():
                group["lr"] = learning_rate
            optimizer.step()
            if i == 0:
                self._average.update(self.models[0])
        for model in self.models:
            model.zero_grad()
        if not self._tuned:
            _measure_distances(self.models, self.ema)
        return losses


def _import_authors_modules(path: str):
    if not (pathlib.Path(path) / "models" / "wideresnet.py").is_file():
        raise UserError(
            f"{path} is not a checkout of the authors' code (it has no models/wideresnet.py): "
            "pass the folder of one as --peer."
        )
    sys.path.insert(0, path)
    try:
        return importlib.import_module("models.wideresnet"), importlib.import_module("models.ema")
    finally:
        sys.path.remove(path)


def _create_optimizer(torch, model, config):
    """SGD without weight decay on biases and BatchNorm parameters."""
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["bias" in name or "bn" in name].append(parameter)
    rate, momentum = config.optimizer.learning_rate, config.optimizer.momentum
    decays = {False: config.optimizer.weight_decay, True: 0.0}
    parts = [{"params": groups[key], "weight_decay": decay} for key, decay in decays.items()]
    return torch.optim.SGD(parts, lr=rate, momentum=momentum, nesterov=True)


def _interleave(values, size: int):
    """The released order of a joint batch. The other factor undoes it."""
    shape = values.shape
    return values.reshape(-1, size, *shape[1:]).transpose(0, 1).reshape(shape)


def _compute_losses(torch, outputs, labels, num_labeled: int, hparams):
    """Both networks' losses as in the released loop, including its NaN entropies."""
    functional = torch.nn.functional
    parts = [(out[:num_labeled], *out[num_labeled:].chunk(2)) for out in outputs]
    pseudo = []
    for _, weak, _ in parts:
        p = torch.softmax(weak.detach(), dim=-1)
        entropy = -(p * torch.log2(p)).sum(dim=-1)
        weight = 1.0 - entropy / torch.log2(torch.tensor(float(p.shape[-1])))
        mask = (weight >= hparams.tau).to(weight.dtype)
        pseudo.append((p.argmax(dim=-1), p.argmin(dim=-1), weight, weight * mask))
    losses = []
    for i, (labeled, _, strong) in enumerate(parts):
        negative = torch.clamp(1 - functional.softmax(strong, dim=1), 1e-7, 1.0)
        loss = functional.cross_entropy(labeled, labels)
        own, other = pseudo[i], pseudo[1 - i]
        for (label, complement, *_), weight, scale in (
            (own, own[2], hparams.lambda_self),
            (other, other[3], hparams.lambda_co),
        ):
            positive = functional.cross_entropy(strong, label, reduction="none")
            picked = negative.gather(1, complement[:, None])[:, 0]
            loss = loss + scale * ((positive * weight).mean() - (picked.log() * weight).mean())
        losses.append(loss)
    return losses


def _measure_distances(models, ema) -> None:
    """The released metrics of Figure 4, which wait for the device twice per parameter."""
    networks = models[0].parameters(), ema.parameters(), models[1].parameters()
    for one, averaged, two in zip(*networks, strict=True):
        (one - averaged).pow(2).sum().item()
        (one - two).pow(2).sum().item()
