"""A launcher that is itself started once for each rank of another would train copies."""

from __future__ import annotations

from collections.abc import Mapping

from dream._errors import ConfigurationError
from dream.cluster import _names

_SIZES = {
    "WORLD_SIZE": "LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_SIZE": "PMI_LOCAL_RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_LOCALID",
}
"""How many processes a launcher has started, and which one on its host this is."""


def refuse_nested(environ: Mapping[str, str], nnodes: int) -> None:
    """ConfigurationError in a process that is one of several of a job.

    Launchers of several hosts may have been started by another, one on each: then `--nnodes` says
    so, and no second one is on this host.
    """
    for size, local in _SIZES.items():
        if not environ.get(size, "").isdecimal() or int(environ[size]) < 2:
            continue
        if size.startswith("SLURM_") and environ.get("SLURM_PTY_PORT"):
            continue  # a shell on a terminal, of which there is one
        if nnodes > 1 and environ.get(local) in (None, "", "0") and not _dreams(environ):
            continue
        told = {name: environ[name] for name in (size, "RANK", local) if environ.get(name)}
        received = ", ".join(f"{name}={value}" for name, value in told.items())
        raise ConfigurationError(
            "`dream run` was started by another launcher, in each of its processes: each would "
            f"start a job of its own, and they would train copies. Received: {received}"
            f"{' (of a rank of `dream run`)' if _dreams(environ) else ''}. Have that launcher "
            "start the script itself, which finds its place; or for one `dream run` a host, give "
            f"--nnodes and --node-rank. If no launcher is there, unset {size}."
        )


def _dreams(environ: Mapping[str, str]) -> bool:
    return bool(environ.get(_names.RENDEZVOUS))
