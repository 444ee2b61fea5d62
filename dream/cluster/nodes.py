"""Platforms that start one process on each host: `dream run` starts the host's ranks there."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from dream._errors import ConfigurationError
from dream.cluster.launcher import MASTER, Environ
from dream.cluster.ports import is_loopback
from dream.cluster.settings import integer, port

AUTO = ("auto", "gpu", "")


@final
@dataclass(frozen=True, slots=True)
class NodePlace:
    """Which host this is. source: who says so. ranks: how many each host starts; None where nobody
    says. master_addr, master_port: the first host's; None where nobody says."""

    source: str
    node: int
    nodes: int
    ranks: int | None = None
    master_addr: str | None = None
    master_port: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Platform:
    """Which variable tells what. marks: those that are the platform's own; absent: those that must
    not be there. first: reads the first host's name where that is not a variable."""

    source: str
    node: str
    nodes: str
    ranks: tuple[str, ...] = ()
    host: str = ""
    port: str = ""
    marks: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    first: Callable[[Environ], str | None] | None = None

    def read(self, environ: Environ) -> NodePlace | None:
        marks = (self.nodes, *self.marks)
        if not all(environ.get(name) for name in marks) or any(map(environ.get, self.absent)):
            return None
        nodes = self._nodes(environ)
        if nodes == 1:
            return NodePlace(self.source, 0, 1, self._ranks(environ))
        node = integer(environ, self.node, self.source) if environ.get(self.node) else None
        if node is None or node >= nodes:
            raise ConfigurationError(
                f"{self.source} does not say which host this is. Received: {self.nodes}={nodes}, "
                f"{self.node}={environ.get(self.node)!r}. Correct its environment, or pass "
                "--nnodes and --node-rank."
            )
        host = self.first(environ) if self.first else environ.get(self.host)
        number = port(environ, self.port, self.source) if environ.get(self.port) else None
        return NodePlace(self.source, node, nodes, self._ranks(environ), host or None, number)

    def _nodes(self, environ: Environ) -> int:
        found = re.fullmatch(r"(\d+):(\d+)", environ[self.nodes])
        if found and found[1] != found[2]:
            raise ConfigurationError(
                f"The number of hosts of a job must be fixed. Received from {self.source}: "
                f"{self.nodes}={environ[self.nodes]}. Set it to one number."
            )
        fixed = {**environ, self.nodes: found[1]} if found else environ
        return integer(fixed, self.nodes, self.source, 1)

    def _ranks(self, environ: Environ) -> int | None:
        name = next(filter(environ.get, self.ranks), "")
        told = environ.get(name, "")
        if told in AUTO or told == "0":  # as SkyPilot says of hosts without GPUs
            return None
        if told == "cpu":
            return os.cpu_count()
        return integer(environ, name, self.source, 1)


def _first_line(name: str) -> Callable[[Environ], str | None]:
    return lambda environ: next(iter(environ.get(name, "").split()), None)


