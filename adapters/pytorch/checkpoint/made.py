"""What a block has made that trains: models, optimizers, schedules and scalers, by the order in
which a script makes them, which a fresh process finds again."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any, final
from weakref import ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from dream.adapters.pytorch.call_hook import ModuleSet
from dream.adapters.pytorch.checkpoint.unkept import inside
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.optimizer import parameters_of
from dream.checkpoint.checkpointer import Parts


@final
class _Refs:
    """Objects in the order in which they came, held weakly; each has a number for life."""

    def __init__(self) -> None:
        self._held: list[ref[Any]] = []

    def add(self, made: Any) -> None:
        if self.number(made) is None:
            self._held.append(ref(made))

    def number(self, made: Any) -> int | None:
        return next((i for i, held in enumerate(self._held) if held() is made), None)

    def __iter__(self) -> Iterator[Any]:
        return iter([made for held in self._held if (made := held()) is not None])


@final
class MadeInBlock:
    def __init__(self) -> None:
        self._modules = ModuleSet()
        self._optimizers, self._schedules, self._scalers = _Refs(), _Refs(), _Refs()
        self._loaders = _Refs()

    def subscribe(self, hooks: Hooks) -> None:
        hooks.made("module", self._modules.add)
        hooks.made("optimizer", self._optimizers.add)
        hooks.made("scheduler", self._schedules.add)
        hooks.made("scaler", self._scalers.add)
        hooks.made("loader", self._loaders.add)

    def loader(self, loader: DataLoader[Any]) -> int | None:
        """Return the number of a loader among those made; None for one that was made before."""
        return self._loaders.number(loader)

    @property
    def first_model(self) -> nn.Module | None:
        return next(iter(self._models()), None)

    def parts(self, loader: DataLoader[Any]) -> Parts:
        """What trains now. What no variable holds any longer is left out."""
        gc.collect()
        schedules = [*self._schedules]
        within = {id(inner) for each in schedules for inner in inside(each)}
        outer = [each for each in schedules if id(each) not in within]
        scalers = _numbered([*self._scalers], "scaler")
        return Parts(
            _numbered(self._models()),
            _numbered([*self._optimizers]),
            {**_numbered(outer), **scalers},
            loader,
        )

    def pending(self, stepped: set[int]) -> bool:
        """Whether an optimizer that has not stepped holds gradients for its next step."""
        return any(
            p.grad is not None
            for each in self._optimizers if id(each) not in stepped
            for p in parameters_of(each)
        )  # fmt: skip

    def clear_gradients(self) -> None:
        for each in self._optimizers:
            each.zero_grad()

    def _models(self) -> list[nn.Module]:
        """Those that are part of no other and hold something; not what dream puts around them."""
        made = [each for each in self._modules if not isinstance(each, DistributedDataParallel)]
        inner = {id(part) for each in made for part in each.modules() if part is not each}
        outer = [each for each in made if id(each) not in inner]
        return [each for each in outer if each.state_dict()]


def _numbered(found: list[Any], name: str = "") -> Mapping[str, Any]:
    if len(found) == 1:
        return {name: found[0]}
    return {f"{name}{number}": each for number, each in enumerate(found)}
