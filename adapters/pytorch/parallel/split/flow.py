"""A traced forward as segments, each on one device, that wait for one another's results only."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import fx, nn

from dream.adapters.pytorch.parallel.split.cutting import is_number, sources, writes


@dataclass(slots=True)
class Segment:
    """Nodes of a graph that run on one device in order.

    takes: nodes of other segments, and inputs, that it is computed from. gives: those of its own
    that others need. written: what its nodes may write into.
    """

    device: int
    nodes: list[fx.Node] = field(default_factory=list)
    takes: list[fx.Node] = field(default_factory=list)
    gives: list[fx.Node] = field(default_factory=list)
    written: set[fx.Node] = field(default_factory=set)

    def run(
        self, model: nn.Module, values: Mapping[fx.Node, Any], device: torch.device
    ) -> list[Any]:
        """What it gives, in order. values: of what it takes."""
        found = dict(values)
        for node in self.nodes:
            _value(model, node, found, device)
        return [found[node] for node in self.gives]


@final
class Flow:
    """A graph on devices. places: the device of each layer, by name."""

    def __init__(self, model: nn.Module, graph: fx.Graph, places: Mapping[str, int]) -> None:
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        (self._output,) = graph.find_nodes(op="output")
        self.segments: list[Segment] = []
        self._device: dict[fx.Node, int] = dict.fromkeys(self.inputs, 0)
        whose: dict[fx.Node, Segment] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr", "output") or is_number(node):
                continue
            self._device[node] = self._place(node, places)
            whose[node] = self._segment_for(node, whose)
            whose[node].nodes.append(node)
        for segment in self.segments:
            segment.takes = [n for n in _taken(segment.nodes) if whose.get(n) is not segment]
            users = [node for node in segment.nodes if writes(model, node)]
            segment.written = {*_taken(users)} & {*segment.takes}
        self.gives = [node for node in _taken([self._output]) if node in whose]
        self.passed = [node for node in _taken([self._output]) if node not in whose]
        needed = {node for segment in self.segments for node in segment.takes} | {*self.gives}
        for segment in self.segments:
            segment.gives = [node for node in segment.nodes if node in needed]

    def output(self, model: nn.Module, values: Mapping[fx.Node, Any], device: torch.device) -> Any:
        """The model's output. values: of `gives` and of `passed`."""
        found = dict(values)
        return fx.map_arg(self._output.args[0], lambda node: _value(model, node, found, device))

    def _place(self, node: fx.Node, places: Mapping[str, int]) -> int:
        """Layers have their place; what lies between them runs where its first input is."""
        if node.op == "call_module" and node.target in places:
            return places[str(node.target)]
        return next((self._device[source] for source in sources(node)), 0)

    def _segment_for(self, node: fx.Node, whose: Mapping[fx.Node, Segment]) -> Segment:
        """The newest segment where it is on the node's device and waits for all that the node
        waits for; else a new one, so that nothing waits in vain."""
        device = self._device[node]
        last = self.segments[-1] if self.segments else None
        foreign = [source for source in sources(node) if whose.get(source, last) is not last]
        if last is None or last.device != device or not {*foreign} <= {*_taken(last.nodes)}:
            last = Segment(device)
            self.segments.append(last)
        return last


def _taken(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The tensors that nodes are computed from, each once, in order."""
    found = dict.fromkeys(source for node in nodes for source in sources(node))
    return [*found]


def _value(model: nn.Module, node: fx.Node, found: dict[fx.Node, Any], device: torch.device) -> Any:
    """A node's value, and those of the numbers and parameters it needs."""
    if node not in found:
        inner = lambda source: _value(model, source, found, device)  # noqa: E731
        args, kwargs = fx.map_arg(node.args, inner), fx.map_arg(node.kwargs, inner)
        found[node] = _computed(model, node, args, kwargs)
        if node.op == "get_attr" and isinstance(found[node], torch.Tensor):
            found[node] = found[node].to(device)
    return found[node]


def _computed(model: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_module":
        return model.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(model)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)
