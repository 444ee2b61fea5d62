"""predict: arrays are shared out and every rank gets the whole, in order."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from dream.adapters.keras import private
from dream.adapters.keras.data.sources import Arrays, Passes, find
from dream.adapters.keras.engine import Engine


def predict(model: Any, state: Any, given: dict[str, Any]) -> Any:
    """What the model says of every sample, on every rank.

    Arrays are shared out. Other sources are read whole on every rank, and one process with several
    devices leaves both to TensorFlow.
    """
    engine: Engine = state.engine
    given["verbose"] = given["verbose"] if engine.rank == 0 else 0
    if engine.pooled or given["x"] is None or hasattr(given["x"], "__next__"):
        return type(model).predict(model, **given)
    source = find(
        given["x"], batch_size=given["batch_size"], steps=given["steps"], seed=0,
        passes=Passes(), parts=1,
    )  # fmt: skip
    if not isinstance(source, Arrays) or given["steps"] is not None:
        return type(model).predict(model, **given)
    return _shared(model, engine, given, source)


def _shared(model: Any, engine: Engine, given: dict[str, Any], source: Arrays) -> Any:
    """Each rank says its run of samples; the whole is the sum of runs set in zeros."""
    run = np.array_split(np.arange(source.samples), engine.parts)[engine.rank]
    shown = run if len(run) else np.arange(1)
    given.update(x=_taken(given["x"], shown), batch_size=-(-source.batch_size // engine.parts))
    outputs = type(model).predict(model, **given)
    whole = [_set_in_zeros(o, run, source.samples) for o in private.tree.flatten(outputs)]
    return private.tree.pack_sequence_as(outputs, engine.communicator.all_reduce(whole, "sum"))


def _taken(x: Any, run: NDArray[np.int64]) -> Any:
    return private.tree.map_structure(lambda a: keras.ops.convert_to_numpy(a)[run], x)


def _set_in_zeros(output: NDArray[Any], run: NDArray[np.int64], samples: int) -> NDArray[Any]:
    whole = np.zeros((samples, *output.shape[1:]), output.dtype)
    whole[run] = output[: len(run)]
    return whole
