"""What knows where its training stands in its data: loaders, datasets and models of the block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from dream._errors import ConfigurationError

_NAME = "dream_track"


@runtime_checkable
class Tracked(Protocol):
    def state(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any]) -> None: ...


def mark(item: Any, track: Tracked) -> None:
    """`item` stands where `track` says. Past the frameworks' own bookkeeping of attributes."""
    object.__setattr__(item, _NAME, track)


def found_in(item: Any) -> Tracked | None:
    found = getattr(item, _NAME, None)
    return found if isinstance(found, Tracked) else None


def track_of(item: Any) -> Tracked:
    found = found_in(item)
    if found is None:
        raise ConfigurationError(
            "It is not known where training stands in this. Received: "
            f"{type(item).__name__}. Give a DataLoader of the block, a dataset from "
            "strategy.prepare, or a Keras model that fit trains."
        )
    return found
