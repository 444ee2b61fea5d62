"""A traced forward as segments, each on one device and its thread, forwards and backwards.

Torch differentiates on the CPU in the one thread that calls backward. Here each segment has a
graph of its own: a backward pass through the model calls theirs, on their devices' threads.

Ranks that do so have their segments run one after the other, as one device would: what layers draw,
and what BatchNorms of the ranks tell each other, has one order then.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import fx, nn

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.parallel.replicas.primitives import results, submit
from dream.adapters.pytorch.parallel.sharding.graph import is_number, is_record, sources, writes
from dream.adapters.pytorch.private import tree_leaves, tree_map


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
        """Compute what it gives, in order. values: of what it takes."""
        found = dict(values)
        for node in self.nodes:
            _value(model, node, found, device)
        return [found[node] for node in self.gives]


@final
class SegmentGraph:
    """A graph on devices. places: the device of each layer, by name."""

    def __init__(self, model: nn.Module, graph: fx.Graph, places: Mapping[str, int]) -> None:
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        (self._output,) = graph.find_nodes(op="output")
        self.segments: list[Segment] = []
        self._device: dict[fx.Node, int] = dict.fromkeys(self.inputs, 0)
        whose: dict[fx.Node, Segment] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            if is_number(node) or is_record(node):
                continue
            self._device[node] = self._place(node, places)
            whose[node] = self._segment_for(node, whose)
            whose[node].nodes.append(node)
        for segment in self.segments:
            segment.takes = [n for n in _inputs_of(segment.nodes) if whose.get(n) is not segment]
            users = [node for node in segment.nodes if writes(model, node)]
            segment.written = {*_inputs_of(users)} & {*segment.takes}
        self.gives = [node for node in _inputs_of([self._output]) if node in whose]
        needed = {node for segment in self.segments for node in segment.takes} | {*self.gives}
        for segment in self.segments:
            segment.gives = [node for node in segment.nodes if node in needed]

    def output(self, model: nn.Module, values: Mapping[fx.Node, Any], device: torch.device) -> Any:
        """Return the model's output. values: of `gives`, and of the inputs and parameters
        that it passes on."""
        found = dict(values)
        return fx.map_arg(self._output.args[0], lambda node: _value(model, node, found, device))

    def _place(self, node: fx.Node, places: Mapping[str, int]) -> int:
        """Return a layer's device; what lies between layers runs where its first input is."""
        if node.op == "call_module" and node.target in places:
            return places[str(node.target)]
        return next((self._device[source] for source in sources(node)), 0)

    def _segment_for(self, node: fx.Node, whose: Mapping[fx.Node, Segment]) -> Segment:
        """Return the newest segment where it is on the node's device and waits for all that the
        node waits for; else a new one, so that nothing waits in vain."""
        device = self._device[node]
        last = self.segments[-1] if self.segments else None
        foreign = [source for source in sources(node) if whose.get(source, last) is not last]
        if last is None or last.device != device or not {*foreign} <= {*_inputs_of(last.nodes)}:
            last = Segment(device)
            self.segments.append(last)
        return last


def _inputs_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """List the tensors that nodes are computed from, each once, in order."""
    found = dict.fromkeys(source for node in nodes for source in sources(node))
    return [*found]


def _value(model: nn.Module, node: fx.Node, found: dict[fx.Node, Any], device: torch.device) -> Any:
    """Compute a node's value, and those of the numbers and parameters it needs."""
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


@dataclass(frozen=True, slots=True)
class DeviceThread:
    """A device and the thread that its work is queued on."""

    thread: str
    device: torch.device


@dataclass(slots=True)
class _ForwardState:
    """A segment that ran forward. leaves: what it took, cut off from where it came from; for each
    node, its tensors. outputs: what it gave, with its graph."""

    leaves: dict[fx.Node, list[torch.Tensor]] = field(default_factory=dict)
    outputs: dict[fx.Node, Any] = field(default_factory=dict)


