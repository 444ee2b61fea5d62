"""Who waits for whom, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dream import cluster
from dream._errors import Desynchronized
from dream.stall.standing import Standing, State
from dream.stall.verdict import Verdict

_MOST = 10
_STATES = {
    State.STOPPED: "is stopped, by SIGSTOP, a terminal or a debugger",
    State.GONE: "is gone: its process has ended",
    State.HELD: "runs, and a call into C holds its interpreter",
    State.SILENT: "says nothing: it is stopped, cut off or busy",
}


def named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def whereabouts(standing: Standing) -> str:
    """`rank 2 is stopped, ...; its last training step was the 12th`, without an end."""
    return f"rank {standing.rank} {_doing(standing)}{_after(standing)}"


def _doing(standing: Standing) -> str:
    if standing.state is not State.ALIVE:
        return _STATES[standing.state]
    if standing.call:
        return f"waits in {standing.call}"
    return f"is alive, {_inside(standing.stack)}" if standing.stack else "is alive"


def _inside(stack: Sequence[str]) -> str:
    """Of `File "train.py", line 3 in save`."""
    return "in " + stack[0].rpartition(" in ")[2]


def _after(standing: Standing) -> str:
    if standing.state is State.SILENT or not standing.steps:
        return ""
    return f", after training step {standing.steps}"


def line(
    verdict: Verdict,
    standings: Mapping[int, Standing],
    limit: float,
) -> str:
    """What is said of a wait that goes on. limit: the stall time."""
    waiting, culprits = verdict.waiting, verdict.culprits
    have = "have" if len(waiting) > 1 else "has"
    said = f"{named(waiting)} {have} waited {verdict.seconds:.0f} s in {verdict.call}"
    if culprits:
        said += f" for {named(culprits)}"
    told = culprits or waiting
    where = "; ".join(whereabouts(standings[rank]) for rank in told)
    end = f"Where this goes on, it is an error after {limit:g} s ({cluster.STALL_SECONDS})."
    return "\n".join(
        [f"{said}. {where[:1].upper()}{where[1:]}. {end}", *stacks_of(verdict, standings)]
    )


def stacks_of(verdict: Verdict, standings: Mapping[int, Standing]) -> list[str]:
    """The lines of those that it is about."""
    told = verdict.culprits or verdict.waiting
    return [line for rank in told for line in _stack(rank, standings[rank].stack)]


def _stack(rank: int, stack: Sequence[str]) -> list[str]:
    if not stack:
        return []
    more = ["    ..."] if len(stack) > _MOST else []
    return [f"  rank {rank}, innermost call first:", *(f"    {at}" for at in stack[:_MOST]), *more]


def absence(
    call: str, ranks: Sequence[int], received: Iterable[str], seconds: float
) -> Desynchronized:
    """Ranks that never came. received: what is known of them."""
    return Desynchronized(
        f"{named(ranks).capitalize()} did not come to {call} within {seconds:g} s. Received: "
        f"{'; '.join(received)}. Make the same calls on every rank; where one is only slow, raise "
        f"{cluster.STALL_SECONDS}."
    )


def stuck(verdict: Verdict, standings: Mapping[int, Standing], seconds: float) -> Desynchronized:
    """What ends a wait. seconds: the stall time."""
    where = [whereabouts(standings[rank]) for rank in verdict.culprits or verdict.waiting]
    if verdict.culprits:
        return absence(verdict.call, verdict.culprits, where, seconds)
    return Desynchronized(
        f"Every rank has waited for others for {seconds:g} s. Received: {'; '.join(where)}. Make "
        f"the same calls in the same order on every rank; where a call is only slow, raise "
        f"{cluster.STALL_SECONDS}."
    )
