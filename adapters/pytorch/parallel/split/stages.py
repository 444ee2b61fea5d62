"""Where a model is cut into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from dream._errors import ConfigurationError, Unsupported, unknown
from dream._mesh import balanced
from dream.adapters.pytorch.parallel.split.cutting import Outline
from dream.adapters.pytorch.parallel.split.tracing import likely_call, trace

Costs = Callable[[Outline, frozenset[str]], list[float]]
"""What each layer of a row costs."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the later stages of a model begin.

    starts: names of their first layers. opened: the modules that are looked into for them.
    """

    starts: tuple[str, ...]
    opened: frozenset[str]

    def positions(self, outline: Outline) -> list[int]:
        """The starts as positions in a row of layers; raises where it cannot be cut there."""
        found = [_position(outline, name) for name in self.starts]
        if found != sorted(set(found)) or 0 in found:
            row = ", ".join(layer.name for layer in outline.layers)
            raise ConfigurationError(
                "Stages begin in the order in which a batch goes through the layers, and each has "
                f"one. Received: stages={[*self.starts]} for {row}. Name the first layer of the "
                "second stage, then of the third, and so on."
            )
        for position in found:
            if position not in outline.cuts:
                raise _shared(outline, position)
        return found


def named(model: nn.Module, names: Sequence[str]) -> Stages:
    """Stages that begin with the layers of these names."""
    known = dict(model.named_modules())
    for name in names:
        if name not in known or not name:
            raise unknown(f"layer of {type(model).__name__} in stages=", name, filter(None, known))
    opened = {
        ".".join(parts[:length])
        for parts in (name.split(".") for name in names)
        for length in range(1, len(parts))
    }
    stages = Stages(tuple(names), frozenset(opened))
    stages.positions(_outline(model, stages.opened))
    return stages


def evened(model: nn.Module, count: int, costs: Costs) -> Stages:
    """As many stages as asked for, of costs as even as can be."""
    outline, opened = _opened(model, count)
    if len(outline.cuts) < count - 1:
        raise _too_few(model, outline, count)
    return _even(outline, opened, count, costs)


def most(model: nn.Module, count: int, costs: Costs) -> Stages:
    """As many stages as asked for, or as there can be where those are fewer."""
    outline, opened = _opened(model, count)
    count = min(count, len(outline.cuts) + 1)
    return _even(outline, opened, count, costs) if count > 1 else Stages((), frozenset())


def _opened(model: nn.Module, count: int) -> tuple[Outline, frozenset[str]]:
    """Opened the largest first, until there are stages enough or nothing more to open."""
    opened: frozenset[str] = frozenset()
    outline = _outline(model, opened)
    while len(outline.cuts) < count - 1:
        inner = _largest(model, outline, opened)
        if inner is None:
            break
        opened |= {inner}
        outline = _outline(model, opened)
    return outline, opened


def _even(outline: Outline, opened: frozenset[str], count: int, costs: Costs) -> Stages:
    starts = balanced(costs(outline, opened), count, outline.cuts)
    assert starts is not None
    return Stages(tuple(outline.layers[at].name for at in starts), opened)


def parameters_of(model: nn.Module) -> Costs:
    """Layers cost what they hold."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return lambda outline, _: [
        float(sum(sizes.get(name, 0) for name in layer.state)) for layer in outline.layers
    ]


def _outline(model: nn.Module, opened: frozenset[str]) -> Outline:
    return Outline(model, trace(model, likely_call(model), opened))


def _position(outline: Outline, name: str) -> int:
    for position, layer in enumerate(outline.layers):
        if layer.name == name or layer.name.startswith(f"{name}."):
            return position
    row = [layer.name for layer in outline.layers]
    raise unknown("layer in a forward pass, for stages=,", name, row)


def _largest(model: nn.Module, outline: Outline, opened: frozenset[str]) -> str | None:
    """The largest layer that has layers inside and whose forward can be followed."""

    def size(name: str) -> int:
        return sum(parameter.numel() for parameter in model.get_submodule(name).parameters())

    inner = {layer.name for layer in outline.layers if layer.name not in opened}
    for name in sorted(inner, key=size, reverse=True):
        if any(model.get_submodule(name).children()):
            try:
                if len(_outline(model, opened | {name}).cuts) > len(outline.cuts):
                    return name
            except Unsupported:
                continue
    return None


def _too_few(model: nn.Module, outline: Outline, count: int) -> Unsupported:
    shared = "; ".join(
        f"{name} is used from {outline.layers[first].name} to {outline.layers[last].name}"
        for name, (first, last) in outline.tied.items()
    )
    return Unsupported(
        f"{type(model).__name__} cannot be cut into {count} stages. Received: the layers "
        f"{', '.join(layer.name for layer in outline.layers)}"
        + (f"; {shared}, and what is shared stays on one stage" if shared else "")
        + ". Use fewer stages, or mirrored or sharded."
    )


def _shared(outline: Outline, position: int) -> Unsupported:
    name, (first, last) = next(
        (name, ends) for name, ends in outline.tied.items() if ends[0] < position <= ends[1]
    )
    return Unsupported(
        f"What two layers share must stay on one stage. Received: {name}, used in "
        f"{outline.layers[first].name} and {outline.layers[last].name}, with a stage that begins "
        f"at {outline.layers[position].name} between them. Cut elsewhere, untie it, or use sharded."
    )
