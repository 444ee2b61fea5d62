"""The wire on torch.distributed: gloo for CPU tensors, NCCL for CUDA; and where torch listens."""

from __future__ import annotations

import atexit
import socket
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, final
from weakref import WeakSet

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from dream import cluster, stall
from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream._topology import Cluster, Endpoint, own_gpu
from dream.adapters.pytorch import shared_gpu
from dream.adapters.pytorch.errors import peer_failed, peers_may_fail
from dream.adapters.pytorch.private import GradBucket
from dream.collectives import Wire
from dream.collectives.transport import Combine, Length
from dream.shared_memory import Riders, listening
from dream.shared_memory.groups import serves
from dream.strategies import registry

GradientHook = Callable[[object, GradBucket], torch.futures.Future[torch.Tensor]]
"""(state, bucket) -> a future of the bucket's buffer, averaged over the ranks."""


class TorchWire(Wire):
    """A wire that may also carry DDP's buckets."""

    @property
    @abstractmethod
    def gradient_hook(self) -> GradientHook | None:
        """Reduces a bucket of DDP's; None leaves it to DDP's own process group."""

    @property
    def riders(self) -> Riders | None:
        """The numbers that travel with each bucket by themselves; None where none can."""
        return None


_LIBRARY, _NCCL = "libtorch_cpu", "libnccl"
_made = count()


def hold(place: Cluster, *, nccl: bool) -> None:
    """Have torch listen where this job's ranks are, before it does; rank 0 says what is open."""
    cluster.export_interface(place)
    who = "torch's store, gloo and NCCL" if nccl else "torch's store and gloo"
    why = listening.hold(place, who, (_LIBRARY, _NCCL) if nccl else (_LIBRARY,))
    if place.rank != 0:
        return
    if not place.one_host:
        listening.say_open(place, who)
    elif why:
        logger.warning("%s take connections of every user of this machine: %s", who, why)


def store(place: Cluster, timeout: timedelta) -> Any:
    """The job's TCPStore, which rank 0 serves at its own address alone and tells the others: at
    the launcher's port where that is free, since torchrun may listen there itself. One rank needs
    no other process's."""
    if place.alone:
        return distributed.HashStore()  # type: ignore[attr-defined]
    key = f"torch/store-{next(_made)}"  # each rank makes as many: a script may end a group
    if place.rank == 0:
        own = _listener(place)
        host, port = own.getsockname()[:2]
        cluster.post(place, key, f"{host}:{port}".encode())
        return _joined(place, Endpoint(host, port), timeout, own.detach())
    host, _, port = cluster.posted(place, key).decode().rpartition(":")
    return _joined(place, Endpoint(host, int(port)), timeout)


def _listener(place: Cluster) -> socket.socket:
    if place.master is not None:
        with suppress(OSError):
            return cluster.listener_at(cluster.own_host(place), place.master.port)
    return cluster.own_listener(place)


def _joined(place: Cluster, at: Endpoint, timeout: timedelta, own: int | None = None) -> Any:
    """Rank 0 stays until everybody has come, and so until everybody has read where to."""
    return distributed.TCPStore(  # type: ignore[attr-defined]
        at.host,
        at.port,
        place.world_size,
        is_master=own is not None,
        timeout=timeout,
        wait_for_workers=True,
        master_listen_fd=own,
    )


_BACK_STOP = {"gloo": timedelta(days=1), "nccl": timedelta(minutes=5)}
"""Beyond the stall time. Torch names nobody, and counts the time in which a process was stopped:
dream's own end of a wait comes before, save under NCCL, whose waits keep a core busy as if they
computed."""

_TORCH = Path(torch.__file__).parent
_WAITS = {
    str(_TORCH / "autograd" / "graph.py"): "backward()",
    str(_TORCH / "distributed" / "distributed_c10d.py"): "",
    str(_TORCH / "distributed" / "rendezvous.py"): "the start of torch.distributed",
    str(_TORCH / "distributed" / "_functional_collectives.py"): "",
    **{f"{_TORCH / 'distributed' / part}/": "" for part in ("fsdp", "pipelining", "tensor")},
    str(_TORCH / "_ops.py"): "a collective",  # a call of C++ that stands still
    str(Path(__file__).with_name("private.py")): "",  # DDP's agreement on its buckets
    __file__: "",
}
_OPS: dict[Combine, Any] = {
    "sum": distributed.ReduceOp.SUM,
    "min": distributed.ReduceOp.MIN,
    "max": distributed.ReduceOp.MAX,
    "product": distributed.ReduceOp.PRODUCT,
}


def connect(place: Cluster, reduction: str) -> TorchWire:
    """Return the wire of the job's process group, which is started on first use."""
    start_group(place, reduction)
    group = distributed.group.WORLD
    assert group is not None
    return GroupWire(group, reduction)


def connect_auto(place: Cluster, reduction: str) -> TorchWire:
    """Take shared memory for CPU tensors on one host; else torch's own process group, which has
    gloo for the CPU and NCCL for GPUs."""
    if torch.cuda.is_available() or not serves(place):
        return connect(place, reduction)
    wire: TorchWire = registry.reduction("torch", "shared_memory")(place, "shared_memory")
    return wire


