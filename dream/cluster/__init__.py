"""Where this process stands: one file per launcher's environment, and what `dream run` asks.

The only reader of os.environ, beside launch. The ranks of a job find one another through
`Rendezvous`, a small key-value store that the launcher or rank 0 serves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dream._topology import Cluster
from dream.cluster import horovod, tf_config, torchrun
from dream.cluster._names import FRAMEWORK, FRAMEWORKS, SNAPSHOTS, STALL_SECONDS, STRATEGY
from dream.cluster.door import Door, knock, listens, readable
from dream.cluster.exchange import (
    exchange,
    exchange_endpoints,
    found,
    leave_word,
    meet,
    own_host,
    own_listener,
    post,
    posted,
)
from dream.cluster.export import (
    export_dtensor,
    export_horovod,
    export_interface,
    export_tf_config,
    export_tuning,
    horovod_environment,
    tf_config_text,
)
from dream.cluster.port_range import PortRange, port_range, ports_in_words, used_up
from dream.cluster.ports import listener_at, local_address, reserve
from dream.cluster.rendezvous import Rendezvous, rendezvous, stall_seconds, startup_seconds

__all__ = [
    "STALL_SECONDS",
    "Door",
    "PortRange",
    "Rendezvous",
    "detect",
    "exchange",
    "exchange_endpoints",
    "export_dtensor",
    "export_horovod",
    "export_interface",
    "export_tf_config",
    "export_tuning",
    "found",
    "frameworks_differ",
    "horovod_environment",
    "knock",
    "leave_word",
    "listener_at",
    "listens",
    "local_address",
    "meet",
    "own_host",
    "own_listener",
    "port_range",
    "ports_in_words",
    "post",
    "posted",
    "readable",
    "rendezvous",
    "requested_framework",
    "requested_strategy",
    "reserve",
    "snapshot_folder",
    "stall_seconds",
    "startup_seconds",
    "tf_config_text",
    "used_up",
    "variables",
]

READERS: tuple[Callable[[Mapping[str, str]], Cluster | None], ...] = (
    torchrun.read,
    tf_config.read,
    horovod.read,
)
"""Each gives a place, or None where its launcher's variables are absent; the first one counts."""


def detect(environ: Mapping[str, str] = os.environ) -> Cluster:
    """This process's place, from the first launcher whose variables are there."""
    for read in READERS:
        place = read(environ)
        if place is not None:
            return place
    return Cluster()


_READ = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
         "MASTER_PORT", "TF_CONFIG")  # fmt: skip
_PREFIXES = ("DREAM_", "HOROVOD_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_",
             "KUBERNETES_")  # fmt: skip
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_RIDING = re.compile(r"^([^/\s]+:\d+)/\S+$")


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What launchers have set, ours and others; secrets stay secret."""
    found = {k: v for k, v in sorted(environ.items()) if k in _READ or k.startswith(_PREFIXES)}
    return {k: "(set)" if any(s in k for s in _SECRET) else _untold(v) for k, v in found.items()}


def _untold(value: str) -> str:
    """The rendezvous's address without the token that may ride in it."""
    return _RIDING.sub(r"\1/(set)", value)


def requested_strategy(environ: Mapping[str, str] = os.environ) -> str | None:
    """What `dream run --strategy` asked for, if anything."""
    return environ.get(STRATEGY) or None


def requested_framework(environ: Mapping[str, str] = os.environ) -> str | None:
    """What `dream run --framework` asked for this rank, if anything."""
    return environ.get(FRAMEWORK) or None


def frameworks_differ(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `dream run --framework` dealt out several."""
    return len({*environ.get(FRAMEWORKS, "").split(",")}) > 1


def snapshot_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the job's snapshots are kept, under `dream run`."""
    folder = environ.get(SNAPSHOTS)
    return Path(folder) if folder else None
