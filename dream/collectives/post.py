"""Send and receive between two ranks, and reduce as the textbooks write it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import Any, final

from dream._errors import ConfigurationError, unknown
from dream.collectives.agreement import Agreement
from dream.collectives.algorithms import ALGORITHMS, Exchange
from dream.collectives.board import Said
from dream.collectives.members import Members
from dream.collectives.peers import Expected, Parcel, Peers
from dream.collectives.tensors import Tensors, carried, check_moves
from dream.collectives.transport import OPS, Native, Op, Tensor


@final
class Handle:
    """A send or receive on its way.

    Not waiting for it is allowed; an error is then lost, save that the other rank has it too.
    """

    def __init__(self, future: Future[Any], finish: Callable[[Any], Any]) -> None:
        self._future = future
        self._finish = finish

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Any:
        """What came, or None for a send, once it is over. Raises what went wrong; TimeoutError
        after `timeout` seconds, and it may then be waited for again."""
        return self._finish(self._future.result(timeout))


@final
class Post:
    """Messages between one rank and the others of its group. All of it runs outside graphs only."""

    def __init__(self, members: Members, tensors: Tensors, agreement: Agreement) -> None:
        self._members, self._tensors, self._agreement = members, tensors, agreement

    @property
    def sent(self) -> int:
        """Bytes of tensors so far."""
        return self._peers.sent

    def send(self, x: Tensor, to: int) -> None:
        self._tensors.refuse_in_graphs("send")
        self._peers.send_now(self._parcel(x), self._other(to, "to"))

    def isend(self, x: Tensor, to: int) -> Handle:
        self._tensors.refuse_in_graphs("isend")
        future = self._peers.send(self._parcel(x, copy=True), self._other(to, "to"))
        return Handle(future, lambda _: None)

    def receive(self, source: int, wanted: Tensor | None, out: Tensor | None) -> Any:
        """wanted: a tensor whose dtype and shape alone will do."""
        self._tensors.refuse_in_graphs("receive")
        parcel = self._peers.receive_now(self._other(source, "source"), self._expected(wanted))
        return self._unpacked(parcel, wanted, out)

    def ireceive(self, source: int, wanted: Tensor | None, out: Tensor | None) -> Handle:
        self._tensors.refuse_in_graphs("ireceive")
        future = self._peers.receive(self._other(source, "source"), self._expected(wanted))
        return Handle(future, lambda parcel: self._unpacked(parcel, wanted, out))

    def all_reduce(self, x: Tensor, op: Op, algorithm: str) -> Native:
        """algorithm: a key of ALGORITHMS."""
        if algorithm not in ALGORITHMS:
            raise unknown("algorithm of all_reduce", algorithm, ["auto", *ALGORITHMS])
        self._tensors.refuse_in_graphs(f"all_reduce with algorithm={algorithm!r}")
        if op not in OPS:
            raise unknown("op", op, OPS)
        value = self._tensors.take(x)
        given = self._tensors.dtype(value)
        dtype = carried(op, given)
        said = Said("all_reduce", [given], {"op": op, "algorithm": algorithm})
        (value,) = self._agreement.agree(said, [value])
        return self._exchanged(value, op, algorithm, dtype)

    @cached_property
    def _peers(self) -> Peers:
        members, check = self._members, self._agreement.check
        return Peers(members.links, members.ranks, members.name, check=check)

    def _exchanged(self, value: Native, op: Op, algorithm: str, dtype: str) -> Native:
        import numpy as np

        data = bytearray(self._tensors.to_bytes(self._tensors.flat(value, dtype)))
        vector = np.frombuffer(data, dtype)
        rank, size = self._members.rank, self._members.size
        ranks = Exchange(self._peers, rank, size, "sum" if op == "mean" else op)
        ALGORITHMS[algorithm](vector, ranks)
        flat = self._tensors.from_bytes(data, dtype, vector.shape)
        if op == "mean":
            flat = self._tensors.over(flat, size)
        return self._tensors.shaped(flat, value)

    def _parcel(self, x: Tensor, *, copy: bool = False) -> Parcel:
        value = self._tensors.take(x)
        dtype, data = self._tensors.dtype(value), self._tensors.to_bytes(value)
        check_moves(dtype)
        return Parcel(dtype, self._shape(value), bytearray(data) if copy else data)

    def _expected(self, wanted: Tensor | None) -> Expected:
        if wanted is None:
            return None
        value = self._tensors.take(wanted)
        return self._tensors.dtype(value), self._shape(value)

    def _shape(self, value: Native) -> tuple[int, ...]:
        return tuple(int(size) for size in self._tensors.sizes(value))

    def _unpacked(self, parcel: Parcel, wanted: Tensor | None, out: Tensor | None) -> Any:
        value = self._tensors.from_bytes(bytearray(parcel.data), parcel.dtype, parcel.shape)
        return self._tensors.give(value, value if wanted is None else wanted, out)

    def _other(self, rank: int, what: str) -> int:
        self._members.check(rank, what)
        if rank == self._members.rank:
            raise ConfigurationError(
                f"A rank cannot send to itself. Received: {what}={rank} on rank {rank}."
            )
        return rank
