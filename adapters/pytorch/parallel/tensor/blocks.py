"""Which layers a row-cut layer's input comes from, read off a module's forward pass.

A module is traced by itself, its children taken as they are, sequences gone through. What cannot
be traced (a loop over a tensor's length, a branch on values) is not an error: its layers are then
not known to belong together.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any, final

import torch
from torch import fx, nn
from torch.nn import functional as F

from dream.adapters.pytorch import hooks
from dream.adapters.pytorch.parallel.sharding.graph import is_number
from dream.adapters.pytorch.parallel.snapshot import Reach
from dream.adapters.pytorch.private import tables, version_of

_ELEMENTWISE_LAYERS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity,
)  # fmt: skip
_ELEMENTWISE: set[Any] = {
    F.relu, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish, F.tanh, F.sigmoid, F.softplus,
    F.hardswish, torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.square, torch.mul,
    torch.add, operator.mul, operator.add, operator.sub, operator.truediv, operator.pow,
    operator.neg, "relu", "tanh", "sigmoid", "exp", "square", "mul", "add", "contiguous", "pow",
}  # fmt: skip
_ACROSS: set[Any] = {
    F.softmax, F.dropout, F.scaled_dot_product_attention, torch.softmax, torch.matmul, torch.bmm,
    torch.transpose, torch.permute, torch.reshape, torch.flatten, torch.where, torch.masked_fill,
    torch.einsum, operator.matmul, "view", "reshape", "transpose", "permute", "flatten",
    "unflatten", "matmul", "softmax", "masked_fill", "float", "type_as", "to", "div", "mT", "bmm",
}  # fmt: skip
"""These keep the shards apart, by the rules of `local_shard`."""
_SPLITS: set[Any] = {"view", "reshape", "unflatten", torch.reshape, torch.unflatten}


@final
@dataclass(frozen=True, slots=True)
class LayerBlock:
    """Layers that belong together, by name below the module: the row-cut `last` reads what comes
    of the column-cut `firsts`. heads: into how many a view splits their output, where it does.
    local: in between each element goes its own way, so each rank may go on with its own."""

    firsts: tuple[str, ...]
    last: str
    heads: int | None
    local: bool


def blocks_of(module: nn.Module) -> list[LayerBlock] | None:
    """Return the blocks in a module's own forward pass; None where that cannot be traced."""
    graph = _trace(module)
    if graph is None:
        return None
    named = dict(module.named_modules())
    taken: set[str] = set()
    blocks = []
    for node in graph.nodes:
        if _is_linear(node, named) and node.target not in taken:
            block = _Walk(named, taken).back_from(node)
            if block is not None:
                taken |= {*block.firsts, block.last}
                blocks.append(block)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    return [  # a layer that is called again may be given something else there than pieces
        block for block in blocks if all(calls[name] == 1 for name in (*block.firsts, block.last))
    ]


def _noting(make: Callable[..., Any]) -> Callable[..., Any]:
    """Have what makes a tensor noted where a size is a stand-in of torch.fx."""

    @wraps(make)
    def noted(*args: Any, **kwargs: Any) -> Any:
        for given in (*args, *kwargs.values()):
            if isinstance(given, fx.Proxy):
                return given.tracer.create_proxy("call_function", make, args, kwargs)
        return make(*args, **kwargs)

    return noted


def _trace(module: nn.Module) -> fx.Graph | None:
    before, tensors = Reach(module).before(), _Tensors(module)
    try:
        given = inspect.signature(module.forward).parameters
        constant = {n: p.default for n, p in given.items() if p.default is not p.empty}
        with hooks.factories(_noting):
            return _Shallow().trace(module, concrete_args=constant)
    except Exception:  # whatever the user's forward pass raises on stand-ins for tensors
        return None
    finally:
        before.take_back()
        tensors.take_back()


@final
class _Tensors:
    """The buffers of a module, and what else it keeps of tensors, before a look at its forward
    pass: that writes to them, or puts a stand-in in their place."""

    def __init__(self, module: nn.Module) -> None:
        parts = [*module.modules()]
        self._buffers = [(names := tables(part)[2], {**names}) for part in parts]
        kept = (x for part in parts for x in (*tables(part)[2].values(), *vars(part).values()))
        plain = {id(x): x for x in kept if type(x) is torch.Tensor and not x.is_inference()}
        self._values = [(x, version_of(x), x.detach().clone()) for x in plain.values()]

    def take_back(self) -> None:
        for names, values in self._buffers:
            names.clear()
            names.update(values)
        with torch.no_grad():
            for x, version, value in self._values:
                if version_of(x) != version:
                    x.copy_(value)


