"""The communicator of a job of one rank: everything is already everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from dream._adapter import Communicator, Op, Tensor


@final
class Alone(Communicator):
    """One rank. No framework is needed for it."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return 1

    def all_reduce(self, x: Tensor | Sequence[Tensor], op: Op = "mean") -> Any:
        return x

    def broadcast(self, x: Tensor | Sequence[Tensor], root: int = 0) -> Any:
        return x

    def barrier(self) -> None:
        return

    def all_gather_object(self, value: object) -> list[Any]:
        return [value]

    def broadcast_object(self, value: object, root: int = 0) -> Any:
        return value

    def close(self) -> None:
        return
