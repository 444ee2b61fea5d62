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
    whether it was asked for, and not yet for its first batch. lasting: whether workers had been
    started that stay from pass to pass, so that a pass drew no seed for them."""

    start: States | None = None
    first: States | None = None
    begun: bool = False
    lasting: bool = False

    def state(self) -> dict[str, Any]:
        named = (("start", self.start), ("first", self.first))
        kept = {name: None if x is None else [*map(_written, x)] for name, x in named}
        return {**kept, "begun": self.begun, "lasting": self.lasting}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        start, first = (state.get(name) for name in ("start", "first"))
        start, first = (None if x is None else [*map(_read, x)] for x in (start, first))
        return cls(start, first, state.get("begun", False), state.get("lasting", False))


@final
class DrawnOrder:
    """A loader's order, as torch's generator and those of its own draw it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._generators = [torch.default_generator, *_own(loader)]
        self._lasts = loader.persistent_workers
        self._kept = _Kept()
        self._redraws = False
        self._again: _Kept | None = None

    def state(self, *, begun: bool) -> dict[str, Any]:
        lasting = self._lasts and self._kept.start is not None
        kept = self._again or replace(self._kept, begun=begun, lasting=lasting)
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
            self._kept = _Kept(now, lasting=kept is not None and kept.lasting)
            yield
            return
        self._set(kept.start)
        self._kept, self._redraws = _Kept(kept.start, kept.first), True
        yield  # workers have the first batches drawn at once
        self._redraws = False
        self._kept = _Kept(kept.start, kept.first or self._states())
        self._set(now)

    def first(self, *, again: bool) -> States | None:
        """The first batch of that pass is about to be drawn, which may be after others have drawn.
        Return the states to go on from, once what is drawn again has come to its place."""
        now = self._states()
        if (again or self._redraws) and self._kept.first is not None:
            self._set(self._kept.first)
            return now
        if not again:
            if self._kept.lasting and self._kept.start is not None:
                now = self._kept.start
                self._set(now)
            self._kept = _Kept(self._kept.start, now)
        return None

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
