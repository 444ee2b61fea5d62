"""`dream run --on ray`, and `dream.launch(function, on="ray")`: on a Ray cluster that runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, final

from dream._errors import ConfigurationError, NotInstalled
from dream.cluster import settings
from dream.launch.engines.engine import LaunchEngine, carried, ranks_with_gpus, requests, told
from dream.launch.engines.ray_cluster import Asked, Ended, RayJob, hosts_with_room
from dream.launch.engines.request import Request
from dream.launch.guard import heard
from dream.launch.output import SCREEN

_KNOCK_SECONDS = 10.0


@final
class Ray(LaunchEngine):
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


def connect(address: str | None) -> Any:
    """Return ray, connected to a cluster that runs: none is started."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise NotInstalled(
            "ray is not installed. Received: --on ray. Run: pip install 'dream-systems[ray]'"
        ) from error
    if ray.is_initialized():
        return ray
    try:
        _knock(address)
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"No Ray cluster answers. Received: address {address or 'auto'} ({error}). Start one "
            "(ray start --head), or pass --address HOST:6379."
        ) from error
    return ray


def _knock(address: str | None) -> None:
    """Raise OSError where nothing listens: Ray itself would ask for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and "/" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECONDS).close()


def _that_fits(ray: object, asked: Asked, request: Request) -> Asked:
    """A job that goes on from a checkpoint does so on as many hosts as are left."""
    room = hosts_with_room(ray, asked)
    if request.given.checkpoint is None or not 0 < room < asked.nnodes:
        return asked
    SCREEN.say(f"Of {asked.nnodes} hosts {room} are left: training continues on those.")
    return replace(asked, nnodes=room)


def _run(ray: object, asked: Asked, request: Request) -> Ended:
    given, events = request.given, SimpleQueue[int]()

    def show(rank: int, line: bytes, is_error: bool) -> None:
        if given.all_output or rank == 0:
            SCREEN.show(rank, line, is_error=is_error, prefixed=given.all_output)
        if given.log_dir:
            _log(given.log_dir, rank, line)

    def news() -> int | None:
        try:
            return events.get_nowait()
        except Empty:
            return None

    with heard(events.put):
        ended = RayJob(ray, asked, show).run(news)
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
