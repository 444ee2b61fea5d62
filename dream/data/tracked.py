"""What knows where its training stands in its data: loaders, datasets and models of the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final, runtime_checkable
from weakref import WeakSet

from dream._errors import ConfigurationError

_NAME = "dream_track"


@runtime_checkable
class Tracked(Protocol):
    """A position in data that checkpoints keep and restore.

    cut: whether the loop over its last pass was left in its midst.
    """

    @property
    def cut(self) -> bool: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class OneOfSeveral(Tracked, Protocol):
    def state_beside(self, others: Sequence[Tracked]) -> dict[str, Any]:
        """Return the state of a loader of a training that reads others too."""


class Counted(Tracked, Protocol):
    """A tracked position that counts its batches.

    handed: batches to train on, so far.
    """

    handed: int


_counted: WeakSet[Counted] = WeakSet()


@final
class SampleCount:
    """Counts the samples that a process trains on.

    samples: of global batches to train on that this process was handed its part of, so far.
    """

    __slots__ = ("samples",)

    def __init__(self) -> None:
        self.samples = 0


handed = SampleCount()


def mark(item: Any, track: Tracked) -> None:
    """`item` stands where `track` says. Past the frameworks' own bookkeeping of attributes."""
    object.__setattr__(item, _NAME, track)


def found_in(item: Any) -> Tracked | None:
    found = getattr(item, _NAME, None)
    return found if isinstance(found, Tracked) else None


def read_so_far() -> dict[Tracked, int]:
    """Count the batches to train on that each loader has handed out, of those there are."""
    return {track: track.handed for track in _counted}


def count(track: Counted) -> None:
    """Have a track be among those."""
    _counted.add(track)


def tracks_of(data: Any) -> list[Tracked]:
    """Return those of one item, or of a dict of several."""
    return [track_of(each) for each in (data.values() if isinstance(data, Mapping) else (data,))]


def state_of(data: Any) -> dict[str, Any]:
    """Say where training stands in an item, or by name in each of several."""
    if isinstance(data, Mapping):
        tracks = tracks_of(data)
        return {name: _beside(track, tracks) for name, track in zip(data, tracks, strict=True)}
    return track_of(data).state()


def _beside(track: Tracked, tracks: Sequence[Tracked]) -> dict[str, Any]:
    if isinstance(track, OneOfSeveral):
        return track.state_beside([other for other in tracks if other is not track])
    return track.state()


def load_into(data: Any, state: Mapping[str, Any]) -> None:
    """Have training go on there."""
    if not isinstance(data, Mapping):
        track_of(data).load(state)
        return
    if data.keys() != state.keys():
        raise ConfigurationError(
            f"This state belongs to other loaders. Received: {sorted(state)} in it, {sorted(data)} "
            "here. Pass the loaders it was saved from, under the same names."
        )
    for name, each in data.items():
        track_of(each).load(state[name])


def track_of(item: Any) -> Tracked:
    found = found_in(item)
    if found is None:
        raise ConfigurationError(
            "The training position in this object cannot be tracked. Received: "
            f"{type(item).__name__}. Pass a DataLoader made in the block, a dataset from "
            "strategy.prepare, or a Keras model trained by fit."
        )
    return found
