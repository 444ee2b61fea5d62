"""A worker's model and optimizer, whose parameters and steps are the servers'."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, final

import keras
import numpy as np
from numpy.typing import NDArray

from dream._errors import Desynchronized, Unsupported
from dream._plain import pack, unpack
from dream.adapters.keras import private
from dream.adapters.keras.asynchronous import recipe
from dream.adapters.keras.asynchronous.machine import Machine
from dream.parameter_server.client import Client
from dream.parameter_server.messages import Shard
from dream.parameter_server.sharding import shards


@final
class Held:
    """Parameters lie flat in the order of the servers, each server's in the order of the model's.

    order: the variables, as they lie flat.
    """

    def __init__(
        self, model: Any, optimizer: Any, client: Client, servers: int, machine: Machine
    ) -> None:
        recipe.check(optimizer, servers)
        self.model, self.optimizer = model, optimizer
        self._client, self._machine = client, machine
        variables = list(model.trainable_variables)
        _check_dtypes(variables)
        sizes = [int(np.prod(v.shape)) for v in variables]
        placed = shards(sizes, servers)
        self.order = [variables[index] for part in placed for index in part]
        self._bounds = [0, *accumulate(len(part) for part in placed)]
        stops = [0, *accumulate(sum(sizes[index] for index in part) for part in placed)]
        told = [
            Shard(a, b, _layout(variables, part), recipe.recipe(optimizer, own))
            for (a, b), part, own in zip(pairwise(stops), placed, self._parts(), strict=True)
        ]
        self._sent = self._rate()
        self._load = machine.load(self.order, private.counter(optimizer))
        self._start = int(private.counter(optimizer))
        rest = pack([_numpy(v) for v in self._rest()])
        self._take_rest(client.register(told, machine.flat(self.order), rest))
        self.load()

    def load(self) -> None:
        """The client's values into the variables, and the count of updates."""
        self._load(self._client.values, self._start + max(0, self._client.version))

    def check_untouched(self) -> None:
        """The parameters are those that came last: the servers would not know of others."""
        if not np.array_equal(self._machine.flat(self.order), self._client.values):
            raise Unsupported(
                "The servers hold the parameters once training has begun. Received: weights that "
                "were set or loaded after it. Set them before the first fit or step."
            )

    def masks(self, present: bytes) -> list[bytes]:
        """A mask for each server, of that for all."""
        return [present[a:b] for a, b in pairwise(self._bounds)]

    def settings(self) -> bytes | None:
        """The learning rate, where it has changed since it was last asked for."""
        now = self._rate()
        if now == self._sent:
            return None
        self._sent = now
        return pack(now)

    def fetch_state(self) -> None:
        """The optimizer's state, from all servers."""
        for saved in self._client.state():
            recipe.take_state(self.optimizer, unpack(saved))

    def _rate(self) -> float | None:
        """None where a schedule gives it: the servers' own, by their own count."""
        if not isinstance(self.optimizer.get_config()["learning_rate"], float):
            return None
        return float(self.optimizer.learning_rate)

    def _parts(self) -> list[list[Any]]:
        return [self.order[a:b] for a, b in pairwise(self._bounds)]

    def _rest(self) -> list[Any]:
        """What no optimizer holds: running statistics, frozen weights."""
        trained = {id(v) for v in self.order}
        return [v for v in self.model.weights if id(v) not in trained]

    def _take_rest(self, saved: bytes) -> None:
        """Rank 0's, to start with."""
        own, told = self._rest(), unpack(saved)
        if [tuple(v.shape) for v in own] != [v.shape for v in told]:
            raise Desynchronized(
                "The workers' models differ in running statistics or frozen weights. Received: "
                f"{len(own)} such variables here, {len(told)} on rank 0, or other shapes. Build "
                "the same model on every rank."
            )
        for variable, first in zip(own, told, strict=True):
            variable.assign(first)


def _check_dtypes(variables: list[Any]) -> None:
    kinds = {str(v.dtype) for v in variables}
    if len(kinds) != 1 or not kinds <= {"float32", "float64"}:
        raise Unsupported(
            "Servers hold parameters of one dtype, float32 or float64. Received: "
            f"{', '.join(sorted(kinds)) or 'no trainable variable'}. Keep the variables in "
            "float32, and compute in others with a dtype policy."
        )


def _layout(variables: list[Any], part: list[int]) -> tuple[Any, ...]:
    return tuple((index, tuple(variables[index].shape)) for index in part)


def _numpy(variable: Any) -> NDArray[Any]:
    return np.array(keras.ops.convert_to_numpy(variable))
