"""What a loop trains with and a checkpoint does not hold, so that it begins anew."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any, final
from weakref import ref

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dream.adapters.pytorch.checkpoint.lines import script_frames
from dream.adapters.pytorch.data.drawn import kept_with
from dream.adapters.pytorch.private import version_of
from dream.checkpoint.checkpointer import Parts


@final
class Unkept:
    """Schedules of optimizers that are kept; gradient scalers; models that have changed since it
    was made, as averages do; generators that the script's variables name, and that have drawn."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._models = [(ref(model), _stamp(model)) for model in _living(nn.Module)]
        self._scalers = {id(scaler): scaler.state_dict() for scaler in _living(GradScaler)}
        self._drawing = [(name, drawn, _state(drawn)) for name, drawn in _generators()]

    def names(self) -> list[str]:
        """Return what is not kept, in words."""
        kept = {id(each) for each in self._parts.schedulers.values()}
        kept |= {id(inner) for each in self._parts.schedulers.values() for inner in _inside(each)}
        steps = {id(each) for each in self._parts.optimizers.values()}
        found = [x for x in _living(LRScheduler, ReduceLROnPlateau) if id(x.optimizer) in steps]
        found += [x for x in _living(GradScaler) if x.state_dict() != self._scalers.get(id(x), {})]
        lost = {type(each).__name__ for each in found if id(each) not in kept}
        of_loaders = {id(each) for each in kept_with(self._parts.data)}
        lost |= {
            f"the generator {name}"
            for name, drawn, before in self._drawing
            if id(drawn) not in of_loaders and _state(drawn) != before
        }
        return sorted(lost | self._changed())

    def _changed(self) -> set[str]:
        """Return the models that have changed, and share nothing with those that are kept."""
        kept = {id(x) for model in self._parts.models.values() for x in _tensors(model)}
        changed = [
            model
            for held, before in self._models
            if (model := held()) is not None and any(True for _ in model.parameters())
            if not any(id(x) in kept for x in _tensors(model)) and _stamp(model) != before
        ]
        inner = {id(part) for model in changed for part in model.modules() if part is not model}
        return {type(model).__name__ for model in changed if id(model) not in inner}


def _living(*kinds: type[Any]) -> list[Any]:
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]


def _inside(schedule: Any) -> Iterator[Any]:
    """What a schedule is made of, and saves with itself."""
    for value in getattr(schedule, "__dict__", {}).values():
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, (LRScheduler, ReduceLROnPlateau)) and each is not schedule:
                yield each
                yield from _inside(each)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _stamp(model: nn.Module) -> list[int]:
    return [version_of(each) for each in _tensors(model)]


def _generators() -> Iterator[tuple[str, Any]]:
    """Those that variables of the script's functions and modules name, as they are called now."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    seen: set[int] = set()
    for frame in script_frames():
        for name, value in (*frame.f_locals.items(), *frame.f_globals.items()):
            if isinstance(value, kinds) and id(value) not in seen:
                seen.add(id(value))
                yield name, value


def _state(drawn: Any) -> str:
    if isinstance(drawn, torch.Generator):
        return str(drawn.get_state().tolist())
    if isinstance(drawn, random.Random):
        return str(drawn.getstate())
    if isinstance(drawn, np.random.Generator):
        return str(drawn.bit_generator.state)
    return str([np.asarray(each).tolist() for each in drawn.get_state(legacy=True)])
