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


def all_gather(communicator: Communicator, value: object) -> list[Any]:
    data = _pack(value)
    lengths = communicator.all_gather(_length(data)).tolist()
    return _unpack_all(communicator.all_gather(data), lengths)


def broadcast(communicator: Communicator, value: object, root: int) -> Any:
    mine = communicator.rank == root
    data = _pack(value if mine else None)
    length = int(communicator.broadcast(_length(data), root)[0])
    moved = communicator.broadcast(data if mine else _empty(length), root)
    return value if mine else unpack(moved.data)


def gather(communicator: Communicator, value: object, root: int) -> list[Any] | None:
    data = _pack(value)
    lengths = communicator.all_gather(_length(data)).tolist()
    whole = communicator.gather(data, root=root)
    return None if whole is None else _unpack_all(whole, lengths)


def scatter(communicator: Communicator, values: Sequence[object] | None, root: int) -> Any:
    size = communicator.world_size
    parts = None
    if communicator.rank == root:
        if values is None or len(values) != size:
            raise ConfigurationError(
                "scatter needs one value per rank on the root. Received: "
                f"{'none' if values is None else len(values)}, world size {size}."
            )
        parts = [_pack(value) for value in values]
    return unpack(communicator.scatter(parts, root=root, like=_empty(0)).data)


def _pack(value: object) -> NDArray[np.uint8]:
    import numpy as np

    return np.frombuffer(bytearray(pack(value)), np.uint8)


def _length(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    import numpy as np

    return np.array([len(data)], np.int64)


def _empty(length: int) -> NDArray[np.uint8]:
    import numpy as np

    return np.zeros(length, np.uint8)


def _unpack_all(whole: NDArray[np.uint8], lengths: Sequence[int]) -> list[Any]:
    data, start, values = whole.data, 0, []
    for length in lengths:
        values.append(unpack(data[start : start + length]))
        start += length
    return values
