"""What hosts tell one another of a job's end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dream.launch.ending import Cause, Ending, find_cause, first_left

_PATIENCE = 5
"""A part of the node timeout: how long a host may say nothing once ranks fail as those do that
lost a peer."""

_LEAST_PATIENCE = 2.0
"""Two beats."""

_LONGEST_TEXT = 16_000


@dataclass(frozen=True, slots=True)
class Report:
    """What a host's launcher knows of the end. told: what ended the job there, where it was no
    rank's failure; stopped: whether that was a signal from outside."""

    endings: tuple[Ending, ...] = ()
    told: str = ""
    stopped: bool = False

    @classmethod
    def of(cls, endings: Sequence[Ending], told: str = "", *, stopped: bool = False) -> Report:
        """No more than what a cause is found by: its size does not grow with the ranks."""
        cause, left = find_cause(endings), first_left(endings)
        known = [*((cause.first, cause.victim) if cause else ()), left]
        kept = dict.fromkeys(_short(e) for e in known if e is not None and not e.absent)
        return cls(tuple(kept), told, stopped)

    @classmethod
    def read(cls, content: Any) -> Report:
        endings = tuple(Ending(**e) for e in content["endings"])
        return cls(endings, str(content["told"]), bool(content["stopped"]))

    def write(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def fault(self) -> bool:
        """Whether something has ended the job there, or has to."""
        return bool(self.told) or any(ending.failed for ending in self.endings)


def _short(ending: Ending) -> Ending:
    return replace(ending, text=ending.text[-_LONGEST_TEXT:])


@dataclass(frozen=True, slots=True)
class Verdict:
    """cause: the rank to name; None where `lost` says what else ended the job. stopped: whether a
    signal from outside did, which gives ranks of every host the grace."""

    cause: Cause | None = None
    lost: str = ""
    stopped: bool = False

    @classmethod
    def read(cls, content: Any) -> Verdict:
        cause = content["cause"]
        if cause is None:
            return cls(lost=str(content["lost"]), stopped=bool(content["stopped"]))
        victim = cause["victim"]
        return cls(Cause(Ending(**cause["first"]), Ending(**victim) if victim else None))

    def write(self) -> dict[str, Any]:
        return asdict(self)


def patience(node_timeout: float) -> float:
    """Seconds that are enough to hear of a host that is there."""
    return max(node_timeout / _PATIENCE, _LEAST_PATIENCE)


def killed(host: str) -> str:
    return f"{host} is gone: its launcher was killed, or the host went down"


def silent(host: str, seconds: float) -> str:
    return (
        f"{host} cannot be reached: its launcher has said nothing for {seconds:.0f} s. It is "
        "stopped, or the host or the network between is down"
    )
