"""What is to be started, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dream import _framework
from dream._errors import ConfigurationError
from dream.cluster.ports import LOOPBACK
from dream.launch.output import Show
from dream.mixed import ranks
from dream.strategies import spec as specs
from dream.strategies.spec import Framework

LEAST_NODE_TIMEOUT = 5.0
"""Launchers say once a second that they are there, and one may come late."""


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of one host.

    command: what each rank's interpreter runs: child.py's arguments.
    n: ranks on this host.
    frameworks: dealt out by rank, one after the other; empty where the script decides.
    node_timeout: seconds for which another host may be silent before it counts as lost.
    max_restarts: how often the whole job is started again where a rank fails or a host is lost, the
        same on every host; attempt: the number of this start, from 0.
    checkpoint: the folder that trainings are saved in by themselves; every: how often, in seconds.
    commit_every: after how many steps it is kept in memory too; 0 for never, None for as often as
        costs little. commits: the folder for that, while the job runs.
    grace: seconds that ranks have to end once the job is stopped from outside.
    master_port: where node 0's launcher serves the rendezvous; None for any free port.
    min_n, min_nodes: how few ranks, or hosts, the job goes on with where others are lost for good;
        None where all are needed. n and nnodes are how many it has at most then.
    full_n: how many ranks it had before some were lost for good. grow_after: seconds after which
        those are tried again.
    warm: whether ranks may be forked from a parent that has imported their framework.
    verbose: whether to say how ranks are started.
    """

    command: tuple[str, ...]
    n: int
    strategy: str | None = None
    frameworks: tuple[Framework, ...] = ()
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = LOOPBACK
    master_port: int | None = None
    node_timeout: float = 15.0
    log_dir: Path | None = None
    show: Show = "first"
    timeout: float | None = None
    max_restarts: int = 0
    attempt: int = 0
    checkpoint: Path | None = None
    every: float = 600.0
    commit_every: int | None = None
    commits: Path | None = None
    grace: float = 30.0
    min_n: int | None = None
    min_nodes: int | None = None
    full_n: int | None = None
    grow_after: float = 60.0
    warm: bool = True
    verbose: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        _check_at_least("-n, the number of ranks,", self.n, 1)
        _check_at_least("--nnodes", self.nnodes, 1)
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigurationError(
                "--node-rank must be at least 0 and below --nnodes. Received: "
                f"--node-rank {self.node_rank}, --nnodes {self.nnodes}. Number the hosts from 0."
            )
        self._check_fewest()
        _check_at_least("--max-restarts", self.max_restarts, 0)
        _check_at_least("--grace", self.grace, 0)
        _check_at_least("--every", self.every, 0.001)
        _check_at_least("--commit-every", self.commit_every or 0, 0)
        _check_at_least("--grow-after", self.grow_after, 0.001)
        if self.commit_every and self.checkpoint is None:
            raise ConfigurationError(
                "In-memory snapshots need --checkpoint. Received: --commit-every "
                f"{self.commit_every}, and no --checkpoint. Remove it, or pass --checkpoint FOLDER."
            )
        if not LEAST_NODE_TIMEOUT <= self.node_timeout < float("inf"):
            raise ConfigurationError(
                f"--node-timeout must be at least {LEAST_NODE_TIMEOUT:g} seconds. Received: "
                f"{self.node_timeout:g}. Remove it, or give more for a slow network."
            )
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise ConfigurationError(
                f"--master-port is not a valid port. Received: {self.master_port}. Give a number "
                "from 1 to 65535."
            )
        if len(self.frameworks) > self.least_world_size:
            raise ConfigurationError(
                "There are more frameworks than ranks. Received: --framework "
                f"{','.join(self.frameworks)}, {self.least_world_size} ranks. Start more with -n."
            )
        if self.strategy is not None:
            _check_strategy(self.strategy, self.everybody, self.world_size)

    def _check_fewest(self) -> None:
        for name, least, most in (
            ("-n", self.min_n, self.n),
            ("--nnodes", self.min_nodes, self.nnodes),
        ):
            if least is not None and not 1 <= least <= most:
                raise ConfigurationError(
                    f"{name} MIN:MAX must be at least 1, and MIN no more than MAX. Received: "
                    f"{least}:{most}. Put the smaller number first."
                )
        if self.min_n is not None and self.nnodes > 1:
            raise ConfigurationError(
                "On several hosts, the number of hosts varies, not the number of ranks per host. "
                f"Received: -n {self.min_n}:{self.n}, --nnodes {self.nnodes}. Pass -n one number, "
                f"and --nnodes MIN:{self.nnodes}."
            )

    @property
    def hosts_change(self) -> bool:
        """Whether the job goes on where a host is lost or comes."""
        return self.min_nodes is not None and self.min_nodes < self.nnodes

    @property
    def may_start_again(self) -> bool:
        """Whether something of it may die without its end."""
        return self.max_restarts > 0 or self.hosts_change or (self.min_n or self.n) < self.n

    @property
    def least_world_size(self) -> int:
        return (self.min_n or self.n) * (self.min_nodes or self.nnodes)

    def shows(self, rank: int) -> bool:
        """Whether a rank's output is on screen."""
        return self.show == "all" or (self.show == "first" and rank == 0)

    @property
    def world_size(self) -> int:
        return self.n * self.nnodes

    @property
    def everybody(self) -> tuple[Framework, ...]:
        """Every rank's framework; empty where the script decides."""
        given = self.frameworks
        return tuple(given[rank % len(given)] for rank in range(self.world_size if given else 0))


def _check_at_least(what: str, value: float, minimum: float) -> None:
    if not value >= minimum:
        raise ConfigurationError(
            f"{what} must be at least {minimum}. Received: {value}. Give a larger number."
        )


def _check_strategy(request: str, frameworks: tuple[Framework, ...], world_size: int) -> None:
    name, given = specs.parse_request(request)
    spec = specs.find(name)
    if not spec.several and world_size > 1:
        raise ConfigurationError(
            f"Strategy {name!r} runs in one process. Received: {world_size} ranks. "
            "Use -n 1, or name another strategy."
        )
    options = {key: value for key, value in given.items() if key not in specs.COMMON}
    reduction = str(given.get("reduction", "auto"))
    spec.check_reduction(reduction)
    ranks.check_reduction(reduction, frameworks)
    for framework in dict.fromkeys(frameworks):
        spec.check_framework(options, framework, reduction)


def frameworks(text: str | None) -> tuple[Framework, ...]:
    """`torch`, `tensorflow` or both with a comma, as `--framework` takes them."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    return tuple(_framework.check(name, "--framework") for name in names)
