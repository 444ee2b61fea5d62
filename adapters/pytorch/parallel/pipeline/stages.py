"""Where a model is cut into stages, by what layers cost, and what a rank keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final
from weakref import WeakSet, ref

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import LBFGS, Optimizer

from dream._errors import ConfigurationError, Unsupported, unknown
from dream.adapters.pytorch import tensors
from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.parallel.inner_calls import running_layers, without_side_effects
from dream.adapters.pytorch.parallel.sharding.graph import (
    LayerSequence,
    call_of,
    likely_call,
    parents_of,
    trace,
)
from dream.adapters.pytorch.parallel.sharding.state import (
    StageOptimizerState,
    guard_state_dict,
    guard_tensor,
)
from dream.adapters.pytorch.private import own_parameters
from dream.collectives import Communicator
from dream.pipeline.division import balanced, check_starts

Costs = Callable[[LayerSequence, frozenset[str]], list[float]]
"""What each layer of a row costs."""


@dataclass(frozen=True, slots=True)
class StageCuts:
    """Where the later stages of a model begin.

    starts: names of their first layers. opened: the modules that are looked into for them.
    """

    starts: tuple[str, ...]
    opened: frozenset[str]

    def positions(self, sequence: LayerSequence) -> list[int]:
        """Find the starts in a row of layers. Raise where it cannot be cut there."""
        found = [_position(sequence, name) for name in self.starts]
        check_starts(found, self.starts, [layer.name for layer in sequence.layers])
        for position in found:
            if position not in sequence.cuts:
                raise _shared(sequence, position)
        return found


def named_stages(model: nn.Module, names: Sequence[str]) -> StageCuts:
    """Cut stages that begin with the layers of these names."""
    known = dict(model.named_modules())
    for name in names:
        if name not in known or not name:
            raise unknown(f"layer of {type(model).__name__} in stages=", name, filter(None, known))
    stages = StageCuts(tuple(names), parents_of(names))
    stages.positions(_sequence(model, stages.opened))
    return stages


def balanced_stages(model: nn.Module, count: int, costs: Costs) -> StageCuts:
    """Cut as many stages as asked for, of costs as even as can be."""
    sequence, opened = _opened(model, count)
    if len(sequence.cuts) < count - 1:
        raise _too_few(model, sequence, count)
    return _even(sequence, opened, count, costs)


def most_stages(model: nn.Module, count: int, costs: Costs) -> StageCuts:
    """Cut as many stages as asked for, or as there can be where those are fewer."""
    sequence, opened = _opened(model, count)
    count = min(count, len(sequence.cuts) + 1)
    return _even(sequence, opened, count, costs) if count > 1 else StageCuts((), frozenset())


def _opened(model: nn.Module, count: int) -> tuple[LayerSequence, frozenset[str]]:
    """Open the largest first, until there are stages enough or nothing more to open."""
    opened: frozenset[str] = frozenset()
    sequence = _sequence(model, opened)
    while len(sequence.cuts) < count - 1:
        inner = _largest(model, sequence, opened)
        if inner is None:
            break
        opened |= {inner}
        sequence = _sequence(model, opened)
    return sequence, opened


def _even(sequence: LayerSequence, opened: frozenset[str], count: int, costs: Costs) -> StageCuts:
    starts = balanced(costs(sequence, opened), count, sequence.cuts)
    assert starts is not None
    return StageCuts(tuple(sequence.layers[at].name for at in starts), opened)


def parameter_costs(model: nn.Module) -> Costs:
    """Count what layers hold."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return lambda sequence, _: [
        float(sum(sizes.get(name, 0) for name in layer.state)) for layer in sequence.layers
    ]


def _sequence(model: nn.Module, opened: frozenset[str]) -> LayerSequence:
    return LayerSequence(model, trace(model, likely_call(model), opened))


def _position(sequence: LayerSequence, name: str) -> int:
    for position, layer in enumerate(sequence.layers):
        if layer.name == name or layer.name.startswith(f"{name}."):
            return position
    row = [layer.name for layer in sequence.layers]
    raise unknown("layer in a forward pass, for stages=,", name, row)


def _largest(model: nn.Module, sequence: LayerSequence, opened: frozenset[str]) -> str | None:
    """Find the largest layer that has layers inside and whose forward can be followed."""

    def size(name: str) -> int:
        return sum(parameter.numel() for parameter in model.get_submodule(name).parameters())

    inner = {layer.name for layer in sequence.layers if layer.name not in opened}
    for name in sorted(inner, key=size, reverse=True):
        if any(model.get_submodule(name).children()):
            try:
                if len(_sequence(model, opened | {name}).cuts) > len(sequence.cuts):
                    return name
            except Unsupported:
                continue
    return None


def _too_few(model: nn.Module, sequence: LayerSequence, count: int) -> Unsupported:
    shared = "; ".join(
        f"{name} is used from {sequence.layers[first].name} to {sequence.layers[last].name}"
        for name, (first, last) in sequence.tied.items()
    )
    return Unsupported(
        f"{type(model).__name__} cannot be cut into {count} stages. Received: the layers "
        f"{', '.join(layer.name for layer in sequence.layers)}"
        + (f"; {shared}, and what is shared stays on one stage" if shared else "")
        + ". Use fewer stages, or mirrored or sharded."
    )


