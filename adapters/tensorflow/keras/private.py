"""Private names of Keras's TensorFlow backend, all that dream needs. Read off Keras 3.15; pinned
to >=3.15,<3.16 in pyproject.toml, and held by tests/adapters/keras/test_private_names.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from keras.src.backend.tensorflow.core import Variable
from keras.src.losses import loss as loss_module
from keras.src.optimizers.base_optimizer import BaseOptimizer

_SCALING = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
_lock = threading.Lock()
_depth = 0
_kept: dict[str, Any] = {}


@contextmanager
def unscaled_losses() -> Iterator[None]:
    """Inside, a replica's loss is the mean over its own samples: Keras does not divide it by the
    number of replicas. The replicas' steps are traced by turns, each in a thread."""
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            for name in _SCALING:
                _kept[name] = getattr(loss_module, name)
                setattr(loss_module, name, _as_it_is)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for name in _SCALING:
                    setattr(loss_module, name, _kept.pop(name))


def _as_it_is(value: Any) -> Any:
    return value


_LOCAL = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
)


def updates_own_copy(optimizer: Any) -> None:
    """Each replica updates its own copy of the variables by the global gradients, as an optimizer
    on one device does. Keras's way, through all replicas at once, adds the gradients up again
    and cannot stand in a condition, as accumulation and averaging need it to."""
    for name in _LOCAL:
        setattr(optimizer, name, MethodType(getattr(BaseOptimizer, name), optimizer))


def strategy_of(item: Any) -> Any:
    """The tf.distribute strategy that a model or an optimizer was made under; None for a model
    made under none."""
    if isinstance(item, BaseOptimizer):
        return item._distribution_strategy
    return item._distribute_strategy


def built_already(model: Any) -> None:
    """Keras's trainer does not read a batch to build the model: dream has built it."""

    def skip(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Nothing to do."""

    model._maybe_symbolic_build = MethodType(skip, model)


def put_in_place(variable: Any, made: Any) -> None:
    """Have a Keras variable be kept by another of TensorFlow's. Optimizers know a variable by
    TensorFlow's number for it, which stays."""
    made._unique_id = variable._value._unique_id
    variable._value = made


@contextmanager
def kept_by(make: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Inside, a new Keras variable is kept by what `make(variable, value)` gives, where that is not
    None. value: gives its first value."""
    own = Variable._initialize

    def initialize(self: Any, value: Any) -> None:
        made = make(self, value if callable(value) else lambda: value)
        own(self, value if made is None else made)

    Variable._initialize = initialize
    try:
        yield
    finally:
        Variable._initialize = own


def compiled_loss(model: Any) -> Any:
    """What computes the loss that a model was compiled with, of (y, y_pred, sample_weight)."""
    return model._compile_loss


def made_by(tensor: Any) -> Any:
    """The layer or operation that a KerasTensor comes from."""
    return tensor._keras_history.operation
