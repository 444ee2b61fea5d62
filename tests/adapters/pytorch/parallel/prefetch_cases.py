"""What each rank of a job finds where parts are gathered ahead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from sharding_models import Block, Reader, alone, apart, momentum, split
from torch import nn
from torch.distributed.fsdp import FSDPModule

import dream


class Wayward(Reader):
    """Its blocks run from the last to the first; the first is left out without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in [*self.blocks][::-1][: 3 if torch.is_grad_enabled() else 2]:
            hidden = block(hidden)
        return self.head(hidden.mean(dim=1))


def watched(train: Callable[[], Any]) -> tuple[Any, dict[str, list[list[str]]]]:
    """Train; return with it what FSDP2's modules were given to gather ahead, last of all."""
    given: dict[str, list[list[str]]] = {"forward": [], "backward": []}
    names: dict[int, str] = {}
    before = {way: getattr(FSDPModule, f"set_modules_to_{way}_prefetch") for way in given}

    def setter(way: str) -> Callable[..., None]:
        def noting(self: Any, modules: list[Any]) -> None:
            parts = [names.setdefault(id(each), f"{len(names)}") for each in (self, *modules)]
            given[way].append(parts)
            before[way](self, modules)

        return noting

    for way in given:
        setattr(FSDPModule, f"set_modules_to_{way}_prefetch", setter(way))
    try:
        return train(), given
    finally:
        for way, method in before.items():
            setattr(FSDPModule, f"set_modules_to_{way}_prefetch", method)


def looked_at_between(ahead: int) -> dict[str, Any]:
    """A call that leaves a block out stands between backward and the step."""
    torch.manual_seed(0)
    with dream.strategy("sharded", framework="torch", prefetch=ahead) as strategy:
        model = Wayward()
        optimizer = momentum(model.parameters())
        for step in range(4):
            torch.manual_seed(step)
            x, y = torch.randint(20, (4, 6)), torch.randint(4, (4,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                model(x)
            optimizer.step()
        return strategy.full_state(model)


def plainly() -> dict[str, Any]:
    torch.manual_seed(0)
    model = Wayward()
    optimizer = momentum(model.parameters())
    for step in range(4):
        torch.manual_seed(step)
        x, y = torch.randint(20, (4, 6)), torch.randint(4, (4,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def everything() -> dict[str, Any]:
    torch.set_num_threads(1)
    one, looked = alone(Wayward, momentum), plainly()
    found: dict[str, Any] = {"exact": {}, "given": {}}
    for ahead in (0, 1, 2):
        further = ({"zero": 2}, {"accumulate": 2}, {"recompute": True}) if ahead == 1 else ()
        for options in ({}, *further):
            made = {"prefetch": ahead, **options}
            ours, given = watched(partial(split, Wayward, momentum, "sharded", **made))
            found["exact"][f"{ahead}, {options}"] = max(apart(ours, one).values())
            if not options:
                found["given"][ahead] = given
        gap = max(apart(looked_at_between(ahead), looked).values())
        found["exact"][f"{ahead}, looked at"] = gap
    return found
