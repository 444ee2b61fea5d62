"""The cores of a host, shared out to its ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from dream._topology import Cluster
from dream.cluster import started_by_dream
from dream.strategies import registry

RANKS_HERE = "DREAM_RANKS_HERE"
"""How many ranks a host has, as `dream run --on mpi` tells them before they import anything."""

_OF_OPENMP = "OMP_NUM_THREADS"


def share_cores(place: Cluster) -> None:
    """Take this rank's share of its host's cores, where its starter has not given it one: the
    frameworks' pools, as far as they have not begun, have as many threads. What the user has set
    stays."""
    if place.local_world_size > 1 and not started_by_dream() and not os.environ.get(_OF_OPENMP):
        threads = share_of(place.local_world_size)
        set_threads(os.environ, threads)
        if "torch" in sys.modules:  # which has read the variable by now
            registry.load("dream.adapters.pytorch.devices:share_cores")(threads, _allowed())


def share_before_imports() -> None:
    """Do so in a rank that has imported nothing yet, and is told how many there are."""
    here = os.environ.pop(RANKS_HERE, "")
    if here.isdecimal() and int(here) > 1:
        set_threads(os.environ, share_of(int(here)))


def set_threads(environ: MutableMapping[str, str], share: int) -> None:
    """Put a rank's threads into its environment, beside what the user set."""
    user = {name: value for name, value in environ.items() if value}
    environ.update({**thread_shares(user, share), **user})


def thread_shares(user: Mapping[str, str], share: int) -> dict[str, str]:
    """Return the variables of a rank with so many cores. A user's OMP_NUM_THREADS counts for the
    libraries beside OpenMP."""
    threads = user.get(_OF_OPENMP) or str(share)
    # TensorFlow's second pool waits for input and peers more than it computes
    return {
        _OF_OPENMP: threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": str(max(2, share)),
    }


def share_of(ranks: int) -> int:
    """Return how many cores one of so many ranks on this host has: those that its starter has bound
    it to, where that is fewer than the starter itself has."""
    return fair_share(_allowed(), _allowed(os.getppid()), _quota(_QUOTA), ranks)


def fair_share(own: int, starters: int, quota: int, ranks: int) -> int:
    """own, starters: the cores that this process and its parent may run on; quota: what the control
    group allows to all ranks together."""
    return max(1, min(own, max(own, starters) // ranks, quota // ranks))


def cores() -> int:
    """Return the cores this process may use, by its affinity and its control group's quota."""
    return max(1, min(_allowed(), _quota(_QUOTA)))


def _allowed(process: int = 0) -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    try:
        return len(os.sched_getaffinity(process))
    except OSError:  # of another user's
        return 0


_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def _quota(file: Path) -> int:
    try:
        limit, period = file.read_text().split()
    except (OSError, ValueError):
        return 1 << 20
    return 1 << 20 if limit == "max" else round(int(limit) / int(period))
