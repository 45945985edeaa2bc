"""Classifies image files.

python example.py IMAGE …

Needs numpy and pillow, and either jax and flatbuffers or onnxruntime.
"""

import importlib.util
import json
import pathlib
import sys

import numpy as np
from PIL import Image, ImageOps

folder = pathlib.Path(__file__).parent
if importlib.util.find_spec("jax"):
    from jax import export

    model = export.deserialize(bytearray((folder / "model.jaxexport").read_bytes()))
    shape, predict = model.in_avals[0].shape, model.call
else:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    shape, predict = session.get_inputs()[0].shape, lambda x: session.run(None, {"images": x})[0]

preprocessing = json.loads((folder / "preprocessing.json").read_text())
resize = preprocessing["square"]
white = 2 ** preprocessing["bit_depth"] - 1
labels = json.loads((folder / "labels.json").read_text())
thresholds = []  # Where an image may have several labels, or none: that of each.
if (folder / "thresholds.json").exists():
    thresholds = json.loads((folder / "thresholds.json").read_text())
_, height, width, channels = shape


def to_square(image, mode):
    """Scales an image of any size to 8 bits and the shape that the model expects."""
    if image.mode.startswith("I"):  # Gray with 16 bits, which `convert` would clip to 8.
        levels = np.asarray(image).astype(float) * (255 / white)
        image = Image.fromarray(np.rint(levels.clip(0, 255)).astype(np.uint8))
    image = image.convert(mode)
    if resize == "crop":
        return ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    if resize == "pad":
        return ImageOps.pad(image, (width, height), Image.Resampling.BICUBIC, color="#7f7f7f")
    return image.resize((width, height), Image.Resampling.BICUBIC)


for file in sys.argv[1:]:
    image = Image.open(file)
    if white < 65535 and image.mode.startswith("RGB") and ";16" in str(image.tile):
        sys.exit(f"{file} has colors with 16 bits: convert it to 8 bits per channel.")
    image.draft(None, (3 * width, 3 * height))  # Decodes large JPEGs faster.
    image = ImageOps.exif_transpose(image)
    images = np.atleast_3d(np.asarray(to_square(image, "L" if channels == 1 else "RGB")))[None]
    probabilities = np.asarray(predict(images))[0]
    found = [i for i, least in enumerate(thresholds) if probabilities[i] >= least]
    if not thresholds:
        found = [probabilities.argmax()]
    shown = ", ".join(f"{labels[i]} ({probabilities[i]:.4f})" for i in found)
    print(f"{file}: {shown or 'no tag'}")
