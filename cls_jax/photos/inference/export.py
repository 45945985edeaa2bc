"""Exports the networks of a run as standalone files."""

import contextlib
import importlib
import io
import json
import logging
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cls_jax.errors import UserError, explain_writing
from cls_jax.extras import is_installed, write_install
from cls_jax.io import write_atomically
from cls_jax.models import convolutions
from cls_jax.models.ensemble import Ensemble
from cls_jax.models.weights.hub import WEIGHTS_FILE
from cls_jax.models.weights.sources import Origin, to_safetensors
from cls_jax.photos.features.backbones import describe_license
from cls_jax.photos.images.files import is_left_by_system
from cls_jax.photos.inference.classifier import Classifier
from cls_jax.photos.inference.run import Run, open_run
from cls_jax.photos.shell import find_version
from cls_jax.runs.folder import describe_weights
from cls_jax.training.prepare import collect_weights

MODEL = "model.jaxexport"
ONNX_MODEL = "model.onnx"
LABELS = "labels.json"
PREPROCESSING = "preprocessing.json"
THRESHOLDS = "thresholds.json"  # Of tags.
EXAMPLE = "example.py"
README = "README.md"
_FILES = {MODEL, ONNX_MODEL, WEIGHTS_FILE, LABELS, PREPROCESSING, THRESHOLDS, EXAMPLE, README}
_EXAMPLE_SOURCE = pathlib.Path(__file__).with_name("export_example.py")

_README = """# An image classifier

The {networks} `{run}` as one function from images
uint8 {shape} to their mean probabilities float32 [batch, {num_classes}]. It takes any batch size
and includes the normalization.

- `model.jaxexport`: for JAX on CPU, CUDA and TPU. It was made with JAX {version}. `jax.export`
  promises that newer versions of JAX can read it for at least six months.
{onnx}{weights}- `labels.json`: the {plural}, in the order of the probabilities.
{thresholds}- `preprocessing.json`: how a photo becomes the input, to be read by programs.
- `example.py`: `python example.py IMAGE …` prints {answer}. It needs `numpy` and `pillow`, and
  {runtime}.

Images must be upright, opaque and square, with 8 bits per channel: `preprocessing.json` says how,
and `example.py` does it. Gray pixels with 16 bits are scaled from the range 0 to {white:,}.
{origins}"""
_README_ORIGINS = """
Pretrained weights went into this classifier. Their licenses apply to it, too:

"""
_README_THRESHOLDS = "- `thresholds.json`: from which probability on an image has each tag.\n"
_README_ONNX = "- `model.onnx`: the same for ONNX runtimes.\n"
_README_WEIGHTS = """- `model.safetensors`: the weights of network 1, for `model.init` of other
  runs. The parameters have the names of torchvision or timm where these have the architecture.
"""

_TOLERANCE = 1e-4  # Largest accepted difference of a probability.
# The same where products are rounded, in bfloat16 or by default on accelerators.
_ROUNDING_TOLERANCE = 5e-2
_NUM_CHECKED = 16

Function = Callable[[Any], Any]


def export_run(workdir: pathlib.Path, output: pathlib.Path, step: str | None = None) -> list[str]:
    """Exports the classifier that predicts for a run, after comparing the exported model with it.

    Or, with a `step`, the networks of this checkpoint, see `load`.

    The output folder is new, empty or an earlier export. Returns a sentence for each file that is
    missing, and why. Raises a UserError if there is no run, the output folder holds something else
    or cannot be written, or the exported model disagrees with the run.
    """
    check_output(output)
    run = open_run(workdir, step=step)
    classifier = run.predictor.classifier
    function = create_function(classifier)
    images = create_images(classifier.image_shape)
    model = serialize(function, classifier.image_shape)
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it.
        cpu = None
    # Accelerators round products by default, so models are compared on a CPU.
    with jax.default_device(cpu):
        expected = np.asarray(jax.jit(function)(images))
        call = jax.export.deserialize(bytearray(model)).call
        exported = measure_difference(call, images, expected)
        metadata = collect_metadata(classifier)
        onnx_model, reason = convert_to_onnx(function, images, expected, metadata)
    ours = measure_difference(
        lambda images: classifier.predict(images).probabilities, images, expected
    )
    dtype = classifier.networks.ensemble.model.dtype
    is_exact = jnp.dtype(dtype) == jnp.float32 and jax.default_backend() == "cpu"
    if not (exported <= _TOLERANCE and ours <= (_TOLERANCE if is_exact else _ROUNDING_TOLERANCE)):
        raise UserError(
            f"The exported model differs from the run by {max(ours, exported):.1e} in a "
            "probability: install the versions of requirements.txt and export again."
        )
    reasons = [reason]
    files: dict[str, str | bytes | None] = {
        MODEL: model,
        ONNX_MODEL: onnx_model,
        WEIGHTS_FILE: None,
        LABELS: f"{metadata['class_names']}\n",
        PREPROCESSING: f"{metadata['preprocessing']}\n",
        THRESHOLDS: metadata.get("thresholds"),
        EXAMPLE: _EXAMPLE_SOURCE.read_text(encoding="utf-8"),
    }
    if not is_installed("pretrained"):
        reasons.append(_write_missing(WEIGHTS_FILE, "pretrained"))
    else:
        networks = classifier.networks
        weights = collect_weights(
            networks.name,
            networks.ensemble.model,
            networks.variables,
            networks.format.normalization,
        )
        files[WEIGHTS_FILE] = to_safetensors(weights)
    files[README] = _describe(classifier, run, [name for name in files if files[name]])
    with explain_writing(output, "choose another folder"):
        output.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if content is None:
                (output / name).unlink(missing_ok=True)
            else:
                write_atomically(output / name, content)
    return [reason for reason in reasons if reason]


