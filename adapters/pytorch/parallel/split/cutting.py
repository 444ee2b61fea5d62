"""A traced forward cut into stages: which stage computes what, and what passes from one to the
next."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from torch import fx, nn

_NUMBERS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.getitem, len)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in a forward, with the lines that follow it up to the next one.

    index: of its first call among the graph's nodes. state: names of the parameters and buffers
    that are read from here on until the next layer.
    """

    name: str
    index: int
    state: frozenset[str]


@final
class Outline:
    """A traced forward as a row of layers."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        self._model = model
        self.nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr")]
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.layers = [*_layers(model, self.nodes)]

    @cached_property
    def tied(self) -> dict[str, tuple[int, int]]:
        """Parameters and layers that several layers of the row share: name -> first and last."""
        found: dict[str, tuple[int, int]] = {}
        for position, layer in enumerate(self.layers):
            for name in layer.state:
                found[name] = found.get(name, (position, position))[0], position
        return {name: ends for name, ends in found.items() if ends[0] != ends[1]}

    @property
    def cuts(self) -> list[int]:
        """The positions in the row at which a stage may begin."""
        forbidden = {at for first, last in self.tied.values() for at in range(first + 1, last + 1)}
        return [at for at in range(1, len(self.layers)) if at not in forbidden]

    def stage_graphs(self, starts: Sequence[int]) -> list[StageGraph]:
        """The graphs of the stages. starts: the layers that the later stages begin with, as
        positions in the row."""
        begins = [self.layers[at].index for at in starts]
        stages: list[list[fx.Node]] = [[] for _ in range(len(starts) + 1)]
        for index, node in enumerate(self.nodes):
            stages[sum(begin <= index for begin in begins)].append(node)
        return [self._stage_graph(stages, index) for index in range(len(stages))]

    def _stage_graph(self, stages: list[list[fx.Node]], index: int) -> StageGraph:
        live = [self._live(stages, index + side) for side in (0, 1)]
        return StageGraph(self._model, self.placeholders, live[0], stages[index], live[1])

    def _live(self, stages: list[list[fx.Node]], index: int) -> list[fx.Node]:
        """What passes from the stages before `index` to those from it on, in order."""
        needed = {
            source
            for stage in stages[index:]
            for node in stage
            for source in sources(node)
            if source.op != "placeholder"
        }
        before = (node for stage in stages[:index] for node in stage)
        return [node for node in before if node in needed]


def sources(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that a node is computed from: not numbers, which are computed again wherever
    they are needed, nor parameters."""
    for source in node.all_input_nodes:
        if is_number(source):
            yield from sources(source)
        elif source.op != "get_attr":
            yield source


def is_number(node: fx.Node) -> bool:
    """Whether a node is a size, or arithmetic on sizes."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim", "device", "dtype")
    inputs = node.all_input_nodes
    return node.target in _NUMBERS and bool(inputs) and all(map(is_number, inputs))


def _layers(model: nn.Module, nodes: list[fx.Node]) -> Iterator[Layer]:
    """What comes before the first layer is counted to it."""
    begun: list[tuple[str, int, set[str]]] = []
    called: set[str] = set()
    early: set[str] = set()
    for index, node in enumerate(nodes):
        if node.op == "call_module" and node.target not in called:
            called.add(str(node.target))
            begun.append((str(node.target), index if begun else 0, set() if begun else early))
        (begun[-1][2] if begun else early).update(_read(model, node))
    for name, index, state in begun:
        yield Layer(name, index, frozenset(state))


def _read(model: nn.Module, node: fx.Node) -> Iterator[str]:
    """The names of a node's layer or of what it reads, one name for what is one object."""
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        yield str(node.target)
        names = {id(value): name for name, value in model.named_parameters()}
        for parameter in layer.parameters():
            yield names[id(parameter)]
    for source in node.all_input_nodes:
        if source.op == "get_attr" and isinstance(_attribute(model, source), nn.Parameter):
            names = {id(value): name for name, value in model.named_parameters()}
            yield names[id(_attribute(model, source))]
        elif is_number(source):
            yield from _read(model, source)


def _attribute(model: nn.Module, node: fx.Node) -> object:
    return operator.attrgetter(str(node.target))(model)


@final
class StageGraph:
    """One stage: a graph from the model's inputs and what came from the stage before, to what the
    next one needs; of the last stage, to the model's output."""

    def __init__(
        self,
        model: nn.Module,
        placeholders: Sequence[fx.Node],
        received: list[fx.Node],
        nodes: list[fx.Node],
        sent: list[fx.Node],
    ) -> None:
        self._model, self._graph = model, fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        for node in (*placeholders, *received):
            self._copies[node] = self._graph.placeholder(node.name)
        for node in received:
            if any(writes(model, user) for user in node.users if user in nodes):
                self._copies[node] = self._graph.call_method("clone", (self._copies[node],))
        for node in nodes:
            if not is_number(node):
                self._copy(node)
        if not nodes or nodes[-1].op != "output":
            passed = [self._graph.call_method("contiguous", (self._copies[n],)) for n in sent]
            self._graph.output(tuple(passed))

    def module(self) -> fx.GraphModule:
        """The stage, holding the model's own layers: the graph's call of one is a call of it."""
        return fx.GraphModule(self._model, self._graph)

    def _copy(self, node: fx.Node) -> fx.Node:
        if node not in self._copies:
            for source in node.all_input_nodes:
                if is_number(source) or source.op == "get_attr":
                    self._copy(source)
            self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
        return self._copies[node]


def writes(model: nn.Module, node: fx.Node) -> bool:
    """Whether a node may write into its input, which what is received must not bear."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(name).endswith("_") or node.kwargs.get("inplace") is True
