"""Picklable values between ranks, for communicators that carry only tensors.

A value travels as the 4-byte words of its pickle: ranks other than its own add zeros, so that a
sum is a gather.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from dream._adapter import Communicator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def all_gather(communicator: Communicator, value: object) -> list[Any]:
    """Every rank's value, in rank order. Two sums: of the lengths, then of the words."""
    import numpy as np

    words = _pack(value)
    lengths = np.zeros(communicator.world_size, np.int32)
    lengths[communicator.rank] = len(words)
    lengths = communicator.all_reduce(lengths, "sum")
    table = np.zeros(int(lengths.sum()), np.int32)
    ends = np.cumsum(lengths)
    end = int(ends[communicator.rank])
    table[end - len(words) : end] = words
    table = communicator.all_reduce(table, "sum")
    return [_unpack(part) for part in np.split(table, ends[:-1])]


def broadcast(communicator: Communicator, value: object, root: int) -> Any:
    """`root`'s value. Two broadcasts: of the length, then of the words."""
    import numpy as np

    mine = communicator.rank == root
    words = _pack(value) if mine else np.zeros(0, np.int32)
    length = int(communicator.broadcast(np.array([len(words)], np.int32), root)[0])
    words = communicator.broadcast(words if mine else np.zeros(length, np.int32), root)
    return value if mine else _unpack(words)


def _pack(value: object) -> NDArray[np.int32]:
    import numpy as np

    data = pickle.dumps(value)
    return np.frombuffer(bytearray(data) + bytes(-len(data) % 4), np.int32)


def _unpack(words: NDArray[np.int32]) -> Any:
    return pickle.loads(words.tobytes())
