"""All-reduce as the textbooks write it, on sends and receives: to learn from and to compare with.

N is the bytes of the tensor, P the ranks. Formulas: R. Thakur, R. Rabenseifner and W. Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005; the ring: P. Patarasuk and
X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from dream.collectives.peers import Parcel, Peers
from dream.collectives.transport import Combine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.generic]


@final
class Exchange:
    """Vectors of one dtype from rank to rank."""

    def __init__(self, peers: Peers, rank: int, size: int, op: Combine) -> None:
        import numpy as np

        self.rank, self.size = rank, size
        self._peers = peers
        self._combine: Any = {
            "sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply
        }[op]  # fmt: skip

    def send(self, part: Vector, to: int) -> None:
        self._peers.send_now(_parcel(part), to)

    def take(self, part: Vector, source: int) -> None:
        """What `source` sends, in place of `part`."""
        part[...] = self._received(part, source)

    def add(self, part: Vector, source: int) -> None:
        """What `source` sends, combined into `part`."""
        self._combine(part, self._received(part, source), out=part)

    def swap(self, mine: Vector, to: int, act: Callable[[Vector, int], None], part: Vector,
             source: int) -> None:  # fmt: skip
        """Send `mine` and `act` on what comes, at the same time."""
        sent = self._peers.send(_parcel(mine.copy()), to)
        act(part, source)
        sent.result()

    def _received(self, part: Vector, source: int) -> Vector:
        import numpy as np

        parcel = self._peers.receive_now(source, (part.dtype.name, part.shape))
        return np.frombuffer(parcel.data, part.dtype)


def naive(vector: Vector, ranks: Exchange) -> None:
    """Everybody sends to rank 0, which adds up and sends the result to everybody.

    Sent: N(P-1) by rank 0, N by the others.
    """
    if ranks.rank:
        ranks.send(vector, 0)
        ranks.take(vector, 0)
        return
    for source in range(1, ranks.size):
        ranks.add(vector, source)
    for to in range(1, ranks.size):
        ranks.send(vector, to)


def ring(vector: Vector, ranks: Exchange) -> None:
    """P chunks go round: added up on the first way, handed on on the second.

    Sent: 2N(P-1)/P by every rank, where P divides the elements.
    """
    import numpy as np

    rank, size = ranks.rank, ranks.size
    chunks = np.array_split(vector, size)
    right, left = (rank + 1) % size, (rank - 1) % size
    for first, act in ((0, ranks.add), (1, ranks.take)):
        for step in range(size - 1):
            gone = (rank + first - step) % size
            ranks.swap(chunks[gone], right, act, chunks[(gone - 1) % size], left)


def halving_doubling(vector: Vector, ranks: Exchange) -> None:
    """Rabenseifner's: halves are exchanged with ever nearer ranks and added up, then joined again.

    Ranks beyond the largest power of two hand theirs to a partner first and get the result from
    it at the end. Sent: 2N(P-1)/P by every rank, where P is a power of two that divides the
    elements.
    """
    core = 1 << (ranks.size.bit_length() - 1)
    partner = ranks.rank ^ core
    if ranks.rank >= core:
        ranks.send(vector, partner)
        ranks.take(vector, partner)
        return
    if partner < ranks.size:
        ranks.add(vector, partner)
    _halve(vector, ranks, core // 2)
    if partner < ranks.size:
        ranks.send(vector, partner)


def _halve(part: Vector, ranks: Exchange, distance: int) -> None:
    """`part` added up over the ranks that differ from this one below 2 * distance."""
    if not distance:
        return
    import numpy as np

    other = ranks.rank ^ distance
    halves = np.array_split(part, 2)
    own, theirs = halves if ranks.rank < other else halves[::-1]
    ranks.swap(theirs, other, ranks.add, own, other)
    _halve(own, ranks, distance // 2)
    ranks.swap(own, other, ranks.take, theirs, other)


ALGORITHMS: Mapping[str, Callable[[Vector, Exchange], None]] = {
    "naive": naive,
    "ring": ring,
    "halving_doubling": halving_doubling,
}


def _parcel(part: Vector) -> Parcel:
    return Parcel(part.dtype.name, part.shape, part.data.cast("B"))
