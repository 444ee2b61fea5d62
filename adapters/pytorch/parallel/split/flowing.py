"""Segments run on their devices' threads, forwards and backwards, each as soon as it can.

Torch differentiates on the CPU in the one thread that calls backward. Here each segment has a
graph of its own: a backward pass through the model calls theirs, on their devices' threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import fx, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError
from dream.adapters.pytorch.parallel.replicas.primitives import results, submit
from dream.adapters.pytorch.parallel.split.flow import Flow, Segment


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the thread that its work is queued on."""

    thread: str
    device: torch.device


@dataclass(slots=True)
class _Ran:
    """A segment that ran forward. leaves: what it took, cut off from where it came from; for each
    node, its tensors. outputs: what it gave, with its graph."""

    leaves: dict[fx.Node, list[torch.Tensor]] = field(default_factory=dict)
    outputs: dict[fx.Node, Any] = field(default_factory=dict)


@final
class Run:
    """One pass of a model through a flow."""

    def __init__(self, model: nn.Module, flow: Flow, devices: Sequence[Device]) -> None:
        self._model, self._flow, self._devices = model, flow, devices
        self._spent = False
        self._ran = [_Ran() for _ in flow.segments]
        self._whose = {
            node: ran
            for segment, ran in zip(flow.segments, self._ran, strict=True)
            for node in segment.gives
        }

    def forward(self, inputs: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
        """The values of the flow's inputs, and of what its segments gave."""
        ends: dict[fx.Node, Future[None]] = {}
        futures = []
        for segment, ran in zip(self._flow.segments, self._ran, strict=True):
            waits = [ends[node] for node in segment.takes if node in ends]
            at = self._devices[segment.device]
            future = submit(at.thread, at.device, self._run, segment, ran, inputs, at.device, waits)
            futures.append(future)
            ends |= dict.fromkeys(segment.gives, future)
        results(futures)
        return {**inputs, **{node: self._whose[node].outputs[node] for node in self._whose}}

    def backward(
        self, given: Mapping[fx.Node, list[torch.Tensor | None]]
    ) -> dict[fx.Node, list[torch.Tensor | None]]:
        """The gradients of the flow's inputs. given: those of the flow's outputs. Parameters
        gather theirs as always."""
        if self._spent:
            raise ConfigurationError(
                "Layers on devices of their own are differentiated once for each call. Received: "
                "a second backward of one forward pass. Add the losses up and call backward once."
            )
        self._spent = True
        ends: list[tuple[Segment, _Ran, Future[None]]] = []
        for segment, ran in reversed([*zip(self._flow.segments, self._ran, strict=True)]):
            later = [end for end in ends if {*end[0].takes} & {*segment.gives}]
            at = self._devices[segment.device]
            future = submit(at.thread, at.device, self._back, segment, ran, given, later)
            ends.append((segment, ran, future))
        results([future for *_, future in ends])
        return {node: self._gathered(node, {}, ends) for node in self._flow.inputs}

    def _run(
        self,
        segment: Segment,
        ran: _Ran,
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

    def _back(
        self,
        segment: Segment,
        ran: _Ran,
        given: Mapping[fx.Node, list[torch.Tensor | None]],
        later: list[tuple[Segment, _Ran, Future[None]]],
    ) -> None:
        for *_, future in later:
            future.result()
        pairs = [
            (x, gradient.to(x.device))
            for node in segment.gives
            for x, gradient in zip(
                _tensors(ran.outputs[node]), self._gathered(node, given, later), strict=True
            )
            if gradient is not None and x.requires_grad
        ]
        ran.outputs = {}
        if pairs:
            outputs, gradients = zip(*pairs, strict=True)
            with torch.enable_grad():
                torch.autograd.backward(outputs, gradients)

    def _gathered(
        self,
        node: fx.Node,
        given: Mapping[fx.Node, list[torch.Tensor | None]],
        later: list[tuple[Segment, _Ran, Future[None]]],
    ) -> list[torch.Tensor | None]:
        """The gradients of a node's tensors: what was given, and those of all that took it, added
        up in the order of the segments."""
        found = [given[node]] if node in given else []
        for _, ran, _ in reversed(later):
            if node in ran.leaves:
                found.append([x.grad for x in ran.leaves[node]])
        return [_sum(gradients) for gradients in zip(*found, strict=True)]


def _leaf(x: Any, device: torch.device) -> Any:
    """A tensor on its device, whose gradient stays with it."""
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
    return [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]


def flow_through(
    model: nn.Module, flow: Flow, inputs: Mapping[fx.Node, Any], devices: Sequence[Device]
) -> Any:
    """The model's output, which gradients flow back from as from any."""
    run = Run(model, flow, devices)
    first = devices[0].device
    if not torch.is_grad_enabled():
        return flow.output(model, run.forward(inputs), first)
    values: dict[fx.Node, Any] = dict(inputs)
    given = [x for node in flow.inputs for x in _tensors(inputs[node])]
    trigger = torch.zeros((), requires_grad=True)
    through_all: Any = _Through.apply
    outputs = iter(through_all(run, inputs, flow.gives, values, trigger, *given))

    def taken(x: Any) -> Any:
        return next(outputs) if isinstance(x, torch.Tensor) else x

    through = {node: tree_map(taken, values[node]) for node in flow.gives}
    return flow.output(model, {**values, **through}, first)


class _Through(torch.autograd.Function):
    """All segments as one step of torch's own graph."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run,
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
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
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
