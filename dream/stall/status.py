"""Where each rank stands, who waits for whom, and that in words. Pure: no process is touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum, unique
from typing import Any, Self

from dream import cluster
from dream._errors import Desynchronized, listed
from dream.stall.phases import WORDS, Phase, PhaseRule, libraries, own_line, phase_of

_MOST_LINES = 10
_PASSED_ON = ("send", "receive", "recv", "wait")
"""How calls end that hand something from one rank to another, or may."""


@unique
class ProcessState(StrEnum):
    """How a rank's process does, as another sees it.

    HELD: it runs, and its interpreter has not been free for seconds. SILENT: it is on another host
    and has not said that it stands still.
    """

    ALIVE = "alive"
    HELD = "held"
    STOPPED = "stopped"
    GONE = "gone"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank told of itself last.

    steps: training steps so far. call: what the rank waits in; empty where it does not wait.
    ranks: those it waits for; None where it cannot tell. waited: seconds in this wait; quiet: since
    its last training step. gave_up: whether it has ended a wait of its own with an error. stack:
    its Python stack, innermost call first, where it is known; called: that of a function of the
    script which a framework calls in a thread of its own; phase: what part of training it is in.
    samples: of all ranks, a second, of late; 0 where nobody counts them. looked: how often it has
    looked where it stands, and stood: how often it stood still for others then; spent: how often it
    did not and was in which phase. patient: whether its wait may last as long as others are busy.

    """

    rank: int
    state: ProcessState = ProcessState.ALIVE
    steps: int = 0
    call: str = ""
    ranks: tuple[int, ...] | None = None
    waited: float = 0.0
    quiet: float = 0.0
    gave_up: bool = False
    stack: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    phase: Phase | None = None
    samples: float = 0.0
    looked: int = 0
    stood: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    patient: bool = False

    @property
    def waits(self) -> bool:
        return self.state is ProcessState.ALIVE and bool(self.call)

    @property
    def answers(self) -> bool:
        return self.state is ProcessState.ALIVE

    @property
    def ended_waiting(self) -> bool:
        return self.state is ProcessState.GONE and bool(self.call)

    def seen(self, stack: Sequence[str], rules: Sequence[PhaseRule] | None = None) -> Self:
        """Of this stack. rules: of the phases, where they are not those of this process."""
        phase = phase_of(stack, rules, self.called)
        return replace(self, stack=(*self.called, *stack), phase=phase)

    def packed(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def unpacked(cls, said: dict[str, Any]) -> Self:
        """Read what another rank said; what this version does not know is left out."""
        known = {one.name: said[one.name] for one in fields(cls) if one.name in said}
        ranks = known.get("ranks")
        known |= {"ranks": None if ranks is None else tuple(map(int, ranks))}
        known |= {name: tuple(known.get(name, ())) for name in ("stack", "called")}
        known |= {"state": ProcessState(known["state"])}
        known |= {"phase": Phase(known["phase"]) if known.get("phase") else None}
        return cls(**known)


def text_of(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Standstill:
    """Ranks that wait, and those that they wait for.

    waiting: ranks that wait. culprits: those that they wait for; none where every rank waits,
    each in its own call. call: what is waited in, by the one that has waited longest. seconds: how
    long that is.
    """

    waiting: tuple[int, ...]
    culprits: tuple[int, ...]
    call: str
    seconds: float

    @property
    def named(self) -> tuple[int, ...]:
        """The ranks that are to be told of."""
        return self.culprits or self.waiting


def find_standstill(ranks: Collection[RankStatus]) -> Standstill | None:
    """Find who waits for whom; None where nobody does, but such as are patient.

    Where waits know whom they are for, the ends of their chains are named. Else all that do not
    wait: they are about something else, or stopped, or gone, or do not answer. One that has given
    up, or was waiting too when it ended, is named only where nobody else is.
    """
    waiting = [one for one in ranks if one.waits]
    if all(one.patient for one in waiting):
        return None
    gave_up = {one.rank for one in ranks if one.gave_up or one.ended_waiting}
    stuck = {one.rank for one in waiting}
    known = {rank for one in waiting for rank in one.ranks or ()} - stuck
    others = {one.rank for one in ranks} - stuck
    culprits = known - gave_up or others - gave_up or others
    longest = max(waiting, key=lambda one: one.waited)
    return Standstill(tuple(sorted(stuck)), tuple(sorted(culprits)), longest.call, longest.waited)


def none_can_go_on(ranks: Collection[RankStatus], seconds: float) -> bool:
    """Whether every rank has waited so long, and not all of them in one call: nobody is left that
    could end it. What goes from one rank to another is two calls, and may be slow."""
    calls = {one.call.partition("(")[0] for one in ranks}
    passed = any(each.endswith(_PASSED_ON) for each in calls)
    return len(calls) > 1 and not passed and all(
        one.waits and one.waited >= seconds for one in ranks
    )  # fmt: skip


def nothing_arrives(ranks: Collection[RankStatus], size: int) -> bool:
    """Whether all ranks of a job, so many, have come to one call of one step: none is missing, but
    what they send one another."""
    calls = {(one.call, one.steps) for one in ranks}
    passed = any(call.partition("(")[0].endswith(_PASSED_ON) for call, _ in calls)
    return len(ranks) == size and all(one.waits for one in ranks) and len(calls) == 1 and not passed


def speaker(ranks: Collection[RankStatus]) -> int | None:
    """Choose who says it, of all ranks: the lowest that can, whose output is most likely seen."""
    return min((one.rank for one in ranks if one.answers), default=None)


LINK = (
    "All ranks have come to it, so none is missing: what they send one another is slow, or does "
    "not arrive (a link that is cut, a firewall)."
)
INPUT_OR_LINK = (
    "All ranks are in it: one of them reads its input there, and it does not come (a disk, a file "
    "server), or what they send one another is slow, or does not arrive (a link that is cut, a "
    "firewall)."
)


def on_its_way(ranks: Collection[RankStatus], size: int) -> str:
    """Say that nothing arrives, where no rank of a job, so many, is missing; empty elsewhere. A
    call that is a whole step reads input too."""
    if not nothing_arrives(ranks, size):
        return ""
    return INPUT_OR_LINK if any(one.phase is Phase.STEP for one in ranks) else LINK


STATES = {
    ProcessState.STOPPED: "is stopped, by SIGSTOP, a terminal or a debugger",
    ProcessState.GONE: "is gone: its process has ended",
    ProcessState.HELD: "runs, and a call into C holds its interpreter",
    ProcessState.SILENT: "says nothing: it is stopped, cut off or busy",
}


def whereabouts(rank: RankStatus) -> str:
    """Say `rank 2 is stopped, ..., after training step 12`, without an end."""
    step = "" if rank.state is ProcessState.SILENT or not rank.steps else rank.steps
    return f"rank {rank.rank} {_doing(rank)}{step and f', after training step {step}'}"


def _doing(rank: RankStatus) -> str:
    if rank.state is not ProcessState.ALIVE:
        return STATES[rank.state]
    if rank.call:
        return f"waits in {rank.call}"
    if not rank.stack:
        return "is alive"
    known = rank.phase not in (None, Phase.OWN)
    phase = f"{WORDS[rank.phase]}, " if rank.phase is not None and known else ""
    return f"is alive, {phase}in {rank.stack[0].rpartition(' in ')[2]}"  # ... line 3 in save


def warning(wait: Standstill, ranks: Mapping[int, RankStatus], limit: float) -> str:
    """Tell of a wait that goes on. limit: the stall time."""
    said = waits_for(wait)
    where = "; ".join(whereabouts(ranks[rank]) for rank in wait.named)
    end = f"Where this goes on, it is an error after {limit:g} s ({cluster.STALL_SECONDS})."
    link = on_its_way(ranks.values(), len(ranks))
    head = f"{said}. {where[:1].upper()}{where[1:]}. {link}{link and ' '}{end}"
    return "\n".join([head, *stack_lines(wait, ranks)])


def waits_for(wait: Standstill) -> str:
    """Say `ranks 0, 2 have waited 60 s in backward() for rank 1`."""
    have = "have" if len(wait.waiting) > 1 else "has"
    said = f"{listed(wait.waiting)} {have} waited {wait.seconds:.0f} s in {wait.call}"
    return f"{said} for {listed(wait.culprits)}" if wait.culprits else said


def stack_lines(wait: Standstill, ranks: Mapping[int, RankStatus]) -> list[str]:
    """Quote the stacks of those that it is about."""
    lines = []
    for rank in wait.named:
        stack = ranks[rank].stack
        if stack:
            lines.append(f"  rank {rank}, innermost call first:")
            lines += [f"    {at}" for at in stack[:_MOST_LINES]]
            lines += [_cut_off(stack)] if len(stack) > _MOST_LINES else []
    return lines


def _cut_off(stack: Sequence[str]) -> str:
    """Stand for the outer calls of a stack; with the script's own line, where no shown one is."""
    shown, script = (own_line(part, libraries()) for part in (stack[:_MOST_LINES], stack))
    return "    ..." if shown or not script else f"    ... called at {script}"


def absence(
    call: str, ranks: Sequence[int], received: Iterable[str], seconds: float
) -> Desynchronized:
    """Make the error of ranks that never came. received: what is known of them."""
    return Desynchronized(
        f"{listed(ranks).capitalize()} did not come to {call} within {seconds:g} s. Received: "
        f"{'; '.join(received)}. Make the same calls on every rank; if a rank is only slow, raise "
        f"{cluster.STALL_SECONDS}."
    )


def stuck(wait: Standstill, ranks: Mapping[int, RankStatus], seconds: float) -> Desynchronized:
    """Make the error that ends a wait. seconds: the stall time."""
    where = [whereabouts(ranks[rank]) for rank in wait.named]
    if wait.culprits:
        return absence(wait.call, wait.culprits, where, seconds)
    left = any(ranks[rank].patient for rank in wait.named)
    cure = (
        "Leave a loop on all ranks at the same step: branch on a global number, as of "
        "`strategy.communicator.all_reduce`."
        if left
        else "Make the same calls in the same order on every rank; where a call is only slow, "
        f"raise {cluster.STALL_SECONDS}."
    )
    said = f"Every rank has waited for others for {seconds:.0f} s"
    return Desynchronized(f"{said}. Received: {'; '.join(where)}. {cure}")
