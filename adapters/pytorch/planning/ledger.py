"""Every operation of a step and every byte that it makes and lets go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dream.plan.sketch import Kind, Phase

_ATTENTION = "_scaled_dot_product"
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_backward")


@final
@dataclass(frozen=True, slots=True)
class Done:
    """An operation. owner: the module in whose call it ran; "" for none's. heads: of attention,
    where it is torch's own; else 0."""

    phase: Phase
    kind: Kind
    flops: int
    moved: int
    owner: str
    heads: int = 0


@final
@dataclass(frozen=True, slots=True)
class Made:
    """A storage. at: how many operations were done before."""

    size: int
    owner: str
    at: int


@final
class Ledger(TorchDispatchMode):
    """owner: the module whose call is going on.

    made: by number; events: (number, whether it came or went, phase), in their order.
    """

    def __init__(self, owner: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.done: list[Done] = []
        self.made: list[Made] = []
        self.events: list[tuple[int, bool, Phase]] = []
        self._owner = owner
        self._numbers: dict[int, int] = {}
        self._watches: dict[int, Any] = {}

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
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        out = func(*args, **kwargs)
        gave = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if not func.is_view and gave:
            self.done.append(self._entry(func, args, kwargs, out, given, gave))
        for tensor in gave:
            self._see(tensor)
        return out

    def _entry(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        given: list[torch.Tensor],
        gave: list[torch.Tensor],
    ) -> Done:
        packet = func._overloadpacket
        formula = flop_registry.get(packet)
        flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=out))
        kind: Kind = "other"
        if flops:
            kind = "convolution" if packet.__name__ in _CONVOLUTIONS else "matmul"
        moved = sum(x.numel() * x.element_size() for x in (*given, *gave))
        attention = packet.__name__.startswith(_ATTENTION)
        heads = int(given[0].shape[1]) if attention and given[0].dim() == 4 else 0
        return Done(self.phase, kind, flops, moved, self._owner(), heads)

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        number = len(self.made)
        self.made.append(Made(storage.nbytes(), self._owner(), len(self.done)))
        self.events.append((number, True, self.phase))

        def gone(_: object) -> None:
            self.events.append((number, False, self.phase))
            del self._numbers[key], self._watches[key]

        self._numbers[key] = number
        self._watches[key] = weakref.ref(storage, gone)
