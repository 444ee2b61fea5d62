"""Note every operation of a step, every byte that it makes and lets go, and every collective."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Self, final

import torch
from torch import distributed
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dream.adapters.pytorch.hooks import Patches
from dream.adapters.pytorch.tools.planning.calls import described
from dream.tools.plan.sketch import Kind, Phase, SketchedOp

_NAMES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "send": "send",
    "recv_": "receive",
    "broadcast_": "broadcast",
    "shard_dim_alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
}
"""dream's names of torch's."""


@final
@dataclass(frozen=True, slots=True)
class Collected:
    """A tensor that was given to a collective.

    size: bytes of the larger side; ranks: of the group.
    """

    operation: str
    size: int
    ranks: tuple[int, ...]
    phase: Phase


def is_collective(func: Any) -> bool:
    return func in collective_ops


def collected(func: Any, args: tuple[Any, ...], out: Any, phase: Phase) -> Iterator[Collected]:
    """Nothing for what only waits."""
    if func in sync_ops:
        return
    name = func._overloadpacket.__name__
    group = CollectiveOp.get_process_group(func, args)
    ranks = tuple(distributed.get_process_group_ranks(group))
    yield Collected(_NAMES.get(name, name), _larger(args, out), ranks, phase)


def _larger(args: tuple[Any, ...], out: Any) -> int:
    """Of what goes in and what comes out; lists of tensors are one side."""
    sides = [*(arg for arg in args if _tensors(arg)), out]
    return max(sum(x.numel() * x.element_size() for x in _tensors(side)) for side in sides)


def _tensors(side: Any) -> list[torch.Tensor]:
    if isinstance(side, torch.Tensor):
        return [side]
    return [x for x in tree_leaves(side) if isinstance(x, torch.Tensor)]


_CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward")


@final
class Ledger(TorchDispatchMode):
    """Notes the memory that operations take and what they send.

    made: sizes of storages, by number; events: (number, whether it came or went, phase), in
    their order; sent: what went to collectives. Of tensors that are cut over ranks, this rank's
    parts count.

    describes: whether each operation is put in words, for those who time them. While `counts` is
    False neither operations nor what is sent are noted, only memory.

    """

    def __init__(self, *, describes: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.counts = True
        self._describes = describes
        self.done: list[SketchedOp] = []
        self.made: list[int] = []
        self.sent: list[Collected] = []
        self.events: list[tuple[int, bool, Phase]] = []
        self._patches = Patches()
        self._numbers: dict[int, int] = {}
        self._watches: dict[int, Any] = {}

    def __enter__(self) -> Self:
        resize = torch.UntypedStorage.resize_
        self._patches.replace(torch.UntypedStorage, "resize_", self._wrap_resize(resize))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._patches.restore()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """What is there before the step."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._numbers[storage._cdata] = -1
            self._watches[storage._cdata] = storage

    def number(self, tensor: torch.Tensor) -> int:
        """Of its storage; -1 for what was there before."""
        return self._numbers.get(tensor.untyped_storage()._cdata, -1)

    def alive(self) -> set[int]:
        return {number for number in self._numbers.values() if number >= 0}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own part of the operation comes here
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        gave = _tensors(out)
        if self.counts:
            if is_collective(func):
                self.sent.extend(collected(func, args, out, self.phase))
            elif gave and not func.is_view:
                self.done.append(self._entry(func, args, kwargs, out, gave))
        for tensor in gave:
            self._see(tensor)
        return out

    def _entry(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        gave: list[torch.Tensor],
    ) -> SketchedOp:
        packet = func._overloadpacket
        formula = flop_registry.get(packet)
        flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
        kind: Kind = "other"
        if flops:
            kind = "convolution" if packet.__name__ in _CONVOLUTIONS else "matmul"
        moved = sum(map(size, (*_tensors((args, kwargs)), *gave)))
        call = described(func, args, kwargs) if self._describes else ""
        return SketchedOp(self.phase, kind, flops, moved, call)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        self._come(key, storage.nbytes())

        def gone(_: object) -> None:
            self.events.append((self._numbers[key], False, self.phase))
            del self._numbers[key], self._watches[key]

        self._watches[key] = weakref.ref(storage, gone)

    def _come(self, key: int, size: int) -> None:
        number = len(self.made)
        self.made.append(size)
        self.events.append((number, True, self.phase))
        self._numbers[key] = number

    def _wrap_resize(self, resize: Callable[..., Any]) -> Callable[..., Any]:
        """FSDP2 gives memory up, and takes it again, behind the dispatcher's back."""

        @wraps(resize)
        def wrapped(storage: torch.UntypedStorage, size: int) -> Any:
            key, before = storage._cdata, storage.nbytes()
            given = resize(storage, size)
            if self._numbers.get(key, -1) >= 0 and size != before:
                self.events.append((self._numbers[key], False, self.phase))
                self._come(key, size)
            return given

        return wrapped


def size(tensor: torch.Tensor) -> int:
    """Return bytes."""
    return tensor.numel() * tensor.element_size()


@final
@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that a step held, in bytes, the optimizer's state never counted. backward, update:
    without gradients, save one while it is made; joint: backward with them. left: without them,
    when the update begins."""

    forward: int
    backward: int
    joint: int
    update: int
    left: int


def peaks(ledger: Ledger, gradients: set[int], state: set[int]) -> Peaks:
    """gradients, state: numbers of storages."""
    here = together = 0
    most = {"forward": 0, "backward": 0, "update": 0}
    joint = left = 0
    for number, came, phase in ledger.events:
        if number in state:
            continue
        change = ledger.made[number] if came else -ledger.made[number]
        together += change
        most[phase] = max(most[phase], here + max(0, change))
        if number not in gradients:
            here += change
        if phase == "backward":
            joint = max(joint, together)
        if phase != "update":
            left = here
    return Peaks(
        most["forward"],
        max(most["backward"], most["forward"] if not joint else 0),
        joint,
        max(most["update"], left),
        left,
    )


def working(ledger: Ledger, begin: int, held: set[int]) -> int:
    """Return the bytes at most in forward and backward since an event, without what is `held`."""
    here = most = 0
    for index, (number, came, phase) in enumerate(ledger.events):
        if number in held:
            continue
        here += ledger.made[number] if came else -ledger.made[number]
        if index >= begin and phase != "update":
            most = max(most, here)
    return most


def most_since(ledger: Ledger, begin: int) -> tuple[int, set[int]]:
    """Return the bytes at most since an event, all of them counted, and the numbers of what was
    there."""
    held = most = 0
    last = -1
    for index, (number, came, _) in enumerate(ledger.events):
        held += ledger.made[number] if came else -ledger.made[number]
        if index >= begin and held > most:
            most, last = held, index
    there: set[int] = set()
    for number, came, _ in ledger.events[: last + 1]:
        (there.add if came else there.discard)(number)
    return most, there
