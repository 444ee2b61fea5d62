"""What a function of the script does by the number of its batch's rows, as its text says it.

What comes into a loss is looked at in its graph. Here is what does not: gradients that are divided
by it, settings and bounds, steps and what else is done after so many rows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import final

from dream.adapters.pytorch.loss.lengths.expressions import (
    WORKS,
    arguments,
    called,
    is_place,
    is_setting,
    measured,
    names_loaded,
    names_stored,
    parts_of,
    replaced,
    sized,
    targets_of,
    text_of,
)

_TRAINS = {"step", "backward", "zero_grad", "requires_grad_"}
_LEAVES = (ast.Break, ast.Continue, ast.Return)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_OF_ALL = ("world", "replicas", "ranks", "all_reduce", "all_gather")
"""Words of scripts that come to the whole batch's rows themselves."""
_DEEP = 3
"""Names that are set by one another, as `n = len(x)`, then `scale = 1 / n`."""


@final
@dataclass(frozen=True, slots=True)
class LengthUse:
    """line: of the script. of: the length, or what counts by it. text: what goes by it."""

    line: int
    of: str
    text: str


@final
class LengthUses:
    """Finds them in a function, or a module, at a place in it.

    at: the line that runs. is_rows: whether what an expression stands for now has this rank's rows.
    value: what one stands for now; None where that cannot be told. sizes: how many rows this rank
    has, and the batch.
    """

    def __init__(
        self,
        tree: ast.AST,
        at: int,
        is_rows: Callable[[ast.expr], bool],
        value: Callable[[ast.expr], object],
        sizes: tuple[int, int],
    ) -> None:
        self._is_rows, self._value, self._sizes = is_rows, value, sizes
        self._nodes: list[ast.AST] = []
        self._bound: dict[ast.AST, frozenset[str]] = {}
        self._visit(tree, at, frozenset())
        self._lengths: dict[str, str] = {}
        self._counts: dict[str, str] = {}
        self._into_loss: set[str] = set()

    def _visit(self, node: ast.AST, at: int, bound: frozenset[str]) -> None:
        """Note nodes, each with what loops around it bind that do not run now."""
        if isinstance(node, _LOOPS) and not node.lineno <= at <= (node.end_lineno or 0):
            bound |= names_stored(node)
        self._nodes.append(node)
        self._bound[node] = bound
        for each in ast.iter_child_nodes(node):
            self._visit(each, at, bound)

    def find(self) -> Iterator[LengthUse]:
        """Yield what goes by a length, or by what counts it."""
        if not any(self._is_length(x) or self._unpacked(x) for x in self._nodes):
            return
        self._note_names()
        for node in self._nodes:
            found = next(self._at(node), None)
            if found is not None:
                yield LengthUse(getattr(node, "lineno", 0), found, text_of(node))

    def _is_length(self, node: ast.AST) -> bool:
        return self._has_rows(node, measured(node))

    def _has_rows(self, node: ast.AST, given: ast.expr | None) -> bool:
        if given is None or names_loaded(given) & self._bound.get(node, frozenset()):
            return False
        return self._is_rows(given)

    def _unpacked(self, node: ast.AST) -> str | None:
        """The name of a length that is `n` in `n, c = x.shape`."""
        if isinstance(node, ast.Assign) and isinstance(several := node.targets[0], ast.Tuple):
            first = several.elts[0] if several.elts else None
            if isinstance(first, ast.Name) and self._has_rows(node, sized(node.value)):
                return first.id
        return None

    def _note_names(self) -> None:
        set_to, added = [*self._set()], [*self._added()]
        of_all = {name for name, value in (*set_to, *added) if _is_of_all(value)}
        self._lengths |= {name: name for x in self._nodes if (name := self._unpacked(x))}
        for _ in range(_DEEP):
            for name, value in set_to:
                if name not in of_all and self._is_number(value) and (of := self._length_in(value)):
                    self._lengths.setdefault(name, of)
        for name, value in added:
            if name not in of_all and self._is_number(value) and self._length_in(value):
                self._counts[name] = name
                self._lengths.pop(name, None)
        for _ in range(_DEEP):
            for name, value in set_to:
                if name not in of_all | {*self._counts} and (of := self._count_in(value)):
                    self._counts[name] = of
        goes_back = (x for x in self._nodes if isinstance(x, ast.Call) and called(x) == "backward")
        self._into_loss = {name for call in goes_back for name in names_loaded(call)}
        for _ in range(2 * _DEEP):
            for name, value in (*set_to, *added):
                if name in self._into_loss:
                    self._into_loss |= names_loaded(value)

    def _set(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self._nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in filter(is_place, targets_of(node)):
                    yield text_of(target), node.value

    def _added(self) -> Iterator[tuple[str, ast.expr]]:
        """What is added to something, time and again."""
        for node in self._nodes:
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                yield text_of(node.target), node.value
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                names, sides = {*map(text_of, node.targets)}, (node.value.left, node.value.right)
                for one, other in (sides, sides[::-1]):
                    if isinstance(node.value.op, ast.Add) and text_of(one) in names:
                        yield text_of(one), other

    def _is_number(self, value: ast.expr) -> bool:
        """Whether a value is worked out of lengths and numbers alone."""
        for node in parts_of(value):
            if self._is_length(node):
                continue
            if isinstance(node, ast.Call) and called(node) not in WORKS:
                return False
            named = isinstance(node, ast.Name) and node.id not in self._lengths
            if named or isinstance(node, (ast.Attribute, ast.Subscript)):
                known = self._value(node) if isinstance(node, ast.expr) else None
                functions = isinstance(node, ast.Name) and node.id in WORKS
                if type(known) not in (int, float) and not functions:
                    return False
        return True

    def _length_in(self, value: ast.AST | None) -> str | None:
        """A length that a value is worked out of: as a number, not as a size, nor with all
        ranks'."""
        for node in () if value is None or _is_of_all(value) else parts_of(value):
            if self._is_length(node):
                return text_of(node)
            named = isinstance(node, ast.Name) and node.id not in self._bound.get(node, ())
            if named and (of := self._lengths.get(text_of(node))):
                return of
        return None

    def _count_in(self, value: ast.AST | None, *, given: bool = False) -> str | None:
        """What counts by a length in a value; as a divisor it is a part, as what it divides is."""
        for node in parts_of(value, divisors=False, given=given):
            place = isinstance(node, ast.expr) and is_place(node)
            if place and (of := self._counts.get(text_of(node))):
                return of
        return None

    def _either(self, value: ast.AST | None) -> Iterator[str]:
        yield from filter(None, (self._length_in(value), self._count_in(value)))

    def _at(self, node: ast.AST) -> Iterator[str]:
        """What a node goes by."""
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            yield from self._at_assignment(node, targets_of(node))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                yield from self._either(other) if self._is_gradient(one) else ()
        elif isinstance(node, ast.Call):
            yield from self._at_call(node)
        elif isinstance(node, (ast.If, ast.While)) and self._trains([*node.body, *node.orelse]):
            yield from self._decides(node.test)

    def _at_assignment(
        self, node: ast.Assign | ast.AugAssign, targets: list[ast.expr]
    ) -> Iterator[str]:
        if any(self._is_gradient(x) or is_setting(x) for x in targets):
            yield from self._either(node.value)
        names = {*map(text_of, targets)}
        if names & self._into_loss and not names & {*self._counts}:
            yield from filter(None, [self._count_in(node.value, given=True)])
            for each in ast.walk(node.value):
                yield from self._decides(each.test) if isinstance(each, ast.IfExp) else ()

    def _at_call(self, node: ast.Call) -> Iterator[str]:
        name = called(node)
        bounds = name.startswith("clip_grad")
        if name.startswith("_foreach_") and node.args:
            bounds = "grad" in text_of(node.args[0])
        elif isinstance(node.func, ast.Attribute) and name.rstrip("_") in WORKS:
            bounds = self._is_gradient(node.func.value)
        for each in arguments(node):
            yield from self._either(each) if bounds else ()
        for each in [node.func, *arguments(node)] if name == "backward" else ():
            yield from filter(None, [self._count_in(each, given=True)])

    def _decides(self, test: ast.expr) -> Iterator[str]:
        """What a test goes by: a count; or a length, where that of the batch decides otherwise, or
        where it is worked with."""
        if of := self._count_in(test):
            yield of
        elif of := self._length_in(test):
            own, whole = (
                self._value(replaced(test, self._stands_for_rows, size)) for size in self._sizes
            )
            works = any(isinstance(x, ast.BinOp) and self._length_in(x) for x in ast.walk(test))
            if works if own is None or whole is None else own != whole:
                yield of

    def _stands_for_rows(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name) and node.id in self._lengths:
            return self._value(node) == self._sizes[0]
        return self._is_length(node)

    def _trains(self, body: Iterable[ast.AST]) -> bool:
        """Whether some statements change what is trained, or end the loop."""
        for node in (x for each in body for x in ast.walk(each)):
            if isinstance(node, _LEAVES) or (
                isinstance(node, ast.Call) and called(node) in _TRAINS
            ):
                return True
            targets = targets_of(node)
            if any(map(is_setting, targets)) or {*map(text_of, targets)} & self._into_loss:
                return True
        return False

    def _is_gradient(self, value: ast.AST) -> bool:
        """Whether a value is made of a parameter's gradient."""
        for node in ast.walk(value):
            of = node.value if isinstance(node, ast.Attribute) and node.attr == "grad" else None
            if of is not None and text_of(of).split(".")[-1] not in ("autograd", "func", "torch"):
                return not self._is_rows(of)
        return False


def _is_of_all(value: ast.AST) -> bool:
    words = text_of(value).lower()
    return any(word in words for word in _OF_ALL)