def _shared(sequence: LayerSequence, position: int) -> Unsupported:
    name, (first, last) = next(
        (name, ends) for name, ends in sequence.tied.items() if ends[0] < position <= ends[1]
    )
    return Unsupported(
        f"What two layers share must stay on one stage. Received: {name}, used in "
        f"{sequence.layers[first].name} and {sequence.layers[last].name}, with a stage that begins "
        f"at {sequence.layers[position].name} between them. Cut elsewhere, untie it, or use "
        "sharded."
    )


_TURNS = 5


def time_costs(model: nn.Module, inputs: tuple[Any, ...], ranks: Communicator) -> Costs:
    """Measure the seconds that a forward and a backward pass take on rank 0.

    inputs: the model's, of a microbatch.
    """

    def costs(_: LayerSequence, opened: frozenset[str]) -> list[float]:
        told: list[float] = []
        if ranks.rank == 0:
            told = _measure(model, inputs, opened)
        seconds: list[float] = ranks.broadcast_object(told)
        return seconds

    return costs


def _measure(model: nn.Module, inputs: tuple[Any, ...], opened: frozenset[str]) -> list[float]:
    call = call_of(model, inputs, {})
    sequence = LayerSequence(model, trace(model, call, opened))
    layers = [graph.module() for graph in sequence.stage_graphs(range(1, len(sequence.layers)))]
    for layer in layers:
        set_hook(layer, None)
    given = list(call.tensors.values())
    before = [p.grad for p in model.parameters()]
    with running_layers(), without_side_effects(model), torch.enable_grad():
        turns = [_turn(layers, given) for _ in range(_TURNS)]
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        parameter.grad = gradient
    return [min(seconds) for seconds in zip(*turns, strict=True)]


def _turn(layers: Sequence[nn.Module], inputs: Sequence[Any]) -> list[float]:
    """Time each layer, one after the other."""
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


@final
class StageParameters:
    """Which rank of a pipeline holds which tensor of a model's state.

    owners: name -> rank along the model axis; what no stage reads is the first one's.
    """

    def __init__(self, model: nn.Module, owners: Mapping[str, int], mine: int) -> None:
        self._model, self._mine = model, mine
        self.owners = {name: owners.get(name, 0) for name in model.state_dict()}
        self._taken = {id(p): ref(p) for p in model.parameters()}
        self._kept = {
            name for name, _ in model.named_parameters() if self.owners.get(name, 0) == mine
        }
        self._own = {id(p): p for name, p in model.named_parameters() if name in self._kept}
        self._filtered: WeakSet[Optimizer] = WeakSet()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return those this rank trains, in the model's order."""
        return [p for p in self._model.parameters() if id(p) in self._own]

    def drop_others(self) -> None:
        """Let go of the memory of what other ranks hold: their parameters and buffers remain by
        name and shape alone."""
        for module in self._model.modules():
            for name, parameter in own_parameters(module):
                if id(parameter) not in self._own:
                    hollow = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                    guard_tensor(hollow)
                    setattr(module, name, hollow)
        for path, buffer in [*self._model.named_buffers()]:
            if self.owners.get(path, self._mine) != self._mine:
                owner, _, name = path.rpartition(".")
                hollow_buffer = buffer.to("meta")
                guard_tensor(hollow_buffer)
                setattr(self._model.get_submodule(owner), name, hollow_buffer)
        guard_state_dict(self._model)

    def holds(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer's parameters are the model's, as they were or as they are."""
        known = {**self._taken, **{id(p): ref(p) for p in self._model.parameters()}}
        listed = (p for group in optimizer.param_groups for p in group["params"])
        return all((held := known.get(id(p))) is not None and held() is p for p in listed)

    @staticmethod
    def foreign(optimizer: Optimizer) -> ConfigurationError:
        return ConfigurationError(
            "A split model's optimizer steps that model alone. Received: an "
            f"{type(optimizer).__name__} with parameters of something else. Prepare the model "
            "first, and give each model its own optimizer."
        )

    def filter(self, optimizer: Optimizer) -> None:
        """Have an optimizer step this rank's parameters only, its groups kept."""
        if isinstance(optimizer, LBFGS):
            raise Unsupported(
                "A stage cannot search along a line by itself. Received: LBFGS. Use another "
                "optimizer, or mirrored."
            )
        if not self.holds(optimizer):
            raise self.foreign(optimizer)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) in self._own]
        for parameter in [p for p in optimizer.state if id(p) not in self._own]:
            del optimizer.state[parameter]
        if optimizer not in self._filtered:
            self._filtered.add(optimizer)
            optimizer.register_state_dict_post_hook(lambda _, state: StageOptimizerState(state))

    def whole(self, communicator: Communicator) -> dict[str, NDArray[Any]]:
        """Return every tensor of the model's state, from the ranks that hold them."""
        gathered: dict[str, NDArray[Any]] = {}
        for name, value in self._model.state_dict().items():
            given = torch.zeros(value.shape, dtype=value.dtype) if value.is_meta else value
            told = communicator.broadcast(given.detach().contiguous(), root=self.owners[name])
            gathered[name] = tensors.array_of(told)
        return gathered
