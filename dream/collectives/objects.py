"""Plain values between ranks. What is read is values and nothing else, whoever sent it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dream._errors import ConfigurationError
from dream._plain import pack, unpack

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dream.collectives.communicator import Communicator

_FRAME = 8  # bytes
_WORD = 4
"""Bytes that travel together: frameworks have less to do for those than for single ones."""


def all_gather(communicator: Communicator, value: object) -> list[Any]:
    return _unpack_all(communicator.all_gather(_framed(value)))


def broadcast(communicator: Communicator, value: object, root: int) -> Any:
    mine = communicator.rank == root
    data = _framed(value if mine else None)
    length = int(communicator.broadcast(_length(data), root)[0])
    moved = communicator.broadcast(data if mine else _empty(length), root)
    return value if mine else _unpack_all(moved)[0]


def gather(communicator: Communicator, value: object, root: int) -> list[Any] | None:
    whole = communicator.gather(_framed(value), root=root)
    return None if whole is None else _unpack_all(whole)


def scatter(communicator: Communicator, values: Sequence[object] | None, root: int) -> Any:
    size = communicator.world_size
    parts = None
    if communicator.rank == root:
        if values is None or len(values) != size:
            raise ConfigurationError(
                "scatter needs one value per rank on the root. Received: "
                f"{'none' if values is None else len(values)}, world size {size}."
            )
        parts = [_framed(value) for value in values]
    return _unpack_all(communicator.scatter(parts, root=root, like=_empty(0)))[0]


def _framed(value: object) -> NDArray[np.int32]:
    """Its bytes behind their number, filled up, so that several can lie one behind the other."""
    import numpy as np

    packed = pack(value)
    data = bytearray(len(packed).to_bytes(_FRAME, "little")) + packed
    return np.frombuffer(data + bytes(-len(data) % _WORD), np.int32)


def _length(data: NDArray[np.int32]) -> NDArray[np.int64]:
    import numpy as np

    return np.array([len(data)], np.int64)


def _empty(length: int) -> NDArray[np.int32]:
    import numpy as np

    return np.zeros(length, np.int32)


def _unpack_all(whole: NDArray[np.int32]) -> list[Any]:
    data, values = whole.data.cast("B"), []
    while data:
        length = int.from_bytes(data[:_FRAME], "little")
        values.append(unpack(data[_FRAME : _FRAME + length]))
        data = data[_FRAME + length + -length % _WORD :]
    return values