def _write_missing(file: str, extra: str) -> str:
    return f"{file} needs the extra {extra}: {write_install(extra)}, then export again."


def check_output(output: pathlib.Path) -> None:
    """Raises a UserError if anything but an earlier export would be overwritten."""
    if not output.exists():
        return
    found = [path.name for path in output.iterdir()] if output.is_dir() else [output.name]
    names = {name for name in found if not is_left_by_system(name)}
    if not output.is_dir() or (names and not (LABELS in names and names <= _FILES)):
        raise UserError(
            f"{output} is not empty and not an earlier export: choose a new folder, as in "
            "cls-jax export RUN DIR."
        )


def create_function(classifier: Classifier) -> Function:
    """The EMA networks as one function that contains their weights, for a single device.

    It maps uint8 [B, H, W, C] to the mean probabilities of the networks, float32 [B, K]. Also
    networks trained in bfloat16 compute in float32, since most runtimes lack the other type.
    """
    networks = classifier.networks
    variables = jax.device_get(classifier.networks.variables)
    ensemble = Ensemble(networks.ensemble.model.clone(dtype=jnp.float32))

    def predict(images: jax.Array) -> jax.Array:
        logits, _ = ensemble.forward(
            variables["params"],
            variables["batch_stats"],
            networks.normalize(images),
            train=False,
        )
        return jnp.mean(networks.activation(logits), axis=0)

    return predict


def create_images(image_shape: tuple[int, int, int]) -> np.ndarray:
    """Images for the comparison: noise with contrasts from none to full, uint8 [16, H, W, C]."""
    noise = np.random.default_rng(0).uniform(-1, 1, (_NUM_CHECKED, *image_shape))
    contrast = np.linspace(0, 127.5, _NUM_CHECKED).reshape(-1, 1, 1, 1)
    return np.rint(127.5 + contrast * noise).astype(np.uint8)


