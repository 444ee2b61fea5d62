"""What an engine is, and which there are."""

from __future__ import annotations

import argparse
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module

from dream._errors import ConfigurationError, NotInstalled, Unsupported
from dream.cluster import settings
from dream.launch.engines.request import Request, refuse_unread, request
from dream.launch.job import frameworks

_PLACES = {
    "ssh": "dream.launch.engines.ssh:Ssh",
    "slurm": "dream.launch.engines.slurm:Slurm",
    "mpi": "dream.launch.engines.mpi:Mpi",
    "kubernetes": "dream.launch.engines.kubernetes:Kubernetes",
    "ray": "dream.launch.engines.ray:Ray",
}
_CARRIED = ("DREAM_", "NCCL_", "GLOO_", "TF_", "OMP_", "MKL_", "HOROVOD_", "PYTORCH_", "TORCH_")
_CARRIED_NAMES = ("KERAS_BACKEND", "PYTHONPATH", "LD_LIBRARY_PATH", "CUBLAS_WORKSPACE_CONFIG")
_OF_HERE = ("DREAM_FORK_SERVER", "DREAM_CACHE", "TF_CONFIG", "TORCH_HOME")
"""What means this machine alone."""


class LaunchEngine(ABC):
    """Starts a job elsewhere."""

    @abstractmethod
    def written(self, request: Request) -> str:
        """Return what would be started, as the user could type or submit it."""

    @abstractmethod
    def start(self, request: Request) -> int:
        """Start or submit it. Return the exit code."""


def main(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Hand a command line of `dream run` to the engine that it names."""
    asked = request(given, parser)
    if given.hosts and given.on in ("slurm", "kubernetes", "ray"):
        raise ConfigurationError(
            f"{given.on} chooses the hosts. Received: --hosts {given.hosts} --on {given.on}. Pass "
            "--nnodes K."
        )
    refuse_unread(given, parser, given.on or "ssh")
    engine = find(given.on or "ssh")
    if given.dry_run:
        print(engine.written(asked))
        return 0
    return engine.start(asked)


def find(name: str) -> LaunchEngine:
    module, _, kind = _PLACES[name].partition(":")
    engine: LaunchEngine = getattr(import_module(module), kind)()
    return engine


def program(name: str, how: str) -> str:
    """Return the path of a program that an engine needs."""
    found = shutil.which(name)
    if found is None:
        raise NotInstalled(
            f"{name} is not installed. Received: PATH={os.environ.get('PATH')}. {how}"
        )
    return found


def carried(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that go to every host: those of dream's and of the frameworks' that are
    set here."""
    return {
        name: value
        for name, value in environ.items()
        if (name.startswith(_CARRIED) or name in _CARRIED_NAMES) and name not in _OF_HERE
    }


def requests(request: Request) -> dict[str, str]:
    """Return what `dream run` would tell its ranks, less their places."""
    given = request.given
    found = told(given.strategy, given.framework)
    if given.checkpoint:
        found[settings.CHECKPOINT] = str(given.checkpoint.absolute())
        found[settings.CHECKPOINT_SECONDS] = str(given.every)
    return found


def told(
    strategy: str | None, framework: str | None, env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what each rank of an engine is told, the same all. env: the user's own."""
    found = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", **(env or {})}
    if strategy:
        found[settings.STRATEGY] = strategy
    several = frameworks(framework)
    if len(several) > 1:
        raise Unsupported(
            f"With an engine, all ranks use the same framework. Received: framework {framework}. "
            "Name one, or start the ranks on this machine."
        )
    if several:
        found[settings.FRAMEWORK] = found["KERAS_BACKEND"] = several[0]
    return found


def ranks_with_gpus(request: Request, why: str, *, spare: bool = False) -> int:
    """Return the ranks of a host, each of which has a GPU to itself where GPUs are asked for.
    why: for who did not say how many. spare: whether there may be more GPUs than ranks."""
    n, gpus = request.ranks(why), request.given.gpus
    if gpus is None or gpus == n or (spare and gpus > n):
        return n
    raise ConfigurationError(
        f"Each rank needs a GPU of its own. Received: -n {n}, --gpus {gpus}. Request as many GPUs "
        "per host as ranks, or none."
    )
