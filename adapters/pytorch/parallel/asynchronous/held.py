"""The optimizer of a script, whose parameters and steps are the servers'."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch.parallel.asynchronous.recipe import parameters_of, recipe, settings_of
from dream.adapters.pytorch.parallel.asynchronous.rest import Rest
from dream.adapters.pytorch.tensors import CODEC, load
from dream.parameter_server import kinds
from dream.parameter_server.client import Client
from dream.parameter_server.messages import Shard
from dream.parameter_server.sharding import shards

_DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


@final
class Held:
    """A worker's copy of the parameters, between torch's tensors and the client's flat arrays.

    Parameters lie flat in the order of the servers, each server's in the order of the groups.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        kind: type[Optimizer],
        client: Client,
        servers: int,
        rest: Rest,
    ) -> None:
        self.optimizer = optimizer
        self._client = client
        parameters = parameters_of(optimizer)
        dtype = _dtype_of(parameters)
        placed = shards([p.numel() for p in parameters], servers)
        self._placed = placed
        self._order = [parameters[index] for part in placed for index in part]
        self._count = len(parameters)
        self._bounds = [0, *accumulate(len(part) for part in placed)]
        self._sent = self._settings()
        stops = [0, *accumulate(sum(parameters[i].numel() for i in part) for part in placed)]
        told = [
            Shard(stops[i], stops[i + 1], _layout(parameters, part), recipe(optimizer, kind, part))
            for i, part in enumerate(placed)
        ]
        values = np.empty(stops[-1], dtype)
        self._values = self._views(values)
        torch._foreach_copy_(self._values, [p.detach() for p in self._order])
        rest.load(client.register(told, values, rest.save(parameters)), parameters)
        self._gradients = self._views(client.gradient)
        self.load()

    def load(self) -> None:
        """The client's values into the parameters."""
        torch._foreach_copy_([p.detach() for p in self._order], self._values)

    def gather(self) -> list[bytes]:
        """The gradients into the client's array; a mask for each server, empty where every
        parameter has a gradient."""
        gradients = [parameter.grad for parameter in self._order]
        if all(gradient is not None for gradient in gradients):
            torch._foreach_copy_(self._gradients, _dense(gradients))
            return [b""] * (len(self._bounds) - 1)
        there = [
            (own, g) for own, g in zip(self._gradients, gradients, strict=True) if g is not None
        ]
        self._client.gradient.fill(0)
        if there:
            torch._foreach_copy_([own for own, _ in there], _dense([g for _, g in there]))
        mask = bytes(gradient is not None for gradient in gradients)
        return [mask[a:b] for a, b in zip(self._bounds, self._bounds[1:], strict=False)]

    def settings(self) -> bytes | None:
        """The hyper-parameters, where they have changed since they were last asked for."""
        if len(parameters_of(self.optimizer)) != self._count:
            raise Unsupported(
                "The servers hold the parameters that the optimizer began with. Received: a "
                "parameter group added after the first batch. Add it before."
            )
        now = self._settings()
        if now == self._sent:
            return None
        self._sent = now
        return now

    def _settings(self) -> bytes:
        what = type(self.optimizer).__name__
        return kinds.packed(settings_of(self.optimizer), what, CODEC)

    def fetch_state(self) -> None:
        """The optimizer's state, from all servers."""
        own = parameters_of(self.optimizer)
        for part, saved in zip(self._placed, self._client.state(), strict=True):
            for place, value in load(saved).items():
                self.optimizer.state[own[part[place]]] = value

    def _views(self, flat: NDArray[Any]) -> list[torch.Tensor]:
        parts = torch.from_numpy(flat).split([p.numel() for p in self._order])
        return [part.view(p.shape) for part, p in zip(parts, self._order, strict=True)]


def _dtype_of(parameters: list[nn.Parameter]) -> Any:
    kinds = {parameter.dtype for parameter in parameters}
    if len(kinds) != 1 or not kinds <= set(_DTYPES):
        raise Unsupported(
            "Servers hold parameters of one dtype, float32 or float64. Received: "
            f"{', '.join(sorted(map(str, kinds)))}. Keep the parameters in float32, and compute in "
            "others with torch.autocast."
        )
    return _DTYPES[kinds.pop()]


def _dense(gradients: list[Any]) -> list[torch.Tensor]:
    if any(gradient.is_sparse for gradient in gradients):
        raise Unsupported(
            "Sparse gradients cannot be pushed. Received: a parameter with one. Use "
            "nn.Embedding(sparse=False)."
        )
    return gradients


def _layout(parameters: list[nn.Parameter], part: list[int]) -> tuple[Any, ...]:
    return tuple((index, tuple(parameters[index].shape)) for index in part)
