"""The generators that draw the order of a loader's pass, kept so that it can be drawn again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, final

import torch
from torch.utils.data import DataLoader

_KEPT = "generators"
States = list[torch.Tensor]


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """The generators' states when a pass was asked for, and when its first batch was drawn. begun:
    whether it was asked for, and not yet for its first batch."""

    start: States | None = None
    first: States | None = None
    begun: bool = False

    def state(self) -> dict[str, Any]:
        named = (("start", self.start), ("first", self.first))
        kept = {name: None if x is None else [*map(_written, x)] for name, x in named}
        return {**kept, "begun": self.begun}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        start, first = (state.get(name) for name in ("start", "first"))
        start, first = (None if x is None else [*map(_read, x)] for x in (start, first))
        return cls(start, first, state.get("begun", False))


@final
class DrawnOrder:
    """A loader's order, as torch's generator and those of its own draw it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._generators = [torch.default_generator, *_own(loader)]
        self._kept = _Kept()
        self._again: _Kept | None = None

    def state(self, *, begun: bool) -> dict[str, Any]:
        kept = self._again or replace(self._kept, begun=begun)
        return {_KEPT: {**kept.state(), "now": [*map(_written, self._states())]}}

    def load(self, state: Mapping[str, Any]) -> None:
        kept = state.get(_KEPT)
        if kept is None or len(kept["now"]) != len(self._generators):
            return  # of a fixed order, or of another sampler: the digest of what is read tells
        self._set([*map(_read, kept["now"])])
        self._again = _Kept.of(kept)

    @contextmanager
    def begin(self, *, again: bool) -> Iterator[None]:
        """A pass to train on is asked for inside. again: what it drew so far is to be drawn once
        more."""
        kept, self._again = self._again, None
        now = self._states()
        if kept is None or kept.start is None or not (again or kept.begun):
            self._kept = _Kept(now)
            yield
            return
        self._set(kept.start)
        yield
        self._kept = _Kept(kept.start, kept.first or self._states())
        self._set(now)

    def first(self, *, again: bool) -> States | None:
        """The first batch of that pass is about to be drawn, which may be after others have drawn.
        Return the states to go on from, once what is drawn again has come to its place."""
        now = self._states()
        if not again:
            self._kept = _Kept(self._kept.start, now)
            return None
        if self._kept.first is None:
            return None
        self._set(self._kept.first)
        return now

    def go_on(self, now: States | None) -> None:
        if now is not None:
            self._set(now)

    def _states(self) -> States:
        return [generator.get_state() for generator in self._generators]

    def _set(self, states: States) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _own(loader: DataLoader[Any]) -> list[torch.Generator]:
    held = [loader.generator, getattr(loader.sampler, "generator", None)]
    held.append(getattr(loader.batch_sampler, "generator", None))
    return [*{id(x): x for x in held if isinstance(x, torch.Generator)}.values()]


def kept_with(data: Any) -> list[torch.Generator]:
    """Return the generators of loaders' own, whose states are kept with their place."""
    loaders = data.values() if isinstance(data, Mapping) else [data]
    return [own for each in loaders if isinstance(each, DataLoader) for own in _own(each)]


def _written(state: torch.Tensor) -> str:
    return base64.b85encode(zlib.compress(state.numpy().tobytes())).decode()


def _read(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(text))), dtype=torch.uint8)