def measure_difference(function: Function, images: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of a probability, for a batch and for a single image."""
    together, alone = np.asarray(function(images)), np.asarray(function(images[:1]))
    if together.shape != expected.shape or alone.shape != expected[:1].shape:
        return float("inf")
    return float(max(np.abs(together - expected).max(), np.abs(alone - expected[:1]).max()))


def serialize(function: Function, image_shape: tuple[int, int, int]) -> bytes:
    """Serializes the function with `jax.export`, for any batch size and platform."""
    (batch,) = jax.export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *image_shape), jnp.uint8)
    platforms = ("cpu", "cuda", "tpu")
    name = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, name)
    jax.config.update(name, r".*[/\\]")  # No folders of source files.
    try:
        return bytes(jax.export.export(jax.jit(function), platforms=platforms)(images).serialize())
    finally:
        jax.config.update(name, before)


def convert_to_onnx(
    function: Function, images: np.ndarray, expected: np.ndarray, metadata: Mapping[str, str]
) -> tuple[bytes | None, str | None]:
    """Converts the function to an ONNX model for any batch size and checks it in onnxruntime.

    It must give `expected`, float32 [B, K], for `images`, uint8 [B, H, W, C]. It has the `metadata`
    as properties. Returns the model and
    None, or None and the reason: the converter or onnxruntime is not installed or fails, or the
    model disagrees with the function.
    """
    if not is_installed("onnx"):
        return None, _write_missing(ONNX_MODEL, "onnx")
    failure = f"{ONNX_MODEL} was not written"
    # One logs a traceback for each of its optional parts that does not fit this JAX, the other a
    # warning for each operation that it cannot simplify.
    for name in ("jax2onnx", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    shape = jax.ShapeDtypeStruct(("batch", *images.shape[1:]), jnp.uint8)
    names = {"input_names": ["images"], "output_names": ["probabilities"]}
    try:
        jax2onnx, onnxruntime = map(importlib.import_module, ("jax2onnx", "onnxruntime"))
        # The converter prints its progress.
        with contextlib.redirect_stdout(io.StringIO()), convolutions.traced_for("shapes"):
            proto = jax2onnx.to_onnx(function, [shape], model_name="classifier", **names)
        # Some of the converter's shape annotations are wrong, and some of its constants unused.
        # onnxruntime infers shapes itself and would warn about each of them at every start.
        del proto.graph.value_info[:]
        used = {name for node in proto.graph.node for name in node.input}
        constants = [value for value in proto.graph.initializer if value.name in used]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(constants)
        for key, value in metadata.items():
            proto.metadata_props.add(key=key, value=value)
        model = proto.SerializeToString()
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        difference = measure_difference(
            lambda images: session.run(["probabilities"], {"images": images})[0], images, expected
        )
    except Exception as error:  # Both libraries raise any kind of exception.
        reason = (str(error).splitlines() or [""])[0][:200]
        converter = f"a converter failed ({type(error).__name__}: {reason})"
        return None, f"{failure} because {converter}: use {MODEL}."
    if not difference <= _TOLERANCE:
        return None, f"{failure} because its probabilities differ by {difference:.1e}: use {MODEL}."
    return model, None


def _describe_networks(classifier: Classifier) -> str:
    """What is exported, for people."""
    if not classifier.step:
        return "instant classifier"
    count = classifier.num_networks
    networks = "EMA network" if count == 1 else f"{count} EMA networks"
    return f"{networks} after {classifier.step:,} steps of the run"


def _describe_origins(run: Run) -> str:
    """The part of the README about pretrained weights and their licenses, or ""."""
    result: Mapping[str, Any] = run.result
    if "weights" not in result:  # Unfinished, or of a version that did not write them.
        result = describe_weights(run.config)
    origins = [Origin(**entry) for entry in result.get("weights", [])]
    lines = [
        f"- `{origin.init}`: {describe_license(origin)}"
        + (f"; commit {origin.commit}" if origin.commit else "")
        for origin in origins
    ]
    return _README_ORIGINS + "\n".join(lines) + "\n" if lines else ""


def collect_metadata(classifier: Classifier) -> dict[str, str]:
    """What a program needs to know of an exported model: its classes, its input, our version.

    Or its tags, and from which probability on an image has each.
    """
    thresholds = classifier.scoring.thresholds
    of_tags = {} if thresholds is None else {"thresholds": json.dumps(thresholds.tolist())}
    return {
        "class_names": json.dumps(list(classifier.class_names), indent=1),
        "preprocessing": json.dumps(_describe_preprocessing(classifier), indent=1),
        "version": find_version(),
        **of_tags,
    }


def _describe_preprocessing(classifier: Classifier) -> dict[str, Any]:
    """How a photo becomes the input."""
    decoding = classifier.networks.format.decoding
    mean, std = classifier.networks.format.normalization
    height, width, channels = classifier.image_shape
    return {
        "orientation": "upright, as EXIF says",
        "color": "gray" if channels == 1 else "RGB",
        "resize": "bicubic",
        "square": decoding.resize,
        "bit_depth": decoding.bit_depth,
        "height": height,
        "width": width,
        "dtype": "uint8",
        "layout": "NHWC",
        "inside_the_model": {
            "formula": "(x / 255 - mean) / std",
            "mean": list(mean),
            "std": list(std),
        },
    }


def _describe(classifier: Classifier, run: Run, files: Collection[str]) -> str:
    """The README of an export of a run that has these files."""
    height, width, channels = classifier.image_shape
    target, has_tags, has_onnx = run.target, THRESHOLDS in files, ONNX_MODEL in files
    return _README.format(
        run=run.workdir.resolve().name,
        networks=_describe_networks(classifier),
        shape=f"[batch, {height}, {width}, {channels}]",
        num_classes=len(classifier.class_names),
        plural=target.plural,
        answer=f"the {target.plural if has_tags else target.noun}",
        thresholds=_README_THRESHOLDS if has_tags else "",
        version=jax.__version__,
        white=2**classifier.networks.format.decoding.bit_depth - 1,
        onnx=_README_ONNX if has_onnx else "",
        origins=_describe_origins(run),
        weights=_README_WEIGHTS if WEIGHTS_FILE in files else "",
        runtime="`jax` with `flatbuffers`" + (", or `onnxruntime`" if has_onnx else ""),
    )
