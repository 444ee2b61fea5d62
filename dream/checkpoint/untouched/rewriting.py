"""A script's loops over counted items, compiled so that `CountedLoop` hands out their items.

Of `for epoch in range(9): ...`, in a function, this makes

    __dream_loop_1 = __dream_loop__(range(9), "main 1", ("best", "loss"), ("best",), ())
    if "best" in __dream_loop_1.values:
        best = __dream_loop_1.values["best"]
    ...
    for epoch in __dream_loop_1: ...

with every line where it was. Loops within loops are left as they are: an item of the outermost is
what is begun anew. So are those in which, by the names of what they call, nothing trains: a model's
own loops run in every step, and may be compiled.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import final

LOOP = "__dream_loop__"
_COUNTED = {"range", "trange"}
_SHOWN = {"tqdm"}
_TRAINS = re.compile(r"backward|step|train|epoch|fit|learn|update|optimi[sz]e", re.IGNORECASE)
_OF_MODELS = {"forward", "__call__"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def compiled(source: bytes, path: str) -> CodeType:
    """Compile a script. SyntaxError where it is none."""
    tree = ast.parse(source, path)
    declared = {
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    marked = _Marking(sorted(declared), _training(tree), _bars(tree)).visit(tree)
    return compile(ast.fix_missing_locations(marked), path, "exec", dont_inherit=True)


@final
class _Marking(ast.NodeTransformer):
    """Replaces loops that stand in no other loop of their function or module."""

    def __init__(self, declared: Sequence[str], training: set[str], bars: set[str]) -> None:
        """declared: what functions declare `global`. training: functions in which it trains. bars:
        variables that are counted items."""
        self._declared, self._training, self._bars = declared, training, bars
        self._scopes: list[ast.FunctionDef] = []
        self._count = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in _OF_MODELS:
            return node
        self._scopes.append(node)
        self.generic_visit(node)
        self._scopes.pop()
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [
            self.visit(each) if isinstance(each, ast.FunctionDef) else each for each in node.body
        ]
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        return node

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        named = isinstance(node.iter, ast.Name) and node.iter.id in self._bars
        if not (named or _is_counted(node.iter)) or not _called(node.body, self._training):
            return node
        if any(isinstance(each, ast.Global | ast.Nonlocal) for each in _here(node.body)):
            return node  # may not stand behind what sets the variables back
        self._count += 1
        scope = self._scopes[-1] if self._scopes else None
        hidden = f"{LOOP}{self._count}"
        names = sorted(_stored(node.body) | _shared_by(scope))
        carried = sorted(_carried(node.body, names) | _shared_by(scope))
        place = f"{scope.name if scope else 'the script'} {self._count}"
        given = [node.iter, *map(_constant, (place, names, carried, self._declared))]
        made = ast.Assign([ast.Name(hidden, ast.Store())], ast.Call(_read(LOOP), given, []))
        back = [_set_back(name, hidden) for name in names] if scope else []
        node.iter = _read(hidden)
        return [ast.copy_location(each, node) for each in (made, *back)] + [node]


def _bars(tree: ast.Module) -> set[str]:
    """Return the variables of a script that are set to counted items, as to a bar over them."""
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign) and _is_counted(n.value)]
    return {target.id for each in made for target in each.targets if isinstance(target, ast.Name)}


def _training(tree: ast.Module) -> set[str]:
    """Return the functions of a script in which it trains, or that call such."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found: set[str] = set()
    while more := {f.name for f in functions if _called(f.body, found)} - found - _OF_MODELS:
        found |= more
    return found


def _called(body: Iterable[ast.AST], training: set[str]) -> bool:
    """Whether something is called that trains, by its name."""
    calls = (node for top in body for node in ast.walk(top) if isinstance(node, ast.Call))
    names = map(_last_name, (call.func for call in calls))
    return any(name in training or _TRAINS.search(name) for name in names)


