"""The same variables on every rank before a model trains, and rank 0's values in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import keras
import numpy as np
from numpy.typing import NDArray

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger, warn_once
from dream.adapters.keras import checks, hooks, losses, private, recompute
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.optimizer import (
    Update,
    check_hyperparameters,
    holding_scope,
    hyperparameters,
    optimizers_of,
)
from dream.adapters.keras.update import batch_norm
from dream.collectives import Communicator
from dream.mixed.consistency import Account, kind
from dream.mixed.consistency import agree as agree_with
from dream.model_description.layout import Layout, check_same, unnumbered

_SMALL = 1 << 16
"""Bytes from which on an array is not worth copying."""


def build(model: Any, engine: Engine, example: Any) -> None:
    """Build what is not built yet, and refuse what cannot be exact.

    example: a batch as the model is given it, of any length; None where all is built.
    """
    checks.check_metrics(model)
    if engine.parts > 1:
        checks.check_stateless(model)
    batch_norm.synchronise(model, engine)
    with engine.creating(), hooks.noting_assigned() as assigned:
        if example is not None:
            _rehearse(model, engine, example, _not_by_call(model, example))
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    _say_assigned(model, engine, assigned)
    recompute.adopt(model, engine)
    checks.check_metrics_start(model)
    checks.check_reduced(model)
    losses.adopt(model, engine.update_options.strict)


def awaits_step(model: Any, engine: Engine) -> bool:
    """Whether the first step of the user's own is to make variables that nothing else makes."""
    others = [o for o in optimizers_of(model) if o is not model.optimizer and not o.built]
    parts = not private.has_call(model) and private.unbuilt_parts(model)
    return bool(parts or (others and engine.pooled))


def _not_by_call(model: Any, example: Any) -> Exception | None:
    """Build a model by a call on the batch's x; return why that cannot be, where a step of the
    user's own may call it otherwise."""
    try:
        private.build(model, private.symbolic(example))
    except NotImplementedError as error:
        raise Unsupported(
            "A model, its loss and its metrics are made on shapes before the first batch. "
            f"Received: {type(model).__name__}, of which something takes numbers out of "
            f"tensors: {error} Compute by keras.ops, or after predict."
        ) from error
    except (RuntimeError, ValueError) as error:
        if type(model).train_step is keras.Model.train_step:
            raise
        return error
    return None


def _rehearse(model: Any, engine: Engine, example: Any, unbuilt: Exception | None) -> None:
    """Have a step of the user's own make what else it makes when it is first taken: variables of
    parts that are called in it alone, and states of optimizers beside the model's. unbuilt: why a
    call did not make those of the model."""
    if unbuilt is None and not awaits_step(model, engine):
        return
    parts = private.unbuilt_parts(model)
    updates: list[Update] = []

    def step(batch: Any) -> None:
        with holding_scope(1.0) as held:
            type(model).train_step(model, batch)
        updates.extend(held)

    try:
        engine.rehearse(step, private.symbolic(example))
    except Exception as error:
        if unbuilt is not None:
            raise unbuilt from error
        raise ConfigurationError(
            "A model that has no call() cannot make the variables of its parts before it trains. "
            f"Received: {type(model).__name__}, whose {', '.join(parts) or 'optimizers'} have none "
            f"yet, and whose train_step, tried before the first, raised {type(error).__name__}. "
            "Begin them with keras.Input, or build them."
        ) from error
    for update in updates:
        if not update.optimizer.built:
            update.optimizer.build(update.variables or model.trainable_variables)


def _say_assigned(model: Any, engine: Engine, assigned: Sequence[Any]) -> None:
    """Say of an optimizer whose `build` assigns its variables, which plain Keras on TensorFlow
    traces into the step."""
    known = {id(v): o for o in optimizers_of(model) for v in o.variables}
    found = next((v for v in assigned if id(v) in known), None)
    if found is None or engine.framework != "tensorflow":
        return
    said = (
        f"{type(known[id(found)]).__name__}.build is called once, before the first step. Received: "
        f"one that assigns {found.name!r}. Plain Keras on TensorFlow traces it into the step, and "
        "assigns that again in each. To have the same without dream, build the optimizer before "
        "fit, or make its variables with initializer="
    )
    if engine.update_options.strict:
        raise Unsupported(f"{said}.")
    warn_once(said)


def metric_values(model: Any) -> list[Any]:
    """Return the states of all metrics, as nested lists."""
    return [np.asarray(v.numpy()).tolist() for v in metric_states(model)]


