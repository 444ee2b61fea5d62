"""`dream run --on ray`, and `dream.launch(function, on="ray")`: on a Ray cluster that runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import final

from dream.cluster import settings
from dream.launch.engines.engine import Engine, carried, ranks_with_gpus, requests, told
from dream.launch.engines.ray_cluster import Asked, Ended, RayJob, connect, hosts_with_room
from dream.launch.engines.request import Request
from dream.launch.output import SCREEN

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@final
class Ray(Engine):
    def written(self, request: Request) -> str:
        asked = _asked(request)
        each = f"{asked.n} CPU" + (f", {asked.n} GPU" if asked.gpus else "")
        return (
            f"placement group of {asked.nnodes} bundles ({each}) at "
            f"{request.given.address or 'auto'}; {asked.n * asked.nnodes} actors, each with one "
            f"rank: {' '.join(asked.command)}"
        )

    def start(self, request: Request) -> int:
        asked = _asked(request)
        ray = connect(request.given.address)
        ended = _run(ray, asked, request)
        for attempt in range(1, request.given.max_restarts + 1):
            if ended.code in (0, settings.GO_ON_LATER) or ended.code > 128:
                break
            asked = _that_fits(ray, asked, request)
            SCREEN.say(f"Starting again, {attempt} of {request.given.max_restarts}.")
            ended = _run(ray, asked, request)
        return ended.code


def _asked(request: Request) -> Asked:
    given = request.given
    kind = "module" if given.module else "script"
    return Asked(
        n=ranks_with_gpus(request, "Ray gives as many CPUs"),
        nnodes=request.nnodes,
        command=(kind, given.target, *given.arguments),
        environ={**carried(), **requests(request)},
        gpus=bool(given.gpus),
        grace=given.grace,
    )


def _that_fits(ray: object, asked: Asked, request: Request) -> Asked:
    """A job that goes on from a checkpoint does so on as many hosts as are left."""
    room = hosts_with_room(ray, asked)
    if request.given.checkpoint is None or not 0 < room < asked.nnodes:
        return asked
    SCREEN.say(f"Of {asked.nnodes} hosts {room} are left: it goes on there.")
    return replace(asked, nnodes=room)


def _run(ray: object, asked: Asked, request: Request) -> Ended:
    given, events = request.given, SimpleQueue[int]()

    def show(rank: int, line: bytes, is_error: bool) -> None:
        if given.all_output or rank == 0:
            SCREEN.show(rank, line, is_error=is_error, prefixed=given.all_output)
        if given.log_dir:
            _log(given.log_dir, rank, line)

    def put(number: int, frame: FrameType | None) -> None:
        del frame
        events.put(number)

    def news() -> int | None:
        try:
            return events.get_nowait()
        except Empty:
            return None

    before = {number: signal.signal(number, put) for number in _SIGNALS}
    try:
        ended = RayJob(ray, asked, show).run(news)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended.said:
        SCREEN.say(ended.said)
    return ended


def launch_function(
    call: bytes,
    env: Mapping[str, str],
    *,
    n: int,
    nnodes: int,
    framework: str | None,
    strategy: str | None,
) -> Ended:
    """Run `dream.launch`'s function, packed, on every rank. Rank 0's output is shown."""
    environ = {**carried(), **told(strategy, framework, env)}
    asked = Asked(n=n, nnodes=nnodes, command=(), environ=environ, call=call)

    def show(rank: int, line: bytes, is_error: bool) -> None:
        if rank == 0:
            SCREEN.show(rank, line, is_error=is_error, prefixed=False)

    return RayJob(connect(os.environ.get("RAY_ADDRESS")), asked, show).run(lambda: None)


def _log(folder: Path, rank: int, line: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"rank{rank}.log").open("ab") as file:
        file.write(line)
