"""Moves a script to a device, as people write it by hand: models and what a loader yields by
`.to(device)`, what is made in a loop or a function by `device=`; a loader's data stay on the CPU.

A script that this does not fit fails by itself, without dream, and is passed over.
"""

from __future__ import annotations

import ast
from typing import Any

FACTORIES = {
    "arange", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn",
    "randperm", "tensor", "zeros",
}  # fmt: skip
_LOADERS = {"DataLoader", "TensorDataset"}
_OF_DATA = {"__getitem__", "__iter__", "__next__", "__getitems__"}
_MOVE = "_moved"


def on_device(source: str, name: str, device: str) -> Any:
    """Return the script's code, moved; it expects what `helpers` gives among its names."""
    tree = ast.parse(source, name)
    loads = any(isinstance(n, ast.Name) and n.id in _LOADERS for n in ast.walk(tree))
    mover = _Mover(device, loads, _kept(tree) if loads else set())
    return compile(ast.fix_missing_locations(mover.visit(tree)), name, "exec")


def helpers(device: str) -> dict[str, Any]:
    """Return what a moved script calls."""
    import torch

    def moved(value: Any, models_only: bool = False) -> Any:
        if isinstance(value, torch.nn.Module):
            return value.to(device)
        if isinstance(value, torch.Tensor) and not models_only:
            own = type(value) is torch.Tensor and value.is_leaf and value.requires_grad
            if own:
                return value.detach().to(device).requires_grad_()
            return value.to(device)
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(moved(each, models_only) for each in value)
        if type(value) is dict:
            return {key: moved(each, models_only) for key, each in value.items()}
        return value

    return {_MOVE: moved}


def _kept(tree: ast.Module) -> set[str]:
    """The names of what data are made of: those stay where the loader reads them."""
    kept: set[str] = set()
    datasets = {
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and _OF_DATA & {getattr(n, "name", "") for n in each.body}
    }
    for _ in range(5):  # what they are made of in turn
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) in _LOADERS | datasets | {
                "random_split"
            }:
                kept |= _names(node)
            elif isinstance(node, ast.Assign) and _targets(node) & kept:
                kept |= _names(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in datasets:
            kept |= _names(node)
    return kept


class _Mover(ast.NodeTransformer):
    def __init__(self, device: str, loads: bool, kept: set[str]) -> None:
        self.device, self.loads, self.kept = device, loads, kept
        self.depth = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if _OF_DATA & {getattr(each, "name", "") for each in node.body}:
            return node
        return self._within(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "__init__" or node.name in self.kept:
            return node
        return self._within(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._within(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._within(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        loop: Any = self._within(node)
        target = loop.target
        if self.loads and isinstance(target, ast.Name | ast.Tuple):
            for name in sorted(_names(target), reverse=True):
                loop.body.insert(0, _assigned(name, models_only=False))
        return loop

    def visit_Assign(self, node: ast.Assign) -> Any:
        kept = bool(_targets(node) & self.kept)
        self.depth += kept * -100
        made: Any = self.generic_visit(node)
        self.depth -= kept * -100
        if self.depth:
            return made
        names = sorted(_targets(node))
        return [made, *(_assigned(name, models_only=name in self.kept) for name in names)]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        made = isinstance(node.func, ast.Attribute) and node.func.attr in FACTORIES
        if not made or getattr(node.func.value, "id", "") != "torch":  # type: ignore[attr-defined]
            return node
        words = {each.arg for each in node.keywords}
        where = self.depth > 0 or (not self.loads and self.depth == 0)
        if where and not words & {"device", "generator"}:
            node.keywords.append(ast.keyword("device", ast.Constant(self.device)))
        return node

    def _within(self, node: Any) -> Any:
        self.depth += 1
        made = self.generic_visit(node)
        self.depth -= 1
        return made


def _assigned(name: str, models_only: bool) -> ast.stmt:
    return ast.parse(f"{name} = {_MOVE}({name}, {models_only})").body[0]


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - {"torch", "nn", "F"}


def _targets(node: ast.Assign) -> set[str]:
    found: set[str] = set()
    for target in node.targets:
        if isinstance(target, ast.Name):
            found.add(target.id)
        elif isinstance(target, ast.Tuple):
            found |= {each.id for each in target.elts if isinstance(each, ast.Name)}
    return found