TRAINER = Platform(
    source="Kubeflow Trainer",
    node="PET_NODE_RANK",
    nodes="PET_NNODES",
    ranks=("PET_NPROC_PER_NODE",),
    host="PET_MASTER_ADDR",
    port="PET_MASTER_PORT",
)
PYTORCH_JOB = Platform(  # and PAI, whose RANK counts hosts too
    source="a launcher of hosts (RANK without LOCAL_RANK)",
    node="RANK",
    nodes="WORLD_SIZE",
    ranks=("PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE", "NPROC_PER_NODE"),
    host="MASTER_ADDR",
    port="MASTER_PORT",
    marks=("RANK",),
    absent=("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
SKYPILOT = Platform(
    source="SkyPilot",
    node="SKYPILOT_NODE_RANK",
    nodes="SKYPILOT_NUM_NODES",
    ranks=("SKYPILOT_NUM_GPUS_PER_NODE",),
    first=_first_line("SKYPILOT_NODE_IPS"),
)
_COUNTS = ("NNODES", "NUM_NODES", "AZUREML_NODE_COUNT")
HOSTS = tuple(  # MosaicML's, RunPod's, AzureML's and whoever else's convention it is
    Platform(
        source="a launcher of hosts (NODE_RANK without RANK)",
        node="NODE_RANK",
        nodes=nodes,
        host="MASTER_ADDR",
        port="MASTER_PORT",
        marks=("NODE_RANK",),
        absent=("RANK", "LOCAL_RANK"),
    )
    for nodes in _COUNTS
)
INDEX = "JOB_COMPLETION_INDEX"


def first_pod(environ: Environ) -> str | None:
    """Return the name of an Indexed Job's first pod, "JOB-0.SUBDOMAIN", by this one's own."""
    name, _, domain = socket.getfqdn().partition(".")
    job, dash, index = name.rpartition("-")
    return f"{job}-0.{domain}" if dash and domain and index == environ.get(INDEX) else None


PODS = tuple(
    Platform(
        source="an Indexed Job",
        node=INDEX,
        nodes=nodes,
        first=first_pod,
        marks=(INDEX,),
        absent=("RANK", "LOCAL_RANK", "NODE_RANK"),
    )
    for nodes in _COUNTS
)


def torch_hosts(environ: Environ) -> NodePlace | None:
    """RANK and WORLD_SIZE that count hosts. Where they meet on loopback they are ranks, set by
    hand."""
    return None if is_loopback(environ.get(MASTER[0], "")) else PYTORCH_JOB.read(environ)


def _loaded(environ: Environ, name: str, source: str) -> Any:
    try:
        return json.loads(environ[name])
    except ValueError as error:
        raise ConfigurationError(
            f"{name} is not valid JSON. Received from {source}: {environ[name]!r}. Correct or "
            "unset it."
        ) from error


def sagemaker(environ: Environ) -> NodePlace | None:
    """Hosts in the order of their names, as SageMaker's own frameworks have them."""
    source = "SageMaker"
    told = _sagemakers(environ, source)
    if told is None:
        return None
    hosts, own = sorted(map(str, told.get("hosts") or [])), told.get("current_host")
    if own not in hosts:
        raise ConfigurationError(
            f"{source} does not say which host this is. Received: current host {own!r}, hosts "
            f"{hosts}. Correct its environment."
        )
    gpus = environ.get("SM_NUM_GPUS", "")
    ranks = int(gpus) if gpus.isdecimal() and gpus != "0" else None
    return NodePlace(source, hosts.index(own), len(hosts), ranks, hosts[0])


SAGEMAKER_FILE = "/opt/ml/input/config/resourceconfig.json"
"""What a container finds that has not SageMaker's own start in it, which sets the variables."""


def _sagemakers(environ: Environ, source: str) -> dict[str, Any] | None:
    """Return the hosts and the current one, in the words of the file."""
    if environ.get("SM_HOSTS"):
        hosts = _loaded(environ, "SM_HOSTS", source)
        return {"hosts": hosts, "current_host": environ.get("SM_CURRENT_HOST")}
    if environ.get("SM_RESOURCE_CONFIG"):
        return dict(_loaded(environ, "SM_RESOURCE_CONFIG", source))
    try:
        with open(SAGEMAKER_FILE, encoding="utf-8") as file:  # noqa: PTH123
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def vertex(environ: Environ) -> NodePlace | None:
    """Vertex AI's first pool is one host, the second all other workers."""
    source = "Vertex AI"
    if not environ.get("CLUSTER_SPEC"):
        return None
    spec = _loaded(environ, "CLUSTER_SPEC", source)
    try:
        pools, task = spec["cluster"], spec["task"]
        first, others = pools["workerpool0"], pools.get("workerpool1", [])
        kind, index = task["type"], int(task["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"CLUSTER_SPEC names no hosts. Received from {source}: {environ['CLUSTER_SPEC']}. "
            "Correct or unset it."
        ) from error
    if kind not in ("workerpool0", "workerpool1"):
        raise ConfigurationError(
            f"This host has no role in training. Received from {source}: task {kind} {index}. "
            "Start the script only in the pools workerpool0 and workerpool1."
        )
    host, _, number = str(first[0]).rpartition(":")
    node = index + (kind == "workerpool1")
    return NodePlace(source, node, 1 + len(others), None, host, int(number))


READERS: tuple[Callable[[Environ], NodePlace | None], ...] = (
    TRAINER.read,
    torch_hosts,
    SKYPILOT.read,
    sagemaker,
    vertex,
    *(row.read for row in (*HOSTS, *PODS)),
)


def node_place(environ: Environ = os.environ) -> NodePlace | None:
    """Return which host this is, where a platform has started one process on each."""
    places = (read(environ) for read in READERS)
    return next((place for place in places if place is not None), None)


def pod_of(environ: Environ, nodes: int) -> NodePlace | None:
    """Return which pod of an Indexed Job this is, whose number of pods the user says; None where
    it is none. Its variables name it alone."""
    told = {name: environ[name] for name in (INDEX, *MASTER) if environ.get(name)}
    return PODS[0].read({**told, PODS[0].nodes: str(nodes)})


def refuse_one_of_hosts(place: NodePlace | None) -> None:
    """Raise for a script that such a platform has started itself on each of several hosts: each
    would train a copy."""
    if place is None or place.nodes == 1:
        return
    raise ConfigurationError(
        f"{place.source} starts only one process on each host, so the host's ranks are not running "
        f"yet. Received: host {place.node} of {place.nodes}. Launch `dream run SCRIPT` instead of "
        "`python SCRIPT`."
    )


def gpus_here(environ: Environ = os.environ) -> int:
    """Count the GPUs that this host shows, without asking a framework."""
    told = environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return len([name for name in told.split(",") if name.strip() not in ("", "-1")])
    try:
        return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))  # noqa: PTH208
    except OSError:
        return 0
