"""Says what a loop does by the number of its batch's rows elsewhere than in a loss, with the line
of the script: that number is of a rank's share."""

from __future__ import annotations

import ast
import linecache
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, final

import torch

from dream._log import logger
from dream.adapters.pytorch.loss.calls import TrainingCall
from dream.adapters.pytorch.loss.lengths.uses import LengthUse, LengthUses
from dream.adapters.pytorch.randomness.sites import is_library
from dream.adapters.pytorch.randomness.words import variables_of
from dream.data.partition import Share

_FRAMES = 4
"""Functions of the script, each called by the next, that are read."""
_LONGEST = 80
_MOST = 8
"""Batches that are passed over, after which it is read no more."""
_OWN = (
    "%s:%d: `%s` goes by %s, which counts the rows of this rank's share alone: it does otherwise "
    "than on one device. Take the rows of all ranks, as by "
    'int(strategy.communicator.all_reduce(torch.tensor(len(x)), op="sum"))'
)
_COMPARES: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_WORKS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@final
class OwnLengths:
    """Reads the functions that a backward pass is called from, in a loop's first steps; and those
    that ask for the next batch without one, as they may go on by a length."""

    def __init__(self, is_of_batch: Callable[[torch.Tensor], bool]) -> None:
        self._is_of_batch = is_of_batch
        self._told: set[tuple[CodeType, int]] = set()
        self._left: Share | None = None
        self._times = 0

    def begin(self, share: Share) -> None:
        """A loader hands out a batch to train on."""
        if self._left is not None and self._times < _MOST and torch.is_grad_enabled():
            self._times += 1
            self._read(self._left)
        self._left = share

    def look(self, armed: Sequence[TrainingCall]) -> None:
        """A backward pass begins. armed: the calls since the last one, which every rank has."""
        self._left = None
        shares = [call.share for call in armed if call.share is not None]
        if shares:
            self._read(shares[0])

    def _read(self, share: Share) -> None:
        for frame in _frames_of_script() if share.parts > 1 and share.count else ():
            with suppress(Exception):  # a script never fails of being looked at
                for use in self._uses(frame, share):
                    self._tell(frame.f_code, use)

    def _uses(self, frame: FrameType, share: Share) -> Iterator[LengthUse]:
        tree = _tree_of(frame.f_code)
        if tree is None:
            return
        own = variables_of(frame)

        def value(node: ast.expr) -> object:
            return _value_of(node, own, frame.f_globals)

        def rows(node: ast.expr) -> bool:
            x = value(node)
            has = isinstance(x, torch.Tensor) and x.dim() and len(x) == share.count
            return bool(has) and self._is_of_batch(x)  # type: ignore[arg-type]

        yield from LengthUses(tree, frame.f_lineno, rows, value, (share.count, share.total)).find()

    def _tell(self, code: CodeType, use: LengthUse) -> None:
        if (code, use.line) in self._told:
            return
        self._told.add((code, use.line))
        text = use.text if len(use.text) <= _LONGEST else f"{use.text[:_LONGEST]}..."
        logger.info(_OWN, Path(code.co_filename).name, use.line, text, use.of)


def _frames_of_script() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    left = _FRAMES
    while frame is not None and left:
        installed = "site-packages" in frame.f_code.co_filename
        if not (installed or is_library(frame.f_globals.get("__name__"))):
            yield frame
            left -= 1
        frame = frame.f_back


@lru_cache(64)
def _tree_of(code: CodeType) -> ast.AST | None:
    """What a function, or a module, is in its file; None where that is not to be had."""
    whole = _file(code.co_filename)
    if whole is None or code.co_name == "<module>":
        return whole
    for node in ast.walk(whole):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


@lru_cache(16)
def _file(name: str) -> ast.AST | None:
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.parse("".join(linecache.getlines(name)))
    return None


def _value_of(node: ast.expr, own: Mapping[str, Any], outer: Mapping[str, Any]) -> Any:
    """What an expression of names, parts and numbers stands for; None for any other. Nothing of
    the script's is called."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return own.get(node.id, outer.get(node.id))
    if isinstance(node, ast.Attribute):
        of = _value_of(node.value, own, outer)
        return getattr(of, "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        of = _value_of(node.value, own, outer)
        key = node.slice.value
        if type(of) in (list, tuple):
            return of[key] if isinstance(key, int) and -len(of) <= key < len(of) else None
        return of.get(key) if isinstance(of, Mapping) else None
    return _worked_out(node, own, outer)


def _worked_out(node: ast.expr, own: Mapping[str, Any], outer: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        of = _value_of(node.args[0], own, outer)
        return len(of) if isinstance(of, torch.Tensor) and of.dim() else None
    if isinstance(node, ast.BinOp) and type(node.op) in _WORKS:
        sides = [_value_of(each, own, outer) for each in (node.left, node.right)]
        return _WORKS[type(node.op)](*sides) if _are_numbers(sides) else None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARES:
        sides = [_value_of(each, own, outer) for each in (node.left, *node.comparators)]
        return _COMPARES[type(node.ops[0])](*sides) if _are_numbers(sides) else None
    return None


def _are_numbers(values: Sequence[object]) -> bool:
    return all(type(each) in (int, float) for each in values)
