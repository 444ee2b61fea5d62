"""Gradients of a cut model, added up over the ranks that hold the same pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from dream.adapters.pytorch.private import to_local
from dream.collectives import Communicator


@final
class DataSum:
    """At the end of a backward pass, what it added to the gradients becomes the mean over the data
    axis, in one collective a dtype. Of an update in parts, only the last one's backward sums."""

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()  # the layout has been agreed on
        self._weight = 1.0
        self._watched: dict[int, tuple[nn.Parameter, list[RemovableHandle]]] = {}
        self._came: dict[int, torch.Tensor] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._completes = True
        self._waiting: set[int] = set()  # whose gradient is partly this rank's own

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of these from here on."""
        wanted = {id(parameter): parameter for parameter in parameters}
        for key in set(self._watched) - set(wanted):
            for handle in self._watched.pop(key)[1]:
                handle.remove()
        for key, parameter in wanted.items():
            if key not in self._watched:
                self._watched[key] = parameter, []
        self._hook()

    def arm(self, weight: float) -> None:
        """What the next gradients count for. Where no axis is to be added along, and everything
        counts in full, nothing is looked at."""
        before, self._weight = self._weight, weight
        if self._among.world_size > 1 or weight != before:
            self._hook()

    def gather(self, *, fresh: bool, completes: bool) -> None:
        """The next gradients are of a part of an update: added up with the last."""
        if fresh:
            self._waiting.clear()
        self._completes = completes

    def _hook(self) -> None:
        needed = self._among.world_size > 1 or self._weight != 1.0
        for key, (parameter, handles) in self._watched.items():
            if needed and parameter.requires_grad and not handles:
                handles.append(parameter.register_hook(partial(self._coming, key)))
            elif handles and not (needed and parameter.requires_grad):
                for handle in handles:
                    handle.remove()
                handles.clear()

    def _coming(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """Before it is added to what is there."""
        parameter = self._watched[key][0]
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            gradient = gradient.redistribute(placements=parameter.placements)
        if self._among.world_size == 1 or not self._completes:
            self._waiting.add(key)
            return _times(gradient, self._weight)
        if parameter.grad is not None:
            self._before[key] = parameter.grad.clone()
        if not self._came:
            torch.autograd.Variable._execution_engine.queue_callback(self._add_up)
        self._came[key] = to_local(gradient)
        return gradient

    def _add_up(self) -> None:
        """In the parameters' own order, which is every rank's."""
        keys = [key for key in self._watched if key in self._came or key in self._waiting]
        places = {key: self._place(key) for key in keys}
        with torch.no_grad():
            for dtype in dict.fromkeys(place.dtype for place in places.values()):
                self._add_up_alike({k: p for k, p in places.items() if p.dtype == dtype})
        self._came.clear()
        self._before.clear()
        self._waiting.clear()

    def _add_up_alike(self, places: dict[int, torch.Tensor]) -> None:
        flat = torch.cat([self._own(key, place) for key, place in places.items()])
        flat = self._among.all_reduce(flat)
        begin = 0
        for key, place in places.items():
            size = place.numel()
            place.copy_(flat[begin : begin + size].view(place.shape))
            if key in self._before and key not in self._waiting:
                place.add_(to_local(self._before[key]))
            begin += size

    def _own(self, key: int, place: torch.Tensor) -> torch.Tensor:
        """This rank's gradient: what came, and what waited, beside which what was global before
        is its own mean. Flat."""
        came = self._came.get(key)
        if came is None:
            return place.reshape(-1)
        own = came if self._weight == 1.0 else _times(came, self._weight)
        if key in self._waiting and key in self._before:
            own = own + to_local(self._before[key])
        return own.reshape(-1)

    def _place(self, key: int) -> torch.Tensor:
        gradient = self._watched[key][0].grad
        assert gradient is not None
        return to_local(gradient)


def _times(gradient: torch.Tensor, weight: float) -> torch.Tensor:
    """Nothing where it counts for nothing, whatever it is."""
    return gradient * weight if weight else torch.zeros_like(gradient)
