"""Arrays that are given to Keras's loops, compared between ranks: each rank takes its own rows of
them, so that nothing else would show that they are others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from keras import tree
from numpy.typing import NDArray

from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Engine
from dream.collectives import Communicator
from dream.data.alike import check_data, of_one_place
from dream.data.position import chained

_WHOLE = 2**20
"""Bytes of an array that is looked at as a whole."""
_ROWS, _GLANCE = 32, 1024
"""Of a larger one, rows that are looked at, and numbers of each."""


def compare_arrays(source: Arrays | Batches, engine: Engine) -> None:
    """Compare arrays between an engine's ranks. (Batches are compared as they are read.)"""
    if isinstance(source, Arrays) and engine.readers.world_size > 1 and not engine.mixed:
        compare(source, engine.readers)


def compare(source: Arrays, ranks: Communicator) -> None:
    """Raise `Desynchronized` where a rank has other arrays. Every rank calls it."""
    given = source.inputs if isinstance(source.inputs, tuple) else (source.inputs,)
    names = ("x", "y", "sample_weight")[: len(given)]
    mine = [digest_of_arrays(each, source.samples) for each in given]
    said = of_one_place(ranks.all_gather_object(("at the start of a pass over its data", mine)))
    for index, name in enumerate(names):
        check_data([each[index] if index < len(each) else 0 for each in said], name)


def digest_of_arrays(arrays: Any, samples: int) -> int:
    """Return a digest of nested arrays alike in their first dim, or of some rows of theirs."""
    digest = chained(0, repr(samples).encode())
    for array in tree.flatten(arrays):
        for rows in () if array is None else _looked_at(array, samples):
            plain = np.array(repr(rows.tolist())) if rows.dtype.hasobject else rows
            digest = chained(digest, repr((plain.shape, plain.dtype.str)).encode())
            digest = chained(digest, np.ascontiguousarray(plain).tobytes())
    return digest


def _looked_at(array: Any, samples: int) -> Iterator[NDArray[Any]]:
    """Yield the array, or the beginnings of some of its rows, spread over all of it."""
    rows = _rows_of(array)
    if rows(0, 1).nbytes * samples <= _WHOLE:
        yield rows(0, samples)
        return
    for place in sorted({index * (samples - 1) // (_ROWS - 1) for index in range(_ROWS)}):
        yield rows(place, place + 1).reshape(-1)[:_GLANCE]


def _rows_of(array: Any) -> Callable[[int, int], NDArray[Any]]:
    """Return what gives the rows from one place to another."""
    if isinstance(array, np.ndarray):  # Keras would cast all of it before it takes a row
        return lambda start, stop: array[start:stop]
    known = private_data.sliceable(array, "numpy")
    return lambda start, stop: np.asarray(known.convert_to_numpy(known[start:stop]))
