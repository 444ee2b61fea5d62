"""TF_CONFIG set by hand: the workers' list is all there is, and the rest follows from it.

Rank, host and world size are the task's place in the list (a chief comes first, and is a worker;
parameter servers, `ps`, come last). Rank 0 serves
torch's store and dream's own: at the two ports above the highest that the list names on its host,
or the two below the lowest where those would be past 65535. MASTER_ADDR with MASTER_PORT, and
DREAM_RENDEZVOUS_PORT, put others in their place. Tasks on several hosts need one DREAM_TOKEN.
An evaluator is none of the ranks: it is a process alone, and the others do not count it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import settings
from dream.cluster.ports import endpoint, is_loopback, next_ports
from dream.cluster.settings import port, require
from dream.cluster.token import token_of

TF_CONFIG = "TF_CONFIG"
_SOURCE = "TF_CONFIG"
_KINDS = ("chief", "worker", "ps")
"""Kinds of tasks, in the order of their ranks."""
_ASIDE = "evaluator"
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True, slots=True)
class Task:
    """TF_CONFIG, checked. workers: every task that takes part; index: this task's place among
    them, a chief being the first; servers: how many, the last ones, are `ps`."""

    workers: tuple[Endpoint, ...]
    index: int
    servers: int | None


def read(environ: Mapping[str, str]) -> Cluster | None:
    if _evaluates(_value(environ)):
        return Cluster(source=_SOURCE, evaluator=True)
    task = parse(environ)
    if task is None:
        return None
    if len(task.workers) == 1:
        return Cluster(source=_SOURCE, rank=task.index)
    names = [worker.host for worker in task.workers]
    hosts = tuple(dict.fromkeys(names))
    mine = names[task.index]
    master, store = _services(environ, task.workers)
    return Cluster(
        source=_SOURCE,
        rank=task.index,
        local_rank=names[: task.index].count(mine),
        node_rank=hosts.index(mine),
        world_size=len(names),
        local_world_size=names.count(mine),
        hosts=hosts,
        layout=tuple(map(hosts.index, names)),
        master=master,
        rendezvous=store,
        token=token_of(
            environ,
            _SOURCE,
            ("TF_CONFIG", *task.workers),
            one_host=len(hosts) == 1 or all(map(is_loopback, hosts)),
        ),
        serves_rendezvous=task.index == 0,
        workers=task.workers,
        servers=task.servers,
    )


def parse(environ: Mapping[str, str]) -> Task | None:
    """Return the variable as a Task; None where it is unset or names no cluster, or this process
    stands beside it."""
    value = _value(environ)
    if not value.get("cluster") or _evaluates(value):
        return None
    text = environ[TF_CONFIG]
    workers = _workers(value["cluster"], text)
    index = _index(value.get("task"), value["cluster"], text)
    return Task(workers, index, len(value["cluster"].get("ps", [])) or None)


def _value(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variable says; nothing where it is unset."""
    text = environ.get(TF_CONFIG)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _malformed(f"it is no JSON ({error})", text) from error
    if not isinstance(value, dict):
        raise _malformed("it is no JSON object", text)
    return value


def tasks(environ: Mapping[str, str]) -> int:
    """How many tasks the cluster has of which this process is one; 0 where there is none."""
    if _evaluates(_value(environ)):
        return len(_workers(_value(environ)["cluster"], environ[TF_CONFIG])) + 1
    task = parse(environ)
    return len(task.workers) if task else 0


def _evaluates(value: Mapping[str, Any]) -> bool:
    """Whether this process is the evaluator. Lists of tasks may name it or not."""
    task = value.get("task")
    return bool(value.get("cluster")) and isinstance(task, dict) and task.get("type") == _ASIDE


def _workers(cluster: Any, text: str) -> tuple[Endpoint, ...]:
    if not isinstance(cluster, dict):
        raise _malformed('"cluster" is no JSON object', text)
    kinds = (*_KINDS, _ASIDE)
    strange = sorted(set(cluster) - set(kinds))
    if strange:
        known = ", ".join(f'"{kind}"' for kind in kinds)
        raise _malformed(f'"cluster" names {strange[0]!r}, and only {known} work', text)
    listed = [cluster.get(kind, []) for kind in _KINDS]
    if not all(isinstance(part, list) for part in listed):
        raise _malformed('"worker" is no list of "host:port"', text)
    addresses = [address for part in listed for address in part]
    if not addresses or not all(isinstance(address, str) for address in addresses):
        raise _malformed('"worker" is no list of "host:port"', text)
    workers = tuple(endpoint(address, TF_CONFIG) for address in addresses)
    if len(set(workers)) != len(workers):
        raise _malformed("an address is there twice", text)
    return workers


def _index(task: Any, cluster: Mapping[str, Any], text: str) -> int:
    if not isinstance(task, dict) or not {"type", "index"} <= set(task):
        raise _malformed('"task" lacks "type" or "index"', text)
    kind, index = task["type"], task["index"]
    if kind not in cluster:
        raise _malformed(f'the task\'s type {kind!r} is not in "cluster"', text)
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if type(index) is not int or not 0 <= index < len(cluster[kind]):
        raise _malformed(f"the task's index {index!r} is not below {len(cluster[kind])}", text)
    before = _KINDS[: _KINDS.index(kind)]
    return index + sum(len(cluster.get(other, [])) for other in before)


def _services(
    environ: Mapping[str, str], workers: tuple[Endpoint, ...]
) -> tuple[Endpoint, Endpoint]:
    """Choose where rank 0 serves torch's store and dream's."""
    host = workers[0].host
    taken = [worker.port for worker in workers if worker.host == host]
    master, store = (Endpoint(host, number) for number in next_ports(taken, 2))
    if environ.get("MASTER_ADDR") or environ.get("MASTER_PORT"):
        require(environ, ("MASTER_ADDR", "MASTER_PORT"), _SOURCE)
        master = Endpoint(environ["MASTER_ADDR"], port(environ, "MASTER_PORT", _SOURCE))
    if environ.get(settings.RENDEZVOUS_PORT):
        store = Endpoint(host, port(environ, settings.RENDEZVOUS_PORT, _SOURCE))
    return master, store


def _malformed(what: str, text: str) -> ConfigurationError:
    return ConfigurationError(
        f"TF_CONFIG cannot be used: {what}. Received: TF_CONFIG={text!r}. Write it like {_EXAMPLE}"
    )
