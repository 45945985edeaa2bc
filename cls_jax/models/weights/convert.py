"""Converts a file of PyTorch to safetensors: `python -m cls_jax.models.weights.convert IN.pth OUT`.

Needs no PyTorch and calls nothing that the file names, see `torch_file`.
"""

import pathlib
import sys
from collections.abc import Sequence

from cls_jax.errors import UserError, explain_writing
from cls_jax.io import PARSE_ERRORS, describe_error, open_regular
from cls_jax.models.weights.layout import Weights
from cls_jax.models.weights.sources import to_safetensors
from cls_jax.models.weights.torch_file import read_torch_file


def convert(source: pathlib.Path, target: pathlib.Path) -> int:
    """Writes the tensors of a state dict, or of the one in a training checkpoint, as safetensors.

    Returns their number. Raises a UserError if the source has anything but tensors, or the target
    cannot be written.
    """
    try:
        with open_regular(source) as file:
            arrays = read_torch_file(file)
    except PARSE_ERRORS as error:
        raise UserError(
            f"{source} cannot be converted ({describe_error(error)}): pass a file with the state "
            "dict of a model."
        ) from error
    with explain_writing(target, "choose another name"):
        target.write_bytes(to_safetensors(Weights(arrays)))
    return len(arrays)


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns its exit code."""
    if len(arguments) != 2:
        print("Usage: python -m cls_jax.models.weights.convert IN.pth OUT.safetensors")
        return 2
    source, target = map(pathlib.Path, arguments)
    try:
        print(f"{convert(source, target)} tensors: {target}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
