"""The generators that draw the order of a loader's pass, kept so that it can be drawn again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch.utils.data import DataLoader

_KEPT = "generators"
States = list[torch.Tensor]


@final
class DrawnOrder:
    """A loader's order, as torch's generator and those of its own draw it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        held = [loader.generator, getattr(loader.sampler, "generator", None)]
        held.append(getattr(loader.batch_sampler, "generator", None))
        own = {id(x): x for x in held if isinstance(x, torch.Generator)}
        self._generators = [torch.default_generator, *own.values()]
        self._start: States | None = None
        self._again: States | None = None

    def state(self) -> dict[str, Any]:
        start = self._again or self._start
        return {
            _KEPT: {
                "start": None if start is None else [*map(_written, start)],
                "now": [*map(_written, self._states())],
            }
        }

    def load(self, state: Mapping[str, Any]) -> None:
        kept = state.get(_KEPT)
        if kept is None or len(kept["now"]) != len(self._generators):
            return  # of a fixed order, or of another sampler: the digest of what is read tells
        self._set([*map(_read, kept["now"])])
        self._again = None if kept["start"] is None else [*map(_read, kept["start"])]

    def begin(self) -> None:
        """A pass to train on is asked for: note where it starts."""
        self._start = self._states()

    @contextmanager
    def again(self, wanted: bool) -> Iterator[States | None]:
        """Have the pass that begins inside draw what it drew before, where that is `wanted`. Gives
        the states to go on from once it has come to its place."""
        again, self._again = self._again, None
        if not wanted or again is None:
            yield None
            return
        now = self._states()
        self._set(again)
        self._start = again
        yield now

    def go_on(self, now: States | None) -> None:
        if now is not None:
            self._set(now)

    def _states(self) -> States:
        return [generator.get_state() for generator in self._generators]

    def _set(self, states: States) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _written(state: torch.Tensor) -> str:
    return base64.b85encode(zlib.compress(state.numpy().tobytes())).decode()


def _read(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(text))), dtype=torch.uint8)
