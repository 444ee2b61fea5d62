"""One environment for a rank that serves torch, TensorFlow, Horovod and dream at once."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dream._topology import Cluster
from dream.cluster import horovod_environment, settings, tf_config_text
from dream.launch.job import Job
from dream.launch.joined.threads import cores, thread_shares
from dream.mixed import ranks

_PLACES = ("HOROVOD_", "TORCHELASTIC_", "GROUP_", "ROLE_", "PMI_", "PMIX_")
"""Prefixes of what another launcher may have left behind: an MPI that a rank finds would take PMI's
place for its own, or abort."""

_QUIET = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}

_ALIKE = {"PYTHONHASHSEED": "0"}
"""What the order of sets of strings depends on: on all ranks one."""


def rank_environment(job: Job, place: Cluster) -> dict[str, str]:
    """Return the user's environment with this rank's place in it; what the user set of the rest
    stays."""
    user = _without_a_place(job.environ)
    return {**_defaults(job, place, user), **user, **_place(place), **_requests(job, place)}


def lone_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment for a process that is no rank of any job."""
    places = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    user = _without_a_place(os.environ)
    return {**_QUIET, **{name: user[name] for name in user if name not in places}, **extra}


def _without_a_place(environ: Mapping[str, str]) -> dict[str, str]:
    stale = {"TF_CONFIG", settings.RENDEZVOUS, settings.HOSTS, settings.FRAMEWORK,
             settings.FRAMEWORKS, settings.STRATEGY}  # fmt: skip
    tuning = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_HOST",
              "HOROVOD_GLOO_RENDEZVOUS_")  # fmt: skip
    return {
        name: value
        for name, value in environ.items()
        if name not in stale
        and not name.startswith(tuning)
        and (name.startswith("HOROVOD_") or not name.startswith(_PLACES))
    }


def _place(place: Cluster) -> dict[str, str]:
    names = {
        "RANK": place.rank,
        "LOCAL_RANK": place.local_rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "GROUP_RANK": place.node_rank,
        "GROUP_WORLD_SIZE": len(place.hosts),
        settings.HOSTS: ",".join(place.hosts),
        settings.RENDEZVOUS: place.rendezvous,
        settings.TOKEN: place.token,
    }
    if place.master is not None:
        names |= {"MASTER_ADDR": place.master.host, "MASTER_PORT": place.master.port}
    if not place.alone:  # alone it would mislead MirroredStrategy, which reads it for devices
        names["TF_CONFIG"] = tf_config_text(place.workers, place.rank)
    return {name: str(value) for name, value in names.items()}


def _requests(job: Job, place: Cluster) -> dict[str, str]:
    """Return what `--strategy`, `--framework` and `--checkpoint` asked for."""
    requests = {}
    if job.strategy is not None:
        requests[settings.STRATEGY] = job.strategy
    if job.checkpoint is not None:
        requests[settings.CHECKPOINT] = str(job.checkpoint.absolute())
        requests[settings.CHECKPOINT_SECONDS] = str(job.every)
    if job.frameworks:
        framework = job.everybody[place.rank]
        requests[settings.FRAMEWORK] = framework
        requests[settings.FRAMEWORKS] = ",".join(job.everybody[: place.world_size])
        users = None if ranks.is_mixed(job.everybody) else job.environ.get("KERAS_BACKEND")
        requests["KERAS_BACKEND"] = users or framework  # one for all cannot fit ranks of several
    return requests


def _defaults(job: Job, place: Cluster, user: Mapping[str, str]) -> dict[str, str]:
    defaults = {**_QUIET, **_ALIKE, **horovod_environment(place)}
    if "HOROVOD_GLOO_IFACE" in defaults:  # torch's gloo has a name of its own for it
        defaults["GLOO_SOCKET_IFNAME"] = defaults["HOROVOD_GLOO_IFACE"]
    if job.n > 1:
        defaults |= thread_shares(user, max(1, cores() // job.n))
    return defaults
