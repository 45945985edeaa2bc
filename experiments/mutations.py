"""Small faults in a module's source: an operator, a comparison, a constant or a call is changed."""

import ast
import dataclasses
import random
from collections.abc import Iterator, Sequence

_OPERATORS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
    **{ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_OPPOSITES = {"min": "max", "any": "all", "minimum": "maximum", "argmin": "argmax"}
_OPPOSITES |= {after: before for before, after in _OPPOSITES.items()}
# Calls that become their first argument.
_DROPPED = {"stop_gradient", "pmean", "psum", "fold_in"}
# Below, a float is a guard against zero: a tenth more changes nothing.
_SMALLEST_FACTOR = 1e-3


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: path below cls_jax/.
        function: the innermost function around the change as "name:first line"; None if the change
            runs when the module is imported.
        line: where, from 1.
        before: the changed expression.
        after: what it becomes.
        source: the whole module with the change.
    """

    module: str
    function: str | None
    line: int
    before: str
    after: str
    source: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        """One line for the list of survivors."""
        return f"{self.module}:{self.line}: `{self.before}` → `{self.after}`"


def draw_mutants(sources: dict[str, str], count: int, seed: int) -> list[Mutant]:
    """Draws mutants evenly from modules, given by path: the same for the same seed."""
    rng = random.Random(seed)
    queues = []
    for module, source in sources.items():
        mutants = list(iterate_mutants(module, source))
        rng.shuffle(mutants)
        queues.append(mutants)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(queues):
        drawn += [queue.pop() for queue in queues if queue]
    return drawn[:count]


def iterate_mutants(module: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module.

    Left alone: docstrings and messages (strings), annotations, decorators and imports.
    """
    encoded = source.encode()
    starts = [0]
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function in _walk(ast.parse(source), None):
        for mutated in _mutate(node):
            first = starts[node.lineno - 1] + node.col_offset
            last = starts[node.end_lineno - 1] + node.end_col_offset
            before = " ".join(encoded[first:last].decode().split())
            after = f"({ast.unparse(mutated)})"
            changed = (encoded[:first] + after.encode() + encoded[last:]).decode()
            yield Mutant(module, function, node.lineno, before, after[1:-1], changed)


def instrument(module: str, source: str) -> ast.Module:
    """The module with a call of `note_call("module:name:first line")` first in every function.

    It costs less than to trace all calls: most are JAX's own.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            call = ast.parse(f"note_call({f'{module}:{node.name}:{node.lineno}'!r})").body[0]
            # After the docstring, which has to stay the first statement.
            node.body.insert(ast.get_docstring(node) is not None, call)
    return tree


def _walk(node: ast.AST, function: str | None) -> Iterator[tuple[ast.AST, str | None]]:
    """Every node that may change, with the function around it as its code object names it."""
    yield node, function
    if isinstance(node, ast.FunctionDef):
        function = f"{node.name}:{node.lineno}"
    skipped = {id(child) for child in _find_skipped(node)}
    for child in ast.iter_child_nodes(node):
        if id(child) not in skipped:
            yield from _walk(child, function)


def _find_skipped(node: ast.AST) -> Sequence[ast.AST | None]:
    """The children of a node that stay as they are."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom | ast.Assert):
        return list(ast.iter_child_nodes(node))
    if isinstance(node, ast.AnnAssign | ast.arg):
        return [node.annotation]
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Hyperparameter":
        return node.args[1:]  # Bounds: a wider or narrower one changes no result.
    if isinstance(node, ast.keyword) and node.arg == "axis":
        return [node.value]  # Of [n, b], axis 1 is axis -1: often the same.
    if isinstance(node, ast.FunctionDef):
        return [*node.decorator_list, node.returns]
    if isinstance(node, ast.ClassDef):
        return node.decorator_list
    return []


def _mutate(node: ast.AST) -> Iterator[ast.AST]:
    """The changed versions of one expression."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        yield _copy(node, op=_OPERATORS[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        yield _copy(node, ops=[_OPERATORS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield _copy(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Constant):
        yield from _mutate_constant(node.value)
    elif isinstance(node, ast.Call):
        yield from _mutate_call(node)


def _mutate_constant(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, float) and abs(value) >= _SMALLEST_FACTOR:
        yield ast.Constant(1.1 * value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)


def _mutate_call(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    if isinstance(function, ast.Attribute):
        if function.attr in _DROPPED:
            yield node.args[0]
        if function.attr in _OPPOSITES:
            yield _copy(node, func=_copy(function, attr=_OPPOSITES[function.attr]))
    elif isinstance(function, ast.Name) and function.id in _OPPOSITES:
        yield _copy(node, func=_copy(function, id=_OPPOSITES[function.id]))


def _copy(node: ast.AST, **changes) -> ast.AST:
    fields = {name: getattr(node, name) for name in node._fields}
    return type(node)(**fields | changes)
