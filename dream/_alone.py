"""The communicator of a job of one rank: whatever goes round comes back as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dream._adapter import Communicator, Op, Tensor
from dream._errors import ConfigurationError

Take = Callable[[Tensor, Op], Tensor]


def _as_it_is(x: Tensor, op: Op) -> Tensor:  # noqa: ARG001  (the shape of Take)
    return x


class Alone(Communicator):
    """One rank.

    take: what a framework does to each tensor: refuse what several ranks would refuse, and hand
        back a copy of what the caller may change later.
    """

    def __init__(self, take: Take = _as_it_is) -> None:
        self._take = take

    @property
    def rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return 1

    def all_reduce(self, x: Tensor | Sequence[Tensor], op: Op = "mean") -> Any:
        if isinstance(x, (list, tuple)):
            return [self._take(item, op) for item in x]
        return self._take(x, op)

    def broadcast(self, x: Tensor | Sequence[Tensor], root: int = 0) -> Any:
        _check_root(root)
        return self.all_reduce(x, "max")

    def barrier(self) -> None:
        return None

    def all_gather_object(self, value: object) -> list[Any]:
        return [value]

    def broadcast_object(self, value: object, root: int = 0) -> Any:
        _check_root(root)
        return value

    def close(self) -> None:
        return None


def _check_root(root: int) -> None:
    if root != 0:
        raise ConfigurationError(
            f"No such rank to broadcast from. Received: root={root}, world size 1. Use root=0."
        )
