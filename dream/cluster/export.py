"""This rank's place in the words of TensorFlow, its DTensor and Horovod's core, which read the
environment themselves."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from math import ceil

from dream._errors import Unsupported
from dream._topology import Cluster, Endpoint
from dream.cluster import settings
from dream.cluster.launchers import HOROVOD
from dream.cluster.ports import LOOPBACK_INTERFACE, interface_toward
from dream.cluster.settings import stall_seconds, startup_seconds
from dream.cluster.tf_config import TF_CONFIG

_BACK_STOP_SECONDS = 24 * 3600
"""Beyond the stall time. Horovod's core names nobody, and counts the time in which its process was
stopped: dream's own end of a wait comes before."""


def horovod_environment(cluster: Cluster) -> dict[str, str]:
    """Return what Horovod's core must find in the environment when it starts; empty for a process
    alone. The store's token rides in the address."""
    if cluster.rendezvous is None:
        return {}
    store = cluster.rendezvous
    across = _hosts_with(cluster, cluster.local_rank)
    address = f"{store.host}:{store.port}/{cluster.token}" if cluster.token else store.host
    place = {
        "RANK": cluster.rank,
        "SIZE": cluster.world_size,
        "LOCAL_RANK": cluster.local_rank,
        "LOCAL_SIZE": cluster.local_world_size,
        "CROSS_RANK": across.index(cluster.node_rank),
        "CROSS_SIZE": len(across),
        "HOSTNAME": f"node{cluster.node_rank}",
        "GLOO_RENDEZVOUS_ADDR": address,
        "GLOO_RENDEZVOUS_PORT": store.port,
        "GLOO_TIMEOUT_SECONDS": max(1, round(startup_seconds())),
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    interface = interface_of(cluster)
    if interface is not None:
        place["GLOO_IFACE"] = interface
    return {f"HOROVOD_{name}": str(value) for name, value in place.items()}


def _hosts_with(cluster: Cluster, local_rank: int) -> list[int]:
    """Return the hosts that have a rank of this local number, which Horovod's core connects."""
    if not cluster.layout:
        return list(range(len(cluster.hosts)))
    return [node for node in range(len(cluster.hosts)) if cluster.layout.count(node) > local_rank]


def interface_of(cluster: Cluster) -> str | None:
    """Return the network interface that the other ranks are reached by; None where the system does
    not tell, or there are none."""
    if cluster.rendezvous is None:
        return None
    return LOOPBACK_INTERFACE if cluster.one_host else interface_toward(cluster.rendezvous.host)


def tf_config_text(workers: Sequence[Endpoint], rank: int) -> str:
    """TF_CONFIG of one worker."""
    return json.dumps(
        {
            "cluster": {"worker": [str(worker) for worker in workers]},
            "task": {"type": "worker", "index": rank},
        }
    )


def export_horovod(cluster: Cluster) -> None:
    """Put `horovod_environment` into this process's environment. The user's timeout stays.

    Under Horovod's own launcher it takes the place of what the launcher said, so that is told in
    dream's words too: this place is read from the environment again."""
    _check_horovod_reaches(cluster)
    if cluster.source == HOROVOD.source:
        os.environ |= _own_words(cluster)
    elif not cluster.alone:
        os.environ[settings.OWN_HOROVOD] = str(os.getpid())
    for name, value in horovod_environment(cluster).items():
        if name != "HOROVOD_GLOO_TIMEOUT_SECONDS" or name not in os.environ:
            os.environ[name] = value
    for name, number in _ring_defaults().items():
        os.environ.setdefault(f"HOROVOD_{name}", str(number))


def _check_horovod_reaches(cluster: Cluster) -> None:
    """Refuse a store that Horovod's core does not reach, which would abort the process."""
    store = cluster.rendezvous
    if store is None:
        return
    try:
        socket.getaddrinfo(store.host, store.port, socket.AF_INET)
    except OSError as error:
        raise Unsupported(
            "Horovod's core connects to the job's store over IPv4 only. Received: the store at "
            f"{store}. Pass the first host's IPv4 address (--master-addr), or use another "
            "reduction: gloo in torch, grpc in TensorFlow."
        ) from error


def _ring_defaults() -> dict[str, int]:
    """Groups may be made at any time. Seconds after which the core warns that a rank has not sent
    a tensor, and gives up; its own default is never to."""
    stall = ceil(stall_seconds())
    return {
        "DYNAMIC_PROCESS_SETS": 1,
        "STALL_CHECK_TIME_SECONDS": min(60, stall),
        "STALL_SHUTDOWN_TIME_SECONDS": stall + _BACK_STOP_SECONDS,
    }


def _own_words(cluster: Cluster) -> dict[str, str]:
    if cluster.master is None or cluster.rendezvous is None:
        return {}
    return {
        "MASTER_ADDR": cluster.master.host,
        "MASTER_PORT": str(cluster.master.port),
        settings.RENDEZVOUS_PORT: str(cluster.rendezvous.port),
        settings.TOKEN: cluster.token,
    }


def export_interface(cluster: Cluster) -> None:
    """Have gloo and NCCL in torch listen on the interface that the ranks reach one another by,
    where the user names none. Between hosts NCCL chooses by itself, and may take several."""
    interface = interface_of(cluster)
    if interface is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if cluster.one_host:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def export_tuning(log: str) -> None:
    """Have Horovod's core tune itself, and write what it tries to a file."""
    os.environ |= {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": log}


def export_tf_config(cluster: Cluster, workers: Sequence[Endpoint]) -> None:
    """Put TF_CONFIG into this process's environment."""
    os.environ[TF_CONFIG] = tf_config_text(workers, cluster.rank)


def export_grpc_fails_fast() -> None:
    """Have a call to a task of TensorFlow's that is gone fail, where it would wait for another to
    come: who calls decides, task by task."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"


def export_dtensor(workers: Sequence[Endpoint], rank: int) -> None:
    """Put DTensor's own names for the cluster into this process's environment."""
    os.environ["DTENSOR_JOBS"] = ",".join(map(str, workers))
    os.environ["DTENSOR_CLIENT_ID"] = str(rank)
    os.environ["DTENSOR_JOB_NAME"] = "worker"
