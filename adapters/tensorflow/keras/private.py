"""Private names of Keras's TensorFlow backend. Read off Keras 3.15, and held by
tests/adapters/keras/test_keras_private.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any

from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

_LOCAL_UPDATE = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
)


def update_own_copy(optimizer: Any) -> None:
    """Have each replica update its own copy of the variables by the global gradients, as an
    optimizer on one device does. Keras's way, through all replicas at once, adds the gradients up
    again and cannot stand in a condition, as accumulation and averaging need it to."""
    for name in _LOCAL_UPDATE:
        own = getattr(type(optimizer), name)
        of_one_device = getattr(BaseOptimizer, name)
        if own is not getattr(TFOptimizer, name):  # Nadam's, Muon's
            of_one_device = _past_all_replicas(own)
        setattr(optimizer, name, MethodType(of_one_device, optimizer))


def _past_all_replicas(method: Any) -> Any:
    """A class's own method, whose super() is Keras's on one device."""
    code = method.__code__
    cells = zip(code.co_freevars, method.__closure__ or (), strict=True)
    found = (CellType(TFOptimizer) if name == "__class__" else cell for name, cell in cells)
    return FunctionType(
        code, method.__globals__, method.__name__, method.__defaults__, tuple(found)
    )


def strategy_of(item: Any) -> Any:
    """Return the tf.distribute strategy that a model or an optimizer was made under; None for a
    model made under none."""
    if isinstance(item, BaseOptimizer):
        return item._distribution_strategy
    return item._distribute_strategy


@contextmanager
def under_no_strategy(model: Any) -> Iterator[None]:
    """Inside, Keras's trainer predicts under the strategy that its thread is in."""
    strategy, function = model._distribute_strategy, model.predict_function
    model._distribute_strategy = model.predict_function = None
    try:
        yield
    finally:
        model._distribute_strategy, model.predict_function = strategy, function


def skip_symbolic_build(model: Any) -> None:
    """Have Keras's trainer read no batch to build the model: dream has built it."""

    def skip(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Do nothing."""

    model._maybe_symbolic_build = MethodType(skip, model)


def put_in_place(variable: Any, made: Any) -> None:
    """Have a Keras variable be kept by another of TensorFlow's. Optimizers know a variable by
    TensorFlow's number for it, which stays."""
    made._unique_id = variable._value._unique_id
    variable._value = made
