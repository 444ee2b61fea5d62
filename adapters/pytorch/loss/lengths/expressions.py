"""Expressions of a script, as its text has them: what a number in them is worked out of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, final

WORKS = {"div", "mul", "add", "sub", "true_divide", "divide", "multiply", "subtract", "pow",
         "sqrt", "exp", "log", "log2", "log10", "cos", "sin", "tanh", "float", "int", "min", "max",
         "abs", "round", "floor", "ceil", "clip", "clamp", "minimum", "maximum"}  # fmt: skip
"""Functions that a length is a number to; to others it is a size."""
_NO_NUMBERS = {"arange", "range", "slice", "rand", "randn", "randint", "randperm", "zeros", "ones",
               "empty", "full", "view", "reshape", "expand", "repeat", "split", "narrow", "len",
               "print", "format", "append", "log", "info", "debug", "warning", "write", "update",
               "add_scalar", "set_postfix", "manual_seed", "save"}  # fmt: skip
"""What takes sizes and places alone, or logs what it is given."""
_SETTINGS = {"lr", "weight_decay", "momentum", "betas", "eps", "initial_lr"}


def measured(node: ast.AST) -> ast.expr | None:
    """What a node takes the number of rows of."""
    if isinstance(node, ast.Call) and not node.keywords:
        if isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1:
            return node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size":
            return node.func.value if [*map(text_of, node.args)] == ["0"] else None
    if isinstance(node, ast.Subscript) and text_of(node.slice) == "0":
        return sized(node.value)
    return None


def sized(node: ast.AST) -> ast.expr | None:
    """What a node takes all sizes of, as `x.shape` or `x.size()`."""
    if isinstance(node, ast.Call) and not node.args:
        node = node.func
        return node.value if isinstance(node, ast.Attribute) and node.attr == "size" else None
    return node.value if isinstance(node, ast.Attribute) and node.attr == "shape" else None


def parts_of(
    value: ast.AST | None, *, divisors: bool = True, given: bool = False
) -> Iterator[ast.AST]:
    """Yield what a number is worked out of. given: with what functions are given of which nobody
    knows what they make."""
    left = [] if value is None else [value]
    while left:
        node = left.pop(0)
        yield node
        if measured(node) is not None:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not divisors:
            left.append(node.left)
        elif isinstance(node, ast.Call):
            name = called(node).rstrip("_")
            left += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            if name in WORKS or (given and name not in _NO_NUMBERS):
                left += arguments(node)
        elif isinstance(node, ast.Subscript):
            left.append(node.value)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            left.append(node.elt)
        elif not isinstance(node, (ast.JoinedStr, ast.Lambda)):
            left += [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr)]


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else text_of(node.func)


def arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(each.value for each in node.keywords)]


def targets_of(node: ast.AST) -> list[ast.expr]:
    """Where a statement puts a value; nowhere of any other node."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


def is_place(target: ast.expr) -> bool:
    return isinstance(target, (ast.Name, ast.Attribute, ast.Subscript))


def is_setting(target: ast.expr) -> bool:
    """Whether a place is an optimizer's setting."""
    if not isinstance(target, ast.Subscript):
        return False
    key = target.slice.value if isinstance(target.slice, ast.Constant) else None
    return key in _SETTINGS or "param_groups" in text_of(target.value)


def names_loaded(value: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(value) if isinstance(x, ast.Name)}


def names_stored(loop: ast.AST) -> set[str]:
    names = (x for x in ast.walk(loop) if isinstance(x, ast.Name))
    return {x.id for x in names if isinstance(x.ctx, ast.Store)}


def text_of(node: ast.AST) -> str:
    """A node in words; one line of what has a body."""
    if isinstance(node, (ast.If, ast.While)):
        return f"{'if' if isinstance(node, ast.If) else 'while'} {ast.unparse(node.test)}"
    return ast.unparse(node)


def replaced(node: ast.expr, which: Callable[[ast.AST], bool], number: int) -> ast.expr:
    """Return an expression with a number in the place of some of its parts."""
    copied = ast.parse(text_of(node), mode="eval").body
    made: ast.expr = ast.fix_missing_locations(_Replaced(which, number).visit(copied))
    return made


@final
class _Replaced(ast.NodeTransformer):
    def __init__(self, which: Callable[[ast.AST], bool], number: int) -> None:
        self._which, self._number = which, number

    def visit(self, node: ast.AST) -> Any:
        return ast.Constant(self._number) if self._which(node) else self.generic_visit(node)