def start_group(place: Cluster, reduction: str) -> None:
    """Make torch's default process group, or take the one that the user's script has made."""
    stall.waits_inside(_WAITS)
    # DDP imports it, and the defaults of its functions are the default group as it is by then: that
    # would be held until the interpreter is taken down, while threads of it still want Python.
    import torch.distributed.nn.functional

    if distributed.is_initialized():
        if distributed.get_world_size() != place.world_size:
            raise ConfigurationError(
                "The existing process group has another size. Received: "
                f"{distributed.get_world_size()} ranks in torch.distributed, {place.world_size} "
                f"from {place.source}. Remove init_process_group: dream calls it."
            )
        return
    if reduction == "nccl" and not distributed.is_nccl_available():
        raise Unsupported(
            "This torch has no NCCL. Received: reduction='nccl'. Use reduction='gloo'."
        )
    nccl = _takes_nccl(reduction)
    if not place.alone:
        hold(place, nccl=nccl)
    with peers_may_fail(f"the start at {place.master}"):
        kept = store(place, late())
        backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
        if torch.cuda.is_available() and (alike := _on_one_gpu(place, kept)):
            if reduction == "nccl":
                raise ConfigurationError(
                    f"NCCL needs a GPU for each rank. Received: ranks {alike} on the same GPU. "
                    "Remove reduction: their numbers then go through the CPU's memory."
                )
            backend = shared_gpu.NAME
        distributed.init_process_group(
            backend,
            store=kept,
            rank=place.rank,
            world_size=place.world_size,
            timeout=late(),
        )
    atexit.register(_stop_group)


def late() -> timedelta:
    """Return how long a group of torch's waits before it gives up by itself."""
    kind = "nccl" if torch.cuda.is_available() else "gloo"
    return timedelta(seconds=cluster.stall_seconds()) + _BACK_STOP[kind]


def _takes_nccl(reduction: str) -> bool:
    """NCCL for CUDA tensors, beside gloo for the CPU's: control messages are such."""
    return torch.cuda.is_available() and distributed.is_nccl_available() and reduction != "gloo"


def _on_one_gpu(place: Cluster, kept: Any) -> str:
    """Return which ranks compute on the same GPU as others, as on a machine that has no other; else
    nothing. NCCL refuses them. All ranks have the same answer: rank 0 reads what each wrote."""
    own = torch.cuda.get_device_properties(own_gpu(place, torch.cuda.device_count())).uuid
    kept.set(f"dream/gpu/{place.rank}", str(own))
    if place.rank == 0:
        every = [kept.get(f"dream/gpu/{rank}") for rank in range(place.world_size)]
        alike = [str(rank) for rank, gpu in enumerate(every) if every.count(gpu) > 1]
        kept.set("dream/gpus", ", ".join(alike))
        if alike:
            logger.warning(
                "ranks %s compute on the same GPU, where NCCL cannot connect them: their data goes "
                "through CPU memory, by gloo. One GPU per rank is faster",
                ", ".join(alike),
            )
    return str(kept.get("dream/gpus").decode())


_wires: WeakSet[GroupWire] = WeakSet()


def _let_go() -> None:
    """A group that is held until the interpreter is taken down can abort the process: its threads
    are joined too late."""
    while _wires:
        _wires.pop().let_go()


def _stop_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


@final
class GroupWire(TorchWire):
    """A process group. Its own methods are called, which spares their Python fronts."""

    def __init__(self, group: ProcessGroup, reduction: str) -> None:
        self._group = group
        self._name = "gloo" if reduction == "auto" else reduction
        self._size = group.size()
        if not _wires:
            atexit.register(_let_go)
        _wires.add(self)
        self._options = {op: _options(reduce) for op, reduce in _OPS.items()}

    @property
    def name(self) -> str:
        return self._name

    @property
    def gradient_hook(self) -> GradientHook | None:
        return None

    def all_reduce(self, buffers: list[torch.Tensor], op: Combine) -> list[torch.Tensor]:
        try:  # what peers_may_fail does, which costs a small call a tenth of its time
            away = [self._group.allreduce([flat], self._options[op]) for flat in buffers]
            for work in away:
                work.wait()
        except RuntimeError as error:
            raise peer_failed("all_reduce", error) from error
        return buffers

    def broadcast(self, buffers: list[torch.Tensor], root: int) -> list[torch.Tensor]:
        with peers_may_fail("broadcast"):
            for work in [self._group.broadcast(flat, root) for flat in buffers]:
                work.wait()
        return buffers

    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        whole = buffer.new_empty(self._size * len(buffer))
        with peers_may_fail("all_gather"):
            self._group.allgather([list(whole.view(self._size, -1).unbind())], [buffer]).wait()
        return whole

    def all_to_all(
        self, buffer: torch.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> torch.Tensor:
        result = buffer.new_empty(sum(receives))
        with peers_may_fail("all_to_all"):
            self._group.alltoall_base(result, buffer, list(receives), list(sends)).wait()
        return result

    def group(self, ranks: Sequence[int]) -> TorchWire | None:
        everywhere = [distributed.get_global_rank(self._group, rank) for rank in ranks]
        with peers_may_fail("group"):
            made = distributed.new_group(everywhere, timeout=late())
        if distributed.get_rank() not in everywhere:
            return None
        return GroupWire(made, self._name)

    def let_go(self) -> None:
        """The last that is done to it."""
        del self._group

    def close(self) -> None:
        """End a group of some of the ranks; that of all stays for later blocks, and ends at
        exit."""
        if self in _wires and self._group is not distributed.group.WORLD:
            distributed.destroy_process_group(self._group)
            _wires.discard(self)
            self.let_go()


def _options(op: Any) -> distributed.AllreduceOptions:
    options = distributed.AllreduceOptions()
    options.reduceOp = op
    return options
