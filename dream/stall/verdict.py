"""Who waits for whom. Pure: by what ranks say of themselves, no process is touched here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dream.stall.standing import Standing, State


@dataclass(frozen=True, slots=True)
class Verdict:
    """waiting: ranks that wait. culprits: those that they wait for; none where every rank waits,
    each in its own call. call: what is waited in, by the one that has waited longest. seconds: how
    long that is."""

    waiting: tuple[int, ...]
    culprits: tuple[int, ...]
    call: str
    seconds: float


def judge(standings: Collection[Standing]) -> Verdict | None:
    """None where nobody waits.

    Where waits know whom they are for, the ends of their chains are named. Else all that do not
    wait: they are about something else, or stopped, or gone, or do not answer. One that has given
    up, or was waiting too when it ended, is named only where nobody else is.
    """
    waiting = [one for one in standings if one.waits]
    if not waiting:
        return None
    gave_up = {one.rank for one in standings if one.gave_up or (_gone(one) and one.call)}
    stuck = {one.rank for one in waiting}
    known = {rank for one in waiting for rank in one.ranks or ()} - stuck
    others = {one.rank for one in standings} - stuck
    culprits = known - gave_up or others - gave_up or others
    longest = max(waiting, key=lambda one: one.waited)
    return Verdict(tuple(sorted(stuck)), tuple(sorted(culprits)), longest.call, longest.waited)


def _gone(standing: Standing) -> bool:
    return standing.state is State.GONE


def speaker(standings: Collection[Standing]) -> int | None:
    """Who says it, of all ranks: the lowest that can, whose output is most likely seen."""
    return min((one.rank for one in standings if one.answers), default=None)
