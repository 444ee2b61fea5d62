"""Ranks on a Ray cluster: a placement group with a bundle a host, one actor a rank."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dream._errors import ConfigurationError, WorkerFailed
from dream.cluster import settings, startup_seconds
from dream.launch.child import looks_like_a_victim
from dream.launch.ending import SAVED, Ending, describe, find_cause
from dream.launch.engines.rank_process import RankProcess

_LOOK_SECONDS = 0.2
_TERM_SECONDS = 2.0
_KEPT = 60
Show = Callable[[int, bytes, bool], None]
"""Takes a rank, a line, and whether it came on stderr."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The ranks that a job wants of Ray.

    n: ranks a host. command: child.py's arguments; call: for it, a function. environ: for every
    rank. gpus: whether each rank has one.
    """

    n: int
    nnodes: int
    command: tuple[str, ...]
    environ: Mapping[str, str]
    call: bytes = b""
    gpus: bool = False
    grace: float = 30.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job on Ray ended.

    code: the job's exit code. said: why, where it failed.
    results: what `dream.launch`'s function gave, by rank.
    """

    code: int
    said: str = ""
    rank: int | None = None
    text: str = ""
    results: tuple[bytes, ...] = ()


def hosts_with_room(ray: Any, asked: Asked) -> int:
    """Count the hosts that are there and are large enough."""
    return sum(node["Alive"] and node["Resources"].get("CPU", 0) >= asked.n for node in ray.nodes())


@final
class RayJob:
    """A job's ranks on Ray, from one start on."""

    def __init__(self, ray: Any, asked: Asked, show: Show) -> None:
        self._ray, self._asked, self._show = ray, asked, show
        self._tails: list[deque[bytes]] = []
        self._actors: list[Any] = []
        self._group: Any = None
        self._began = time.monotonic()

    def run(self, signals: Callable[[], int | None]) -> Ended:
        """Run it to its end. signals: gives one that has come since."""
        try:
            self._place()
            self._start()
            return self._watch(signals)
        finally:
            self._remove()

    def _place(self) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        asked = self._asked
        bundle = {"CPU": asked.n, **({"GPU": asked.n} if asked.gpus else {})}
        strategy = "STRICT_SPREAD" if asked.nnodes > 1 else "STRICT_PACK"
        self._group = placement_group([bundle] * asked.nnodes, strategy=strategy)
        if not self._group.wait(startup_seconds()):
            raise WorkerFailed(
                f"The Ray cluster had no room for {asked.nnodes} hosts of {asked.n} ranks within "
                f"{startup_seconds():g} s. Received: {self._ray.available_resources()}. Ask for "
                "less, or allow more time (DREAM_STARTUP_SECONDS)."
            )
        actor = self._ray.remote(RankProcess)
        self._actors = [
            actor.options(
                num_cpus=1,
                num_gpus=int(asked.gpus),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=node
                ),
            ).remote()
            for node in range(asked.nnodes)
            for _ in range(asked.n)
        ]
        self._tails = [deque(maxlen=_KEPT) for _ in self._actors]

    def _start(self) -> None:
        asked, get = self._asked, self._ray.get
        master = {
            "MASTER_ADDR": self._address(self._actors[0]) if asked.nnodes > 1 else "127.0.0.1",
            "MASTER_PORT": str(get(self._actors[0].port.remote())),
            settings.TOKEN: os.urandom(16).hex(),
        }
        size = len(self._actors)
        started = []
        for rank, actor in enumerate(self._actors):
            node, local = divmod(rank, asked.n)
            place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local,
                     "LOCAL_WORLD_SIZE": asked.n, "GROUP_RANK": node}  # fmt: skip
            environ = {**asked.environ, **{k: str(v) for k, v in place.items()}, **master}
            started.append(actor.start.remote(asked.command, environ, str(Path.cwd()), asked.call))
        for trouble in get(started):
            if trouble:
                raise ConfigurationError(
                    f"{trouble}. Received: {Path.cwd()}. Share this folder with all hosts, or copy "
                    "it to them."
                )

    def _address(self, actor: Any) -> str:
        """Return the address by which the cluster knows the host of an actor."""
        node = self._ray.get(actor.__ray_call__.remote(_own_node))
        return str(node)

    def _watch(self, signals: Callable[[], int | None]) -> Ended:
        stopped, limit = 0, float("inf")
        while True:
            number = signals()
            if number is not None:
                stopped, limit = number, min(limit, time.monotonic() + self._asked.grace)
                for actor in self._actors:
                    actor.signal.remote(number)
            endings = self._look()
            lost = [ending.rank for ending in endings if ending.code is None]
            if lost and not stopped:
                self._end()
                who = ", ".join(map(str, lost))
                return Ended(1, f"Lost with its host or actor: rank {who}.")
            codes = {ending.code for ending in endings if ending.code != 0}
            if codes - {settings.GO_ON_LATER} and not stopped:
                return self._failed(endings)
            if len(endings) == len(self._actors) or time.monotonic() > limit:
                return self._over(endings, stopped)
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> list[Ending]:
        """Show what came, and return the ranks that have ended; without a code who was lost."""
        from ray.exceptions import RayError

        asked = [actor.news.remote() for actor in self._actors]
        endings = []
        for rank, reference in enumerate(asked):
            try:
                pieces, code, when = self._ray.get(reference)
            except RayError:
                endings.append(Ending(rank, None, time.time()))
                continue
            for is_error, line in pieces:
                self._show(rank, line, is_error)
                if is_error:
                    self._tails[rank].append(line)
            if code is not None:
                text = b"".join(self._tails[rank]).decode(errors="replace")
                victim = looks_like_a_victim(None, text)
                endings.append(Ending(rank, code, when, victim, text))
        return endings

    def _failed(self, endings: Sequence[Ending]) -> Ended:
        time.sleep(_LOOK_SECONDS)  # who failed at the same time
        endings = [ending for ending in self._look() if ending.code is not None] or endings
        over = {ending.rank for ending in endings}
        ended = [rank for rank in range(len(self._actors)) if rank not in over]
        seconds = time.monotonic() - self._began
        self._end()
        cause = find_cause(endings)
        assert cause is not None
        said = describe(cause, seconds, ended)
        code = cause.first.code or 1
        return Ended(code if code > 0 else 128 - code, said, rank=cause.first.rank,
                     text=(cause.victim or cause.first).text)  # fmt: skip

    def _over(self, endings: Sequence[Ending], stopped: int) -> Ended:
        codes = {ending.code for ending in endings}
        if codes == {settings.GO_ON_LATER}:
            return Ended(settings.GO_ON_LATER, SAVED)
        if stopped:
            return Ended(128 + stopped, f"Stopped by {signal.Signals(stopped).name}.")
        if not self._asked.call:
            return Ended(0)
        results = [actor.result.remote(rank) for rank, actor in enumerate(self._actors)]
        return Ended(0, results=tuple(self._ray.get(results)))

    def _end(self) -> None:
        """Ask the ranks that are left, and then no longer."""
        for actor in self._actors:
            actor.signal.remote(signal.SIGTERM)
        limit = time.monotonic() + _TERM_SECONDS
        while len(self._look()) < len(self._actors) and time.monotonic() < limit:
            time.sleep(_LOOK_SECONDS)

    def _remove(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            actor.kill.remote()
        time.sleep(_LOOK_SECONDS)
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            remove_placement_group(self._group)


def _own_node(_: object) -> str:
    import ray

    return str(ray.util.get_node_ip_address())