def set_metric_values(model: Any, values: Sequence[Any]) -> None:
    """Set the states of all metrics, where these are of metrics alike."""
    variables = metric_states(model)
    arrays = [np.asarray(value, str(v.dtype)) for v, value in zip(variables, values, strict=False)]
    if [a.shape for a in arrays] == [_shape(v) for v in variables]:
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)
    else:
        logger.info("this fit has other metrics than the one that it goes on with, so the logs of "
                    "its first epoch are of that epoch's rest")  # fmt: skip


def agree(model: Any, engine: Engine) -> None:
    """Compare the variables of the model and its optimizers over the ranks, and take rank 0's
    values: before fit and its like, which add up metrics beside what a step does."""
    optimizers = optimizers_of(model)
    if not engine.mixed:
        agree_on(model, optimizers, engine)
        return
    summed = [*model.trainable_variables, *metric_states(model), *statistics_of(model)]
    mine = Account(
        engine.framework, "fit", by_name(model.weights), by_name(summed), states_layout(optimizers)
    )
    agree_with(engine.communicator, mine)
    take_weights(model, engine)


def agree_on(model: Any, optimizers: Sequence[Any], engine: Engine) -> None:
    """Do the same between ranks of one framework."""
    layout = [*by_name(model.weights), *states_layout(optimizers)]
    said = engine.communicator.all_gather_object((layout, hyperparameters(optimizers)))
    check_same([layouts for layouts, _ in said])
    check_hyperparameters([own for _, own in said])
    variables = [*model.weights, *(v for o in optimizers for v in o.variables)]
    take_rank_0s([*variables, *seeds_of(model)], engine.communicator, together=True)


def take_weights(model: Any, engine: Engine) -> float:
    """Take rank 0's weights and optimizer states on every rank; return how far this rank's weights
    were from them."""
    states = [v for o in optimizers_of(model) for v in o.variables]
    take_rank_0s(states, engine.communicator)
    return take_rank_0s(model.weights, engine.communicator)


def take_rank_0s(
    variables: Sequence[Any], communicator: Communicator, *, together: bool = False
) -> float:
    """Take rank 0's values in every rank's variables; return how far this rank's were from them.
    together: the small ones travel end to end, which ranks of another framework would not."""
    own = [np.asarray(v.numpy()) for v in variables]  # of one with a copy on every device, too
    kinds = [a.astype(kind(a.dtype.name), copy=False) for a in own]
    values = _rank_0s(kinds, communicator) if together else communicator.broadcast(kinds)
    if communicator.rank == 0:
        return 0.0
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return max((difference(a, b) for a, b in zip(own, values, strict=True)), default=0.0)


def _rank_0s(arrays: Sequence[NDArray[Any]], communicator: Communicator) -> list[NDArray[Any]]:
    """Return rank 0's arrays. The small ones travel as bytes, joined: each by itself would take
    some eager operations of a framework's at every fit's start."""
    large = [i for i, array in enumerate(arrays) if not 0 < array.nbytes < _SMALL]
    small = [i for i, array in enumerate(arrays) if 0 < array.nbytes < _SMALL]
    if not small:
        return list(communicator.broadcast(arrays))
    ends = np.cumsum([arrays[i].nbytes for i in small], dtype=int)
    joined = np.frombuffer(b"".join(arrays[i].tobytes() for i in small), np.uint8)
    together, *alone = communicator.broadcast([joined, *(arrays[i] for i in large)])
    found = dict(zip(large, alone, strict=True))
    for i, end in zip(small, ends, strict=True):
        own = arrays[i]
        found[i] = together[end - own.nbytes : end].copy().view(own.dtype).reshape(own.shape)
    return [found[i] for i in range(len(arrays))]


def difference(own: NDArray[Any], first: NDArray[Any]) -> float:
    """Return the largest difference of two arrays, in times of the largest value, or of 1."""
    if not own.size or own.dtype.kind != "f":
        return 0.0
    return float(np.abs(own - first).max() / max(1.0, np.abs(first).max()))


def by_name(variables: Iterable[Any]) -> Layout:
    return [(unnumbered(v.path), _shape(v), str(v.dtype)) for v in variables]


def states_layout(optimizers: Sequence[Any]) -> Layout:
    """Lay out optimizer states by place, since their names tell of the weights once more."""
    return [
        (f"{type(o).__name__} {index}", _shape(v), str(v.dtype))
        for o in optimizers
        for index, v in enumerate(o.variables)
    ]


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in variable.shape)


def metric_states(model: Any) -> list[Any]:
    """Return the variables of all metrics of the model, each once. They are sums over samples, so
    those of all parts add up to the global ones."""
    return list({id(v): v for metric in model.metrics for v in metric.variables}.values())


