"""What a difference may come of, ruled in or out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ruling(StrEnum):
    IN = "yes"
    OUT = "no"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Cause:
    """name: what it might be; evidence: how that is known; advice: what to do, where it is."""

    name: str
    ruling: Ruling
    evidence: str
    advice: str = ""