@final
class SegmentRun:
    """One pass of a model through its segments. in_order: one after the other."""

    def __init__(
        self,
        model: nn.Module,
        graph: SegmentGraph,
        devices: Sequence[DeviceThread],
        *,
        in_order: bool,
    ) -> None:
        self._model, self._graph, self._devices = model, graph, devices
        self._in_order = in_order
        self._spent = False
        self._ran = [_ForwardState() for _ in graph.segments]
        self._whose = {
            node: ran
            for segment, ran in zip(graph.segments, self._ran, strict=True)
            for node in segment.gives
        }

    def forward(self, inputs: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
        """Return the values of the graph's inputs, and of what its segments gave."""
        ends: dict[fx.Node, Future[None]] = {}
        futures: list[Future[None]] = []
        for segment, ran in zip(self._graph.segments, self._ran, strict=True):
            waits = [ends[node] for node in segment.takes if node in ends]
            waits += futures[-1:] if self._in_order else []
            at = self._devices[segment.device]
            future = submit(
                at.thread, at.device, self._run_forward, segment, ran, inputs, at.device, waits
            )
            futures.append(future)
            ends |= dict.fromkeys(segment.gives, future)
        results(futures)
        return {**inputs, **{node: self._whose[node].outputs[node] for node in self._whose}}

    def backward(
        self, given: Mapping[fx.Node, list[torch.Tensor | None]]
    ) -> dict[fx.Node, list[torch.Tensor | None]]:
        """Return the gradients of the graph's inputs. given: those of its outputs. Parameters
        gather theirs as always."""
        if self._spent:
            raise ConfigurationError(
                "Layers on devices of their own are differentiated once for each call. Received: "
                "a second backward of one forward pass. Add the losses up and call backward once."
            )
        self._spent = True
        ends: list[tuple[Segment, _ForwardState, Future[None]]] = []
        for segment, ran in reversed([*zip(self._graph.segments, self._ran, strict=True)]):
            later = [end for end in ends if {*end[0].takes} & {*segment.gives}]
            at = self._devices[segment.device]
            waits = [end[2] for end in (ends[-1:] if self._in_order else later)]
            future = submit(
                at.thread, at.device, self._run_backward, segment, ran, given, later, waits
            )
            ends.append((segment, ran, future))
        results([future for *_, future in ends])
        return {node: self._gradients_of(node, {}, ends) for node in self._graph.inputs}

    def _run_forward(
        self,
        segment: Segment,
        ran: _ForwardState,
        inputs: Mapping[fx.Node, Any],
        device: torch.device,
        waits: list[Future[None]],
    ) -> None:
        for future in waits:
            future.result()
        values = {}
        for node in segment.takes:
            whole = inputs[node] if node in inputs else self._whose[node].outputs[node]
            taken = tree_map(lambda x: _leaf(x, device), whole)
            ran.leaves[node] = _tensors(taken)
            values[node] = tree_map(_cloned, taken) if node in segment.written else taken
        given = segment.run(self._model, values, device)
        ran.outputs = dict(zip(segment.gives, given, strict=True))

    def _run_backward(
        self,
        segment: Segment,
        ran: _ForwardState,
        given: Mapping[fx.Node, list[torch.Tensor | None]],
        later: list[tuple[Segment, _ForwardState, Future[None]]],
        waits: list[Future[None]],
    ) -> None:
        for future in waits:
            future.result()
        pairs = [
            (x, gradient.to(x.device))
            for node in segment.gives
            for x, gradient in zip(
                _tensors(ran.outputs[node]), self._gradients_of(node, given, later), strict=True
            )
            if gradient is not None and x.requires_grad
        ]
        ran.outputs = {}
        if pairs:
            outputs, gradients = zip(*pairs, strict=True)
            run = inspect.unwrap(
                torch.autograd.backward
            )  # a part of a pass, and none of the loop's
            with torch.enable_grad():
                run(outputs, gradients)

    def _gradients_of(
        self,
        node: fx.Node,
        given: Mapping[fx.Node, list[torch.Tensor | None]],
        later: list[tuple[Segment, _ForwardState, Future[None]]],
    ) -> list[torch.Tensor | None]:
        """Add up the gradients of a node's tensors: what was given, and those of all that took
        it, in the order of the segments."""
        found = [given[node]] if node in given else []
        for _, ran, _ in reversed(later):
            if node in ran.leaves:
                found.append([x.grad for x in ran.leaves[node]])
        return [_sum(gradients) for gradients in zip(*found, strict=True)]


def _leaf(x: Any, device: torch.device) -> Any:
    """Return a tensor on its device, whose gradient stays with it."""
    if not isinstance(x, torch.Tensor):
        return x
    here = x.detach().to(device)
    if torch.is_grad_enabled() and x.requires_grad:
        here.requires_grad_()
    return here


def _cloned(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _sum(gradients: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    total: torch.Tensor | None = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient if total is None else total + gradient.to(total.device)
    return total


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in what a node gives, which passes from device to device by them."""
    leaves = tree_leaves(value)
    for each in leaves:
        held = getattr(each, "__dict__", {}).values()
        if not isinstance(each, torch.Tensor) and any(isinstance(x, torch.Tensor) for x in held):
            raise Unsupported(
                "Layers on devices of their own take tensors from each other, and lists and dicts "
                f"of such. Received: a layer that gives a {type(each).__name__}. Have it return "
                "its tensors, or use 'data_parallel' or 'mirrored'."
            )
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def run_segments(
    model: nn.Module,
    graph: SegmentGraph,
    inputs: Mapping[fx.Node, Any],
    devices: Sequence[DeviceThread],
    *,
    in_order: bool = False,
) -> Any:
    """Return the model's output, which gradients flow back from as from any."""
    run = SegmentRun(model, graph, devices, in_order=in_order)
    first = devices[0].device
    if not torch.is_grad_enabled():
        return graph.output(model, run.forward(inputs), first)
    values: dict[fx.Node, Any] = dict(inputs)
    given = [x for node in graph.inputs for x in _tensors(inputs[node])]
    trigger = torch.zeros((), requires_grad=True)
    apply: Any = _SegmentsFunction.apply
    outputs = iter(apply(run, inputs, graph.gives, values, trigger, *given))

    def taken(x: Any) -> Any:
        return next(outputs) if isinstance(x, torch.Tensor) else x

    through = {node: tree_map(taken, values[node]) for node in graph.gives}
    return graph.output(model, {**values, **through}, first)


class _SegmentsFunction(torch.autograd.Function):
    """All segments as one step of torch's own graph."""

    @staticmethod
    def forward(
        ctx: Any,
        run: SegmentRun,
        inputs: Mapping[fx.Node, Any],
        gives: Sequence[fx.Node],
        values: dict[fx.Node, Any],
        trigger: torch.Tensor,
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """values: filled with those of all nodes. trigger, given: what gradients are asked for."""
        del trigger, given
        ctx.run, ctx.nodes, ctx.inputs = run, gives, inputs
        with torch.enable_grad():
            values |= run.forward(inputs)
        ctx.counts = [len(_tensors(values[node])) for node in gives]
        outputs = [x for node in gives for x in _tensors(values[node])]
        ctx.set_materialize_grads(False)
        detached = tuple(x.detach() for x in outputs)
        ctx.mark_non_differentiable(
            *(new for new, x in zip(detached, outputs, strict=True) if not x.requires_grad)
        )
        return detached

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise Unsupported(
                "A gradient of a gradient cannot be taken through layers on devices of their own. "
                "Received: a backward pass with create_graph=True. Use 'data_parallel' or "
                "'mirrored'."
            )
        left = iter(gradients)
        given = {
            node: [next(left) for _ in range(count)]
            for node, count in zip(ctx.nodes, ctx.counts, strict=True)
        }
        found = ctx.run.backward(given)
        flat = [
            gradient
            for node, value in ctx.inputs.items()
            for gradient in (found.get(node) or [None] * len(_tensors(value)))
        ]
        return None, None, None, None, None, *flat
