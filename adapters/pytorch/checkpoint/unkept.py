"""What a loop trains with and a checkpoint does not hold, so that it begins anew."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any, final
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from dream.adapters.pytorch.data.drawn_order import kept_with
from dream.adapters.pytorch.private import version_of
from dream.adapters.pytorch.randomness.own_generators import (
    digests_of,
    held_by,
    named_by_the_script,
)
from dream.checkpoint.checkpointer import Parts


@final
class Unkept:
    """Schedules of optimizers that are kept; gradient scalers; models that have changed since it
    was made, as averages do; generators that the script's variables name, or datasets have, and
    that have drawn."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._models = [(ref(model), _stamp(model)) for model in _living(nn.Module)]
        scalers = ((scaler, scaler.state_dict()) for scaler in _living(GradScaler))
        self._scalers = WeakKeyDictionary(scalers)
        named = [(f"the generator {name}", drawn) for name, drawn in named_by_the_script()]
        named += [(f"a generator of {type(data).__name__}", x) for data, x in _of_datasets(parts)]
        first = {id(drawn): (what, drawn) for what, drawn in reversed(named)}
        self._drawing = [(*each, digests_of([each[1]])) for each in first.values()]

    def names(self) -> list[str]:
        """Return what is not kept, in words."""
        kept = {id(each) for each in self._parts.schedulers.values()}
        kept |= {id(inner) for each in self._parts.schedulers.values() for inner in _inside(each)}
        steps = {id(each) for each in self._parts.optimizers.values()}
        found = [x for x in _living(LRScheduler, ReduceLROnPlateau) if id(x.optimizer) in steps]
        found += [x for x in _living(GradScaler) if x.state_dict() != self._scalers.get(x, {})]
        lost = {type(each).__name__ for each in found if id(each) not in kept}
        of_loaders = {id(each) for each in kept_with(self._parts.data)}
        lost |= {
            what
            for what, drawn, before in self._drawing
            if id(drawn) not in of_loaders and digests_of([drawn]) != before
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


def _of_datasets(parts: Parts) -> Iterator[tuple[Any, Any]]:
    """Generators that the loaders' data and collate functions have, with whose they are."""
    loaders = parts.data.values() if isinstance(parts.data, Mapping) else [parts.data]
    for loader in loaders:
        if isinstance(loader, DataLoader):
            for drawn in held_by(loader.dataset, loader.collate_fn):
                yield loader.dataset, drawn


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
