"""The lines that have a training saved and gone on with, in the words of the script that lacks
them."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dream._strategy import current
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.randomness.held import script_frames
from dream.data import tracked

_BLOCK = "strategy"
_GIVEN = ("model", "optimizer", "scheduler", "data")
Names = dict[str, list[str]]


def load_lines() -> str:
    """Return them, with the names of the outermost function that names the most of what trains by
    now; "..." for what none names."""
    found = max(
        reversed([_names(frame) for frame in script_frames()]), key=_how_many, default=Names()
    )
    given = [f"{word}={_said(found.get(word, []))}" for word in _GIVEN if _asked(word, found)]
    block = next(iter(found.get(_BLOCK, [])), _BLOCK)
    return (
        f"    at = {block}.load({', '.join(given)})\n"
        "    for epoch in range(at.epoch if at else 0, ...):  # the loop over epochs"
    )


def _names(frame: FrameType) -> Names:
    """Return by word what a function names, each thing once."""
    here = {id(value): (name, value) for name, value in reversed([*_variables(frame)])}
    named = [*reversed(here.values())]
    optimizers = {name: x for name, x in named if isinstance(x, Optimizer)}
    trained = {id(p) for each in optimizers.values() for p in parameters_of(each)}
    stepped = {id(each) for each in optimizers.values()}
    read = {track for track, batches in tracked.read_so_far().items() if batches}
    models = {name: _weights(x) & trained for name, x in named if isinstance(x, nn.Module)}
    return {
        _BLOCK: [name for name, x in named if x is current()],
        "model": [*covering(models)],
        "optimizer": [*optimizers],
        "scheduler": [name for name, x in named if goes_beside(x, stepped)],
        "data": [name for name, x in named if tracked.found_in(x) in read],
    }


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Those of a function, and what an object of the script holds that it calls `self`."""
    yield from frame.f_locals.items()
    itself = getattr(frame.f_locals.get("self"), "__dict__", {})
    yield from ((f"self.{name}", value) for name, value in itself.items())


def _weights(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in model.parameters()}


def covering(models: dict[str, set[int]]) -> Iterator[str]:
    """The fewest that hold all that is trained: a model, and not its parts."""
    covered: set[int] = set()
    for name, weights in sorted(models.items(), key=lambda each: -len(each[1])):
        if weights - covered:
            yield name
        covered |= weights


def goes_beside(x: Any, stepped: set[int]) -> bool:
    if isinstance(x, GradScaler):
        return x.is_enabled()
    return isinstance(x, (LRScheduler, ReduceLROnPlateau)) and id(x.optimizer) in stepped


def _how_many(names: Names) -> int:
    return sum(bool(names[word]) for word in _GIVEN)


def _asked(word: str, names: Names) -> bool:
    return word != "scheduler" or bool(names.get(word))


def _said(names: list[str]) -> str:
    if len(names) > 1:
        return "{" + ", ".join(f'"{name.rpartition(".")[2]}": {name}' for name in names) + "}"
    return names[0] if names else "..."
