"""A reader of the HLO text that XLA writes of a compiled program.

Only what counting needs: computations, their instructions, shapes and where each came from. The
grammar is that of `jax.stages.Compiled.as_text()`.
"""

import dataclasses
import functools
import math
import re

# One computation: its instructions in the order in which they were scheduled, by name.
Computation = dict[str, "Instruction"]

_BYTES = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "token": 0} | {
    f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64)
}
_ARRAY = re.compile(r"\b(pred|[suf]\d+|bf16|token)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: unique in the module.
        shape: as written, as in "bf16[960,32]{1,0}" or a tuple of such.
        opcode: such as "fusion", "custom-call" or "add".
        operands: names of other instructions; none for parameters and constants.
        attributes: the text after the operands, with the metadata.
        is_root: whether it is what its computation returns.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    def find(self, pattern: str) -> str | None:
        """The first group of a regular expression in the attributes."""
        found = re.search(pattern, self.attributes)
        return found and found.group(1)

    @property
    def op_name(self) -> str:
        """The path of JAX's name scopes, as in "jit(train_step)/jvp(WideResNet)/norm/add"."""
        return self.find(r'op_name="((?:[^"\\]|\\.)*)"') or ""


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        computations: by name.
        entry: the name of the one that runs.
        functions: Python functions that were on the stack when an instruction was traced,
            innermost first, by `stack_frame_id`.
    """

    computations: dict[str, Computation]
    entry: str
    functions: dict[str, tuple[str, ...]]

    def get_functions(self, instruction: Instruction) -> tuple[str, ...]:
        """Names of the Python functions behind an instruction, innermost first."""
        return self.functions.get(instruction.find(r"stack_frame_id=(\d+)") or "", ())


def parse_module(text: str) -> Module:
    """Reads the text of an optimized module.

    Raises:
        ValueError: if the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    current, entry = {}, ""
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations[header.group(2)] = {}
            entry = header.group(2) if header.group(1) else entry
        elif found := _INSTRUCTION.match(line):
            instruction = _parse_instruction(*found.groups())
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("This is not the text of an HLO module: it has no ENTRY computation")
    return Module(computations, entry, _parse_stack_frames(text))


def _parse_instruction(root: str | None, name: str, text: str) -> Instruction:
    shape, rest = _split_shape(text)
    opcode, rest = rest.split("(", 1)
    end = _find_closing("(" + rest)
    operands = rest[: end - 1]
    # Between a constant's brackets is its value, between a parameter's its number.
    names = () if opcode in ("parameter", "constant") else tuple(_OPERAND.findall(operands))
    return Instruction(name, shape, opcode, names, rest[end:], root is not None)


def _split_shape(text: str) -> tuple[str, str]:
    """Splits "f32[2]{0} add(…" and "(f32[2], s32[]) fusion(…" after the shape."""
    end = _find_closing(text) + 1 if text.startswith("(") else text.index(" ")
    return text[:end], text[end + 1 :]


def _find_closing(text: str) -> int:
    """Where the bracket closes that the text opens with."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place
    raise ValueError(f"No closing bracket in {text[:80]!r}")


def _parse_stack_frames(text: str) -> dict[str, tuple[str, ...]]:
    """The stack of every frame in the tables at the head of the module; empty without tables."""
    names = dict(re.findall(r'^(\d+) "(.*)"$', _find_table(text, "FunctionNames"), re.M))
    locations = dict(
        re.findall(r"^(\d+) \{.*?function_name_id=(\d+)", _find_table(text, "FileLocations"), re.M)
    )
    pattern = r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?"
    frames = {
        frame: (names.get(locations.get(location, ""), ""), parent)
        for frame, location, parent in re.findall(pattern, _find_table(text, "StackFrames"), re.M)
    }
    # XLA writes a parent's number plus one, so that the first frame seems to be its own parent.
    shift = int(frames.get("1", ("", ""))[1] == "1")
    return {frame: _walk_stack(frame, frames, shift) for frame in frames}


def _find_table(text: str, name: str) -> str:
    found = re.search(rf"^{name}\n(.*?)(?:\n\n|\Z)", text, re.M | re.S)
    return found.group(1) if found else ""


def _walk_stack(frame: str, frames: dict[str, tuple[str, str]], shift: int) -> tuple[str, ...]:
    stack = []
    while frame in frames:
        name, parent = frames[frame]
        stack.append(name)
        frame = str(int(parent or 0) - shift)
    return tuple(stack)


def list_arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Element types and sizes of all arrays in a shape."""
    return [
        (dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(shape)
    ]


@functools.cache
def count_elements(shape: str) -> int:
    """Elements of all arrays in a shape."""
    return sum(math.prod(sizes) for _, sizes in list_arrays(shape))


@functools.cache
def count_bytes(shape: str) -> int:
    """Bytes of all arrays in a shape, without padding."""
    return sum(_BYTES.get(dtype, 1) * math.prod(sizes) for dtype, sizes in list_arrays(shape))
