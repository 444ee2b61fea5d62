"""A server's rank, from the block to the end of its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from dream import cluster
from dream._errors import ConfigurationError
from dream._topology import Cluster
from dream.parameter_server.holding import Rules
from dream.parameter_server.owner import Owner
from dream.parameter_server.roles import Roles
from dream.parameter_server.server import Server


def serve(place: Cluster, roles: Roles, rules: Rules, owner: Owner) -> NoReturn:
    """To the end of training, and of this process: nothing of the script runs after it."""
    Server(place, roles, rules, owner).serve()
    leave()


def leave() -> NoReturn:
    """End this process well, and nothing of the script after it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def roles_of(place: Cluster, options: Mapping[str, object]) -> Roles:
    """Who works and who serves, by the options `workers` and `servers` and by the launcher."""
    workers, servers = options["workers"], options["servers"]
    assert workers is None or isinstance(workers, int)
    assert isinstance(servers, int)
    return Roles.fit(place.world_size, workers, servers, named=place.servers)


def rules_of(place: Cluster, options: Mapping[str, object]) -> Rules:
    """What the options `staleness` and `snapshot_every` ask of the servers."""
    bound, every = options["staleness"], options["snapshot_every"]
    assert bound is None or isinstance(bound, int)
    assert every is None or isinstance(every, int)
    folder = cluster.snapshot_folder()
    if every is not None and folder is None:
        raise ConfigurationError(
            "Snapshots are kept by `dream run`, which starts the job again from them. Received: "
            f"snapshot_every={every} under {place.source}. Start it with `dream run "
            "--max-restarts 1`, or leave snapshot_every out."
        )
    return Rules(bound, every, folder)
