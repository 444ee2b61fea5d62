"""predict, whose arrays are shared out where a sample's answer hangs on itself alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import tree
from numpy.typing import NDArray

from dream.adapters.keras import consistency
from dream.adapters.keras.data import alike
from dream.adapters.keras.data.sources import Arrays, DataPasses, find
from dream.adapters.keras.update import coupling

if TYPE_CHECKING:
    from dream.adapters.keras.engine import Engine
    from dream.adapters.keras.fit import FitState


def predict(model: Any, state: FitState, given: dict[str, Any]) -> Any:
    """Return what the model says of every sample, on every rank, in order.

    Arrays are shared out. Other sources are read whole on every rank, and so are arrays where the
    model couples the samples of a batch, or is not built, or draws random numbers, which are those
    of all samples. TensorFlow shares batches out over several devices of one process; what a model
    couples, or draws for, is said on one of them.
    """
    engine, x = state.engine, given["x"]
    given["verbose"] = given["verbose"] if engine.rank == 0 else 0
    asked = _asked_by(x)
    if engine.pooled and asked is not None and coupling.answers(model, engine, asked):
        return _alone(model, engine, given)
    if x is None or hasattr(x, "__next__") or given["steps"] is not None:
        return type(model).predict(model, **given)
    source = find(x, batch_size=given["batch_size"], passes=DataPasses(), parts=1)
    does = coupling.answers(model, engine, x) if isinstance(source, Arrays) else ""
    if does:
        return _alone(model, engine, given)
    if engine.pooled or not isinstance(source, Arrays) or not model.built:
        return type(model).predict(model, **given)
    if state.looks.due():
        alike.compare_arrays(source, engine)
    # Each rank says its run of samples; the whole is the sum of runs set in zeros.
    run = np.array_split(np.arange(source.samples), engine.parts)[engine.rank]
    shown = run if len(run) else np.arange(1)
    cut = tree.map_structure(lambda a: _rows(a, shown), x)
    size = -(-source.batch_size // engine.parts)
    generators = engine.generators.state()
    drawn = consistency.SeedWatch(model)
    with engine.noting_draws(model) as drew:
        outputs = type(model).predict(model, **{**given, "x": cut, "batch_size": size})
    if drawn.undone() or drew:
        if generators is not None:
            engine.generators.restore(generators)
        return _alone(model, engine, given)
    whole = [_set_in_zeros(o, run, source.samples) for o in tree.flatten(outputs)]
    return tree.pack_sequence_as(outputs, engine.communicator.all_reduce(whole, "sum"))


def _asked_by(source: Any) -> Any:
    """Return shapes and dtypes of what a TensorFlow dataset asks a model about; else None."""
    said = getattr(source, "element_spec", None)
    asked = said[0] if isinstance(said, tuple) else said
    known = all(getattr(each, "shape", None) is not None for each in tree.flatten(asked))
    return asked if known and all(x.shape.rank for x in tree.flatten(asked)) else None


def _rows(given: Any, shown: NDArray[np.int64]) -> Any:
    """Return rows of an array. TensorFlow's strings stay a tensor, as Keras takes them."""
    array = keras.ops.convert_to_numpy(given)
    return keras.ops.take(given, shown, axis=0) if array.dtype.kind == "O" else array[shown]


def _alone(model: Any, engine: Engine, given: dict[str, Any]) -> Any:
    """Have one device of each process say whole batches."""
    return engine.alone(model, partial(type(model).predict, model, **given))


def predict_on_batch(model: Any, state: FitState, given: dict[str, Any]) -> Any:
    """Return what the model says of a batch. Keras would have each device of a process say it."""
    engine, x = state.engine, given["x"]
    if not engine.pooled:
        return type(model).predict_on_batch(model, **given)
    asked = {"x": x, "batch_size": int(tree.flatten(x)[0].shape[0]), "verbose": 0}
    if coupling.answers(model, engine, x):
        return _alone(model, engine, asked)
    return type(model).predict(model, **asked)


def _set_in_zeros(output: NDArray[Any], run: NDArray[np.int64], samples: int) -> NDArray[Any]:
    whole = np.zeros((samples, *output.shape[1:]), output.dtype)
    whole[run] = output[: len(run)]
    return whole