def _is_counted(items: ast.expr) -> bool:
    """Whether these are numbers in a row, shown as a bar or not."""
    if not isinstance(items, ast.Call):
        return False
    name = _last_name(items.func)
    shown = name in _SHOWN and bool(items.args) and _is_counted(items.args[0])
    return name in _COUNTED or shown


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _read(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _constant(value: str | Sequence[str]) -> ast.expr:
    if isinstance(value, str):
        return ast.Constant(value)
    return ast.Tuple([ast.Constant(each) for each in value], ast.Load())


def _set_back(name: str, hidden: str) -> ast.If:
    values = ast.Attribute(_read(hidden), "values", ast.Load())
    there = ast.Compare(ast.Constant(name), [ast.In()], [values])
    value = ast.Subscript(values, ast.Constant(name), ast.Load())
    return ast.If(there, [ast.Assign([ast.Name(name, ast.Store())], value)], [])


def _here(nodes: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """Walk what runs in the scope of these, and not in a function of theirs."""
    left = [*nodes]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            left += ast.iter_child_nodes(node)


def _stored(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables that these assign to."""
    return {n.id for n in _here(nodes) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    """Return those that these read, functions of theirs too."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
        found |= _loaded(ast.iter_child_nodes(node)) - _bound_by(node)
    return found


def _bound_by(node: ast.AST) -> set[str]:
    """Return the variables that are a function's or a comprehension's own."""
    if isinstance(node, _COMPREHENSIONS):
        return _stored([generator.target for generator in node.generators])
    if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        return {argument.arg for argument in every}
    return set()


def _shared_by(scope: ast.FunctionDef | None) -> set[str]:
    """Return a function's variables that functions in it assign to."""
    if scope is None:
        return set()
    inner = (node for node in ast.walk(scope) if isinstance(node, ast.Nonlocal))
    return {name for node in inner for name in node.names} & _stored(scope.body)


def _carried(body: Sequence[ast.stmt], names: Iterable[str]) -> set[str]:
    """Return those whose values may go from one run of the body into the next, or past the last."""
    flow = _Flow(set(names))
    return flow.carried | (flow.names - flow.through(body, set()))


@final
class _Flow:
    """Finds what is read before it is set. Inner loops run at least once."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.carried: set[str] = set()
        self._inner = 0

    def through(self, body: Iterable[ast.stmt], known: set[str]) -> set[str]:
        """Go through statements; return what is set for sure at their end. known: what is before
        them."""
        for statement in body:
            known = self._past(statement, known)
        return known

    def _past(self, node: ast.stmt, known: set[str]) -> set[str]:
        if isinstance(node, ast.If):
            self._reads([node.test], known)
            return self.through(node.body, known) & self.through(node.orelse, known)
        if isinstance(node, ast.Match):
            self._reads([node.subject], known)
            for case in node.cases:
                self.through(case.body, known)
            return known
        if isinstance(node, ast.Try):
            ends = [self.through(handler.body, known) for handler in node.handlers]
            after = self.through((*node.body, *node.orelse), known).intersection(*ends)
            return self.through(node.finalbody, after)
        if isinstance(node, ast.With):
            self._reads([item.context_expr for item in node.items], known)
            kept = [item.optional_vars for item in node.items if item.optional_vars is not None]
            return self.through(node.body, known | _stored(kept))
        if isinstance(node, _LOOPS):
            return self._past_loop(node, known)
        if isinstance(node, ast.Continue | ast.Break) and not self._inner:
            self.carried |= self.names - known
            return self.names  # nothing follows
        targets = [node.target] if isinstance(node, ast.AugAssign) else []
        self._reads([node], known)
        self._found(_stored(targets), known)
        if isinstance(node, ast.Return | ast.Raise):
            return self.names
        own = {node.name} if isinstance(node, _SCOPES) else set()
        return known | _stored([node]) | own

    def _past_loop(self, node: ast.For | ast.AsyncFor | ast.While, known: set[str]) -> set[str]:
        if isinstance(node, ast.While):
            self._reads([node.test], known)
        else:
            self._reads([node.iter], known)
            known = known | _stored([node.target])
        self._inner += 1
        known = self.through(node.body, known)
        self._inner -= 1
        return self.through(node.orelse, known)

    def _reads(self, nodes: Iterable[ast.AST], known: set[str]) -> None:
        self._found(_loaded(nodes), known)

    def _found(self, read: set[str], known: set[str]) -> None:
        self.carried |= (read & self.names) - known
