"""Have the ranks of a host come by memory that they share: one group a process and set of ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

from dream import cluster
from dream._errors import DreamError, NotInstalled, Unsupported
from dream._log import logger
from dream._topology import Cluster
from dream.shared_memory import memory
from dream.shared_memory.group import Group
from dream.shared_memory.library import library, status
from dream.shared_memory.memory import Made

Meet = Callable[[str, bytes], list[bytes]]
"""Every rank's word, in order, of a step of the meeting that has this name."""


def connect(place: Cluster, ranks: Sequence[int], name: str) -> Group:
    """The group of these ranks, of which this one is; each of them calls it, with a name that is
    no other meeting's. On all of them alike: `NotInstalled` where one has no native core,
    `Unsupported` where they do not share a host's memory."""
    _check_one_host(place, ranks)

    def meet(step: str, said: bytes) -> list[bytes]:
        if len(ranks) == 1:
            return [said]
        return cluster.exchange(place, f"shared-{step}-{name}", said, ranks)

    return met(meet, tuple(ranks), ranks.index(place.rank), cluster.stall_seconds())


def met(meet: Meet, ranks: Sequence[int], mine: int, seconds: float) -> Group:
    """`connect`, by whatever means the ranks meet."""
    made, told = _introduce(meet, ranks, mine)
    first = told[0]
    fd = reach(meet, ranks, made, (first.pid, first.fd, first.key))
    group, why = None, ""
    try:
        group = Group(fd, ranks, mine, slot=first.slot, spin=_a_core_each(told), seconds=seconds)
    except Unsupported as error:
        why = str(error)
    refusals = [word.decode() for word in meet("opened", why.encode()) if word]
    if refusals or group is None:
        if group is not None:
            group.close()
        raise Unsupported(refusals[0])
    return group


def reach(
    meet: Meet, ranks: Sequence[int], made: Made | None, address: tuple[int, int, bytes]
) -> int:
    """The memory that the first of the ranks has made, on each of them; made: there alone.
    address: its process, its descriptor there, and the token at its end."""
    fd = made.fd if made else memory.open_through_proc(*address)
    said = meet("reached", _yes(fd))
    missing = [rank for rank, word in zip(ranks, said, strict=True) if word != b"yes"]
    if missing:
        fd = _handed(meet, made, len(missing)) if made else _fetched(meet, fd, address[2])
        if any(word != b"yes" for word in meet("handed", _yes(fd))):
            if fd is not None:
                os.close(fd)
            raise _apart(ranks, missing)
    assert fd is not None
    return fd


@dataclass(frozen=True, slots=True)
class _Told:
    """What a rank says of itself; the first one also of the memory."""

    pid: int
    cores: list[int]
    error: str = ""
    missing: str = ""
    fd: int = -1
    slot: int = 0
    token: str = ""

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.token)


def _introduce(meet: Meet, ranks: Sequence[int], mine: int) -> tuple[Made | None, list[_Told]]:
    made, words = None, _own_words()
    if mine == 0 and not words["missing"]:
        try:
            made = memory.make(len(ranks), library()["bytes"])
            words |= {"fd": made.fd, "slot": made.slot, "token": made.token.hex()}
        except DreamError as error:
            words["error"] = str(error)
    told = [_Told(**json.loads(said)) for said in meet("made", json.dumps(words).encode())]
    try:
        _check_told(ranks, told)
    except DreamError:
        if made:
            os.close(made.fd)
        raise
    return made, told


def _own_words() -> dict[str, Any]:
    if not memory.is_supported():
        return {"pid": 0, "cores": [], "missing": "it needs Linux and its /proc"}
    cores = sorted(os.sched_getaffinity(0))
    return {"pid": os.getpid(), "cores": cores, "missing": status().why or _unusable()}


def _unusable() -> str:
    """Why the native core that is there cannot be used."""
    try:
        library()
    except NotInstalled as error:
        return str(error).removesuffix(".")
    return ""


def _check_told(ranks: Sequence[int], told: Sequence[_Told]) -> None:
    for rank, said in zip(ranks, told, strict=True):
        if said.missing:
            raise NotInstalled(
                f"reduction='shared_memory' cannot be used. Received from rank {rank}: "
                f"{said.missing}. Or use another reduction."
            )
    if told[0].error:
        raise Unsupported(told[0].error)


def _yes(fd: int | None) -> bytes:
    return b"no" if fd is None else b"yes"


def _handed(meet: Meet, made: Made, times: int) -> int:
    """Where some do not see the first one's process: it hands them the memory."""
    with closing(memory.listen()) as listening:
        meet("address", listening.getsockname())
        memory.hand_out(made, listening, times)
    return made.fd


def _fetched(meet: Meet, fd: int | None, key: bytes) -> int | None:
    address = meet("address", b"")[0]
    return memory.fetch(address, key) if fd is None else fd


def _apart(ranks: Sequence[int], missing: Sequence[int]) -> Unsupported:
    return Unsupported(
        f"The ranks cannot share memory. Received: {', '.join(map(str, missing))} of ranks "
        f"{', '.join(map(str, ranks))} do not reach rank {ranks[0]}'s. Start them in one "
        "container, or in containers of one network, or use another reduction."
    )


def _a_core_each(told: Sequence[_Told]) -> bool:
    return len(told) <= len({core for said in told for core in said.cores})


def _check_one_host(place: Cluster, ranks: Sequence[int]) -> None:
    nodes = {place.node_of(rank) for rank in ranks}
    if len(nodes) > 1:
        raise Unsupported(
            f"Memory is shared on one host only. Received: ranks {', '.join(map(str, ranks))} on "
            f"{len(nodes)} hosts. Use another reduction."
        )


NAME = "shared_memory"


@cache
def of(place: Cluster, ranks: tuple[int, ...], name: str) -> Group:
    """The group of these ranks, this one among them. The first call is a meeting of theirs.
    name: no other group's."""
    return connect(place, ranks, name)


def everybody(place: Cluster) -> Group:
    """All ranks of a job on one host."""
    return of(place, tuple(range(place.world_size)), "all")


def some(place: Cluster, parent: Sequence[int], ranks: Sequence[int], name: str) -> Group | None:
    """Those at some places of a group; None on the others."""
    chosen = tuple(parent[rank] for rank in ranks)
    return of(place, chosen, name) if place.rank in chosen else None


@cache
def serves(place: Cluster) -> bool:
    """Whether it can be had by all ranks alike: what `reduction="auto"` asks where tensors are on
    the CPU. The answer is said."""
    if place.alone or not place.one_host:
        return False
    try:
        everybody(place)
    except (NotInstalled, Unsupported) as error:
        logger.info("reduction='auto' does not use shared memory: %s", error)
        return False
    logger.info(
        "reduction='auto' uses shared_memory: all %d ranks are on this host", place.world_size
    )
    return True