def statistics_of(model: Any) -> list[Any]:
    """Return the floating point states that training changes beside gradients: BatchNorm's and the
    like. Frozen layers keep theirs."""
    found = {
        id(v): v
        for layer in private.layers_of(model)
        if layer.trainable
        for v in private.own_states(layer)
        if "float" in str(v.dtype)
    }
    return list(found.values())


def plain_variables(model: Any) -> list[Any]:
    """Return variables of the framework's own that layers hold, alone or in a list or dict, which
    Keras does not know."""
    layers = private.layers_of(model)
    known = {id(each) for v in model.variables for each in (v, v.value)}
    held = (v for layer in layers for each in vars(layer).values() for v in _listed(each))
    found = {id(v): v for v in held if _is_variable(v)}
    # of torch's modules within layers; a dict of buffers lies in every layer
    inner = (m for layer in layers if hasattr(layer, "modules") for m in layer.modules())
    buffers = (b for m in inner for b in m.buffers(recurse=False))
    found |= {id(b): b for b in buffers}
    return [v for key, v in found.items() if key not in known and not isinstance(v, keras.Variable)]


def put(variable: Any, value: NDArray[Any]) -> None:
    """Set a variable of the framework's own."""
    if hasattr(variable, "assign"):
        variable.assign(value)
    else:
        variable.data.copy_(keras.ops.convert_to_tensor(value))


def _listed(held: Any) -> Iterable[Any]:
    if isinstance(held, dict):
        return held.values()
    return held if isinstance(held, (list, tuple)) else (held,)


def _is_variable(value: Any) -> bool:
    """Whether this is TensorFlow's, or a tensor that torch gives a gradient to."""
    own = all(callable(getattr(value, name, None)) for name in ("assign", "numpy"))
    return own or bool(getattr(value, "is_leaf", False) and getattr(value, "requires_grad", False))


def seeds_of(model: Any) -> list[Any]:
    """Return the states of the seed generators that the model's layers, or Keras, draw from."""
    generators = [g for layer in private.layers_of(model) for g in private.own_seeds(layer)]
    return list({id(g): g.state for g in (*generators, private.shared_seed()) if g}.values())


@final
class SeedWatch:
    """Finds out whether a model has drawn random numbers since this was made."""

    def __init__(self, model: Any) -> None:
        self._before = [(v, keras.ops.convert_to_numpy(v.value)) for v in seeds_of(model)]

    def undone(self) -> bool:
        """Have it draw the same again, where it has; whether it had."""
        moved = [
            (state, value)
            for state, value in self._before
            if not np.array_equal(keras.ops.convert_to_numpy(state.value), value)
        ]
        for state, value in moved:
            state.assign(value)
        return bool(moved)


def part_seeds(model: Any, rank: int) -> None:
    """Have replicas that step alone draw other masks: seed generators move by the rank, rank 0's
    stay."""
    for state in seeds_of(model) if rank else ():
        state.assign(state + keras.ops.convert_to_tensor([rank, 0], state.dtype))


def report_local_statistics(model: Any, engine: Engine | None = None) -> None:
    """Log one line about layers whose batch statistics are each replica's own."""
    whole = engine is not None and engine.synchronises
    inner = [] if engine is None else [type(norm).__name__ for norm in engine.norms_of(model)]
    local = [] if whole else [*local_statistics(model), *inner]
    if local:
        logger.info(
            "%s normalises each replica's share by itself, which cannot equal one device; moving "
            "statistics are the mean over the replicas", ", ".join(local),
        )  # fmt: skip


def drawing_layers(model: Any) -> list[str]:
    """Name the layers that draw random numbers."""
    return [layer.name for layer in private.layers_of(model) if _draws(layer)]


def _draws(layer: Any) -> bool:
    if not private.own_seeds(layer):
        return False
    if hasattr(layer, "recurrent_dropout"):  # a cell, which has a seed for all cases
        return bool(layer.dropout or layer.recurrent_dropout)
    return True


def report_micro_draws(model: Any, engine: Engine) -> None:
    """Log one line where random numbers are drawn for micro-batches."""
    drawing = drawing_layers(model)
    if engine.update_options.accumulates and drawing:
        logger.info(
            "%s draws for each micro-batch by itself, so that masks and noise are not those of a "
            "whole batch on one device. Received: accumulate=%d. Remove accumulate for those",
            ", ".join(drawing), engine.update_options.micros,
        )  # fmt: skip


def local_statistics(model: Any) -> list[str]:
    """Name the layers that normalise each replica's share by itself."""
    return [layer.name for layer in batch_norm.layers_of(model) if not layer.synchronized]
