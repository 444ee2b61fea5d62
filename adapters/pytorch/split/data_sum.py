"""Gradients of a cut model, added up over the ranks that hold the same pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from dream.communication import Communicator


@final
class DataSum:
    """At the end of a backward pass, what it added to the gradients becomes the mean over the data
    axis, in one collective a dtype."""

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()  # the layout has been agreed on
        self._weight = 1.0
        self._watched: dict[int, tuple[nn.Parameter, list[RemovableHandle]]] = {}
        self._came: dict[int, torch.Tensor] = {}
        self._before: dict[int, torch.Tensor] = {}

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
        if parameter.grad is not None:
            self._before[key] = parameter.grad.clone()
        if not self._came:
            torch.autograd.Variable._execution_engine.queue_callback(self._add_up)
        self._came[key] = local_of(gradient)
        return gradient

    def _add_up(self) -> None:
        """In the parameters' own order, which is every rank's."""
        keys = [key for key in self._watched if key in self._came]
        with torch.no_grad():
            for dtype in dict.fromkeys(self._came[key].dtype for key in keys):
                self._add_up_alike([key for key in keys if self._came[key].dtype == dtype])
        self._came.clear()
        self._before.clear()

    def _add_up_alike(self, keys: list[int]) -> None:
        flat = torch.cat([self._came[key].reshape(-1) for key in keys])
        if self._weight == 0.0:
            flat.zero_()
        elif self._weight != 1.0:
            flat.mul_(self._weight)
        if self._among.world_size > 1:
            flat = self._among.all_reduce(flat)
        begin = 0
        for key in keys:
            gradient = self._watched[key][0].grad
            assert gradient is not None
            place, size = local_of(gradient), self._came[key].numel()
            place.copy_(flat[begin : begin + size].view(place.shape))
            if key in self._before:
                place.add_(local_of(self._before[key]))
            begin += size


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece, as it lies in memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
