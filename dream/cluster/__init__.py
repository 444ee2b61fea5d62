"""Where this process stands, and how the ranks of a job find one another.

`launchers` has a row a launcher, whose environment it reads; `settings` what is asked of dream.
Nobody else reads os.environ, beside launch. Ranks meet over `Rendezvous`, a small key-value store
that the launcher or rank 0 serves, for those who know the job's token.
"""

from __future__ import annotations

from dream.cluster.exchange import (
    Door,
    detect,
    exchange,
    exchange_endpoints,
    found,
    knock,
    leave_word,
    listens,
    meet,
    own_host,
    own_listener,
    post,
    posted,
    readable,
)
from dream.cluster.export import (
    export_dtensor,
    export_grpc_fails_fast,
    export_horovod,
    export_interface,
    export_tf_config,
    export_tuning,
    horovod_environment,
    tf_config_text,
)
from dream.cluster.launchers import variables
from dream.cluster.ports import (
    PortRange,
    listener_at,
    local_address,
    port_range,
    ports_in_words,
    reserve,
    used_up,
)
from dream.cluster.rendezvous import Rendezvous, rendezvous
from dream.cluster.settings import (
    STALL_SECONDS,
    frameworks_differ,
    requested_framework,
    requested_strategy,
    snapshot_folder,
    stall_seconds,
    started_by_dream,
    startup_seconds,
)

__all__ = [
    "STALL_SECONDS",
    "Door",
    "PortRange",
    "Rendezvous",
    "detect",
    "exchange",
    "exchange_endpoints",
    "export_dtensor",
    "export_grpc_fails_fast",
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
    "started_by_dream",
    "startup_seconds",
    "tf_config_text",
    "used_up",
    "variables",
]
