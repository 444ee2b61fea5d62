"""Where a rank stands, as it tells others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum, unique
from typing import Any, Self


@unique
class State(StrEnum):
    """Of a rank's process, as another sees it.

    HELD: it runs, and its interpreter has not been free for seconds. SILENT: it is on another host
    and has not said that it stands still.
    """

    ALIVE = "alive"
    HELD = "held"
    STOPPED = "stopped"
    GONE = "gone"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Standing:
    """steps: training steps so far. call: what the rank waits in; empty where it does not wait.
    ranks: those it waits for; None where it cannot tell. waited: seconds in this wait; quiet: since
    its last training step. gave_up: whether it has ended a wait of its own with an error. stack:
    its Python stack, innermost call first, where it is known."""

    rank: int
    state: State = State.ALIVE
    steps: int = 0
    call: str = ""
    ranks: tuple[int, ...] | None = None
    waited: float = 0.0
    quiet: float = 0.0
    gave_up: bool = False
    stack: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        return self.state is State.ALIVE and bool(self.call)

    @property
    def answers(self) -> bool:
        return self.state is State.ALIVE

    def packed(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def unpacked(cls, said: dict[str, Any]) -> Self:
        """Of what another rank said; what this version does not know is left out."""
        known = {field.name: said[field.name] for field in fields(cls) if field.name in said}
        ranks = known.get("ranks")
        known |= {"ranks": None if ranks is None else tuple(map(int, ranks))}
        known |= {"stack": tuple(known.get("stack", ())), "state": State(known["state"])}
        return cls(**known)


def text_of(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
