"""Keras's private names by which a model's graph is run call by call, and of what its own step
updates. Read off Keras 3.15, and held by tests/adapters/keras/test_keras_private.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import tree
from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE
from keras.src.backend.common.masking import set_keras_mask
from keras.src.models.functional import Functional, operation_fn, unpack_singleton

from dream.adapters.keras import private


def wrap_call(layer: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have a layer compute by `make(call)`, whatever its call is by now."""
    private.replace_call(layer, lambda call: call)  # what waits for its first call is left out
    object.__setattr__(layer, "call", make(layer.call))


def graph_of(model: Any) -> Any | None:
    """Return the graph of layers' calls that a model runs, if Keras runs it as it is."""
    if isinstance(model, keras.Sequential):
        return model._functional if type(model).call is keras.Sequential.call else None
    return model if isinstance(model, Functional) and type(model).call is Functional.call else None


def calls_in(graph: Any) -> list[Any]:
    """Return the calls of a graph in the order in which Keras makes them: each with its
    `operation`, `input_tensors` and `outputs`."""
    found = [call for depth in sorted(graph._nodes_by_depth, reverse=True)
             for call in graph._nodes_by_depth[depth]]  # fmt: skip
    return [call for call in found if call.operation and not call.is_input]


def make_call(call: Any, values: dict[int, Any], training: Any) -> list[Any]:
    """Make one of a graph's calls. values: of tensors, by the id of what stands for each."""
    args, kwargs = call.arguments.fill_in(values)
    return list(tree.flatten(operation_fn(call.operation, training=training)(*args, **kwargs)))


def packed(graph: Any, outputs: list[Any]) -> Any:
    """Return outputs as a model of the graph gives them."""
    return unpack_singleton(tree.pack_sequence_as(graph._outputs_struct, outputs))


def set_masks(inputs: list[Any], mask: Any) -> None:
    """Give a model's inputs the masks that it was called with."""
    for x, each in zip(inputs, [] if mask is None else tree.flatten(mask), strict=False):
        if each is not None:
            set_keras_mask(x, each)


def list_labels(model: Any, when: Callable[[], bool]) -> None:
    """Have a compiled loss take an array of labels, for one output of several, in a list of its own
    while `when()`: one with as many rows as there are outputs Keras takes for a row an output."""
    compiled = model._compile_loss
    if compiled is None or "call" in vars(compiled):
        return
    call = compiled.call

    def listed(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if when() and not tree.is_nested(y_true) and len(tree.flatten(y_pred)) > 1:
            y_true = [y_true]
        return call(y_true, y_pred, sample_weight)

    compiled.call = listed


def metrics_of_step(model: Any) -> list[Any]:
    """Return the metrics that Keras's own step updates: of the loss, and those given to compile."""
    own = (model._loss_tracker, *private.output_losses(model), model._compile_metrics)
    return private.leaf_metrics(metric for metric in own if metric is not None)


def losses_by_thread() -> tuple[str, property]:
    """Return the name under which a layer keeps the losses that calls of it add, and what keeps
    those of each thread by themselves: replicas of one process are traced by turns, each in a
    thread, and one may be in the middle of a call, as at a BatchNorm, while another is in it."""
    name, held = "_losses", threading.local()

    def kept(layer: Any) -> list[Any]:
        lists = vars(held).setdefault("lists", WeakKeyDictionary())
        found: list[Any] = lists.setdefault(layer, [])
        return found

    def keep(layer: Any, losses: list[Any]) -> None:
        vars(layer)[name] = losses  # for when nobody is inside
        kept(layer)[:] = losses

    return name, property(kept, keep)


def narrower_types() -> dict[str, str]:
    """Return Keras's table of what operations on types of 64 bits give: 32, but on TensorFlow."""
    found: dict[str, str] = BIT64_TO_BIT32_DTYPE
    return found


@contextmanager
def assigning_trained(model: Any, scope: Any) -> Iterator[None]:
    """Have what the model trains be assigned itself inside a rehearsal, whose gradient is asked of
    frameworks then, as where a layer normalises its kernel; its values are put back. scope: the
    rehearsal's."""
    trained, own = {id(v): v for v in model.trainable_variables}, scope.add_update
    before: dict[int, Any] = {}

    def add_update(update: Any) -> None:
        variable, value = update
        if id(variable) not in trained:
            own(update)
            return
        if id(variable) not in before:
            before[id(variable)] = np.array(keras.ops.convert_to_numpy(variable))
        variable._direct_assign(value)

    scope.add_update = add_update
    try:
        yield
    finally:
        for known, value in before.items():
            trained[known]._direct_assign(keras.ops.convert_to_tensor(value))
