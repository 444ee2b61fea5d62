"""What a loader of the block is dealt by, and where its training stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dream.data import tracked

if TYPE_CHECKING:
    from dream.adapters.pytorch.data.sampling import DealtBatches
    from dream.adapters.pytorch.data.streams import DealtStream

_NAME = "dream_dealt"


def mark(loader: Any, dealt: DealtBatches | DealtStream) -> None:
    setattr(loader, _NAME, dealt)
    tracked.mark(loader, dealt.track)


def dealt_of(data: Any) -> DealtBatches | DealtStream | None:
    """None for what is no loader of the block."""
    return getattr(data, _NAME, None)


def state_dict(loader: Any) -> dict[str, Any]:
    """Where training on this loader stands: plain numbers, the same on every rank and for any
    number of replicas. A batch counts once it is handed out; one in micro-batches with its last."""
    return tracked.track_of(loader).state()


def load_state_dict(loader: Any, state: Mapping[str, Any]) -> None:
    """Have the next pass to train on go on from there, on every rank: what was handed out is left
    out, and what follows comes in the same order."""
    tracked.track_of(loader).load(state)
