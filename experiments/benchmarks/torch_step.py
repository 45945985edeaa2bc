"""FixMatch's step on EfficientNet-Lite0 in PyTorch, as a peer of this project's for photos.

python -m experiments.benchmarks.torch_step --batch_size 32 --mu 7 --size 224

As planned for photos: frozen BatchNorm, four frozen stages, pseudo labels from a pass of their own
without gradients, AdamW and running means of the weights. On random images that are there already,
channels last, in TF32 and in bfloat16, as written and compiled. Needs torch and timm.
"""

import argparse
import statistics
import time

import timm
import torch
from torch.nn import functional

from experiments.paper import grid

_NUM_CLASSES, _THRESHOLD, _DECAY = 10, 0.95, 0.999


def create_model(num_frozen: int, device: str) -> torch.nn.Module:
    """The network in evaluation mode, so that BatchNorm is frozen. The first stages are, too."""
    model = timm.create_model("tf_efficientnet_lite0", num_classes=_NUM_CLASSES).eval().to(device)
    model = model.to(memory_format=torch.channels_last)
    for module in (model.conv_stem, model.bn1, *model.blocks[:num_frozen]):
        module.requires_grad_(False)
    return model


def create_step(model: torch.nn.Module, dtype: torch.dtype, arguments: argparse.Namespace):
    """A function that takes one step on images that stay the same."""
    device, shape = arguments.device, (3, arguments.size, arguments.size)
    num_labeled, num_unlabeled = arguments.batch_size, arguments.batch_size * arguments.mu

    def draw(count: int) -> torch.Tensor:
        images = torch.randn(count, *shape, device=device)
        return images.to(memory_format=torch.channels_last)

    labeled, weak, strong = draw(num_labeled), draw(num_unlabeled), draw(num_unlabeled)
    labels = torch.randint(_NUM_CLASSES, (num_labeled,), device=device)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, fused=device == "cuda")
    means = [weight.detach().clone() for weight in trained]

    def step() -> None:
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            with torch.no_grad():
                confidence, pseudo = torch.softmax(model(weak).float(), -1).max(-1)
            logits = model(torch.cat([labeled, strong])).float()
        loss = functional.cross_entropy(logits[:num_labeled], labels)
        losses = functional.cross_entropy(logits[num_labeled:], pseudo, reduction="none")
        loss = loss + (losses * (confidence >= _THRESHOLD)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(means, trained, 1 - _DECAY)

    return step


def time_steps(step, num_steps: int, device: str) -> float:
    """Seconds per step of one block."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    wait()
    started = time.perf_counter()
    for _ in range(num_steps):
        step()
    wait()
    return (time.perf_counter() - started) / num_steps


def main() -> None:
    """Times the four forms, one after another, and writes a table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--mu", type=int, default=7)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--frozen_stages", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--forms", default="written compiled", help="space-separated")
    parser.add_argument("--output", default="runs/torch_step.md")
    arguments = parser.parse_args()
    arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    rows: list[list[str]] = []
    for form in arguments.forms.split():
        for dtype in (torch.float32, torch.bfloat16):
            model = create_model(arguments.frozen_stages, arguments.device)
            started = time.perf_counter()
            step = create_step(
                torch.compile(model) if form == "compiled" else model, dtype, arguments
            )
            for _ in range(3):
                step()
            warm = time.perf_counter() - started
            blocks = [
                time_steps(step, arguments.steps, arguments.device) for _ in range(arguments.blocks)
            ]
            name = f"{str(dtype).removeprefix('torch.')}, {form}"
            rows.append([name, f"{1e3 * statistics.median(blocks):.2f}", f"{warm:.1f} s"])
            table = grid.format_table(["variant", "ms per step", "first steps"], rows)
            grid.write_page(arguments.output, f"PyTorch {torch.__version__}", table)


if __name__ == "__main__":
    grid.run_main(main)
