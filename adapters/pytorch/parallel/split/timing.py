"""What each layer costs in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn

from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.parallel.split.cutting import Outline
from dream.adapters.pytorch.parallel.split.inside import inside
from dream.adapters.pytorch.parallel.split.stages import Costs
from dream.adapters.pytorch.parallel.split.traceless import traceless
from dream.adapters.pytorch.parallel.split.tracing import call_of, trace
from dream.collectives import Communicator

_TURNS = 5


def measured_on(model: nn.Module, inputs: tuple[Any, ...], ranks: Communicator) -> Costs:
    """Layers cost the seconds that a forward and a backward pass take on rank 0.

    inputs: the model's, of a microbatch.
    """

    def costs(_: Outline, opened: frozenset[str]) -> list[float]:
        told: list[float] = []
        if ranks.rank == 0:
            told = _measure(model, inputs, opened)
        seconds: list[float] = ranks.broadcast_object(told)
        return seconds

    return costs


def _measure(model: nn.Module, inputs: tuple[Any, ...], opened: frozenset[str]) -> list[float]:
    call = call_of(model, inputs, {})
    outline = Outline(model, trace(model, call, opened))
    layers = [graph.module() for graph in outline.stage_graphs(range(1, len(outline.layers)))]
    for layer in layers:
        set_hook(layer, None)
    given = list(call.tensors.values())
    before = [p.grad for p in model.parameters()]
    with inside(), traceless(model), torch.enable_grad():
        turns = [_turn(layers, given) for _ in range(_TURNS)]
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        parameter.grad = gradient
    return [min(seconds) for seconds in zip(*turns, strict=True)]


def _turn(layers: Sequence[nn.Module], inputs: Sequence[Any]) -> list[float]:
    """Seconds of each layer, one after the other."""
    received: list[torch.Tensor] = []
    taken = []
    for index, layer in enumerate(layers):
        begin = perf_counter()
        output = layer(*inputs, *received)
        if index < len(layers) - 1:
            _backward([x for x in output if x.requires_grad])
            received = [x.detach().requires_grad_(x.requires_grad) for x in output]
        _finish(received)
        taken.append(perf_counter() - begin)
    return taken


def _backward(outputs: list[torch.Tensor]) -> None:
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])


def _finish(tensors: list[torch.Tensor]) -> None:
    wait: Callable[[], None] | None = torch.cuda.synchronize if torch.cuda.is_available() else None
    if wait is not None and any(x.is_cuda for x in tensors):
        wait()
