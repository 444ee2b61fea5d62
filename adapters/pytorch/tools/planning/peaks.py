"""How much is there at most, in each phase of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from dream.adapters.pytorch.tools.planning.ledger import Ledger


@final
@dataclass(frozen=True, slots=True)
class Peaks:
    """In bytes, the optimizer's state never counted. backward, update: without gradients, save
    one while it is made; joint: backward with them. left: without them, when the update begins."""

    forward: int
    backward: int
    joint: int
    update: int
    left: int


def peaks(ledger: Ledger, gradients: set[int], state: set[int]) -> Peaks:
    """gradients, state: numbers of storages."""
    here = together = 0
    most = {"forward": 0, "backward": 0, "update": 0}
    joint = left = 0
    for number, came, phase in ledger.events:
        if number in state:
            continue
        change = ledger.made[number] if came else -ledger.made[number]
        together += change
        most[phase] = max(most[phase], here + max(0, change))
        if number not in gradients:
            here += change
        if phase == "backward":
            joint = max(joint, together)
        if phase != "update":
            left = here
    return Peaks(
        most["forward"],
        max(most["backward"], most["forward"] if not joint else 0),
        joint,
        max(most["update"], left),
        left,
    )


def most_since(ledger: Ledger, begin: int) -> tuple[int, set[int]]:
    """Bytes at most since an event, all of them counted, and the numbers of what was there."""
    here: set[int] = set()
    held = most = 0
    there: set[int] = set()
    for index, (number, came, _) in enumerate(ledger.events):
        held += ledger.made[number] if came else -ledger.made[number]
        (here.add if came else here.discard)(number)
        if index >= begin and held > most:
            most, there = held, set(here)
    return most, there
