"""A rule of our own for `make lint`: no tuple is splatted into a call whose positions differ.

    python -m tests.lint

`f(*values)` hides which value means what, unless all positional arguments of `f` mean the same, as
in `zip(*rows)`. Arguments that a function only hands on, by `*args` or `*args, **kwargs`, are fine.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
# Functions whose positional arguments all mean the same, by the end of their name. After "map", the
# arguments are those of the mapped function, each from a tree of its own.
VARIADIC = {
    *("chain", "from_iterable", "gather", "join", "joinpath", "map", "max", "min", "one_of"),
    *("print", "product", "set", "tuple", "union", "zip", "tree_map", "concatenate", "stack"),
    *("difference", "intersection", "isdisjoint", "copyfile", "partial"),
}


def find_splats(tree: ast.AST) -> Iterator[ast.Starred]:
    """Splats that the rule refuses, in a module's syntax tree."""
    yield from _find(tree, set())


def _find(node: ast.AST, handed_on: set[str]) -> Iterator[ast.Starred]:
    """`handed_on` are the names of variadic parameters around the node."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if is_function and node.args.vararg is not None:
        handed_on = handed_on | {node.args.vararg.arg}
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).split(".")[-1]
        starred = [one for one in node.args if isinstance(one, ast.Starred)]
        for one in starred if name not in VARIADIC else []:
            is_name = isinstance(one.value, ast.Name)
            if not (is_name and (one.value.id in handed_on or _hands_on_all(node))):
                yield one
    for child in ast.iter_child_nodes(node):
        yield from _find(child, handed_on)


def _hands_on_all(call: ast.Call) -> bool:
    """Whether the call is `f(*args, **kwargs)`, with arguments of any names."""
    return len(call.args) == len(call.keywords) == 1 and call.keywords[0].arg is None


def main() -> int:
    """Prints every place that breaks the rule. Returns the exit code."""
    num_found = 0
    for path in sorted((ROOT / "cls_jax").rglob("*.py")):
        for splat in find_splats(ast.parse(path.read_text("utf-8"))):
            where = f"{path.relative_to(ROOT)}:{splat.lineno}"
            print(f"{where}: name the arguments instead of *{ast.unparse(splat.value)}")
            num_found += 1
    return min(num_found, 1)


if __name__ == "__main__":
    sys.exit(main())