@final
class _Shallow(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is not nn.Sequential


def _is_linear(node: fx.Node, named: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and type(named[str(node.target)]) is nn.Linear


@final
class _Walk:
    """Walks from a layer back to the layers that its input comes from."""

    def __init__(self, named: dict[str, nn.Module], taken: set[str]) -> None:
        self._named = named
        self._taken = taken
        self._firsts: dict[fx.Node, None] = {}
        self._between: set[fx.Node] = set()
        self._others: set[fx.Node] = set()
        self._local = True

    def back_from(self, last: fx.Node) -> LayerBlock | None:
        if not all(self._reach(node) for node in last.all_input_nodes):
            return None
        names = tuple(str(node.target) for node in self._firsts)
        if not names or str(last.target) in names or not self._kept_inside(last):
            return None
        if self._others:
            self._local = False
        return LayerBlock(names, str(last.target), self._heads(), self._local)

    def _reach(self, node: fx.Node) -> bool:
        """Follow a node back; whether only what is known lies on the way."""
        if node in self._firsts or node in self._between or node in self._others:
            return True
        if _is_linear(node, self._named):
            self._firsts[node] = None
            return node.target not in self._taken
        if not self._follows(node):
            return self._stands_apart(node)
        self._between.add(node)
        return all(self._reach(source) for source in _tensors_into(node))

    def _follows(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            layer = self._named[str(node.target)]
            if isinstance(layer, nn.Dropout):
                self._local = False
            return isinstance(layer, (*_ELEMENTWISE_LAYERS, nn.Dropout))
        if node.op not in ("call_function", "call_method"):
            return False
        if node.target in _ACROSS:
            self._local = False
        return node.target in _ELEMENTWISE or node.target in _ACROSS

    def _stands_apart(self, node: fx.Node) -> bool:
        """Tell whether a node comes in beside, as a mask or a scale, and of no layer."""
        self._others.add(node)
        return node.op in ("get_attr", "placeholder") or (
            node.op != "call_module" and not _comes_of_layers(node)
        )

    def _kept_inside(self, last: fx.Node) -> bool:
        """Tell whether nothing else reads what the pieces become before they are whole again."""
        inside = {*self._between, last}
        return all(
            user in inside or is_number(user)
            for node in (*self._firsts, *self._between)
            for user in node.users
        )

    def _heads(self) -> int | None:
        for node in self._between:
            if node.target in _SPLITS and node.args and node.args[0] in self._firsts:
                first = node.args[0]
                assert isinstance(first, fx.Node)
                layer: Any = self._named[str(first.target)]
                return _leading(node, layer.out_features)
        return None


def _tensors_into(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose elements flow on; sizes do not."""
    if node.target in _SPLITS or node.target in ("transpose", "permute", "to", "flatten"):
        first = node.args[0]
        return [first] if isinstance(first, fx.Node) else []
    return [source for source in node.all_input_nodes if not is_number(source)]


def _comes_of_layers(node: fx.Node) -> bool:
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in seen or is_number(current):
            continue
        if current.op == "call_module":
            return True
        seen.add(current)
        waiting += current.all_input_nodes
    return False


def _leading(node: fx.Node, features: int) -> int | None:
    """Return the first of the sizes that a view splits `features` into; None where it cannot be
    told."""
    sizes: list[Any] = []
    for arg in node.args[1:]:
        sizes += arg if isinstance(arg, (tuple, list)) else [arg]
    known = _trailing(sizes)
    if known and known.count(-1) == 1:
        product = -prod(known)
        known = [features // product if size == -1 else size for size in known]
    elif not known:  # the last size depends on the input's shape, and stands for the rest
        return next(iter(reversed(_trailing(sizes[:-1]))), None)
    left = features
    for size in known:
        left, rest = divmod(left, size)
        if rest:
            return None
        if left == 1:
            return size
    return None


def _trailing(sizes: list[Any]) -> list[int]:
    """Return the numbers at the end, from the end on, up to the first that stands for what is
    left."""
    known: list[int] = []
    for size in reversed(sizes):
        if not isinstance(size, int) or (size == -1 and known):
            break
        known.append(size)
    return known
